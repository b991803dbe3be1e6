"""TDMRep (W3C community group): a reservation denies training and storing, since no policy is ever fetched."""

from __future__ import annotations

from typing import Any

from silo.records import Right
from silo.rights.signals.rules import EVERYTHING, Rule, pattern_of
from silo.rights.signals.strictjson import parse_items

_RESERVED = frozenset((Right.train, Right.store))


def read_tdmrep(text: str) -> tuple[Rule, ...]:
    """The rules of a tdmrep.json."""
    return tuple(_rule(line, item) for line, item in parse_items(text))


def _rule(line: int, item: Any) -> Rule:
    """Only a clear 0 leaves rights as they are; anything else counts as reserved."""
    if not isinstance(item, dict):
        return Rule("tdmrep", EVERYTHING, "tdmrep", line, str(item)[:100], _RESERVED)
    reservation = item.get("tdm-reservation")
    free = reservation == 0 and not isinstance(reservation, bool)
    said = f"tdm-reservation={reservation!r} for {item.get('location')!r}"
    if item.get("tdm-policy"):
        said += f", tdm-policy={str(item['tdm-policy'])[:100]}"
    denies = frozenset[Right]() if free else _RESERVED
    return Rule("tdmrep", pattern_of(item.get("location")), "tdmrep", line, said, denies)
