"""Whole tasks on a small store: where settings come from, what is reported, and how sure one can be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from silo.evaluation.tasks.choose import LAMBDAS, NEIGHBOURS, STRENGTHS
from silo.evaluation.tasks.evaluate import METHODS, TaskOptions, TaskResult, evaluate_tasks
from silo.evaluation.tasks.report import describe_examples, report
from silo.evaluation.tasks.task import Example, Task, load_tasks
from silo.inference.predict import Predictor, open_predictor
from silo.inference.settings import Settings
from tests.evaluation.tasks.folders import EXAMPLES, LETTERS, WORDS, write_task
from tests.inference.world import make_model, make_store

K = 70


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    make_store(root / "store", make_model(root)).close()
    write_task(root / "tasks" / "letters", LETTERS)
    write_task(root / "tasks" / "words", WORDS, validation=EXAMPLES)
    write_task(root / "tasks" / "untuned", LETTERS, test=EXAMPLES)
    return root


@pytest.fixture(scope="module")
def predictor(place: Path) -> Predictor:
    return open_predictor(place / "model", [place / "store"], method="knn+ngram+ric", settings=Settings(k=K))


@pytest.fixture(scope="module")
def tasks(place: Path) -> dict[str, Task]:
    return {task.name: task for task in load_tasks([place / "tasks"])}


def run(predictor: Predictor, task: Task, **options: object) -> TaskResult:
    (result,) = evaluate_tasks(predictor, [task], TaskOptions(**options))  # type: ignore[arg-type]
    return result


@pytest.fixture(scope="module")
def results(predictor: Predictor, tasks: dict[str, Task]) -> dict[str, TaskResult]:
    return {name: run(predictor, task) for name, task in tasks.items()}


def test_every_method_has_every_row(results: dict[str, TaskResult]) -> None:
    assert tuple(results["letters"].rows) == METHODS
    for rows in results["letters"].rows.values():
        assert list(rows) == ["plain", "pmi", "fuzzy", "pmi+fuzzy"]
        assert all(len(row.right) == 5 for row in rows.values())
    assert list(results["words"].rows["lm"]) == ["plain", "pmi", "expanded", "pmi+expanded"]


def test_settings_are_chosen_among_all_on_validation(results: dict[str, TaskResult]) -> None:
    for method in ("knn", "knn+ngram", "ngram"):
        for row in results["letters"].rows[method].values():
            assert row.settings_from == "validation"
            (choice,) = row.choices
            if "knn" in method:
                assert choice.facts["k"] in (*NEIGHBOURS, K) and choice.facts["lambda"] in LAMBDAS
                assert (choice.settings.k, choice.settings.tau) == (choice.facts["k"], choice.facts["tau"])
            if "ngram" in method:
                assert choice.facts["ngram_strength"] in STRENGTHS
    assert results["letters"].rows["ric"]["plain"].settings_from == "none needed"


def test_settings_do_not_depend_on_the_labels_of_the_test(predictor: Predictor, tasks: dict[str, Task]) -> None:
    flipped = tuple(replace(example, label=1 - example.label) for example in tasks["letters"].splits["test"])
    other = replace(tasks["letters"], splits={**tasks["letters"].splits, "test": flipped})
    one, two = (run(predictor, task, methods=("lm", "knn")) for task in (tasks["letters"], other))
    for name, row in one.rows["knn"].items():
        assert row.choices[0].facts == two.rows["knn"][name].choices[0].facts
        assert np.array_equal(row.right, ~two.rows["knn"][name].right)


def test_the_chosen_settings_are_the_best_there_are(predictor: Predictor, tasks: dict[str, Task]) -> None:
    """On the split they are chosen on, no single setting gets more examples right."""
    same = replace(tasks["letters"], splits={**tasks["letters"].splits, "test": tasks["letters"].splits["validation"]})
    best = run(predictor, same, methods=("lm", "knn")).rows["knn"]["pmi+fuzzy"].right.mean()
    for lam in (0.0, 0.3, 0.9):
        fixed = Settings(k=K, tau=20.0).with_values(lam=lam)
        named = run(predictor, same, methods=("knn",), settings=lambda _, fixed=fixed: fixed)
        assert named.rows["knn"]["pmi+fuzzy"].right.mean() <= best
        assert named.rows["knn"]["pmi+fuzzy"].settings_from == "named"


def test_without_a_test_split_each_half_has_the_settings_of_the_other(results: dict[str, TaskResult]) -> None:
    words = results["words"]
    assert words.split == "validation" and "reported on validation" in words.marks
    row = words.rows["knn"]["pmi"]
    assert row.settings_from == "the other half of validation"
    assert (len(row.choices), len(row.right)) == (2, len(EXAMPLES))


def test_half_of_the_examples_cannot_choose_its_own_settings(predictor: Predictor, tasks: dict[str, Task]) -> None:
    """An example whose label is flipped changes only the settings of the other half."""
    task = tasks["words"]
    before = run(predictor, task, methods=("lm", "knn")).rows["knn"]["pmi"].choices
    for at in range(len(EXAMPLES)):
        examples = list(task.splits["validation"])
        examples[at] = replace(examples[at], label=1 - examples[at].label)
        other = replace(task, splits={"validation": tuple(examples)})
        after = run(predictor, other, methods=("lm", "knn")).rows["knn"]["pmi"].choices
        assert sum(one.facts == two.facts for one, two in zip(before, after, strict=True)) >= 1


def test_without_validation_the_defaults_are_used_and_said(results: dict[str, TaskResult]) -> None:
    untuned = results["untuned"]
    assert untuned.rows["knn"]["plain"].settings_from == "defaults"
    assert "no validation split: default settings" in untuned.marks


def test_a_limit_draws_examples_by_the_seed(predictor: Predictor, tasks: dict[str, Task]) -> None:
    texts = [Example(f"text {number}", "", number % 2) for number in range(40)]
    task = replace(tasks["letters"], splits={"test": tuple(texts)})
    one, same, other = (run(predictor, task, methods=("lm",), limit=20, seed=seed) for seed in (1, 1, 2))
    assert "20 of 40 examples of test" in one.marks
    assert np.array_equal(one.rows["lm"]["plain"].right, same.rows["lm"]["plain"].right)
    assert one.majority != other.majority or not np.array_equal(
        one.rows["lm"]["plain"].right, other.rows["lm"]["plain"].right
    )


def test_differences_are_paired(results: dict[str, TaskResult]) -> None:
    letters = results["letters"]
    alone = letters.rows["lm"]["plain"]
    rng = np.random.default_rng(0)
    right = rng.random(300) < 0.6
    better = right.copy()
    better[np.flatnonzero(~right)[:15]] = True
    ones = np.ones(300, dtype=np.int64)
    rows = {
        name: {"plain": replace(alone, predicted=values.astype(np.int64), labels=ones)}
        for name, values in (("lm", right), ("knn", better))
    }
    figures = report([replace(letters, headline="plain", rows=rows)])["tasks"]["letters"]["methods"]
    assert figures["lm"]["difference_to_lm"] is None
    difference = figures["knn"]["difference_to_lm"]
    assert difference["value"] == pytest.approx(0.05) and difference["interval"][0] > 0
    width = figures["lm"]["interval"][1] - figures["lm"]["interval"][0]
    assert difference["interval"][1] - difference["interval"][0] < width


def test_the_report_has_task_method_and_row(results: dict[str, TaskResult]) -> None:
    figures = report(list(results.values()), seed=5)
    assert set(figures["tasks"]) == set(results)
    knn = figures["tasks"]["letters"]["methods"]["knn"]
    assert knn["headline"] == "pmi+fuzzy" and knn["accuracy"] == knn["rows"]["pmi+fuzzy"]["accuracy"]
    assert knn["n"] == 5 and set(knn["settings"]) == {"k", "tau", "lambda"}
    assert len(figures["tasks"]["words"]["methods"]["knn"]["settings"]) == 2
    accuracies = [task["methods"]["ngram"]["accuracy"] for task in figures["tasks"].values()]
    assert figures["average"]["ngram"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert figures["average"]["ngram"]["tasks"] == 3


def test_every_example_says_what_it_got(results: dict[str, TaskResult]) -> None:
    found = [item for item in describe_examples(list(results.values())) if item["task"] == "letters"]
    letters = results["letters"]
    assert [item["line"] for item in found] == [example.line for example in letters.examples] == [1, 2, 3, 4, 5]
    assert {item["split"] for item in found} == {"test"}
    for method, rows in letters.rows.items():
        for name, row in rows.items():
            assert [item["predicted"][method][name] == item["label"] for item in found] == row.right.tolist()
