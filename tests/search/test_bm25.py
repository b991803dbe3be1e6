"""BM25 over passages: bit for bit the naive formula, whatever the buckets, the masks and what was erased before."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.errors import SiloError
from silo.search.bm25 import index as passages
from silo.search.bm25.index import Bm25Index, PassageHits
from silo.search.bm25.passages import PassageArrays, build, cut
from silo.search.dtypes import Bools, UInt64s
from silo.text.words import terms

Texts = list[list[int]]
Scored = list[tuple[int, float]]

VOCABULARY = [0, 1, 2, 3, 5, 8, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1]
TEXTS = st.lists(st.lists(st.sampled_from(VOCABULARY), max_size=12), max_size=40)
BOUNDS = st.lists(st.integers(0, 40), max_size=5)
QUERIES = st.lists(st.sampled_from([*VOCABULARY, 4, 1 << 20]), max_size=20)
LAYOUTS = st.tuples(st.sampled_from([1, 3, 16]), st.sampled_from([1, 4, 4096]), st.sampled_from([0, 2, 48]))
"""Which terms get a row, passages in a window, and how many of them are finished one by one."""
PARAMETERS = st.sampled_from([(0.9, 0.4), (0.0, 0.4), (1.2, 0.0), (2.0, 1.0), (1000.0, 0.75)])


@contextmanager
def laid_out(layout: tuple[int, int, int]) -> Iterator[None]:
    """Small texts take every path of the search."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("_DENSE_SHARE", "_WINDOW", "_MOST_SINGLE"), layout, strict=True):
            patch.setattr(passages, name, value)
        yield


def bucket(texts: Texts) -> PassageArrays:
    """Every passage is a document of its own."""
    return build([np.array(text, dtype=np.uint64) for text in texts], cut([1] * len(texts), length=1, stride=1))


def split(items: list[Any], bounds: list[int]) -> list[list[Any]]:
    edges = [0, *sorted(min(bound, len(items)) for bound in bounds), len(items)]
    return [items[first:end] for first, end in pairwise(edges)]


def naive(texts: Texts, query: list[int], k: int, k1: float = 0.9, b: float = 0.4) -> Scored:
    """The formula as it is written: (passage, score), best first."""
    average = sum(map(len, texts)) / max(1, len(texts))
    counts = [Counter(text) for text in texts]
    scores = [0.0] * len(texts)
    for term, repeats in sorted(Counter(query).items()):
        frequency = sum(term in count for count in counts)
        weight = repeats * math.log(1.0 + (len(texts) - frequency + 0.5) / (frequency + 0.5))
        for number, count in enumerate(counts):
            if count[term]:
                norm = k1 * (1.0 - b + b * (len(texts[number]) / average))
                scores[number] += weight * (count[term] / (count[term] + norm))
    found = [(number, score) for number, score in enumerate(scores) if score > 0]
    return sorted(found, key=lambda one: (-one[1], one[0]))[:k]


def find(search: Bm25Index, query: list[int], k: int, masks: Sequence[Bools | None] | None = None) -> PassageHits:
    allowed = None if masks is None else search.allow(masks)
    return search.search(np.array(query, dtype=np.uint64), k, allowed=allowed)


def numbered(found: PassageHits, sizes: Sequence[int]) -> Scored:
    """(passage numbered through over buckets of these sizes, score)."""
    numbers = np.cumsum([0, *sizes])[found.buckets] + found.passages
    return list(zip(numbers.tolist(), found.scores.tolist(), strict=True))


def zipf_texts(count: int, seed: int) -> Texts:
    """Passages of about a hundred words, most words in few of them; the words are the same for any seed."""
    vocabulary = np.random.default_rng(0).integers(0, 1 << 64, 5000, dtype=np.uint64)
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, 5001)
    return [vocabulary[rng.choice(5000, rng.integers(60, 140), p=shares / shares.sum())].tolist() for _ in range(count)]


@given(TEXTS, BOUNDS, QUERIES, st.integers(1, 50), LAYOUTS, PARAMETERS)
def test_any_buckets_give_the_bits_of_the_naive_formula(
    texts: Texts,
    bounds: list[int],
    query: list[int],
    k: int,
    layout: tuple[int, int, int],
    parameters: tuple[float, float],
) -> None:
    parts = split(texts, bounds)
    with laid_out(layout):
        search = Bm25Index([bucket(part) for part in parts], k1=parameters[0], b=parameters[1])
        found = numbered(find(search, query, k), [len(part) for part in parts])
    assert found == naive(texts, query, k, *parameters)


@given(TEXTS, BOUNDS, QUERIES, st.integers(1, 50), LAYOUTS, st.data())
def test_allowed_passages_answer_as_if_there_were_no_others(
    texts: Texts, bounds: list[int], query: list[int], k: int, layout: tuple[int, int, int], data: st.DataObject
) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    parts, masks = split(texts, bounds), split(mask, bounds)
    left = [[text for text, keep in zip(*pair, strict=True) if keep] for pair in zip(parts, masks, strict=True)]
    with laid_out(layout):
        search = Bm25Index([bucket(part) for part in parts])
        found = find(search, query, k, [np.array(one, dtype=np.bool_) for one in masks])
        rebuilt = find(Bm25Index([bucket(part) for part in left]), query, k)
    assert found.scores.tobytes() == rebuilt.scores.tobytes()
    assert found.buckets.tolist() == rebuilt.buckets.tolist()
    places = [np.flatnonzero(one) for one in masks]
    renamed = [places[at][row] for at, row in zip(rebuilt.buckets, rebuilt.passages, strict=True)]
    assert found.passages.tolist() == renamed
    kept = [text for part in left for text in part]
    assert rebuilt.scores.tolist() == [score for _, score in naive(kept, query, k)]


@given(TEXTS, QUERIES, st.randoms(use_true_random=False))
def test_a_passage_scores_the_same_bits_in_any_bucket(texts: Texts, query: list[int], rng: Any) -> None:
    homes = [rng.randrange(4) for _ in texts]
    owned = [[number for number, home in enumerate(homes) if home == at] for at in range(4)]
    search = Bm25Index([bucket([texts[number] for number in numbers]) for numbers in owned])
    found = find(search, query, len(texts) + 1)
    places = [owned[at][row] for at, row in zip(found.buckets, found.passages, strict=True)]
    assert dict(zip(places, found.scores.tolist(), strict=True)) == dict(naive(texts, query, len(texts) + 1))


@pytest.mark.parametrize("k", [1, 10, 300])
def test_what_is_skipped_on_a_large_text_is_never_missed(k: int) -> None:
    texts = zipf_texts(9000, seed=1)
    parts = split(texts, [2000, 2001, 7000])
    search = Bm25Index([bucket(part) for part in parts])
    keep = np.random.default_rng(2).random(len(texts)) < 0.3
    masks = split(list(keep), [2000, 2001, 7000])
    allowed = search.allow([np.array(mask, dtype=np.bool_) for mask in masks])
    kept = [text for text, one in zip(texts, keep, strict=True) if one]
    for query in zipf_texts(4, seed=3):
        some = query[:32]
        best = naive(texts, some, k)
        assert len(best) == k
        assert numbered(find(search, some, k), [len(part) for part in parts]) == best
        found = search.search(np.array(query, dtype=np.uint64), k, allowed=allowed)
        assert found.scores.tolist() == [score for _, score in naive(kept, query, k)]


def test_equal_passages_come_in_order_of_bucket_and_passage() -> None:
    search = Bm25Index([bucket([[7, 8]] * 3), bucket([]), bucket([[7, 8]] * 3)])
    found = find(search, [7], 4)
    assert found.buckets.tolist() == [0, 0, 0, 2]
    assert found.passages.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("k", [1, 3, 9000])
def test_of_many_equal_passages_the_first_come_first(k: int) -> None:
    search = Bm25Index([bucket([[7, 8], [9]] * 2500), bucket([[7, 8]] * 2500)])
    found = find(search, [7, 8], k)
    expected = [*((0, row) for row in range(0, 5000, 2)), *((1, row) for row in range(2500))]
    assert list(zip(found.buckets.tolist(), found.passages.tolist(), strict=True)) == expected[:k]


def test_counts_beyond_a_byte_are_exact() -> None:
    texts = [[1] * 256 + [2], [1] * 300, [2] * 700, [1] * 257 + [2], [3]]
    search = Bm25Index([bucket(texts[:1]), bucket(texts[1:])])
    assert numbered(find(search, [1, 2, 2], 5), [1, 4]) == naive(texts, [1, 2, 2], 5)


def test_nothing_is_found_where_nothing_can_be() -> None:
    assert len(find(Bm25Index([]), [1], 3)) == 0
    search = Bm25Index([bucket([[1, 2], []]), bucket([])])
    assert len(find(search, [], 3)) == 0
    assert len(find(search, [9], 3)) == 0
    assert len(find(search, [1], 3, [np.zeros(2, dtype=np.bool_), None])) == 0
    assert len(find(search, [1], 3, [np.array([False, True]), None])) == 0


def test_statistics_of_what_is_allowed_are_integers_over_it() -> None:
    search = Bm25Index([bucket([[1, 2], [3]]), bucket([[4, 4, 4]])])
    allowed = search.allow([np.array([True, False]), None])
    assert (allowed.passages, allowed.words) == (2, 5)


def test_threads_share_one_search() -> None:
    search = Bm25Index([bucket(zipf_texts(500, seed=4))])
    queries = zipf_texts(40, seed=5)
    allowed = search.allow([np.arange(500) % 2 == 0])

    def scores(query: list[int]) -> list[float]:
        found: list[float] = search.search(np.array(query, dtype=np.uint64), 5, allowed=allowed).scores.tolist()
        return found

    assert all(scores(query) for query in queries)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(scores, queries)) == [scores(query) for query in queries]


def test_a_mask_that_does_not_fit_is_refused() -> None:
    search = Bm25Index([bucket([[1], [2]]), bucket([[3]])])
    with pytest.raises(ValueError, match="2 passages"):
        search.allow([np.ones(3, dtype=np.bool_), None])
    with pytest.raises(ValueError, match="bool"):
        search.allow([np.ones(2, dtype=np.int64), None])
    with pytest.raises(ValueError, match="one mask per bucket"):
        search.allow([None])


def test_what_was_allowed_for_other_buckets_is_refused() -> None:
    other = Bm25Index([bucket([[1]])]).allow([None])
    with pytest.raises(ValueError, match="another search"):
        Bm25Index([bucket([[1], [2]])]).search(np.array([1], dtype=np.uint64), 1, allowed=other)


@pytest.mark.parametrize("parameters", [{"k1": -1.0}, {"k1": math.nan}, {"b": 1.1}])
def test_parameters_out_of_range_are_refused(parameters: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="k1 is"):
        Bm25Index([], **parameters)
    with pytest.raises(ValueError, match="k is 0"):
        find(Bm25Index([]), [1], 0)


def test_arrays_are_narrow_and_a_function_of_the_words() -> None:
    made = bucket([[5, 2, 5], [], [2]])
    expected = {
        "terms": ("uint64", [2, 5]),
        "starts": ("uint32", [0, 2, 3]),
        "passages": ("uint8", [0, 2, 0]),
        "counts": ("uint8", [1, 1, 2]),
        "lengths": ("uint32", [3, 0, 1]),
        "documents": ("uint32", [0, 1, 2]),
        "firsts": ("uint32", [0, 0, 0]),
        "ends": ("uint32", [1, 1, 1]),
    }
    got = {item.name: getattr(made, item.name) for item in fields(made)}
    assert {name: (str(array.dtype), array.tolist()) for name, array in got.items()} == expected
    assert bucket([[1]] * 257).passages.dtype == np.uint16


@pytest.mark.parametrize(
    "damage",
    [
        {"terms": [5, 2]},
        {"terms": [2]},
        {"starts": [0, 2, 4]},
        {"starts": [1, 2, 3]},
        {"starts": [0, 4, 3]},
        {"passages": [0, 3, 0]},
        {"counts": [1, 0, 2]},
        {"counts": [1, 1]},
        {"ends": [1, 1]},
    ],
)
def test_arrays_that_point_outside_are_refused(damage: dict[str, list[int]]) -> None:
    made = bucket([[5, 2, 5], [], [2]])
    arrays = {name: np.array(values, dtype=getattr(made, name).dtype) for name, values in damage.items()}
    with pytest.raises(SiloError, match=r"do not fit.*store-damaged"):
        replace(made, **arrays)


@given(st.lists(st.integers(0, 60), max_size=6), st.integers(1, 20), st.data())
def test_passages_cover_each_document_and_add_something_each(
    tokens: list[int], length: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, length))
    spans = cut(tokens, length=length, stride=stride)
    for row, size in enumerate(tokens):
        mine = spans.documents == row
        pairs = list(zip(spans.firsts[mine].tolist(), spans.ends[mine].tolist(), strict=True))
        assert {token for first, end in pairs for token in range(first, end)} == set(range(size))
        assert [first for first, _ in pairs] == list(range(0, len(pairs) * stride, stride))
        assert all(end - first == length for first, end in pairs[:-1])
        assert all(end > before for (_, before), (_, end) in pairwise(pairs))


@pytest.mark.parametrize(("length", "stride"), [(4, 5), (4, 0), (0, 0)])
def test_a_stride_that_leaves_gaps_is_refused(length: int, stride: int) -> None:
    with pytest.raises(ValueError, match="stride is"):
        cut([9], length=length, stride=stride)


def hashes(*words: str) -> list[int]:
    """The documented hash of a word: FNV-1a over its UTF-8 bytes, then the finaliser of splitmix64."""
    full, out = (1 << 64) - 1, []
    for word in words:
        value = 0xCBF29CE484222325
        for byte in word.encode():
            value = (value ^ byte) * 0x100000001B3 & full
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & full
        value = (value ^ value >> 27) * 0x94D049BB133111EB & full
        out.append(value ^ value >> 31)
    return out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" ,.-\n", []),
        ("The cat's 2 hats", ["the", "cat", "s", "2", "hats"]),
        ("ÄRGER Straße ΑΒΓ Ёлка", ["ärger", "straße", "αβγ", "ёлка"]),
        ("snake_case→x²", ["snake", "case", "x²"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("x日本y かな 한국어", ["x", "日", "本", "y", "か", "な", "한국어"]),
        ("𐐀𐐁 😀 𝟙", ["𐐨𐐩", "𝟙"]),
        ("half\ud800pair", ["half", "pair"]),
    ],
)
def test_words_are_runs_of_letters_marks_and_digits(text: str, words: list[str]) -> None:
    assert terms(text).tolist() == hashes(*words)


@given(st.text())
def test_every_text_has_terms_and_spaces_do_not_matter(text: str) -> None:
    found: UInt64s = terms(text)
    assert found.dtype == np.uint64
    assert terms(f"  {text}\n").tolist() == found.tolist()


def test_terms_are_the_same_in_every_process() -> None:
    code = "from silo.text.words import terms; print(*terms('Ein Wörterbuch, 日本'))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert [int(word) for word in done.stdout.split()] == terms("Ein Wörterbuch, 日本").tolist()
