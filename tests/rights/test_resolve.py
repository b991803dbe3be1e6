"""Many pieces of evidence, one verdict."""

from __future__ import annotations

import pytest

from silo.records import Duty, Evidence, Right, Rights, Tier
from silo.rights import assess, resolve


def said(statement: str, where: str = "metadata", cap: float = 1.0) -> Evidence:
    return assess(statement, where=where, confidence_cap=cap)


def test_no_evidence_is_restricted() -> None:
    verdict = resolve(())
    assert (verdict.tier, verdict.spdx, verdict.conflicts) == (Tier.restricted, "NOASSERTION", ())
    assert [item.method for item in verdict.evidence] == ["none"]


def test_signals_alone_are_no_licence() -> None:
    signal = Evidence("ai-train=no", "robots.txt:2", "content-signal", 1.0, denies=frozenset((Right.index,)))
    verdict = resolve((signal,))
    assert (verdict.tier, verdict.spdx) == (Tier.restricted, "NOASSERTION")
    assert verdict.rights == Rights(train=False, store=True, quote=50, index=False)


def test_the_most_restrictive_evidence_wins_and_the_conflict_is_said() -> None:
    verdict = resolve((said("MIT"), said("GPL-3.0-or-later", "header:1")))
    assert (verdict.tier, verdict.spdx) == (Tier.restricted, "GPL-3.0-or-later")
    assert verdict.duties == {Duty.notice, Duty.share_alike}
    assert len(verdict.conflicts) == 1
    assert "MIT" in verdict.conflicts[0] and "header:1" in verdict.conflicts[0]


def test_agreeing_evidence_has_no_conflict_and_the_exact_name_wins() -> None:
    verdict = resolve((said("BSD License"), said("BSD-3-Clause", "LICENSE")))
    assert (verdict.tier, verdict.spdx, verdict.conflicts) == (Tier.sw, "BSD-3-Clause", ())


def test_two_licences_of_one_tier_both_count() -> None:
    assert (
        resolve((said("MIT"), said("Apache-2.0 OR BSD-3-Clause", "b"))).spdx == "(Apache-2.0 OR BSD-3-Clause) AND MIT"
    )


def test_weak_evidence_narrows_but_never_grants() -> None:
    weak = said("MIT", "hub", cap=0.3)
    alone = resolve((weak,))
    assert (alone.tier, alone.spdx, alone.rights.train) == (Tier.restricted, "NOASSERTION", False)
    assert "weak" in alone.conflicts[0]
    assert resolve((weak, said("CC0-1.0"))).tier is Tier.sw
    assert resolve((said("GPL-3.0-only", "hub", cap=0.3), said("MIT"))).tier is Tier.restricted


@pytest.mark.parametrize(
    ("stated", "license", "tier", "conflicts"),
    [
        ("", "MIT", Tier.sw, 0),
        ("sw", "MIT", Tier.sw, 0),
        ("restricted", "MIT", Tier.restricted, 1),
        ("by", "MIT", Tier.by, 1),
        ("pd", "MIT", Tier.sw, 1),
        ("pd", "GPL-3.0-only", Tier.restricted, 1),
        ("free", "MIT", Tier.restricted, 1),
        ("restricted", "GPL-3.0-only", Tier.restricted, 0),
    ],
)
def test_a_stated_tier_only_makes_it_stricter(stated: str, license: str, tier: Tier, conflicts: int) -> None:
    verdict = resolve((said(license),), stated_tier=stated)
    assert (verdict.tier, len(verdict.conflicts)) == (tier, conflicts)
    assert verdict.rights.train == (tier is not Tier.restricted)


def test_a_stated_tier_without_a_licence_is_not_believed() -> None:
    verdict = resolve((), stated_tier="pd")
    assert verdict.tier is Tier.restricted
    assert "without any licence evidence" in verdict.conflicts[0]


def test_the_curator_can_take_rights_away() -> None:
    verdict = resolve((said("MIT"),), deny=(Right.train, Right.quote))
    assert (verdict.tier, verdict.rights.train, verdict.rights.quote, verdict.rights.store) == (Tier.sw, False, 0, True)


def test_evidence_is_kept_once_in_a_fixed_order() -> None:
    items = (said("MIT", "b"), said("MIT", "a"), said("MIT", "b"))
    assert [item.where for item in resolve(items).evidence] == ["a", "b"]
    assert resolve(items) == resolve(reversed(items))
