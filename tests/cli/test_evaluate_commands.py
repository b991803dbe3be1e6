"""`silo eval tasks` as people and scripts see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from silo.cli import main
from silo.inference.settings import Settings, save_settings
from silo.pairing import create_store
from tests.evaluation.tasks.folders import EXAMPLES, LETTERS, WORDS, write_task
from tests.inference.world import make_model, make_store


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("place")
    make_store(root / "store", make_model(root)).close()
    write_task(root / "tasks" / "letters", LETTERS)
    write_task(root / "tasks" / "words", WORDS, validation=EXAMPLES)
    write_task(root / "broken" / "mine", {**LETTERS, "label_words": []})
    create_store(root / "plain", root / "model", searches=("bm25",)).close()
    return root


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(place)

    def call(*options: str, status: int = 0, tasks: str = "tasks") -> Any:
        shared = ("eval", "tasks", "--model", "model", "--tasks", tasks, "--k", "64")
        assert main([*shared, *options, "--json"]) == status
        return json.loads(capsys.readouterr().out)

    return call


def test_all_methods_that_the_store_offers_are_reported(run: Any) -> None:
    found = run("--store", "store")
    assert list(found["tasks"]) == ["letters", "words"] and found["bootstrap"]["resamples"] == 1000
    for task in found["tasks"].values():
        assert list(task["methods"]) == ["lm", "knn", "ngram", "knn+ngram", "ric"]
        for method in task["methods"].values():
            low, high = method["interval"]
            assert low <= method["accuracy"] <= high and method["n"] == task["n"]
            assert set(method["rows"]) >= {"plain", "pmi"}
    assert found["tasks"]["words"]["methods"]["knn"]["settings_from"] == "the other half of validation"
    assert found == run("--store", "store")


def test_without_a_store_it_is_the_model_alone(run: Any) -> None:
    assert list(run()["tasks"]["letters"]["methods"]) == ["lm"]
    chosen = run("--store", "store", "--method", "ngram", "--expand", "--limit", "3", "--split", "validation")
    assert list(chosen["average"]) == ["lm", "ngram"]
    assert "expanded" in chosen["tasks"]["letters"]["methods"]["lm"]["rows"]
    assert chosen["tasks"]["letters"]["n"] == 3


def test_the_label_of_every_example_can_be_written(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "examples.jsonl"
    found = run("--store", "store", "--method", "ngram", "--examples", str(file), tasks="tasks/letters")
    written = [json.loads(line) for line in file.read_text().splitlines()]
    for method, figures in found["tasks"]["letters"]["methods"].items():
        right = [item["predicted"][method]["plain"] == item["label"] for item in written]
        assert sum(right) / len(right) == figures["rows"]["plain"]["accuracy"]
    run("--examples", str(tmp_path / "nowhere" / "examples.jsonl"), status=3)


def test_named_settings_are_used_as_they_are(run: Any, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path))
    save_settings(tmp_path, "mine", {name: Settings(k=20) for name in ("knn", "ngram", "knn+ngram")}, {})
    found = run("--store", "store", "--settings", "mine", *home, tasks="tasks/letters")
    assert found["tasks"]["letters"]["methods"]["knn"]["settings_from"] == "named"


def test_people_read_a_table(place: Path, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "tasks", "--model", "model", "--store", "store", "--tasks", "tasks", "--k", "16"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("letters", "knn+ngram", "pmi+fuzzy", "average", "reported on"))


@pytest.mark.parametrize(
    ("options", "code", "status"),
    [
        (("--tasks", "nowhere"), "input-missing", 3),
        (("--tasks", "store"), "input-empty", 3),
        (("--tasks", "broken"), "task-invalid", 3),
        (("--method", "knn"), "usage", 2),
        (("--method", "magic"), "usage", 2),
        (("--shots", "4"), "usage", 2),
        (("--limit", "-1"), "usage", 2),
        (("--split", "test"), "input-missing", 3),
        (("--store", "nowhere"), "not-a-store", 3),
        (("--store", "plain", "--method", "knn"), "search-missing", 2),
        (("--store", "store", "--settings", "unheard-of"), "settings-missing", 3),
        (("--store", "store", "--k", "0"), "settings-invalid", 2),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_opened(
    run: Any, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], code: str, status: int
) -> None:
    monkeypatch.setattr("silo.lm.model.LanguageModel.open", lambda *_, **__: pytest.fail("a model was opened"))
    assert run(*options, status=status)["error"]["code"] == code


def test_a_malformed_task_is_found_without_torch(place: Path) -> None:
    folder = place / "broken" / "mine"
    code = (
        "import sys; from silo.cli import main;"
        f"print(main(['eval', 'tasks', '--model', 'm', '--tasks', {str(folder)!r}]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "False"]
    assert "label_words" in done.stderr


def test_an_empty_store_changes_nothing(place: Path, run: Any) -> None:
    if not (place / "empty").exists():
        create_store(place / "empty", place / "model").close()
    for method in run("--store", "empty", tasks="tasks/letters")["tasks"]["letters"]["methods"].values():
        assert method["difference_to_lm"] in (None, {"value": 0.0, "interval": [None, None]})
