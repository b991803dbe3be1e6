"""CAWG and C2PA training-and-mining assertions: whatever is not plainly allowed is denied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from silo.records import Right
from silo.rights.signals.rules import Rule, site_rule
from silo.text.strict_json import parse_json

_ENTRY = re.compile(r"(?:cawg|c2pa)\.(data_mining|ai_inference|ai_generative_training|ai_training)")
_RIGHTS = {
    "ai_training": frozenset((Right.train,)),
    "ai_generative_training": frozenset((Right.train,)),
    "ai_inference": frozenset((Right.store,)),
    "data_mining": frozenset((Right.train, Right.index)),
}


def read_cawg(text: str) -> tuple[Rule, ...]:
    """The rules of a c2pa.json or cawg.json; they hold for everything below the file."""
    return tuple(
        site_rule("cawg", _line(text, name), f"{name}: {use}", frozenset() if use == "allowed" else _RIGHTS[kind])
        for name, kind, use in _entries(parse_json(text))
    )


def _entries(data: Any) -> Iterator[tuple[str, str, str]]:
    """Every assertion entry anywhere in the manifest: its name, its kind and the stated use."""
    todo = [data]
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo.extend(value)
        elif isinstance(value, dict):
            for key, inner in value.items():
                match = _ENTRY.fullmatch(key)
                if match:
                    use = inner.get("use") if isinstance(inner, dict) else inner
                    yield key, match[1], str(use)
                else:
                    todo.append(inner)


def _line(text: str, name: str) -> int:
    return text.count("\n", 0, max(0, text.find(f'"{name}"'))) + 1
