"""JSON of signal files, read strictly: a key given twice or a nesting beyond reason makes the file unreadable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from silo.rights.signals.rules import Unreadable

_BLANK = re.compile(r"[ \t\r\n]*")


def parse(text: str) -> Any:
    """The value of a whole JSON text."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not valid JSON: {error}") from None


def parse_items(text: str) -> Iterator[tuple[int, Any]]:
    """The items of a JSON list, each with the line it begins on."""
    if not isinstance(parse(text), list):
        raise Unreadable("not a JSON list")
    at = _skip(text, text.index("[") + 1)
    while text[at] != "]":
        item, end = _DECODER.raw_decode(text, at)
        yield text.count("\n", 0, at) + 1, item
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
