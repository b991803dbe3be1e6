"""Promises the licences that REUSE files state for each path of a tree: REUSE.toml and .reuse/dep5.

A REUSE file that cannot be read makes every path below it restricted: it might have said so.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.sources.reader.files import read_text

TOML = "REUSE.toml"
DEP5 = ".reuse/dep5"
_MAX_BYTES = 4 << 20
_PRECEDENCES = ("closest", "aggregate", "override")


@dataclass(frozen=True, slots=True)
class Annotation:
    """One statement of a REUSE file. Patterns are relative to the directory of that file."""

    patterns: tuple[tuple[str, ...], ...]
    precedence: str
    licenses: tuple[str, ...]


def read_reuse_toml(root: Path, relative: str) -> tuple[Annotation, ...]:
    """The annotations of a REUSE.toml, in order."""
    try:
        content = tomllib.loads(read_text(root, relative, _MAX_BYTES))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SiloError("metadata-invalid", f"{relative}: {error}") from None
    tables = content.get("annotations", [])
    if not isinstance(tables, list):
        raise SiloError("metadata-invalid", f"{relative}: annotations must be tables")
    return tuple(_annotation(table, relative) for table in tables)


def _annotation(table: Any, relative: str) -> Annotation:
    if not isinstance(table, dict) or table.get("precedence", "closest") not in _PRECEDENCES:
        raise SiloError("metadata-invalid", f"{relative}: an annotation is no table or has an unknown precedence")
    return Annotation(
        patterns=tuple(tuple(_toml_glob(path)) for path in _strings(table.get("path"), relative)),
        precedence=table.get("precedence", "closest"),
        licenses=tuple(_strings(table.get("SPDX-License-Identifier", []), relative)),
    )


def _strings(value: Any, relative: str) -> list[str]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in values):
        raise SiloError("metadata-invalid", f"{relative}: paths and licences must be strings")
    return values


def read_dep5(root: Path) -> tuple[Annotation, ...]:
    """The Files paragraphs of a .reuse/dep5; each adds to what the files themselves say."""
    annotations = []
    for paragraph in re.split(r"\n[ \t]*\n", read_text(root, DEP5, _MAX_BYTES).replace("\r\n", "\n")):
        fields = _dep5_fields(paragraph)
        if "files" not in fields:
            continue
        statement = fields.get("license", "").strip().split("\n")[0].strip()
        if not statement:
            raise SiloError("metadata-invalid", f"{DEP5}: a Files paragraph has no License")
        patterns = tuple(tuple(_dep5_glob(pattern)) for pattern in fields["files"].split())
        annotations.append(Annotation(patterns, "aggregate", (statement,)))
    return tuple(annotations)


def _dep5_fields(paragraph: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in paragraph.split("\n"):
        if line.startswith("#"):
            continue
        if line[:1].isspace() and name:
            fields[name] += "\n" + line
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            if name in fields:
                raise SiloError("metadata-invalid", f"{DEP5}: the field {name} is given twice in one paragraph")
            fields[name] = value
    return fields


_STAR, _GLOBSTAR, _ONE = "*", "**", "?"


def _toml_glob(pattern: str) -> Iterator[str]:
    """REUSE.toml: `*` stops at slashes, `**` does not, a backslash takes the next character as it is."""
    for token in re.findall(r"\\.|\*\*+|.", pattern, re.DOTALL):
        if token[0] == "*":
            yield _STAR if token == "*" else _GLOBSTAR
        else:
            yield "\\" + token[-1]


def _dep5_glob(pattern: str) -> Iterator[str]:
    """dep5: `*` and `?` also match slashes."""
    for token in re.findall(r"\\.|\*+|.", pattern, re.DOTALL):
        if token[0] in "*?":
            yield _GLOBSTAR if token[0] == "*" else _ONE
        else:
            yield "\\" + token[-1]


def matches(pattern: tuple[str, ...], path: str) -> bool:
    """Match in time pattern x path: a regular expression could be made to run for ever."""
    states = _skip_stars({0}, pattern)
    for character in path:
        after: set[int] = set()
        for state in states:
            token = pattern[state] if state < len(pattern) else ""
            if token == _GLOBSTAR or (token == _STAR and character != "/"):
                after.add(state)
            elif token == _ONE or token == "\\" + character:
                after.add(state + 1)
        if not after:
            return False
        states = _skip_stars(after, pattern)
    return len(pattern) in states


def _skip_stars(states: set[int], pattern: tuple[str, ...]) -> set[int]:
    reached = set(states)
    for state in states:
        while state < len(pattern) and pattern[state] in (_STAR, _GLOBSTAR):
            state += 1
            reached.add(state)
    return reached


def last_match(annotations: Iterable[Annotation], path: str) -> Annotation | None:
    """The annotation that counts for a path: the last one that matches, as REUSE says."""
    last = None
    for annotation in annotations:
        if any(matches(pattern, path) for pattern in annotation.patterns):
            last = annotation
    return last
