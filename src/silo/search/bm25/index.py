"""Passage search by BM25: every answer is, bit for bit, that of an index that never held what was erased or forbidden.

N, document frequencies and the average length are sums of integers over the allowed passages of all buckets; floats
come into being at query time. A passage's score is the sum over the query's terms, in ascending order, of
`repeats * ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + norm)` with `norm = k1 * (1 - b + b * length / average)`, as
in Lucene; `repeats` is how often the query holds the term.

The search is quick because it first estimates in float32, whose error has a bound, and skips whatever cannot reach the
best k (the idea of MaxScore, Turtle and Flood 1995); only the few passages that the bound cannot rule out are scored in
float64 as written above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from silo.search.bm25.kernel import TINY, Postings, place_postings, search_passages
from silo.search.bm25.passages import PassageArrays
from silo.search.dtypes import Bools, Float32s, Float64s, Int32s, Int64s, UInt32s, UInt64s

_DENSE_SHARE = 16
"""A word that stands in one of so many passages has a row with a count for every passage, not a list."""
_WINDOW = 4096
"""Passages estimated at a time: their float32 sums fit the first-level cache. It has no say in the result."""
_MOST_SINGLE = 48
"""At most so many passages of a window are finished one by one, more are finished row by row."""


@dataclass(frozen=True, slots=True, eq=False)
class PassageHits:
    """The best passages, best first; equal scores in order of bucket and passage."""

    buckets: Int32s
    passages: UInt32s
    scores: Float64s

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True, slots=True, eq=False)
class AllowedPassages:
    """The passages a search may return and count, and their statistics; made once per policy by `Bm25Index.allow`.

    The norm of any other passage is infinite. Document frequencies are counted when a query first asks and then kept.
    """

    passages: int
    words: int
    _norms: Float32s
    _frequencies: Int32s
    _formula: tuple[float, float, float]
    _index: Postings


class Bm25Index:
    """Search over the passages of many buckets; may be used from several threads."""

    def __init__(self, buckets: Sequence[PassageArrays], *, k1: float = 0.9, b: float = 0.4) -> None:
        if not (0 <= k1 <= 1000 and 0 <= b <= 1):
            raise ValueError(f"k1 is {k1} and b is {b}, not 0 to 1,000 and 0 to 1")
        self._k1, self._b = float(k1), float(b)
        self._index = _merge_postings(buckets)
        self._all = self.allow([None] * len(buckets))

    def __len__(self) -> int:
        return len(self._index.lengths)

    def allow(self, masks: Sequence[Bools | None], *, whole: tuple[int, int] | None = None) -> AllowedPassages:
        """One mask per bucket: True for each passage that may be returned and counted, None for all of them.

        `whole` is for buckets that are a part of others: how many allowed passages all of them have, and how many
        words those have. Document frequencies are then those that `note_frequencies` is told.
        """
        lengths, sizes = self._index.lengths, np.diff(self._index.offsets)
        if len(masks) != len(sizes):
            raise ValueError(f"{len(masks)} masks for {len(sizes)} buckets: give one mask per bucket")
        each = [_check_mask(mask, size) for mask, size in zip(masks, sizes, strict=True)]
        mask = np.concatenate([np.empty(0, dtype=np.bool_), *each])
        passages, words = whole or (int(mask.sum()), int(lengths[mask].sum(dtype=np.int64)))
        average = max(1, words) / max(1, passages)
        norms = self._k1 * (1.0 - self._b + self._b * (lengths / average))
        bounded = np.where(mask, np.maximum(norms.astype(np.float32), TINY), np.float32(np.inf))
        frequencies = np.full(len(self._index.terms), -1, dtype=np.int32)
        return AllowedPassages(passages, words, bounded, frequencies, (self._k1, self._b, average), self._index)

    def search(self, query: UInt64s, k: int, *, allowed: AllowedPassages | None = None) -> PassageHits:
        """The best `k` passages with a score above 0; a word the query repeats counts as often."""
        chosen = allowed or self._all
        if chosen._index is not self._index:
            raise ValueError("these passages were allowed for another search")
        if k < 1:
            raise ValueError(f"k is {k}, not 1 or more")
        words = np.array(query, dtype=np.uint64)
        words.sort()
        statistics = chosen._norms, chosen._frequencies, chosen.passages, chosen._formula
        return PassageHits(*search_passages(words, k, tuple(self._index), statistics, _WINDOW, _MOST_SINGLE))

    def note_frequencies(self, words: UInt64s, frequencies: Int64s, *, allowed: AllowedPassages) -> None:
        """Say how many passages of the whole hold each of some words, before they are searched for in a part of it."""
        places, known = self._places(words)
        allowed._frequencies[places[known]] = frequencies[known]

    def count_passages(self, words: UInt64s, *, allowed: AllowedPassages | None = None) -> Int64s:
        """How many allowed passages hold each of some words."""
        chosen = allowed or self._all
        places, known = self._places(words)
        live = np.isfinite(chosen._norms)
        return np.array([self._holders(place, live) if yes else 0 for place, yes in zip(places, known, strict=True)])

    def _places(self, words: UInt64s) -> tuple[Int64s, Bools]:
        """Where some words are among the terms, and which of them are."""
        terms = self._index.terms
        places = np.minimum(np.searchsorted(terms, words), max(0, len(terms) - 1))
        return places, terms[places] == words if len(terms) else np.zeros(len(words), dtype=np.bool_)

    def _holders(self, term: int, live: Bools) -> int:
        index = self._index
        if index.rows[term] >= 0:
            return int(((index.table[index.rows[term]] > 0) & live).sum())
        return int(live[index.passages[index.starts[term] : index.starts[term + 1]]].sum())


def _check_mask(mask: Bools | None, size: int) -> Bools:
    if mask is None:
        return np.ones(size, dtype=np.bool_)
    if mask.dtype != np.bool_ or mask.shape != (size,):
        raise ValueError(f"a mask needs one bool for each of {size} passages")
    return mask


def _merge_postings(buckets: Sequence[PassageArrays]) -> Postings:
    """Bring the postings of all buckets together by term."""
    every = np.concatenate([np.empty(0, dtype=np.uint64), *(bucket.terms for bucket in buckets)])
    terms, numbers = np.unique(every, return_inverse=True)
    owners = np.split(numbers, np.cumsum([len(bucket.terms) for bucket in buckets], dtype=np.int64))
    frequencies = np.zeros(len(terms), dtype=np.int64)
    for bucket, owner in zip(buckets, owners, strict=False):
        frequencies[owner] += np.diff(bucket.starts)
    index = _lay_out(terms, frequencies, buckets)
    ends = index.starts[:-1].copy()
    for bucket, owner, offset in zip(buckets, owners, index.offsets, strict=False):
        numbers, counts = bucket.passages.astype(np.int64) + offset, bucket.counts.astype(index.counts.dtype)
        place_postings(owner, bucket.starts.astype(np.int64), numbers, counts, ends, tuple(index))
    return index


def _lay_out(terms: UInt64s, frequencies: Int64s, buckets: Sequence[PassageArrays]) -> Postings:
    """An index whose lists and rows wait to be filled."""
    offsets = np.cumsum([0, *map(len, buckets)], dtype=np.int64)
    dense = frequencies * _DENSE_SHARE >= offsets[-1]
    starts = np.cumsum(np.concatenate([[0], np.where(dense, 0, frequencies)]), dtype=np.int64)
    kind = np.result_type(np.uint8, *(bucket.counts.dtype for bucket in buckets))
    bits = max(1, len(terms).bit_length())
    shift = np.uint64(64 - bits)
    return Postings(
        terms=terms,
        slots=np.searchsorted(terms >> shift, np.arange((1 << bits) + 1, dtype=np.uint64)).astype(np.int32),
        shift=shift,
        rows=np.where(dense, np.cumsum(dense) - 1, -1).astype(np.int32),
        table=np.zeros((int(dense.sum()), offsets[-1]), dtype=kind),
        starts=starts,
        passages=np.empty(starts[-1], dtype=np.uint32),
        counts=np.empty(starts[-1], dtype=kind),
        lengths=np.concatenate([np.empty(0, dtype=np.uint32), *(bucket.lengths for bucket in buckets)]),
        offsets=offsets,
    )
