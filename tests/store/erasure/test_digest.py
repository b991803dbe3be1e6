"""The digest depends on the set of records alone, and every part of it counts."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.store.erasure.digest import DIGEST_BYTES, LANES, Digest

ELEMENTS = st.lists(st.binary(max_size=40), max_size=150, unique=True)
NOTHING = Digest.of()


def naive(elements: list[bytes]) -> list[int]:
    """The formula in plain integers."""
    lanes = [0] * LANES
    for element in elements:
        expanded = hashlib.shake_256(b"silo-digest-element-1\0" + element).digest(2 * LANES)
        for at in range(LANES):
            lanes[at] = (lanes[at] + int.from_bytes(expanded[2 * at : 2 * at + 2], "little")) % 2**16
    return lanes


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 130])
def test_the_state_is_the_sum_of_the_expanded_records(count: int) -> None:
    elements = [f"record {number}".encode() for number in range(count)]
    found = Digest.of(iter(elements))
    assert found.state.tolist() == naive(elements)
    assert found.count == count


def test_the_bytes_never_change_between_versions() -> None:
    found = Digest.of([b"one", b"two", b"three"])
    assert hashlib.sha256(found.as_bytes()).hexdigest() == STATE_SHA256
    assert found.published("a config") == PUBLISHED


STATE_SHA256 = "6b014687bbdd1723ae9c11622c1d2a983dc19b14d902d2f436ba35c10e6bf8a3"
PUBLISHED = "3a7112b826792501a3376d82e93f97157244a7ef079165f85cc3ec912e8a1864"


@given(ELEMENTS, st.randoms(use_true_random=False))
def test_order_does_not_matter(elements: list[bytes], shuffler: random.Random) -> None:
    shuffled = list(elements)
    shuffler.shuffle(shuffled)
    assert Digest.of(shuffled) == Digest.of(elements)


@given(ELEMENTS, st.integers(0, 150))
def test_parts_add_up_and_removing_gives_back_what_was_there(elements: list[bytes], cut: int) -> None:
    first, second = elements[:cut], elements[cut:]
    whole = Digest.of(elements)
    assert Digest.of(first) + Digest.of(second) == whole
    assert whole - Digest.of(second) == Digest.of(first)
    assert whole - whole == NOTHING
    assert whole + NOTHING == whole


@given(ELEMENTS, st.data())
def test_any_history_that_leads_to_the_same_set_gives_the_same_digest(
    elements: list[bytes], data: st.DataObject
) -> None:
    held: set[bytes] = set()
    digest = NOTHING
    for element in data.draw(st.lists(st.sampled_from(elements), max_size=60)) if elements else []:
        one = Digest.of([element])
        digest = digest - one if element in held else digest + one
        held ^= {element}
    assert digest == Digest.of(sorted(held))
    assert digest.published("c") == Digest.of(held).published("c")


@given(ELEMENTS, ELEMENTS)
def test_different_sets_have_different_digests(left: list[bytes], right: list[bytes]) -> None:
    same = set(left) == set(right)
    assert (Digest.of(left) == Digest.of(right)) is same
    assert (Digest.of(left).published("c") == Digest.of(right).published("c")) is same


@given(ELEMENTS)
def test_bytes_round_trip(elements: list[bytes]) -> None:
    digest = Digest.of(elements)
    data = digest.as_bytes()
    assert len(data) == DIGEST_BYTES == 2056
    assert Digest.from_bytes(data) == digest
    assert hash(Digest.from_bytes(data)) == hash(digest)


def test_every_byte_and_the_config_count_in_the_published_value() -> None:
    data = Digest.of([b"a", b"b"]).as_bytes()
    seen = {Digest.from_bytes(data).published("config"), Digest.from_bytes(data).published("confi"), "x"}
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        seen.add(Digest.from_bytes(bytes(changed)).published("config"))
    assert len(seen) == 3 + len(data)


@given(st.text(max_size=20), st.text(max_size=20))
def test_the_published_value_tells_configs_apart(left: str, right: str) -> None:
    assert (NOTHING.published(left) == NOTHING.published(right)) is (left == right)


def test_records_that_run_together_are_told_apart() -> None:
    assert Digest.of([b"ab", b"c"]) != Digest.of([b"a", b"bc"])
    assert Digest.of([b"abc"]) != Digest.of([b"ab", b"c"])


def test_what_is_not_a_digest_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be"):
        NOTHING - Digest.of([b"never there"])
    with pytest.raises(ValueError, match="2056 bytes"):
        Digest.from_bytes(b"short")
    with pytest.raises(ValueError, match="uint16"):
        Digest(np.zeros(LANES, np.uint32), 0)


def test_a_digest_cannot_be_changed_in_place() -> None:
    digest = Digest.of([b"a"])
    with pytest.raises(ValueError, match="read-only"):
        digest.state[0] = 0
