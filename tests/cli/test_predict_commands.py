"""`silo score`, `silo generate` and `silo store tune` as people and scripts see them, and the same by `silo.open`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import silo
from silo.cli import main
from tests.conftest import record, write_jsonl
from tests.inference.world import TEXTS, make_model, make_store

PROMPT = "The quick brown fox"
VALIDATION = [
    "The quick brown fox jumps over the wide sea. The licensee shall not sell the tea.",
    "Hot water is poured over the lazy dog. The ship sails over the leaves of tea.",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `my-model`, `my-store` and two files of text."""
    root = tmp_path_factory.mktemp("place")
    model = make_model(root).rename(root / "my-model")
    make_store(root / "my-store", model).close()
    write_jsonl(root / "validation.jsonl", [record(str(n), text) for n, text in enumerate(VALIDATION)])
    write_jsonl(root / "test.jsonl", [record("a", "The lazy dog sleeps over the wide sea.")])
    return root


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(place)

    def call(*arguments: str, status: int = 0) -> Any:
        assert main([*arguments, "--json"]) == status
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def write(run: Any) -> Any:
    def call(prompt: str, *options: str, status: int = 0) -> Any:
        shared = ("--model", "my-model", "--store", "my-store", "--lambda", "0.8", "--tau", "20", "--max-tokens", "16")
        return run("generate", prompt, *shared, *options, status=status)

    return call


def test_score_prints_its_figures_and_a_store_helps(run: Any) -> None:
    alone = run("score", "--model", "my-model", "--jsonl", "validation.jsonl")
    assert {"tokens", "perplexity", "bits_per_byte", "tokens_per_second"} <= set(alone)
    assert (alone["tokens"], alone["method"], alone["lm_share"]) == (sum(map(len, VALIDATION)), "lm", 1.0)
    helped = run("score", "--model", "my-model", "--store", "my-store", "--jsonl", "validation.jsonl")
    assert helped["method"] == "knn+ngram"
    assert helped["perplexity"] < alone["perplexity"] and helped["lm_share"] < 1
    assert run("score", "--model", "my-model", "--store", "my-store", "--method", "ric", "--jsonl", "test.jsonl")


def test_notes_that_are_mostly_masked_are_not_scored(run: Any, tmp_path: Path) -> None:
    notes = tmp_path / "notes.jsonl"
    write_jsonl(notes, [record("m", "[**Name**] [**Hospital**] seen"), record("p", "not masked")])
    assert run("score", "--model", "my-model", "--jsonl", str(notes))["tokens"] == len("not masked")
    assert run("lm", "eval", "my-model", "--jsonl", str(notes))["tokens"] == len("not masked")


def test_score_has_a_table_for_people(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "--model", "my-model", "--jsonl", "test.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("tokens", "perplexity", "bits_per_byte", "tokens_per_second"))


def test_every_token_says_whose_it_is(write: Any) -> None:
    found = write(PROMPT)
    assert (found["finish_reason"], len(found["tokens"])) == ("length", 16)
    assert found["text"] == "".join(token["text"] for token in found["tokens"])
    for token in found["tokens"]:
        assert token["lm_share"] + sum(item["share"] for item in token["credits"]) == 1.0
        assert token["logprob"] <= 0
    assert found["lm_share"] + sum(found["documents"].values()) == pytest.approx(1.0)
    assert set(found["owners"]) <= {name[0] for name in TEXTS}


@pytest.mark.parametrize("method", ["knn", "ngram", "knn+ngram"])
def test_a_greedy_text_has_the_log_probabilities_of_score(write: Any, run: Any, tmp_path: Path, method: str) -> None:
    found = write(PROMPT, "--method", method)["tokens"]
    whole = PROMPT + "".join(token["text"] for token in found)
    text = write_jsonl(tmp_path / "text.jsonl", [record("a", whole)])
    shared = ("--model", "my-model", "--store", "my-store", "--lambda", "0.8", "--tau", "20", "--method", method)
    run("score", *shared, "--jsonl", str(text), "--details", str(tmp_path / "details"))
    details = [json.loads(line) for line in (tmp_path / "details").read_text().splitlines()][-len(found) :]
    assert [item["token"] for item in details] == [token["token"] for token in found]
    for name in ("logprob", "lm_share"):
        assert [item[name] for item in details] == pytest.approx([token[name] for token in found], abs=1e-4)


def test_people_read_the_text_and_a_table(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", "my-model", "--store", "my-store", "--method", "ngram", "--max-tokens", "12")
    assert main(["generate", "The sea is wide and the sea", *options]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("The sea is wide and the sea is ")
    assert "the language model" in shown and "ended by length" in shown and "CC-BY-4.0" in shown
    assert "name s as the author" in shown


def test_a_policy_says_who_may_contribute(write: Any) -> None:
    found = write(PROMPT, "--policy", 'license == "mit" and owner != "f"')
    assert {item["external_id"] for token in found["tokens"] for item in token["credits"]} == {"dog"}
    assert found["policy"] == 'license == "MIT" and owner != "f"'
    nobody = write(PROMPT, "--policy", "tier in []")
    assert nobody["lm_share"] == 1.0 and nobody["documents"] == {}


def test_the_guard_keeps_runs_short(write: Any) -> None:
    prompt = "The licensee shall not"
    free, kept = write(prompt, "--method", "ngram"), write(prompt, "--method", "ngram", "--guard", "4")
    assert prompt + free["text"] in TEXTS["law"]
    whole = [*prompt.encode(), *(token["token"] for token in kept["tokens"])]
    runs = {bytes(whole[at : at + 5]) for at in range(len(prompt) - 4, len(whole) - 4)}
    assert runs and not any(run in text.encode() for run in runs for text in (TEXTS["law"], TEXTS["tea"]))


def test_a_stop_string_ends_the_text_before_it(write: Any) -> None:
    plain = write(PROMPT, "--method", "ngram")["text"]
    found = write(PROMPT, "--method", "ngram", "--stop", plain[6:9], "--stop", "never")
    assert (found["text"], found["finish_reason"]) == (plain[: plain.index(plain[6:9])], "stop")


def test_a_seed_repeats_a_text(write: Any) -> None:
    def text(seed: str) -> str:
        found: str = write(PROMPT, "--temperature", "1.5", "--top-k", "50", "--top-p", "0.95", "--seed", seed)["text"]
        return found

    assert text("1") == text("1")
    assert len({text(str(seed)) for seed in range(4)}) > 1


def test_neighbours_are_shown_with_their_text(write: Any) -> None:
    (token,) = write(PROMPT, "--neighbours", "2", "--max-tokens", "1")["tokens"]
    assert [set(item) for item in token["neighbours"]] == [
        {"document", "left", "continuation", "distance", "weight"}
    ] * 2


def test_the_prompt_may_come_from_standard_input(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PROMPT.encode())))
    assert write("-") == write(PROMPT)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    assert write("-", status=3)["error"]["code"] == "utf8-invalid"


def test_the_ledger_holds_what_the_answer_says(place: Path, write: Any, run: Any) -> None:
    make_store(place / "noted", place / "my-model").close()
    assert run("credits", "noted", status=3)["error"]["code"] == "input-missing"
    found = write(PROMPT, "--store", "noted", "--ledger")
    noted = run("credits", "noted")
    assert (noted["requests"], noted["tokens"]) == (1, 16)
    second = [item for token in found["tokens"] for item in token["credits"]]
    assert 0 < sum(item["tokens"] for item in noted["owners"]) <= sum(item["share"] for item in second)
    assert noted["language_model"]["share"] >= found["lm_share"]
    assert PROMPT not in (place / "noted" / "ledger.jsonl").read_text()
    write(PROMPT, "--store", "noted")
    assert run("credits", "noted")["requests"] == 1


def test_tuned_settings_are_used_by_name(place: Path, run: Any, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path))
    shared = ("--model", "my-model", "--jsonl", "validation.jsonl")
    tuned = run("store", "tune", "my-store", *shared, "--save", "mine", "--k", "16", *home)
    assert Path(tuned["settings"]) == tmp_path / "settings" / "mine.json"
    origin = json.loads(Path(tuned["settings"]).read_text())["origin"]
    assert set(origin["files"]) == {"validation.jsonl"} and origin["figures"]["lm"] == tuned["lm"]
    for method in ("knn", "ngram", "knn+ngram"):
        found = run("score", *shared, "--store", "my-store", "--method", method, "--settings", "mine", *home)
        assert found["perplexity"] == pytest.approx(tuned[method]["all"], rel=1e-5)
        assert found["perplexity"] <= tuned["lm"]
    assert main(["store", "tune", "my-store", *shared, "--save", "mine", "--k", "16", *home]) == 0


@pytest.mark.parametrize(
    ("options", "code", "status"),
    [
        (("--store", "nothing-here"), "not-a-store", 3),
        (("--model", "nothing-here"), "input-missing", 3),
        (("--model", "my-store"), "not-a-model", 3),
        (("--encoder", "other/model"), "store-mismatch", 5),
        (("--policy", "tier <= 'by' and"), "policy-invalid", 2),
        (("--policy", "color == 'red'"), "policy-invalid", 2),
        (("--settings", "unheard-of"), "settings-missing", 3),
        (("--settings", "../x"), "settings-invalid", 2),
        (("--lambda", "1.5"), "settings-invalid", 2),
        (("--k", "0"), "settings-invalid", 2),
        (("--tau", "nan"), "settings-invalid", 2),
        (("--ric", "odd"), "usage", 2),
        (("--method", "magic"), "usage", 2),
        (("--max-tokens", "0"), "usage", 2),
        (("--temperature", "-1"), "usage", 2),
        (("--seed", "-1"), "usage", 2),
        (("--guard", "0"), "usage", 2),
    ],
)
def test_errors_have_their_code_and_status(
    place: Path, write: Any, options: tuple[str, ...], code: str, status: int
) -> None:
    if "other/model" in options and not (place / "other").exists():
        make_model(place / "other", seed=2)
    assert write(PROMPT, *options, status=status)["error"]["code"] == code


def test_what_needs_a_store_says_so(run: Any, tmp_path: Path) -> None:
    for options in (("--method", "knn"), ("--guard", "4")):
        error = run("generate", PROMPT, "--model", "my-model", *options, status=2)["error"]
        assert (error["code"], "needs a store" in error["message"]) == ("usage", True)
    run("store", "create", str(tmp_path / "s"), "--model", "my-model", "--search", "bm25")
    shared = ("generate", PROMPT, "--model", "my-model", "--store", str(tmp_path / "s"), "--max-tokens", "1")
    for options in (("--method", "knn"), ("--method", "ngram"), ("--guard", "1")):
        assert run(*shared, *options, status=2)["error"]["code"] == "search-missing"


def test_tuning_on_a_test_split_is_refused(run: Any) -> None:
    tune = ("store", "tune", "my-store", "--model", "my-model", "--save", "mine", "--jsonl", "test.jsonl")
    assert run(*tune, status=5)["error"]["code"] == "tuning-refused"


def test_silo_open_does_what_the_commands_do(place: Path, run: Any) -> None:
    run("store", "tune", "my-store", "--model", "my-model", "--jsonl", "validation.jsonl", "--save", "s")
    shared = ("--model", "my-model", "--store", "my-store", "--settings", "s", "--policy", 'tier <= "by"')
    found = run("generate", PROMPT, *shared, "--max-tokens", "16", "--guard", "9")
    session = silo.open(place / "my-model", [place / "my-store"], settings="s", policy='tier <= "by"', threads=1)
    assert [step.as_json() for step in session.generate(PROMPT, max_tokens=16, guard=9)] == found["tokens"]
    assert session.answer(PROMPT, max_tokens=16, guard=9).as_json() == found
    scored = run("score", *shared, "--jsonl", "validation.jsonl")
    assert session.score(VALIDATION).total.perplexity == scored["perplexity"]
    assert session.score(VALIDATION[0]).total == session.score(VALIDATION[:1]).total


def test_importing_silo_is_cheap() -> None:
    code = "import sys, silo; silo.open; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "silo.inference"} & set(loaded)
