"""Properties of the readings that must hold for any input."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from silo.records import Duty, Evidence, Right, Tier
from silo.rights import assess, classify, read_header, read_license_file, resolve
from silo.rights.licences.table import license_table

IDS = sorted({row.spdx for row in license_table().ids.values()})
NAMES = ["MIT", "GPL-3.0-only", "CC-BY-4.0", "CC0-1.0", "Apache 2.0", "BSD License", "CC-BY-NC-4.0", "nonsense", ""]

tiers = st.sampled_from(list(Tier))
licences = st.builds(
    Evidence,
    asserted=st.sampled_from(["a", "b"]),
    where=st.sampled_from(["x", "y", "z"]),
    method=st.just("test"),
    confidence=st.sampled_from([0.3, 0.6, 0.9]),
    tier=tiers,
    spdx=st.sampled_from(["MIT", "CC-BY-4.0", "GPL-3.0-only", "NOASSERTION"]),
    duties=st.frozensets(st.sampled_from(list(Duty))),
)
signals = st.builds(
    Evidence,
    asserted=st.just("s"),
    where=st.sampled_from(["robots.txt:1", "robots.txt:2"]),
    method=st.just("signal"),
    confidence=st.just(1.0),
    denies=st.frozensets(st.sampled_from(list(Right))),
)
evidence = st.lists(licences | signals, max_size=5)


def decided(items: list[Evidence]) -> bool:
    """Whether some licence evidence already counts; only from "none" to "some" may a verdict become milder."""
    return any(item.tier is Tier.restricted or (item.tier is not None and item.confidence >= 0.5) for item in items)


@given(st.text(max_size=300))
def test_any_text_gets_a_verdict(text: str) -> None:
    verdict = classify(text)
    assert verdict.tier in set(Tier)
    assert verdict.rights.train == (verdict.tier is not Tier.restricted)


@given(st.text(alphabet="bcdfghjklmnpqrstvwxz ,;/()", max_size=60))
def test_unknown_text_is_restricted(text: str) -> None:
    known = {word for words in license_table().names for word in words}
    words = "".join(char if char.isalpha() else " " for char in text).split()
    if not known.intersection(words):
        assert classify(text).tier is Tier.restricted


@given(st.sampled_from(IDS), st.text(alphabet="bcdfghjkqwxz", min_size=3, max_size=8))
def test_a_licence_with_an_unknown_word_is_restricted(id: str, word: str) -> None:
    if (word,) not in license_table().names:
        assert classify(f"{id} {word}").tier is Tier.restricted
        assert classify(f"{id}-{word}").tier is Tier.restricted


@given(st.lists(st.sampled_from(IDS), min_size=1, max_size=5))
def test_or_is_the_most_permissive_and_and_the_most_restrictive(ids: list[str]) -> None:
    each = [classify(name).tier for name in ids]
    assert classify(" OR ".join(ids)).tier is min(each)
    assert classify(" AND ".join(ids)).tier is max(each)


@given(st.lists(st.sampled_from(IDS), min_size=3, max_size=3))
def test_and_binds_stronger_than_or(ids: list[str]) -> None:
    first, second, third = (classify(name).tier for name in ids)
    assert classify("{} OR {} AND {}".format(*ids)).tier is min(first, max(second, third))
    assert classify("({} OR {}) AND {}".format(*ids)).tier is max(min(first, second), third)


@given(st.sampled_from(IDS))
def test_every_spdx_name_reads_back_as_itself(id: str) -> None:
    verdict = classify(id)
    assert verdict.spdx == id
    assert classify(id.lower()).tier is verdict.tier


@given(evidence, st.sampled_from(["", *Tier, "odd"]))
def test_order_of_evidence_does_not_matter(items: list[Evidence], stated: str) -> None:
    verdicts = {resolve(order, stated_tier=stated) for order in itertools.islice(itertools.permutations(items), 24)}
    assert len(verdicts) == 1


@given(evidence, licences | signals, st.sampled_from(["", *Tier]))
def test_more_evidence_never_grants_more(items: list[Evidence], extra: Evidence, stated: str) -> None:
    before, after = resolve(items, stated_tier=stated), resolve([*items, extra], stated_tier=stated)
    if decided(items) or extra.tier is None:
        assert after.tier >= before.tier
        assert before.rights.covers(after.rights)
    assert after.duties >= before.duties


@given(evidence, st.frozensets(st.sampled_from(list(Right))), tiers)
def test_denials_and_stated_tiers_only_narrow(items: list[Evidence], deny: frozenset[Right], stated: Tier) -> None:
    free, bound = resolve(items), resolve(items, deny=deny, stated_tier=stated)
    assert bound.tier >= max(free.tier, stated)
    assert free.rights.covers(bound.rights)


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
def test_a_verdict_is_as_strict_as_each_statement(statements: list[str]) -> None:
    verdict = resolve(assess(text, where=str(at)) for at, text in enumerate(statements))
    assert verdict.tier == max(classify(text).tier for text in statements)


@settings(max_examples=60)
@given(st.text(max_size=2000))
def test_any_document_and_licence_file_can_be_read(text: str) -> None:
    assert isinstance(read_header(text, where="doc"), tuple)
    assert read_license_file(text, where="LICENSE").tier in set(Tier)
