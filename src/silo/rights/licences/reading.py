"""A reading: what one licence statement grants and asks, and how two readings combine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from silo.records import Duty, Rights, Tier
from silo.rights.licences.table import NOASSERTION, Row, license_table


@dataclass(frozen=True, slots=True)
class Reading:
    """The meaning of a statement, without where it was found. `method` says how it was read."""

    spdx: str
    tier: Tier
    duties: frozenset[Duty]
    rights: Rights
    method: str = ""


def row_reading(row: Row, method: str = "") -> Reading:
    """The reading of a row of the table."""
    return Reading(row.spdx, row.tier, row.duties, row.rights, method)


def unknown_reading(method: str = "unrecognised", *, spdx: str = NOASSERTION, duties: Iterable[Duty] = ()) -> Reading:
    """The reading of what nobody can tell: restricted."""
    return Reading(spdx, Tier.restricted, frozenset(duties), license_table().rights[Tier.restricted], method)


def all_of(readings: Iterable[Reading], method: str) -> Reading:
    """All apply at once: the most restrictive tier, all duties, only the rights every one grants."""
    parts = tuple(readings)
    tier = max((part.tier for part in parts), key=lambda tier: tier.rank)
    duties = frozenset[Duty]().union(*(part.duties for part in parts))
    rights = reduce(Rights.narrowed, (part.rights for part in parts)).narrowed(license_table().rights[tier])
    return Reading(join_ids(part.spdx for part in parts), tier, duties, rights, method)


def any_of(readings: Iterable[Reading], method: str) -> Reading:
    """The reader may choose: the most permissive of the readings counts, the name keeps all of them."""
    parts = tuple(readings)
    best = min(parts, key=lambda part: (part.tier.rank, len(part.duties), sorted(part.duties), part.spdx))
    names = list(dict.fromkeys(part.spdx for part in parts if part.spdx != NOASSERTION))
    spdx = " OR ".join(f"({name})" if " AND " in name else name for name in names)
    return Reading(spdx or NOASSERTION, best.tier, best.duties, best.rights, method)


def join_ids(ids: Iterable[str]) -> str:
    """One expression in which all the ids apply; a family name yields to a member that says it more exactly."""
    distinct = sorted(set(ids) - {NOASSERTION, ""})
    refinements = license_table().refinements
    exact = [name for name in distinct if not refinements.get(name, frozenset()).intersection(distinct)]
    if not exact:
        return NOASSERTION
    return exact[0] if len(exact) == 1 else " AND ".join(f"({name})" if " OR " in name else name for name in exact)
