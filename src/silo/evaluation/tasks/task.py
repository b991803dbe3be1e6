"""A classification task on disk: a folder with `task.json`, and `validation.jsonl` and `test.jsonl`, or one of them.

`task.json` has `template` ({text}, and {text2} where examples have two) and `label_words`; and, if wanted,
`label_names`, `domain_premise` (the end of the template without it) and `fuzzy_verbalizer` (label word to list of
words). Other keys are for people. Each line of a split is an object with `text`, `text2` if the template has it, and
`label`: its number, or its name or word. Whatever is wrong is named with its file and key before a model is opened.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.recipe import Limits
from silo.sources.reader.bytes import read_file_lines
from silo.text.strict_json import parse_object

FILE = "task.json"
SPLITS = ("validation", "test")
_PLACES = re.compile(r"\{(text2?)\}")
_NO_PLACES = re.compile(r"\{text(?!2?\})\w*\}")


@dataclass(frozen=True, slots=True)
class Example:
    """What is to be classified, the number of its label, and the line of its file that it stands in."""

    text: str
    text2: str
    label: int
    line: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """`premise` is what stands for any text in PMI, None if nothing can; `word_sets` has one set for each label."""

    name: str
    template: str
    label_words: tuple[str, ...]
    label_names: tuple[str, ...]
    premise: str | None
    word_sets: tuple[tuple[str, ...], ...] | None
    splits: Mapping[str, tuple[Example, ...]]

    def prompt(self, text: str, text2: str) -> str:
        """The template filled in, without spaces at its end, which belong to the label word."""
        return _PLACES.sub(lambda match: text if match[1] == "text" else text2, self.template).rstrip(" ")


def load_tasks(places: Iterable[Path], *, split: str | None = None) -> list[Task]:
    """The tasks of some folders, each a task or full of tasks, in the order of their names; all have the `split`."""
    folders = [folder for place in places for folder in _task_folders(place)]
    tasks = sorted((_load_task(folder) for folder in folders), key=lambda task: task.name)
    names = [task.name for task in tasks]
    if again := next((name for name in names if names.count(name) > 1), None):
        raise SiloError("usage", f"two task folders are named '{again}'")
    if lacking := next((task.name for task in tasks if split and split not in task.splits), None):
        raise SiloError("input-missing", f"the task {lacking} has no {split}.jsonl", "leave --split out")
    return tasks


def _task_folders(place: Path) -> list[Path]:
    if not place.is_dir():
        raise SiloError("input-missing", f"there is no folder {place}")
    if (place / FILE).exists():
        return [place]
    found = sorted(folder for folder in place.iterdir() if (folder / FILE).exists())
    if not found:
        hint = f"give a folder of folders that have a {FILE}"
        raise SiloError("input-empty", f"{place} has no folder with a {FILE}", hint)
    return found


def _load_task(folder: Path) -> Task:
    path = folder / FILE
    content = _read_object(path)
    template = _string(content, "template", path)
    if "{text}" not in template:
        raise _invalid(path, "template", "has no {text}", "write it like: {text} It was")
    if unknown := _NO_PLACES.search(template):
        raise _invalid(path, "template", f"has {unknown[0]}", "examples have {text} and {text2}")
    words = _words(content, path)
    names = _names(content, words, path)
    tail = _PLACES.split(template)[-1].rstrip(" ")
    premise = _string(content, "domain_premise", path) if "domain_premise" in content else tail or None
    labels = {name: at for names in (words, names) for at, name in enumerate(names)}
    files = [split for split in SPLITS if (folder / f"{split}.jsonl").exists()]
    if not files:
        hint = "add validation.jsonl and test.jsonl, or one of them"
        raise SiloError("task-invalid", f"{folder} has neither validation.jsonl nor test.jsonl", hint)
    needs_second = "{text2}" in template
    splits = {split: _read_split(folder / f"{split}.jsonl", labels, len(words), needs_second) for split in files}
    return Task(folder.absolute().name, template, words, names, premise, _word_sets(content, words, path), splits)


def _words(content: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    words: Any = content.get("label_words")
    if not _is_words(words) or len({word.strip() for word in words}) < max(2, len(words)):
        hint = "give a list of at least two different words, one for each label"
        raise _invalid(path, "label_words", "is not a list of different words", hint)
    return tuple(word.strip() for word in words)


def _names(content: Mapping[str, Any], words: Sequence[str], path: Path) -> tuple[str, ...]:
    """A name for each label, its word where there is none; none of them says another label."""
    names = content.get("label_names", list(words))
    if not _is_words(names) or len(names) != len(words):
        raise _invalid(path, "label_names", "does not fit label_words", "give one name for each label word, or none")
    for at, name in enumerate(names):
        if name in names[:at] or name in {*words} - {words[at]}:
            raise _invalid(path, "label_names", f"gives {name!r} to two labels", "give each label a name of its own")
    return tuple(names)


def _word_sets(
    content: Mapping[str, Any], label_words: Sequence[str], path: Path
) -> tuple[tuple[str, ...], ...] | None:
    """One set for each label, its own word where none is given."""
    key = "fuzzy_verbalizer"
    sets = content.get(key)
    if sets is None:
        return None
    if not isinstance(sets, dict) or not sets:
        raise _invalid(path, key, "is not an object", "give an object: label word to a list of words")
    if len({label.strip() for label in sets}) < len(sets):
        raise _invalid(path, key, "names a label twice", "give each label word one list")
    sets = {label.strip(): words for label, words in sets.items()}
    for label, words in sets.items():
        if label not in label_words:
            hint = f"the label words are {', '.join(label_words)}"
            raise _invalid(path, f"{key}.{label}", "is of no label word", hint)
        if not _is_words(words):
            raise _invalid(path, f"{key}.{label}", "is not a list of words", "give a list with at least one word")
    return tuple(tuple(word.strip() for word in sets.get(label, [label])) for label in label_words)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) and word.strip() for word in value)


def _read_split(path: Path, labels: Mapping[str, int], count: int, needs_second: bool) -> tuple[Example, ...]:
    examples = []
    for number, record in _read_lines(path):
        where = _at(path, number)
        text = _string(record, "text", where)
        text2 = _string(record, "text2", where) if needs_second else ""
        examples.append(Example(text, text2, _label(record, labels, count, where), number))
    if not examples:
        raise SiloError("input-empty", f"{path} holds no example")
    return tuple(examples)


def _label(record: Mapping[str, Any], labels: Mapping[str, int], count: int, where: str) -> int:
    given = record.get("label")
    number = labels.get(given) if isinstance(given, str) else given
    if type(number) is not int or not 0 <= number < count:
        hint = f"a label is a number from 0 to {count - 1}, or one of {', '.join(labels)}"
        raise _invalid(where, "label", f"is {given!r:.80}, which is no label of the task", hint)
    return number


def _read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(read_file_lines(path, Limits()), start=1):
        if line is None:
            raise SiloError("line-too-long", f"{_at(path, number)} is too long for an example")
        if line.strip():
            yield number, _parse(line, _at(path, number))


def _at(path: Path, number: int) -> str:
    return f"{path}:line {number}"


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SiloError("input-unreadable", f"{path}: {error.strerror}") from None
    return _parse(data, str(path))


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        return parse_object(data.removeprefix(BOM_UTF8), Limits().max_depth)
    except SiloError as error:
        raise SiloError("task-invalid", f"{where}: {error.message}", "write one JSON object, in UTF-8") from None


def _string(content: Mapping[str, Any], key: str, where: Path | str) -> str:
    value = content.get(key)
    if not isinstance(value, str):
        fault = "is missing" if value is None else "is not a string"
        raise _invalid(where, key, fault, f"give '{key}' as a string; docs/evaluate.md says what it means")
    return value


def _invalid(where: Path | str, key: str, fault: str, hint: str) -> SiloError:
    return SiloError("task-invalid", f"{where}: '{key}' {fault}", hint)
