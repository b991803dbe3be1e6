"""A policy means the same for a whole bucket as for each document by itself, and can only be narrowed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.errors import SiloError
from silo.records import UNLIMITED, Document, Rights, Tier
from silo.store.bucket import Bucket, EncodedDocument, assemble, pack
from silo.store.policy import EVERYTHING, Policy
from silo.store.policy.conditions import FIELDS, All, Among, AnyOf, Condition, Not, QuoteBelow
from tests.store.small import document

VALUES = {
    "tier": [*map(str, Tier)],
    "license": ["CC-BY-4.0", "MIT", "NOASSERTION"],
    "owner": ["", "A. Writer", "a 'b' \"c\" \\ \n\u202eé"],
    "domain": ["code", "notes"],
    "source": ["test", "other"],
}
QUOTES = [0, 49, 50, 51, UNLIMITED]


def _documents() -> list[Document]:
    made = []
    for n, (tier, spdx, owner, domain, source) in enumerate(product(*VALUES.values())):
        item = document(f"d{n}", f"text {n}", owner=owner, domain=domain, source=source)
        made.append(replace(item, tier=Tier(tier), license=spdx, rights=Rights(store=True, quote=QUOTES[n * 7 % 5])))
    return sorted(made, key=lambda item: item.id)


def bucket_of(documents: list[Document]) -> Bucket:
    """A bucket without searches."""
    none = np.empty(0, dtype=np.int32), np.empty((0, 0), dtype=np.uint8)
    parts = [
        EncodedDocument(bytes.fromhex(item.id), bytes(16), pack(item), 1, np.zeros(2, dtype=np.uint16), *none)
        for item in documents
    ]
    return Bucket("", memoryview(b"".join(assemble(parts, {}))))


DOCUMENTS = _documents()
BUCKET = bucket_of(DOCUMENTS)


def meets(item: Document, condition: Condition) -> bool:
    """The meaning of a condition, one document at a time."""
    match condition:
        case Among(field, values):
            return str(getattr(item, field)) in values
        case QuoteBelow(tokens):
            return item.rights.quote < tokens
        case Not(part):
            return not meets(item, part)
        case All(parts):
            return all(meets(item, part) for part in parts)
        case AnyOf(parts):
            return any(meets(item, part) for part in parts)


AMONG = st.sampled_from(FIELDS).flatmap(
    lambda field: st.builds(Among, st.just(field), st.frozensets(st.sampled_from(VALUES[field]), max_size=2))
)


def trees(leaves: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    """Random conditions made of some."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(Not, inner),
            *(st.builds(kind, st.lists(inner, max_size=3).map(tuple)) for kind in (All, AnyOf)),
        ),
        max_leaves=8,
    )


CONDITIONS = trees(AMONG | st.builds(QuoteBelow, st.sampled_from([-1, 0, 1, 50, 51, UNLIMITED, 2**40])))
POLICIES = st.builds(
    Policy, CONDITIONS, st.frozensets(st.sampled_from([*(item.id for item in DOCUMENTS), "00" * 16]), max_size=4)
)


@given(POLICIES)
def test_a_bucket_is_masked_as_its_documents_are_judged_one_by_one(policy: Policy) -> None:
    expected = [meets(item, policy.condition) and item.id not in policy.without for item in DOCUMENTS]
    assert policy.allows(BUCKET).tolist() == expected


@given(POLICIES, POLICIES)
def test_narrowing_allows_what_both_allow_and_never_more(one: Policy, other: Policy) -> None:
    both = one.narrowed(other)
    assert both.allows(BUCKET).tolist() == (one.allows(BUCKET) & other.allows(BUCKET)).tolist()
    assert both.narrowed(other) == both.narrowed(both) == both
    assert EVERYTHING.narrowed(both) == both.narrowed(EVERYTHING) == both


def test_everything_allows_every_document() -> None:
    assert Policy.of() == Policy() == EVERYTHING
    assert EVERYTHING.allows(BUCKET).all()


def test_equal_policies_are_one_key_of_a_cache() -> None:
    one = Policy.of(owners=["a", "b"], tiers=["pd"], without=["00" * 16])
    assert len({one, Policy.of(without=["00" * 16], tiers=["pd"], owners=["b", "a"])}) == 1


def test_an_empty_list_allows_nothing_and_none_is_no_limit() -> None:
    assert not Policy.of(owners=[]).allows(BUCKET).any()
    assert Policy.of(owners=None) == EVERYTHING


def test_an_unknown_list_is_refused() -> None:
    with pytest.raises(SiloError, match="no 'tier'"):
        Policy.of(tier=["pd"])


def test_the_index_holds_the_quote_right_without_loss() -> None:
    assert BUCKET.index["quote"].tolist() == [item.rights.quote for item in DOCUMENTS]
