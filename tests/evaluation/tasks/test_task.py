"""Task folders as people write them: what may be left out, and what is refused with its file and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.evaluation.tasks.task import Task, load_tasks
from tests.evaluation.tasks.folders import EXAMPLES, LETTERS, WORDS, write_task


def load(folder: Path, content: dict[str, Any], **splits: list[dict[str, Any]]) -> Task:
    (task,) = load_tasks([write_task(folder / "mine", content, **splits)])
    return task


def test_a_task_has_what_its_file_says(tmp_path: Path) -> None:
    task = load(tmp_path, LETTERS)
    assert (task.name, task.label_words, task.premise) == ("mine", ("t", "s"), ".\n")
    assert task.word_sets == (("t", "h", "T"), ("s", "w"))
    assert [example.label for example in task.splits["test"]] == [0, 1, 0, 1, 0]
    assert task.prompt("{text2} x", "") == "{text2} x.\n"


def test_what_is_left_out_has_a_meaning(tmp_path: Path) -> None:
    task = load(tmp_path, WORDS)
    assert (task.premise, task.word_sets, task.label_names) == (" and the", None, ("drink", "water"))
    assert load(tmp_path / "b", {"template": "say {text}", "label_words": ["a", "b"]}).premise is None
    partial = load(tmp_path / "c", {**LETTERS, "fuzzy_verbalizer": {"s": ["s", "w"]}})
    assert partial.word_sets == (("t",), ("s", "w"))


def test_labels_are_numbers_names_or_words(tmp_path: Path) -> None:
    examples = [{"text": "x", "label": label} for label in (1, "drink", "sea")]
    assert [example.label for example in load(tmp_path, WORDS, test=examples).splits["test"]] == [1, 0, 1]


def test_a_folder_of_tasks_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_task(tmp_path / name, LETTERS)
    (tmp_path / "README.md").write_text("about")
    assert [task.name for task in load_tasks([tmp_path])] == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"template": None}, "task.json: 'template' is missing"),
        ({"template": 3}, "task.json: 'template' is not a string"),
        ({"template": "no place"}, "task.json: 'template' has no {text}"),
        ({"label_words": "t"}, "task.json: 'label_words'"),
        ({"label_words": ["t"]}, "task.json: 'label_words'"),
        ({"label_words": ["t", "t"]}, "task.json: 'label_words'"),
        ({"label_words": ["t", " t"]}, "task.json: 'label_words'"),
        ({"label_words": ["t", ""]}, "task.json: 'label_words'"),
        ({"label_names": ["only one"]}, "task.json: 'label_names'"),
        ({"label_names": 7}, "task.json: 'label_names'"),
        ({"label_names": ["x", "x"]}, "task.json: 'label_names' gives 'x' to two labels"),
        ({"label_names": ["s", "t"]}, "task.json: 'label_names' gives 's' to two labels"),
        ({"template": "{text} and {text3}"}, "task.json: 'template' has {text3}"),
        ({"domain_premise": ["x"]}, "task.json: 'domain_premise'"),
        ({"fuzzy_verbalizer": ["x"]}, "task.json: 'fuzzy_verbalizer'"),
        ({"fuzzy_verbalizer": {"q": ["x"]}}, "task.json: 'fuzzy_verbalizer.q'"),
        ({"fuzzy_verbalizer": {"t": ["x"], " t": ["y"]}}, "task.json: 'fuzzy_verbalizer' names a label twice"),
        ({"fuzzy_verbalizer": {"t": []}}, "task.json: 'fuzzy_verbalizer.t'"),
        ({"fuzzy_verbalizer": {"t": [1]}}, "task.json: 'fuzzy_verbalizer.t'"),
        ({"template": "{text} {text2}"}, "test.jsonl:line 1: 'text2' is missing"),
    ],
)
def test_a_malformed_key_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    content = {key: value for key, value in {**LETTERS, **change}.items() if value is not None}
    with pytest.raises(SiloError, match="task-invalid") as raised:
        load(tmp_path, content, test=EXAMPLES)
    assert named in raised.value.message and raised.value.hint


@pytest.mark.parametrize(
    ("example", "named"),
    [
        ({"label": 0}, "'text' is missing"),
        ({"text": 1, "label": 0}, "'text' is not a string"),
        ({"text": "x"}, "'label' is None"),
        ({"text": "x", "label": 2}, "'label' is 2"),
        ({"text": "x", "label": -1}, "'label' is -1"),
        ({"text": "x", "label": True}, "'label' is True"),
        ({"text": "x", "label": "unheard"}, "'label' is 'unheard'"),
    ],
)
def test_a_malformed_example_is_named_with_its_line(tmp_path: Path, example: dict[str, Any], named: str) -> None:
    with pytest.raises(SiloError, match="task-invalid") as raised:
        load(tmp_path, LETTERS, validation=[EXAMPLES[0], example])
    assert "validation.jsonl:line 2" in raised.value.message and named in raised.value.message


def test_spaces_around_words_and_byte_order_marks_mean_nothing(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "mine", {**LETTERS, "label_words": [" t", "s "], "fuzzy_verbalizer": {" t": ["h"]}})
    for file in folder.iterdir():
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    (task,) = load_tasks([folder])
    assert task.label_words == ("t", "s")
    assert task.word_sets == (("h",), ("s",))


@pytest.mark.parametrize("content", ["{", "[]", '{"template": 1, "template": 2}', "\xff"])
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, content: str) -> None:
    folder = write_task(tmp_path / "mine", LETTERS)
    (folder / "task.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(SiloError, match=r"mine/task\.json.*task-invalid"):
        load_tasks([folder])
    (folder / "task.json").write_text('{"template": "{text}", "label_words": ["a", "b"]}')
    (folder / "test.jsonl").write_bytes(content.encode("latin-1") + b"\n")
    with pytest.raises(SiloError, match=r"test\.jsonl:line 1.*task-invalid"):
        load_tasks([folder])


def test_folders_without_tasks_and_tasks_without_examples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="input-missing"):
        load_tasks([tmp_path / "nowhere"])
    with pytest.raises(SiloError, match="input-empty"):
        load_tasks([tmp_path])
    folder = write_task(tmp_path / "a" / "mine", LETTERS, test=[])
    with pytest.raises(SiloError, match=r"test\.jsonl holds no example"):
        load_tasks([folder])
    (folder / "test.jsonl").unlink()
    with pytest.raises(SiloError, match="neither validation"):
        load_tasks([folder])
    write_task(tmp_path / "b" / "mine", LETTERS)
    write_task(tmp_path / "c" / "mine", LETTERS)
    with pytest.raises(SiloError, match="two task folders"):
        load_tasks([tmp_path / "b", tmp_path / "c"])
