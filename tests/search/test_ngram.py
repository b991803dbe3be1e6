"""Suffix search: equal to a plain reading of the allowed documents, whatever the buckets, bitmaps and types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.search.dtypes import UInt8s, UInt32s
from silo.search.ngram.index import (
    AllowedSuffixes,
    Continuations,
    Holders,
    Match,
    NextTokens,
    NgramIndex,
    Tokens,
    suffix_array,
)
from silo.search.places import TokenTable
from silo.store.policy import EVERYTHING, Policy
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.view import View
from tests.store.small import document as judged
from tests.store.small import small_store

Document = list[int]
Alphabet = tuple[Literal["uint16", "uint32"], int, list[int]]
"""The type, the token that begins a document, and the others."""
ALPHABETS: list[Alphabet] = [
    ("uint16", 0, [1, 2, 3]),
    ("uint16", 2, [0, 1, 3]),
    ("uint16", 65535, [0, 7, 65534]),
    ("uint32", 9, [8, 10, 1 << 17]),
    ("uint32", 1, [0, (1 << 18) - 1, 1 << 18, (1 << 32) - 1]),
]


@dataclass(frozen=True)
class World:
    """Documents in buckets, some allowed, and a text to ask about."""

    kind: Literal["uint16", "uint32"]
    begin: int
    buckets: list[list[Document]]
    allowed: list[list[bool]]
    text: list[int]

    def search(self, *, rebuilt: bool = False) -> NgramIndex:
        return NgramIndex([(tokens, suffix_array(tokens)) for tokens in self.arrays(rebuilt=rebuilt)], self.begin)

    def limited(self) -> tuple[NgramIndex, AllowedSuffixes]:
        search = self.search()
        return search, search.allow(self.bitmaps())

    def table(self, *, rebuilt: bool = False) -> TokenTable:
        return TokenTable([(tokens, np.flatnonzero(tokens == self.begin)) for tokens in self.arrays(rebuilt=rebuilt)])

    def arrays(self, *, rebuilt: bool = False) -> list[Tokens]:
        kept = self.kept() if rebuilt else self.buckets
        return [array([token for d in bucket for token in (self.begin, *d)], self.kind) for bucket in kept]

    def kept(self) -> list[list[Document]]:
        return [
            [document for document, good in zip(bucket, allowed, strict=True) if good]
            for bucket, allowed in zip(self.buckets, self.allowed, strict=True)
        ]

    def bitmaps(self) -> list[UInt8s | None]:
        """None for a bucket that is allowed whole."""
        return [
            None if all(allowed) else pack([good for d, good in zip(bucket, allowed, strict=True) for _ in (0, *d)])
            for bucket, allowed in zip(self.buckets, self.allowed, strict=True)
        ]

    def kept_number(self, row: int) -> int:
        """How many allowed documents come before this one, which is allowed."""
        allowed = [good for bucket in self.allowed for good in bucket]
        assert allowed[row]
        return sum(allowed[:row])

    def names(self, *, rebuilt: bool = False) -> dict[tuple[int, int], tuple[int, int]]:
        """From (bucket, place) to (how many allowed documents come before, place in the document)."""
        named, before = {}, 0
        for number, bucket in enumerate(self.kept() if rebuilt else self.buckets):
            place = 0
            for at, document in enumerate(bucket):
                good = rebuilt or self.allowed[number][at]
                for offset in range(len(document) + 1):
                    if good:
                        named[number, place + offset] = (before, offset)
                place += len(document) + 1
                before += good
        return named


def array(values: list[int], kind: Literal["uint16", "uint32"]) -> Tokens:
    return np.array(values, dtype=np.uint16) if kind == "uint16" else np.array(values, dtype=np.uint32)


def pack(bits: Sequence[bool]) -> UInt8s:
    return np.packbits(np.array(bits, dtype=bool), bitorder="little")


@st.composite
def worlds(draw: st.DrawFn) -> World:
    kind, begin, letters = draw(st.sampled_from(ALPHABETS))
    documents = st.lists(st.sampled_from(letters), max_size=12)
    buckets = draw(st.lists(st.lists(documents, max_size=5), max_size=4))
    allowed = draw(st.tuples(*(st.lists(st.booleans(), min_size=len(b), max_size=len(b)) for b in buckets)))
    text = draw(st.lists(st.sampled_from([*letters, *letters, begin, 5, -1, 1 << 40]), max_size=14))
    copies = [document for bucket in buckets for document in bucket if document]
    if draw(st.booleans()) and copies:
        text += draw(st.sampled_from(copies))
    return World(kind, begin, buckets, list(allowed), text)


def after_begin(text: list[int], begin: int) -> list[int]:
    return text[len(text) - text[::-1].index(begin) :] if begin in text else text


def occurrences(documents: list[Document], pattern: list[int]) -> list[tuple[int, int]]:
    """(document, place right after the pattern) where the document's own place 0 is its begin token."""
    size = len(pattern)
    return [
        (number, start + size + 1)
        for number, document in enumerate(documents)
        for start in range(len(document) - size + 1)
        if document[start : start + size] == pattern
    ]


@dataclass(frozen=True)
class Plain:
    """What `Continuations` must say."""

    length: int
    counts: dict[int, int]
    ends: int
    where: list[tuple[int, int]]


def plainly(world: World, text: list[int], longest: int) -> Plain:
    documents = [document for bucket in world.kept() for document in bucket]
    known = after_begin(text, world.begin)
    for size in range(min(len(known), longest), 0, -1):
        found = occurrences(documents, known[len(known) - size :])
        where = [(number, after) for number, after in found if after <= len(documents[number])]
        if where:
            counts = Counter(documents[number][after - 1] for number, after in where)
            return Plain(size, dict(sorted(counts.items())), len(found) - len(where), where)
    return Plain(0, {}, 0, [])


def said(answer: Continuations, names: dict[tuple[int, int], tuple[int, int]]) -> Plain:
    assert answer.total == answer.counts.sum()
    arrays = (answer.tokens, answer.counts, answer.buckets, answer.places)
    assert [str(values.dtype) for values in arrays] == ["uint32", "int64", "int32", "uint32"]
    where = [names[place] for place in zip(answer.buckets.tolist(), answer.places.tolist(), strict=True)]
    counts = dict(zip(answer.tokens.tolist(), answer.counts.tolist(), strict=True))
    assert list(counts) == sorted(counts)
    return Plain(answer.length, counts, answer.ends, where)


@given(st.sampled_from(ALPHABETS), st.data())
@settings(deadline=None)
def test_suffix_array_is_the_plain_order_of_suffixes(alphabet: Alphabet, data: st.DataObject) -> None:
    kind, begin, letters = alphabet
    values = data.draw(st.lists(st.sampled_from([begin, *letters]), max_size=40))
    suffixes = suffix_array(array(values, kind))
    assert suffixes.dtype == np.uint32
    assert suffixes.tolist() == sorted(range(len(values)), key=lambda place: values[place:])


@given(worlds(), st.integers(0, 15), st.integers(0, 8))
@settings(deadline=None, max_examples=500)
def test_continuations_are_those_of_the_allowed_documents_read_plainly(world: World, longest: int, limit: int) -> None:
    expected = plainly(world, world.text, longest)
    search, allowed = world.limited()
    assert search.longest(world.text, allowed=allowed, longest=longest) == expected.length
    answer = search.continuations(world.text, allowed=allowed, longest=longest, limit=limit)
    assert answer.total == len(expected.where)
    first = Plain(expected.length, expected.counts, expected.ends, expected.where[:limit])
    assert said(answer, world.names()) == first


@given(worlds(), st.integers(0, 8))
@settings(deadline=None, max_examples=300)
def test_a_bitmap_answers_like_buckets_that_never_held_the_others(world: World, limit: int) -> None:
    (masked, allowed), rebuilt = world.limited(), world.search(rebuilt=True)
    ours = said(masked.continuations(world.text, allowed=allowed, limit=limit), world.names())
    assert ours == said(rebuilt.continuations(world.text, limit=limit), world.names(rebuilt=True))
    left, right = masked.levels(world.text, orders=(1, 3), allowed=allowed), rebuilt.levels(world.text, orders=(1, 3))
    for name in ("lengths", "totals", "hits"):
        assert getattr(left, name).tolist() == getattr(right, name).tolist()
    for size in range(4):
        pattern = world.text[-size:]
        assert plain(masked.followers(pattern, allowed=allowed)) == plain(rebuilt.followers(pattern))
        sizes, weights = range(len(pattern) + 1), [0.1 + size for size in range(len(pattern) + 1)]
        mine = weighed(masked.weigh_documents(pattern, sizes, weights, world.table(), allowed=allowed))
        theirs = weighed(rebuilt.weigh_documents(pattern, sizes, weights, world.table(rebuilt=True)))
        assert {world.kept_number(row): weight for row, weight in mine.items()} == theirs


@given(worlds(), st.lists(st.integers(0, 20), max_size=3), st.integers(0, 8))
@settings(deadline=None, max_examples=300)
def test_the_cuts_between_buckets_do_not_show(world: World, cuts: list[int], limit: int) -> None:
    documents = [document for bucket in world.buckets for document in bucket]
    allowed = [good for bucket in world.allowed for good in bucket]
    edges = [0, *sorted(min(cut, len(documents)) for cut in cuts), len(documents)]
    spans = [slice(low, high) for low, high in pairwise(edges)]
    other = World(world.kind, world.begin, [documents[s] for s in spans], [allowed[s] for s in spans], world.text)
    answers = []
    for search, permitted in (world.limited(), other.limited()):
        answers.append(search.continuations(world.text, allowed=permitted, limit=limit))
    one, two = answers
    assert said(one, world.names()) == said(two, other.names())


@given(worlds(), st.integers(0, 15))
@settings(deadline=None, max_examples=300)
def test_longest_match_is_the_first_of_the_longest(world: World, longest: int) -> None:
    documents = [document for bucket in world.kept() for document in bucket]
    known = after_begin(world.text, world.begin)
    search, allowed = world.limited()
    match = search.longest_match(world.text, allowed=allowed, longest=longest)
    sizes = range(min(len(known), longest), 0, -1)
    found = next(((n, at) for n in sizes for at in occurrences(documents, known[len(known) - n :])[:1]), None)
    if found is None:
        assert match == Match(0, -1, -1)
    else:
        size, (number, after) = found
        assert match.length == size
        assert world.names()[match.bucket, match.place] == (number, after - size)


def followed(documents: list[Document], context: list[int]) -> Counter[int]:
    """What follows a context within its document."""
    ends = occurrences(documents, context) if context else []
    return Counter(documents[number][after - 1] for number, after in ends if after <= len(documents[number]))


def plain(answer: NextTokens) -> dict[int, int]:
    assert [str(values.dtype) for values in (answer.tokens, answer.counts)] == ["uint32", "int64"]
    counts = dict(zip(answer.tokens.tolist(), answer.counts.tolist(), strict=True))
    assert list(counts) == sorted(counts)
    assert sum(counts.values()) == answer.total
    return counts


def weighed(answer: Holders) -> dict[int, float]:
    assert [str(values.dtype) for values in answer] == ["int64", "float64", "int64"]
    return dict(sorted(zip(answer.rows.tolist(), answer.weights.tolist(), strict=True)))


@given(worlds(), st.integers(0, 15))
@settings(deadline=None, max_examples=300)
def test_followers_and_holders_are_those_of_the_whole_pattern(world: World, size: int) -> None:
    documents = [document for bucket in world.kept() for document in bucket]
    pattern = world.text[max(0, len(world.text) - size) :]
    inside = pattern and world.begin not in pattern
    search, allowed = world.limited()
    assert plain(search.followers(pattern, allowed=allowed)) == (followed(documents, pattern) if inside else {})
    by_size = search.followers_of([pattern[cut:] for cut in range(len(pattern) + 1)], allowed=allowed)
    for cut, found_after in enumerate(by_size):
        assert plain(found_after) == plain(search.followers(pattern[cut:], allowed=allowed))
    held = Counter(number for number, _ in occurrences(documents, pattern)) if inside else {}
    found = weighed(search.weigh_documents(pattern, [len(pattern)], [1.0], world.table(), allowed=allowed))
    assert {world.kept_number(row): weight for row, weight in found.items()} == held


@given(worlds(), st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=6), st.integers(0, 9))
@settings(deadline=None, max_examples=200)
def test_texts_that_are_asked_about_together_are_answered_as_each_alone(
    world: World, cuts: list[tuple[int, int]], longest: int
) -> None:
    search, allowed = world.limited()
    texts = [world.text[min(cut) : max(cut)] for cut in cuts]
    lengths = search.longest_of(texts, allowed=allowed, longest=longest)
    assert lengths == [search.longest(text, allowed=allowed, longest=longest) for text in texts]
    together = search.followers_of(texts, allowed=allowed) if texts else []
    assert list(map(plain, together)) == [plain(search.followers(text, allowed=allowed)) for text in texts]
    sizes = [[size for size in (1, 2, 3, longest) if size <= len(text)] for text in texts]
    weights = [[0.1 * size + 0.3 for size in each] for each in sizes]
    all_sizes, all_weights = list(chain(*sizes)), list(chain(*weights))
    ends = np.cumsum([len(each) for each in sizes])
    held = search.weigh_documents_of(texts, ends, all_sizes, all_weights, world.table(), allowed=allowed)
    met, first, size = held.ends.tolist(), 0, 0
    for text, each, more in zip(texts, sizes, weights, strict=True):
        alone = search.weigh_documents(text, each, more, world.table(), allowed=allowed)
        last = first + len(alone.rows)
        assert held.rows[first:last].tolist() == alone.rows.tolist()
        assert held.weights[first:last].tolist() == alone.weights.tolist()
        assert met[size : size + len(each)] == [first + count for count in alone.ends.tolist()]
        first, size = last, size + len(each)
    assert first == len(held.rows)


@given(worlds(), st.integers(0, 15), st.integers(0, 14), st.sets(st.integers(1, 7), min_size=1))
@settings(deadline=None, max_examples=500)
def test_levels_are_those_of_the_allowed_documents_read_plainly(
    world: World, longest: int, start: int, some: set[int]
) -> None:
    documents = [document for bucket in world.kept() for document in bucket]
    start, orders = min(start, len(world.text)), sorted(some)
    search, allowed = world.limited()
    levels = search.levels(world.text, start, orders=orders, allowed=allowed, longest=longest)
    assert [str(a.dtype) for a in (levels.lengths, levels.totals, levels.hits)] == ["int32", "int64", "int64"]
    assert levels.totals.shape == levels.hits.shape == (len(world.text) - start, len(orders) + 1)
    for row, token in enumerate(world.text[start:]):
        before = after_begin(world.text[: start + row], world.begin)
        length = plainly(world, before, longest).length
        assert levels.lengths[row] == length
        for column, size in enumerate([*orders, length if length > orders[-1] else 0]):
            counts = followed(documents, before[len(before) - size :]) if size <= len(before) else Counter()
            assert levels.totals[row, column] == counts.total()
            assert levels.hits[row, column] == counts[token]


def zipfian(tokens: int, *, seed: int) -> NDArray[np.uint16]:
    """Documents of about 200 tokens over a few hundred ids, as skewed as text."""
    rng = np.random.default_rng(seed)
    values = np.minimum(rng.zipf(1.3, tokens), 700).astype(np.uint16)
    values[rng.random(tokens) < 1 / 200] = 0
    values[0] = 0
    return values


@pytest.fixture(scope="module")
def large() -> list[tuple[Tokens, UInt32s]]:
    return [(tokens, suffix_array(tokens)) for tokens in (zipfian(40_000, seed=seed) for seed in range(3))]


@pytest.mark.parametrize("limited", [False, True])
def test_levels_say_row_by_row_what_followers_and_longest_say(
    large: list[tuple[Tokens, UInt32s]], limited: bool
) -> None:
    search = NgramIndex(large, 0)
    allowed = search.allow([even_documents(tokens) for tokens, _ in large]) if limited else None
    text = [*zipfian(500, seed=9).tolist(), *large[1][0][1000:1100].tolist()]
    orders, start = (1, 2, 4), 40
    levels = search.levels(text, start, orders=orders, allowed=allowed)
    assert (levels.lengths > 4).sum() > 20
    for row, token in enumerate(text[start:]):
        before = after_begin(text[: start + row], 0)
        length = search.longest(before, allowed=allowed)
        assert levels.lengths[row] == length
        for column, size in enumerate((*orders, length if length > 4 else 0)):
            counts = plain(search.followers(before[-size:] if 0 < size <= len(before) else [], allowed=allowed))
            assert levels.totals[row, column] == sum(counts.values())
            assert levels.hits[row, column] == counts.get(token, 0)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("pattern", [[1], [1, 1], [2, 1], [1, 1, 1], [40], [600, 1]])
def test_frequent_suffixes_are_counted_whole(
    large: list[tuple[Tokens, UInt32s]], pattern: list[int], limited: bool
) -> None:
    search = NgramIndex(large, 0)
    allowed = search.allow([even_documents(tokens) for tokens, _ in large]) if limited else None
    answer, followers = search.continuations([0, *pattern], allowed=allowed), search.followers(pattern, allowed=allowed)
    counts, ends, nexts, lasts = Counter[int](), 0, list[tuple[int, int]](), list[tuple[int, int]]()
    for number, (tokens, _) in enumerate(large):
        good = np.unpackbits(even_documents(tokens), bitorder="little") if limited else np.ones(len(tokens) + 8)
        extended = [*tokens.tolist(), 0]
        for after in range(len(pattern), len(tokens) + 1):
            if extended[after - len(pattern) : after] == pattern and good[after - 1]:
                counts[extended[after]] += 1
                nexts += [(number, after)] if extended[after] else []
                lasts.append((number, after - 1))
    ends = counts.pop(0, 0)
    assert answer.length == len(pattern)
    assert dict(zip(answer.tokens.tolist(), answer.counts.tolist(), strict=True)) == dict(sorted(counts.items()))
    assert plain(followers) == dict(sorted(counts.items()))
    assert (answer.total, answer.ends) == (len(nexts), ends)
    assert list(zip(answer.buckets.tolist(), answer.places.tolist(), strict=True)) == nexts[:64]
    firsts = [np.flatnonzero(tokens == 0) for tokens, _ in large]
    before = np.cumsum([0, *map(len, firsts)])
    held = Counter(
        int(before[number] + np.searchsorted(firsts[number], last, side="right") - 1) for number, last in lasts
    )
    table = TokenTable([(tokens, first) for (tokens, _), first in zip(large, firsts, strict=True)])
    for _ in range(2):
        assert weighed(search.weigh_documents(pattern, [len(pattern)], [0.5], table, allowed=allowed)) == {
            row: count / 2 for row, count in sorted(held.items())
        }


def even_documents(tokens: Tokens) -> UInt8s:
    return np.packbits(np.cumsum(tokens == 0) % 2 == 0, bitorder="little")


def test_read_only_memory_maps_are_searched_in_place(large: list[tuple[Tokens, UInt32s]], tmp_path: Path) -> None:
    mapped = []
    for number, bucket in enumerate(large):
        for name, array in zip(("tokens", "suffixes"), bucket, strict=True):
            np.save(tmp_path / f"{name}{number}.npy", array)
        paths = [tmp_path / f"{name}{number}.npy" for name in ("tokens", "suffixes")]
        mapped.append((np.load(paths[0], mmap_mode="r"), np.load(paths[1], mmap_mode="r")))
    prefix = large[1][0][1000:1050]
    prefix.setflags(write=False)
    ours, theirs = NgramIndex(mapped, 0).continuations(prefix), NgramIndex(large, 0).continuations(prefix)
    assert (ours.length, ours.total, ours.counts.tolist()) == (theirs.length, theirs.total, theirs.counts.tolist())


def test_threads_get_the_same_answers(large: list[tuple[Tokens, UInt32s]]) -> None:
    search = NgramIndex(large, 0)
    text = zipfian(3000, seed=9)
    prefixes = [text[max(0, end - 20) : end] for end in range(1, 3000, 10)]

    def ask(prefix: NDArray[np.uint16]) -> list[list[int]]:
        answer = search.continuations(prefix)
        return [[answer.length, answer.total], answer.tokens.tolist(), answer.counts.tolist(), answer.places.tolist()]

    alone = [ask(prefix) for prefix in prefixes]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, prefixes)) == alone


def test_a_copied_stretch_is_found_in_full_length() -> None:
    tokens = zipfian(5000, seed=4)
    tokens[1:] = np.maximum(tokens[1:], 1)
    search = NgramIndex([(tokens, suffix_array(tokens))], 0)
    assert search.longest_match(tokens[100:1400]) == Match(1000, 0, 400)
    assert search.longest_match(tokens[100:1400], longest=5000) == Match(1300, 0, 100)
    levels = search.levels(tokens[100:1400], orders=(2,), longest=300)
    assert levels.lengths.max() == 300
    assert (levels.hits[20:] >= 1).all()


def test_nothing_is_found_in_nothing() -> None:
    nothing = np.empty(0, dtype=np.uint16)
    for buckets in ([], [(nothing, suffix_array(nothing))]):
        search = NgramIndex(buckets, 0)
        assert search.continuations([1, 2]).length == search.continuations([]).length == 0
        assert search.longest_match([1]) == Match(0, -1, -1)
        assert (
            search.longest([1])
            == search.followers([1]).total
            == len(search.weigh_documents([1], [1], [1.0], TokenTable([]))[0])
            == 0
        )
        assert search.levels([1, 2], orders=(1,)).totals.tolist() == [[0, 0], [0, 0]]


def test_arrays_that_would_be_misread_are_refused() -> None:
    tokens = np.array([0, 1, 2], dtype=np.uint16)
    suffixes = suffix_array(tokens)
    wrong: list[tuple[Any, Any]] = [
        (tokens.astype(np.int64), suffixes),
        (tokens.astype(">u2"), suffixes),
        (tokens, suffixes.astype(np.int64)),
        (tokens, suffixes[:2]),
        (tokens, suffixes + np.uint32(1)),
        (np.repeat(tokens, 2)[::2], suffixes),
        (tokens + np.uint16(1), suffixes),
    ]
    for bucket in wrong:
        with pytest.raises(SiloError, match="store-damaged"):
            NgramIndex([bucket], 0)
    with pytest.raises(SiloError, match="store-damaged"):
        NgramIndex([(tokens, suffixes), (tokens.astype(np.uint32), suffixes)], 0)
    search = NgramIndex([(tokens, suffixes)], 0)
    bitmaps: list[Any] = [[], [None, None], [np.empty(0, dtype=np.uint8)], [np.ones(3, dtype=bool)]]
    for allowed in bitmaps:
        with pytest.raises(ValueError, match="bitmap"):
            search.allow(allowed)
    with pytest.raises(ValueError, match="another search"):
        search.followers([1], allowed=NgramIndex([(tokens, suffixes)], 0).allow([None]))
    with pytest.raises(ValueError, match="start is 3"):
        search.levels([1, 2], 3, orders=(1,))
    for orders in ((), (0, 1), (2, 1), (1, 1)):
        with pytest.raises(ValueError, match="ascending"):
            search.levels([1, 2], orders=orders)


TEXTS = [f"Note {n} tells of {n * 37} apples, {n % 5} pears and the {n}th winter of the north. " * 3 for n in range(40)]
NOTES = [judged(f"d{n}", text, owner=f"owner{n % 4}") for n, text in enumerate([*TEXTS, "x", "of"])]
PATTERNS = [b"o", b"th", b" winter of", b"apples, 3 pears", b"of", b"x", b"", b"zzz", TEXTS[7].encode()]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = small_store(tmp_path_factory.mktemp("notes") / "store", searches=("ngram",))
    made.add(NOTES)
    return made


def held_by(view: View, pattern: bytes, policy: Policy = EVERYTHING) -> dict[str, int]:
    rows, counts = view.holders([*pattern], [len(pattern)], [1.0], policy)
    assert len(rows) == len(set(rows.tolist()))
    names = [view.document(row).external_id for row in rows.tolist()]
    return dict(zip(names, counts.tolist(), strict=True))


def overlapping(text: str, pattern: bytes) -> int:
    data = text.encode()
    return sum(data.startswith(pattern, at) for at in range(len(data))) if pattern else 0


@pytest.mark.parametrize(
    "policy", [EVERYTHING, Policy.of(owners=["owner2"]), Policy.of(without=[item.id for item in NOTES[:30]])]
)
def test_a_view_counts_what_the_allowed_documents_hold(store: Store, tmp_path: Path, policy: Policy) -> None:
    with store.reading() as view:
        allowed = [item for item in NOTES if item.id in permitted(view, policy)]
        alone = small_store(tmp_path / "alone", searches=("ngram",))
        alone.add(allowed)
        text = [*b"Note 7 tells of 9 winters of the", 256, *b"north. Note 11"]
        with alone.reading() as other:
            for pattern in PATTERNS:
                counts = {item.external_id: overlapping(item.text, pattern) for item in allowed}
                for _ in "ab":
                    assert held_by(view, pattern, policy) == {name: count for name, count in counts.items() if count}
                    assert plain(view.followers([*pattern], policy)) == plain(other.followers([*pattern]))
                assert view.longest([*pattern], policy) == other.continuations([*pattern]).length
            for start in (0, 20):
                mine = view.levels(text, start, policy, orders=(1, 3, 6))
                theirs = other.levels(text, start, orders=(1, 3, 6))
                assert mine.lengths.tolist() == theirs.lengths.tolist()
                assert mine.totals.tolist() == theirs.totals.tolist()
                assert mine.hits.tolist() == theirs.hits.tolist()


def test_occurrences_of_several_lengths_weigh_what_they_are_said_to(store: Store) -> None:
    text, sizes, weights = b"the winter of", (2, 4, 9), (0.25, 2.0, 64.0)
    with store.reading() as view:
        for _ in range(2):
            rows, found = view.holders([*text], sizes, weights)
            parts = [held_by(view, text[-size:]) for size in sizes]
            names = [view.facts[row].external_id for row in rows.tolist()]
            assert set(names) == set(parts[0])
            for name, weight in zip(names, found.tolist(), strict=True):
                assert weight == sum(unit * part.get(name, 0) for unit, part in zip(weights, parts, strict=True))
        with pytest.raises(ValueError, match="for 2 tokens"):
            view.holders([1, 2], [3], [1.0])
        with pytest.raises(ValueError, match="a weight above 0"):
            view.holders([1, 2], [2], [0.0])


def permitted(view: View, policy: Policy) -> set[str]:
    return {name.tobytes().hex() for bucket in view.buckets for name in bucket.index["id"][policy.allows(bucket)]}


def test_frequent_answers_are_counted_once_and_cannot_be_changed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("silo.store.view._REMEMBERED", 2)
    with store.reading() as view:
        first = view.followers([*b" "])
        assert first.total > 1024
        with pytest.raises(ValueError, match="read-only"):
            first.counts[0] = 7
        assert view.followers([*b" "]).tokens is first.tokens
        assert view.followers([*b"winter"]).tokens is not view.followers([*b"winter"]).tokens
        some = view.followers([*b" "], Policy.of(owners=["owner0", "owner1", "owner2"]))
        assert 1024 < some.total < first.total
        assert view.followers([*b" "]).tokens is first.tokens
        for owner in ("owner0", "owner3"):
            assert view.followers([*b" "], Policy.of(owners=[owner, "owner1", "owner2"])).total > 1024
        assert view.followers([*b" "]).tokens is not first.tokens


def test_threads_share_frequent_answers(store: Store) -> None:
    patterns = [bytes([letter]) for letter in b" eatonrhsp"] * 20
    with store.reading() as view, ThreadPoolExecutor(4) as pool:
        alone = [held_by(view, pattern) for pattern in patterns]
        assert list(pool.map(lambda pattern: held_by(view, pattern), patterns)) == alone


def test_an_erased_document_is_counted_no_more(tmp_path: Path) -> None:
    made = small_store(tmp_path / "store", searches=("ngram",))
    made.add(NOTES)
    with made.reading() as view:
        assert "d3" in held_by(view, b"th winter")
    made.erase(Selector(document="d3"))
    with made.reading() as view:
        assert set(held_by(view, b"th winter")) == {f"d{n}" for n in range(40) if n != 3}
        assert view.followers([*b"th winter"]).total == 39 * 3
