"""Many pieces of evidence to one verdict: the most restrictive wins, and every disagreement is said in words."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from silo.records import Duty, Evidence, Right, Rights, Tier, Verdict
from silo.rights.licences.expression import read_expression
from silo.rights.licences.reading import join_ids
from silo.rights.licences.statement import assess
from silo.rights.licences.table import NOASSERTION, license_table

NO_EVIDENCE = Evidence("", "", "none", 1.0, tier=Tier.restricted, spdx=NOASSERTION)


def classify(statement: str, *, where: str = "statement") -> Verdict:
    """What a licence string means: tier, SPDX expression, duties, rights and the evidence for them."""
    return resolve((assess(statement, where=where),))


def resolve(evidence: Iterable[Evidence], *, stated_tier: str = "", deny: Iterable[Right] = ()) -> Verdict:
    """The verdict on a document. The order of evidence does not matter; more evidence never means more rights.

    Readings below the granting confidence can narrow but never grant. `stated_tier` is what the record says of
    itself: it can only make the verdict stricter. `deny` takes rights away.
    """
    items = sorted(set(evidence), key=_sort_key)
    licences = [item for item in items if item.tier is not None]
    if not licences:
        items.append(NO_EVIDENCE)
        licences = [NO_EVIDENCE]
    tier, conflicts = _strictest_tier(licences)
    licence_tier = tier
    if stated_tier:
        tier = max(tier, _parse_tier(stated_tier), key=_rank)
        conflicts += _stated_conflict(stated_tier, licence_tier, licences)
    return Verdict(
        tier=tier,
        spdx=_deciding_ids(licences, licence_tier),
        duties=frozenset[Duty]().union(*(item.duties for item in items)),
        rights=_remaining_rights(items, tier).without(deny),
        evidence=tuple(items),
        conflicts=tuple(conflicts),
    )


def _sort_key(item: Evidence) -> tuple[str, ...]:
    tier = str(item.tier.rank) if item.tier is not None else "-"
    parts = (item.where, item.method, item.asserted, tier, item.spdx, f"{item.confidence:.6f}")
    return (*parts, *sorted(item.duties), "/", *sorted(item.denies))


def _rank(tier: Tier) -> int:
    return tier.rank


def _grants(item: Evidence) -> bool:
    """True if this evidence alone may put a document into a permissive tier."""
    return item.confidence >= license_table().confidence["granting"]


def _tiers(licences: Iterable[Evidence]) -> list[Tier]:
    return [item.tier for item in licences if item.tier is not None]


def _strictest_tier(licences: list[Evidence]) -> tuple[Tier, list[str]]:
    """The strictest tier of the evidence, and where the evidence differs."""
    tier = max(_tiers(licences), key=_rank)
    if not any(_grants(item) or item.tier is Tier.restricted for item in licences):
        weak = ", ".join(sorted({f"{item.spdx} ({item.method}, {item.confidence:g})" for item in licences}))
        return Tier.restricted, [f"only weak evidence grants anything: {weak}"]
    if len(set(_tiers(licences))) == 1:
        return tier, []
    rows = sorted(
        {(item.tier or tier, item.spdx, item.where) for item in licences}, key=lambda row: (row[0].rank, *row[1:])
    )
    disagreement = "; ".join(f"{spdx} is {level} in {where or 'no place'}" for level, spdx, where in rows)
    return tier, [f"licence evidence disagrees, the strictest counts: {disagreement}"]


def _parse_tier(stated_tier: str) -> Tier:
    try:
        return Tier(stated_tier)
    except ValueError:
        return Tier.restricted


def _stated_conflict(stated_tier: str, licence_tier: Tier, licences: list[Evidence]) -> list[str]:
    if stated_tier not in set(Tier):
        return [f"the record states the unknown tier {stated_tier[:40]!r}, which counts as restricted"]
    if Tier(stated_tier) == licence_tier:
        return []
    if licences == [NO_EVIDENCE]:
        return [f"the record states tier {stated_tier} without any licence evidence"]
    spdx = _deciding_ids(licences, licence_tier)
    return [f"the record states tier {stated_tier}, its licence ({spdx}) is {licence_tier}: the stricter counts"]


def _deciding_ids(licences: list[Evidence], tier: Tier) -> str:
    """The ids of the evidence that decided."""
    return join_ids(item.spdx for item in licences if item.tier == tier)


def _remaining_rights(evidence: list[Evidence], tier: Tier) -> Rights:
    """What the tier, every licence and every signal leave."""
    defaults = license_table().rights
    granted = [defaults[tier]]
    for item in evidence:
        if item.tier is not None:
            granted.append(defaults[item.tier])
            reading = read_expression(item.spdx)
            if reading is not None and reading.tier <= item.tier:
                granted.append(reading.rights)
    denied = frozenset[Right]().union(*(item.denies for item in evidence))
    return reduce(Rights.narrowed, granted).without(denied)
