"""What is wrong with the input of a command is said before torch is loaded, with the code of the error."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from silo.cli.arguments.parser import leaves, option_names
from silo.cli.main import build_parser
from tests.conftest import record, write_jsonl
from tests.inference.world import make_model, make_store

HEAVY = ("torch", "transformers", "accelerate")

RUN = """
import contextlib, io, json, sys
from silo.cli import main
heavy, cases = json.loads(sys.argv[1])
found = []
for command in cases:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main([*command, "--json"])
    error = json.loads(out.getvalue())["error"]
    found.append([error["code"], error["hint"], [name for name in heavy if name in sys.modules]])
print(json.dumps(found))
"""

CASES: list[tuple[str, str]] = [
    ("doctor --model nowhere", "input-missing"),
    ("ask nowhere why", "not-a-store"),
    ("ask store why --model nowhere", "input-missing"),
    ("ask store why --policy owner=", "policy-invalid"),
    ("chat nowhere", "not-a-store"),
    ("serve --model nowhere", "input-missing"),
    ("serve --model model --store nowhere", "not-a-store"),
    ("chat store --model nowhere", "input-missing"),
    ("store sync nowhere --folder .", "not-a-store"),
    ("lm train none.toml --out new", "recipe-missing"),
    ("lm train misspelt.toml --out new", "recipe-key"),
    ("lm train --corpus nowhere --out new", "input-missing"),
    ("lm train --corpus corpus --out model", "out-exists"),
    ("lm train --corpus corpus --out new --tiers pd,sv", "recipe-value"),
    ("lm train --corpus corpus --out new --tiers restricted", "training-refused"),
    ("lm train --corpus corpus --out new --tiers by", "input-empty"),
    ("lm train --corpus corpus --out new --tiers pd --preset dem", "usage"),
    ("lm train --corpus corpus --out new --tiers pd --max-tokens 5", "recipe-value"),
    ("lm train --corpus corpus --out new --tiers pd --validation none.jsonl", "input-missing"),
    ("lm train --corpus corpus --out new --tiers pd --workers 2", "usage"),
    ("lm train --corpus corpus --out new --tiers pd --workers 0 --ray auto", "usage"),
    ("lm train optimiser.toml --out new", "recipe-value"),
    ("lm train tokenizer.toml --out new", "input-missing"),
    ("lm import nowhere --out new", "input-missing"),
    ("lm import some/name --out new", "input-missing"),
    ("lm import theirs --out model", "out-exists"),
    ("lm import theirs --out store --force", "out-exists"),
    ("lm import model --out new", "usage"),
    ("lm import good.jsonl --out new", "not-a-model"),
    ("lm import theirs --out new --position none", "usage"),
    ("lm import theirs --out new --tokenizer none.json", "input-missing"),
    ("lm codec nowhere --corpus corpus", "input-missing"),
    ("lm codec model --corpus nowhere", "input-missing"),
    ("lm codec model --corpus store", "not-a-corpus"),
    ("lm codec model --corpus corpus --lists 0", "recipe-value"),
    ("lm eval nowhere --jsonl good.jsonl", "input-missing"),
    ("lm eval store --jsonl good.jsonl", "not-a-model"),
    ("lm eval model --jsonl none.jsonl", "input-missing"),
    ("lm eval model --jsonl bad.jsonl", "json-invalid"),
    ("lm eval model --jsonl good.jsonl --stride 0", "usage"),
    ("lm verify nowhere", "input-missing"),
    ("lm verify model --corpus nowhere", "input-missing"),
    ("lm verify model --key none.pem", "input-missing"),
    ("lm saw model --file none.txt", "input-missing"),
    ("lm saw model --document 12", "usage"),
    ("store create new --model nowhere", "input-missing"),
    ("store create new --model corpus", "not-a-model"),
    ("store create store --model model", "out-exists"),
    ("store create new --model model --search knn,suffix", "usage"),
    ("store create new --model plain", "codec-invalid"),
    ("store add nowhere --jsonl good.jsonl", "not-a-store"),
    ("store add store --jsonl none.jsonl", "input-missing"),
    ("store add store --folder nowhere", "input-missing"),
    ("store add store misspelt.toml", "recipe-key"),
    ("store add store unknown.toml", "recipe-value"),
    ("store add store --jsonl good.jsonl --decontaminate none.jsonl", "input-missing"),
    ("store add store --jsonl good.jsonl --rejected nowhere/file.jsonl", "input-missing"),
    ("store add store --jsonl good.jsonl --model nowhere", "input-missing"),
    ("store add store --jsonl good.jsonl --model other", "store-mismatch"),
    ("store verify store --keys --model nowhere", "input-missing"),
    ("store verify store --keys --anchor none.txt", "input-missing"),
    ("store erase store --owner f --salts nowhere/salts.json", "input-missing"),
    ("store tune nowhere --model model --jsonl good.jsonl --save x", "not-a-store"),
    ("store tune store --model nowhere --jsonl good.jsonl --save x", "input-missing"),
    ("store tune store --model model --jsonl none.jsonl --save x", "input-missing"),
    ("store tune store --model model --jsonl good.jsonl --save ../x", "settings-invalid"),
    ("store tune store --model model --jsonl test.jsonl --save x", "tuning-refused"),
    ("store tune store --model model --jsonl good.jsonl --save x --k 0", "settings-invalid"),
    ("generate x --model nowhere", "input-missing"),
    ("generate x --model model --store nowhere", "not-a-store"),
    ("generate x --model model --method knn", "usage"),
    ("generate x --model model --store store --method kn", "usage"),
    ("generate x --model model --store store --policy owner=", "policy-invalid"),
    ("generate x --model model --store store --settings mine", "settings-missing"),
    ("generate x --model model --store store --encoder nowhere", "input-missing"),
    ("generate x --model model --store store --encoder other", "store-mismatch"),
    ("generate x --model model --store store --ric basics", "usage"),
    ("generate x --model model --store store --tau 0", "settings-invalid"),
    ("generate x --model model --max-tokens 0", "usage"),
    ("generate x --model model --temperature -1", "usage"),
    ("generate x --model model --guard 0", "usage"),
    ("generate x --model model --guard 5", "usage"),
    ("score --model nowhere --jsonl good.jsonl", "input-missing"),
    ("score --model model --jsonl none.jsonl", "input-missing"),
    ("score --model model --jsonl bad.jsonl", "json-invalid"),
    ("score --model model --store store --jsonl good.jsonl --policy tierr<=1", "policy-invalid"),
    ("score --model model --jsonl good.jsonl --details nowhere/tokens.jsonl", "input-missing"),
    ("eval ppl --model nowhere --jsonl good.jsonl", "input-missing"),
    ("eval ppl --model model --jsonl none.jsonl", "input-missing"),
    ("eval ppl --model model --jsonl bad.jsonl", "json-invalid"),
    ("eval ppl --model model --jsonl good.jsonl --method knnn", "usage"),
    ("eval ppl --model model --jsonl good.jsonl --method knn", "search-missing"),
    ("eval ppl --model model --store store --jsonl good.jsonl --settings mine", "settings-missing"),
    ("eval ppl --model model --reference nowhere --jsonl good.jsonl", "input-missing"),
    ("eval ppl --model model --jsonl good.jsonl --documents nowhere/documents.jsonl", "input-missing"),
    ("eval harness --model nowhere --tasks one", "input-missing"),
    ("eval harness --model model --tasks one --include nowhere", "input-missing"),
    ("eval harness --model model --tasks ,", "usage"),
    ("eval tasks --model model --tasks nowhere", "input-missing"),
    ("eval tasks --model nowhere --tasks tasks", "input-missing"),
    ("eval tasks --model model --store store --tasks tasks --policy owner", "policy-invalid"),
    ("eval tasks --model model --store store --tasks tasks --settings mine", "settings-missing"),
    ("quickstart nowhere --model model", "input-missing"),
    ("quickstart folder --model nowhere", "input-missing"),
    ("experiment scalling", "usage"),
    ("experiment scaling --data nowhere", "input-missing"),
    ("corpus build none.toml --out new", "recipe-missing"),
    ("corpus stats nowhere", "input-missing"),
    ("credits nowhere", "not-a-store"),
    ("receipt verify none.json", "input-missing"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its corpus and a store, another model, and files good and bad."""
    root = tmp_path_factory.mktemp("errors")
    model = make_model(root / "making")
    other = make_model(root / "making-other", seed=2)
    model.rename(root / "model")
    other.rename(root / "other")
    (root / "making" / "corpus").rename(root / "corpus")
    make_store(root / "store", root / "model").close()
    shutil.copytree(root / "model", root / "theirs", ignore=shutil.ignore_patterns("manifest.json", "*.npy", "codec"))
    shutil.copytree(root / "theirs", root / "plain")
    write_jsonl(root / "good.jsonl", [record("a", "a text to be scored, with some words in it")])
    write_jsonl(root / "test.jsonl", [record("a", "a text that is not to be tuned on")])
    (root / "bad.jsonl").write_text('{"id": 1,\n')
    (root / "folder").mkdir()
    (root / "folder" / "note.txt").write_text("a note")
    (root / "misspelt.toml").write_text('corpuss = "corpus"\n')
    (root / "unknown.toml").write_text('[[source]]\nkind = "jsonll"\n')
    (root / "optimiser.toml").write_text('corpus = "corpus"\ntiers = ["pd"]\noptimiser = "adam"\n')
    (root / "tokenizer.toml").write_text('corpus = "corpus"\ntiers = ["pd"]\ntokenizer = "none.json"\n')
    task = root / "tasks" / "one"
    write_jsonl(task / "test.jsonl", [{"text": "x", "label": 0}])
    labels = {"template": "{text} It was", "label_words": ["good", "bad"]}
    (task / "task.json").write_text(json.dumps(labels))
    return root


@dataclass(frozen=True)
class Answer:
    """What a command with wrong input says, and what heavy was loaded by then."""

    code: str
    hint: str
    heavy: list[str]


@pytest.fixture(scope="module")
def answers(place: Path) -> dict[str, Answer]:
    """Of every case; one process runs all of them, for speed."""
    given = json.dumps([HEAVY, [case.split() for case, _ in CASES]])
    done = subprocess.run([sys.executable, "-c", RUN, given], capture_output=True, text=True, cwd=place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {case: Answer(*said) for (case, _), said in zip(CASES, found, strict=True)}


def test_input_errors_are_said_before_torch_is_loaded(answers: dict[str, Answer], place: Path) -> None:
    wrong = {case: answers[case] for case, code in CASES if (answers[case].code, answers[case].heavy) != (code, [])}
    assert wrong == {}
    assert not (place / "new").exists()


def test_a_hint_names_no_option_that_the_command_has_not(answers: dict[str, Answer]) -> None:
    commands = {" ".join(path): set(option_names(leaf)) for path, leaf in leaves(build_parser())}
    for case, answer in answers.items():
        known = next(options for name, options in commands.items() if case.startswith(name))
        own = re.sub(r"`[^`]*`", "", answer.hint)  # what stands there is another command
        assert set(re.findall(r"--[a-z][a-z-]*", own)) <= known | {"--help"}, f"silo {case}: {answer.hint}"


def test_every_command_that_loads_a_model_has_cases() -> None:
    """Those whose options name a model, and those that train or read one."""
    named = {" ".join(path) for path, leaf in leaves(build_parser()) if "--model" in option_names(leaf)}
    for name in sorted(named | {"lm train", "lm import", "lm codec", "lm eval", "experiment"}):
        assert any(case.startswith(name) for case, _ in CASES), name
