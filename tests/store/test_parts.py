"""A store in parts answers every search bit for bit as the store itself; it takes no cluster to show that."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from silo.search.knn.codec import Codec, CodecSettings
from silo.store.parts.searcher import Question, Searcher, State
from silo.store.parts.view import DividedView
from silo.store.policy import EVERYTHING, Policy
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.view import EXACT_ROWS, View
from tests.store.small import SmallEncoder, document, small_store

PARTS = 3
SEEDS = np.random.default_rng(11)
WORDS = [f"{stem}{end}" for stem in ("stone", "river", "cloud", "amber", "wolf") for end in ("", "s", "ed", "ing")]
POLICIES = (EVERYTHING, Policy.parse("owner not in ['owner1']"), Policy.parse("owner == 'owner2'"))


def text_of(number: int) -> str:
    """Words of few kinds, so that documents share passages of any length, and some that are one document's own."""
    rng = np.random.default_rng(number)
    return " ".join(rng.choice(WORDS, size=60)) + f" and number {number} ends. " + " ".join(WORDS[number % 7 :][:6])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = small_store(tmp_path_factory.mktemp("parts") / "store")
    made.add([document(f"d{n}", text_of(n), owner=f"owner{n % 4}") for n in range(60)])
    return made


class Parts:
    """Searchers of all parts in this process."""

    def __init__(self, root: Path) -> None:
        self.searchers = [Searcher(str(root), part, PARTS) for part in range(PARTS)]

    def ask(self, state: State, question: Question, parts: Sequence[int]) -> list[Any]:
        answers = [self.searchers[part].ask(state, question) for part in parts]
        assert {answer.state for answer in answers} == {state}
        for answer in answers:
            if answer.error is not None:
                raise answer.error
        return [answer.value for answer in answers]

    @contextmanager
    def view(self, store: Store) -> Iterator[tuple[View, DividedView]]:
        with store.reading() as view:
            yield view, DividedView(view, PARTS, self.ask)


@pytest.fixture(scope="module")
def parts(store: Store) -> Parts:
    return Parts(store.root)


def assert_same(one: Any, other: Any) -> None:
    """Equal to the last bit, in all fields."""
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()
    elif is_dataclass(one) and not isinstance(one, type):
        assert_same(astuple(one), astuple(other))
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


def keys_of(text: str) -> NDArray[np.float32]:
    ids = np.concatenate([[256], np.frombuffer(text.encode(), dtype=np.uint8)]).astype(np.uint32)
    return next(SmallEncoder().keys([ids]))


def prefixes(count: int) -> list[NDArray[np.int64]]:
    """Text that is there, text that is not, and text that begins anew."""
    rng, found = np.random.default_rng(5), []
    for number in range(count):
        raw = np.frombuffer(text_of(number % 70).encode(), dtype=np.uint8).astype(np.int64)
        end = int(rng.integers(1, len(raw)))
        found.append(np.concatenate([[256], raw[:end], rng.integers(0, 256, size=number % 3)]))
    return found


@pytest.mark.parametrize("exact_rows", [EXACT_ROWS, 0])
def test_nearest_rows_are_those_of_the_whole(
    store: Store, parts: Parts, exact_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silo.store.view.EXACT_ROWS", exact_rows)
    keys = np.concatenate([keys_of(text_of(70 + number))[::9] for number in range(3)])
    with parts.view(store) as (whole, divided):
        for policy in POLICIES:
            for k, probes in ((1, 1), (7, 2), (200, 1), (9000, 4)):
                asked = (store.tested_tables(), keys[: 3 if k > 1000 else None], k, policy)
                assert_same(divided.search(*asked, probes=probes), whole.search(*asked, probes=probes))


def test_suffixes_are_those_of_the_whole(store: Store, parts: Parts) -> None:
    orders, sizes, weights = (1, 2, 3, 5), (2, 1, 4), (0.3, 0.7, 0.11)
    with parts.view(store) as (whole, divided):
        for number, ids in enumerate(prefixes(40)):
            policy = POLICIES[number % 3]
            for name, arguments, more in (
                ("longest", (ids, policy), {}),
                ("longest_match", (ids, policy), {}),
                ("continuations", (ids, policy), {"limit": (0, 1, 5, 64)[number % 4]}),
                ("continuations", (ids, policy), {}),
                ("levels", (ids, len(ids) // 2, policy), {"orders": orders}),
                ("followers_of", ([ids[-1:], ids[:0], ids[-3:]], policy), {}),
                ("longest_of", ([ids, ids[:-1]], policy), {}),
                ("holders_of", ([ids, ids[1:]], [2, 3], (2, 1, 1), (0.3, 0.7, 0.11), policy), {}),
                ("followers", (ids[-2:], policy), {}),
                ("holders", (np.concatenate([[256], ids]), sizes, weights, policy), {}),
            ):
                mine, theirs = getattr(divided, name)(*arguments, **more), getattr(whole, name)(*arguments, **more)
                assert_same(mine, theirs)


def test_passages_are_those_of_the_whole(store: Store, parts: Parts) -> None:
    with parts.view(store) as (whole, divided):
        for number in range(20):
            policy, k = POLICIES[number % 3], (1, 4, 500)[number % 3]
            for text in (text_of(number)[: 20 * (number + 1)], "", "nowhere to be found", "number 7 ends"):
                assert_same(divided.passages(text, k, policy), whole.passages(text, k, policy))
            words = [*text_of(number).split()[:5], "absent"]
            assert_same(divided.count_passages(words, policy), whole.count_passages(words, policy))


def test_documents_and_their_facts_are_those_of_the_whole(store: Store, parts: Parts) -> None:
    with parts.view(store) as (whole, divided):
        assert_same(divided.ids, whole.ids)
        assert divided.quotes == whole.quotes
        for row in range(len(whole.ids)):
            assert divided.document(row) == whole.document(row)
            assert divided.facts[row] == whole.facts[row]
            assert_same(divided.document_tokens(row), whole.document_tokens(row))


def test_what_is_wrong_with_a_question_is_said_as_by_the_whole(store: Store, parts: Parts) -> None:
    with parts.view(store) as (_, divided), pytest.raises(ValueError, match="k is 0"):
        divided.search(store.tested_tables(), keys_of("a"), 0, probes=1)


def test_an_empty_store_has_no_answers(tmp_path: Path) -> None:
    empty = small_store(tmp_path / "empty")
    parts = Parts(empty.root)
    with parts.view(empty) as (whole, divided):
        assert_same(divided.passages("anything", 3), whole.passages("anything", 3))
        assert_same(divided.longest(prefixes(1)[0]), 0)
        keys = keys_of("stone")
        assert_same(
            divided.search(empty.tested_tables(), keys, 3, probes=1),
            whole.search(empty.tested_tables(), keys, 3, probes=1),
        )


def test_a_searcher_answers_for_no_state_that_it_does_not_have_open(tmp_path: Path) -> None:
    store = small_store(tmp_path / "moving")
    store.add([document(f"d{n}", text_of(n)) for n in range(8)])
    searcher = Searcher(str(store.root), 0, 1)
    question = Question("longest", EVERYTHING, ([prefixes(1)[0]],))
    with store.reading() as view:
        before = State.of(view)
    assert searcher.ask(before, question).state == before
    store.erase(Selector(document="d3"))
    with store.reading() as view:
        after = State.of(view)
    for state in (before, State("0" * 64, frozenset())):
        answer = searcher.ask(state, question)
        assert answer.state == after
        assert answer.value is None
    assert searcher.ask(after, question).value is not None


def test_a_state_is_answered_for_as_long_as_somebody_holds_it(tmp_path: Path) -> None:
    store = small_store(tmp_path / "held")
    store.add([document(f"d{n}", text_of(n)) for n in range(8)])
    searcher = Searcher(str(store.root), 0, 1)
    question = Question("longest", EVERYTHING, ([prefixes(1)[0]],))
    with store.reading() as view:
        before = State.of(view)
    assert searcher.hold("front", frozenset({before})) == before
    store.add([document("new", text_of(99))])
    with store.reading() as view:
        after = State.of(view)
    assert searcher.hold("other", frozenset()) == after
    assert searcher.ask(before, question).state == before
    assert searcher.hold("front", frozenset({after})) == after
    assert searcher.ask(before, question).state == after


def test_a_searcher_of_a_store_that_was_made_anew_searches_with_its_codec(tmp_path: Path) -> None:
    first = small_store(tmp_path / "store")
    first.add([document("a", text_of(1))])
    searcher = Searcher(str(first.root), 0, 1)
    searcher.hold("test", frozenset())
    first.close()
    shutil.rmtree(first.root)
    other = Codec.learn(keys_of(text_of(9)), CodecSettings(lists=4, code_bytes=8, iterations=2))
    second = small_store(tmp_path / "store", codec=other)
    second.add([document("b", text_of(2)), document("c", text_of(3))])
    keys = keys_of(text_of(2))[::5]
    with second.reading() as view:
        divided = DividedView(view, 1, lambda state, question, _: [searcher.ask(state, question).value])
        found = divided.search(second.tested_tables(), keys, 4, EVERYTHING, probes=8)
        wanted = view.search(second.tested_tables(), keys, 4, EVERYTHING, probes=8)
        assert_same(found.distances, wanted.distances)
    second.close()
