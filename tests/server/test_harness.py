"""Tasks of lm-evaluation-harness from local files: through the server and in this process they give equal numbers."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from silo.cli import main
from silo.inference.session import open_session
from tests.server.conftest import Served

pytestmark = pytest.mark.filterwarnings("ignore")  # those of other people's packages

TEXTS = ("The quick brown fox jumps over the lazy dog.", "The sea is wide and the ship sails over the wide sea.")
OPTIONS = "test_split: test\nmetadata: {version: 1}\n"
KINDS = {
    "choice": 'output_type: multiple_choice\ndoc_to_text: "{{text}}"\ndoc_to_choice: ["fox", "dog", "sea"]\n'
    "doc_to_target: label\nmetric_list: [{metric: acc}, {metric: acc_norm}]\n",
    "rolling": 'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{text}}"\n'
    "metric_list: [{metric: byte_perplexity}, {metric: bits_per_byte}]\n",
    "writing": 'output_type: generate_until\ndoc_to_text: "{{text}}"\ndoc_to_target: "{{answer}}"\n'
    'generation_kwargs: {until: ["."], max_gen_toks: 6, do_sample: false}\nmetric_list: [{metric: exact_match}]\n',
}


@pytest.fixture(scope="module")
def harness(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task of each kind; the answer to the second text is what the model writes."""
    root = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(root / "hf"))
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        pytest.importorskip("lm_eval.tasks", reason="the extra lm-eval is not installed: pip install -e '.[lm-eval]'")
    session = open_session(served.place / "model", served.place / "store", threads=1)
    rows = []
    for at, text in enumerate(TEXTS):
        said = session.answer(text[:9], max_tokens=6, stop=["."]).text
        rows.append({"text": text[:9], "label": at, "answer": said if at else "something else", "whole": text})
    for name, kind in KINDS.items():
        data = root / f"{name}.jsonl"
        texts = [{**row, "text": row["whole"]} if name == "rolling" else row for row in rows]
        data.write_text("".join(json.dumps(row) + "\n" for row in texts))
        head = f"task: tiny_{name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        (root / f"{name}.yaml").write_text(head + OPTIONS + kind)
    return root


TASKS = ["tiny_choice", "tiny_rolling", "tiny_writing"]


def test_numbers_through_the_server_equal_those_of_this_process(
    served: Served, harness: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp", reason="local-completions needs lm-eval[api]")
    pytest.importorskip("tenacity", reason="local-completions needs lm-eval[api]")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    model, store = str(served.place / "model"), str(served.place / "store")
    options = ["--tasks", ",".join(TASKS), "--include", str(harness), "--threads", "1", "--json", "--quiet"]
    assert main(["eval", "harness", "--model", model, "--store", store, *options]) == 0
    here = json.loads(capsys.readouterr().out)["results"]

    monkeypatch.setenv("OPENAI_API_KEY", served.keys["reader"])
    given = {"base_url": f"{served.address}/v1/completions", "model": "tiny", "tokenizer_backend": "remote"}
    found: Any = simple_evaluate(
        model="local-completions",
        model_args={**given, "max_length": 1000, "auth_token": served.keys["reader"], "num_concurrent": 1},
        tasks=TASKS,
        task_manager=TaskManager(include_path=str(harness), include_defaults=False),
        log_samples=False,
    )
    for task in TASKS:
        names = [name for name in here[task] if "," in name and "stderr" not in name]
        assert names and [here[task][name] for name in names] == [found["results"][task][name] for name in names]
    assert here["tiny_writing"]["exact_match,none"] == 0.5, "one answer is what the model writes, and one is not"


def test_rolling_perplexity_is_that_of_silo_score(served: Served, harness: Path) -> None:
    from lm_eval.tasks import TaskManager

    from silo.journeys.harness import HarnessOptions, evaluate_harness

    session = open_session(served.place / "model", served.place / "store", threads=1)
    manager = TaskManager(include_path=str(harness), include_defaults=False)
    found = evaluate_harness(session.predictor, HarnessOptions(("tiny_rolling",)), manager)
    logs = sum(session.score([text]).logs[1 : 1 + len(text)].sum() for text in TEXTS)
    expected = math.exp(-logs / sum(map(len, TEXTS)))
    assert found["results"]["tiny_rolling"]["byte_perplexity,none"] == pytest.approx(expected, rel=1e-12)


def test_what_cannot_be_evaluated_is_refused(served: Served, harness: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(served.place / "model")
    for options, code in [
        (["--tasks", ",", "--model", model], "usage"),
        (["--tasks", "x", "--model", model, "--include", "no-folder"], "input-missing"),
        (["--tasks", "x", "--model", "no-model"], "input-missing"),
        (["--tasks", "tiny_choice", "--model", model, "--include", str(harness), "--limit", "-1"], "usage"),
    ]:
        assert main(["eval", "harness", *options]) in (2, 3)
        assert f"[{code}]" in capsys.readouterr().err


def test_without_the_extra_it_says_how_to_get_it(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "silo.journeys.harness", raising=False)
    assert main(["eval", "harness", "--model", str(served.place / "model"), "--tasks", "x"]) == 6
    assert "silo-lm[lm-eval]" in capsys.readouterr().err
