"""TDMRep (W3C community group): a reservation denies training and storing, since no policy is ever fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from silo.records import Right
from silo.rights.signals.rules import EVERYTHING, Rule, Unreadable, pattern_of
from silo.text.strict_json import parse_json

_RESERVED = frozenset((Right.train, Right.store))
_BLANK = re.compile(r"[ \t\r\n]*")


def read_tdmrep(text: str) -> tuple[Rule, ...]:
    """The rules of a tdmrep.json."""
    items = parse_json(text)
    if not isinstance(items, list):
        raise Unreadable("not a JSON list")
    return tuple(_rule(line, item) for line, item in zip(_item_lines(text), items, strict=True))


def _item_lines(text: str) -> Iterator[int]:
    """The line on which each item of a sound JSON list begins."""
    decoder = json.JSONDecoder()
    at = _skip_blanks(text, text.index("[") + 1)
    while text[at] != "]":
        yield text.count("\n", 0, at) + 1
        _, end = decoder.raw_decode(text, at)
        at = _skip_blanks(text, end)
        if text[at] == ",":
            at = _skip_blanks(text, at + 1)


def _skip_blanks(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _rule(line: int, item: Any) -> Rule:
    """Only a clear 0 leaves rights as they are; anything else counts as reserved."""
    if not isinstance(item, dict):
        return Rule("tdmrep", EVERYTHING, "tdmrep", line, str(item)[:100], _RESERVED)
    reservation = item.get("tdm-reservation")
    free = reservation == 0 and not isinstance(reservation, bool)
    asserted = f"tdm-reservation={reservation!r} for {item.get('location')!r}"
    if item.get("tdm-policy"):
        asserted += f", tdm-policy={str(item['tdm-policy'])[:100]}"
    denies = frozenset[Right]() if free else _RESERVED
    return Rule("tdmrep", pattern_of(item.get("location")), "tdmrep", line, asserted, denies)
