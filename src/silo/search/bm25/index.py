"""Passage search by BM25: every answer is, bit for bit, that of an index that never held what was erased or forbidden.

N, document frequencies and the average length are sums of integers over the allowed passages of all buckets; floats
come into being at query time. A passage's score is the sum over the query's terms, in ascending order, of
`repeats * ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + norm)` with `norm = k1 * (1 - b + b * length / average)`, as
in Lucene; `repeats` is how often the query holds the term.

The search is quick because it first estimates in float32, whose error has a bound, and skips whatever cannot reach the
best k (the idea of MaxScore, Turtle and Flood 1995); only the few passages that the bound cannot rule out are scored in
float64 as written above.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.search.bm25.words import PassageArrays, Rows, Small, Terms

Mask = NDArray[np.bool_]
Integers = NDArray[np.signedinteger[Any]]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_DENSE = 16
"""A word that stands in one of so many passages has a row with a count for every passage, not a list."""
_WINDOW = 4096
"""Passages estimated at a time: their float32 sums fit the first-level cache. It has no say in the result."""
_FEW = 48
"""At most so many passages of a window are finished one by one, more are finished row by row."""
_BLOCK = 32
"""Passages looked at together when the few that matter are picked out of a window."""
_TINY = np.float32(1e-30)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The best passages, best first; equal scores in order of bucket and passage."""

    buckets: NDArray[np.int32]
    passages: Rows
    scores: Doubles

    def __len__(self) -> int:
        return len(self.scores)


class _Index(NamedTuple):
    """What is derived from the buckets when they are opened; passages are numbered through.

    `slots` leads from the leading bits of a term to its place t among the ascending `terms`. A frequent term has the
    row `rows[t]` of `table`: its count in every passage. Any other has a list, from `starts[t]` to `starts[t + 1]` in
    `passages` and `counts`, and -1 in `rows`. Bucket i starts at passage `offsets[i]`.
    """

    terms: Terms
    slots: NDArray[np.int32]
    shift: np.uint64
    rows: NDArray[np.int32]
    table: Small
    starts: NDArray[np.int64]
    passages: Rows
    counts: Small
    lengths: Rows
    offsets: NDArray[np.int64]


class _Plan(NamedTuple):
    """What is left of a query's lists, and its rows, heaviest first; those from i on add less than `rests[i]`."""

    at: Integers
    ends: Integers
    weights: Floats
    rows: Integers
    heavy: Floats
    rests: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
    """The passages a search may return and count, and their statistics; made once per policy by `PassageSearch.allow`.

    The norm of any other passage is infinite. Document frequencies are counted when a query first asks and then kept.
    """

    passages: int
    words: int
    _norms: Floats
    _frequencies: NDArray[np.int32]
    _formula: tuple[float, float, float]
    _index: _Index


class PassageSearch:
    """Search over the passages of many buckets; may be used from several threads."""

    def __init__(self, buckets: Sequence[PassageArrays], *, k1: float = 0.9, b: float = 0.4) -> None:
        if not (0 <= k1 <= 1000 and 0 <= b <= 1):
            raise SiloError("recipe-value", f"k1 is {k1} and b is {b}, not 0 to 1,000 and 0 to 1")
        self._k1, self._b = float(k1), float(b)
        self._index = _merged(buckets)
        self._all = self.allow([None] * len(buckets))

    def __len__(self) -> int:
        return len(self._index.lengths)

    def allow(self, masks: Sequence[Mask | None]) -> Allowed:
        """One mask per bucket: True for each passage that may be returned and counted, None for all of them."""
        lengths, sizes = self._index.lengths, np.diff(self._index.offsets)
        if len(masks) != len(sizes):
            raise ValueError(f"{len(masks)} masks for {len(sizes)} buckets: give one mask per bucket")
        each = [_whole(mask, size) for mask, size in zip(masks, sizes, strict=True)]
        mask = np.concatenate([np.empty(0, dtype=np.bool_), *each])
        passages, words = int(mask.sum()), int(lengths[mask].sum(dtype=np.int64))
        average = max(1, words) / max(1, passages)
        norms = self._k1 * (1.0 - self._b + self._b * (lengths / average))
        bounded = np.where(mask, np.maximum(norms.astype(np.float32), _TINY), np.float32(np.inf))
        frequencies = np.full(len(self._index.terms), -1, dtype=np.int32)
        return Allowed(passages, words, bounded, frequencies, (self._k1, self._b, average), self._index)

    def search(self, query: Terms, k: int, *, allowed: Allowed | None = None) -> Found:
        """The best `k` passages with a score above 0; a word the query repeats counts as often."""
        chosen = allowed or self._all
        if chosen._index is not self._index:
            raise ValueError("these passages were allowed for another search")
        if k < 1:
            raise SiloError("recipe-value", f"k is {k}, not 1 or more")
        words = np.array(query, dtype=np.uint64)
        words.sort()
        statistics = chosen._norms, chosen._frequencies, chosen.passages, chosen._formula
        return Found(*_search(words, k, tuple(self._index), statistics, _WINDOW, _FEW))


def _whole(mask: Mask | None, size: int) -> Mask:
    if mask is None:
        return np.ones(size, dtype=np.bool_)
    if mask.dtype != np.bool_ or mask.shape != (size,):
        raise ValueError(f"a mask needs one bool for each of {size} passages")
    return mask


def _merged(buckets: Sequence[PassageArrays]) -> _Index:
    """Bring the postings of all buckets together by term."""
    every = np.concatenate([np.empty(0, dtype=np.uint64), *(bucket.terms for bucket in buckets)])
    terms, numbers = np.unique(every, return_inverse=True)
    owners = np.split(numbers, np.cumsum([len(bucket.terms) for bucket in buckets], dtype=np.int64))
    frequencies = np.zeros(len(terms), dtype=np.int64)
    for bucket, owner in zip(buckets, owners, strict=False):
        frequencies[owner] += np.diff(bucket.starts)
    index = _room(terms, frequencies, buckets)
    ends = index.starts[:-1].copy()
    for bucket, owner, offset in zip(buckets, owners, index.offsets, strict=False):
        numbers, counts = bucket.passages.astype(np.int64) + offset, bucket.counts.astype(index.counts.dtype)
        _place(owner, bucket.starts.astype(np.int64), numbers, counts, ends, index)
    return index


def _room(terms: Terms, frequencies: NDArray[np.int64], buckets: Sequence[PassageArrays]) -> _Index:
    """An index whose lists and rows wait to be filled."""
    offsets = np.cumsum([0, *map(len, buckets)], dtype=np.int64)
    dense = frequencies * _DENSE >= offsets[-1]
    starts = np.cumsum(np.concatenate([[0], np.where(dense, 0, frequencies)]), dtype=np.int64)
    kind = np.result_type(np.uint8, *(bucket.counts.dtype for bucket in buckets))
    bits = max(1, len(terms).bit_length())
    shift = np.uint64(64 - bits)
    return _Index(
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


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _place(
    owners: Integers, starts: Integers, passages: Integers, counts: Small, ends: Integers, index: _Index
) -> None:
    """Add one bucket's postings behind those of the buckets before it."""
    for number in range(len(owners)):
        term = owners[number]
        for at in range(starts[number], starts[number + 1]):
            if index.rows[term] >= 0:
                index.table[index.rows[term], passages[at]] = counts[at]
            else:
                index.passages[ends[term]] = passages[at]
                index.counts[ends[term]] = counts[at]
                ends[term] += 1


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _frequency(term: int, index: _Index, norms: Floats) -> int:
    """How many allowed passages hold the term."""
    count = 0
    if index.rows[term] >= 0:
        row = index.table[index.rows[term]]
        for passage in range(len(row)):
            count += (row[passage] > 0) & (norms[passage] < np.inf)
    for at in range(index.starts[term], index.starts[term + 1]):
        count += norms[index.passages[at]] < np.inf
    return count


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _weigh(
    query: Terms, index: _Index, norms: Floats, frequencies: Integers, passages: int
) -> tuple[Integers, Doubles]:
    """The terms of a sorted query that allowed passages hold, ascending, and repeats times idf of each."""
    found, weights = np.empty(len(query), dtype=np.int64), np.empty(len(query), dtype=np.float64)
    made, at = 0, 0
    while at < len(query):
        word, first = query[at], at
        while at < len(query) and query[at] == word:
            at += 1
        slot = np.int64(word >> index.shift)
        for term in range(index.slots[slot], index.slots[slot + 1]):
            if index.terms[term] != word:
                continue
            if frequencies[term] < 0:
                frequencies[term] = _frequency(term, index, norms)
            if frequencies[term] > 0:
                df = frequencies[term]
                found[made] = term
                weights[made] = (at - first) * np.log(1.0 + (passages - df + 0.5) / (df + 0.5))
                made += 1
    return found[:made], weights[:made]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _planned(terms: Integers, weights: Doubles, index: _Index) -> _Plan:
    """The list of a frequent term is empty."""
    rows, narrow = index.rows[terms], weights.astype(np.float32)
    dense = np.flatnonzero(rows >= 0)
    dense = dense[np.argsort(-narrow[dense])]
    heavy = narrow[dense]
    rests = np.append(np.cumsum(heavy[::-1])[::-1], np.float32(0))
    return _Plan(index.starts[terms], index.starts[terms + 1], narrow, rows[dense], heavy, rests)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _add_lists(sums: Floats, first: int, plan: _Plan, index: _Index, norms: Floats) -> None:
    """Add what the lists say about one window, and move `at` behind it; unsigned places save a comparison with 0."""
    offset, stop = np.uint32(first), np.uint32(first + len(sums))
    for number in range(len(plan.at)):
        place, end, weight = np.uint64(plan.at[number]), np.uint64(plan.ends[number]), plan.weights[number]
        while place < end and index.passages[place] < stop:
            passage = np.uint64(index.passages[place] - offset)
            count = np.float32(index.counts[place])
            sums[passage] += weight * (count / (count + norms[passage]))
            place += np.uint64(1)
        plan.at[number] = place


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _add_row(sums: Floats, row: Small, norms: Floats, weight: np.float32) -> None:
    for at in range(len(sums)):
        count = np.float32(row[at])
        sums[at] += weight * (count / (count + norms[at]))


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _reaching(sums: Floats, first: int, end: int, floor: np.float32) -> np.int32:
    """How many sums from `first` to `end` are at least the floor; inlined, for blocks are small."""
    count = np.int32(0)
    for at in range(first, end):
        count += np.int32(sums[at] >= floor)
    return count


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _add_rows(sums: Floats, first: int, plan: _Plan, index: _Index, norms: Floats, floor: np.float32, few: int) -> int:
    """Add rows to a window until the others can bring few passages to the floor; say how many were added."""
    for number in range(len(plan.rows)):
        left = floor - plan.rests[number]
        if number % 3 == 0 and left > 0 and _reaching(sums, 0, len(sums), left) <= few:
            return number
        _add_row(sums, index.table[plan.rows[number], first : first + len(sums)], norms, plan.heavy[number])
    return len(plan.rows)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _rest(plan: _Plan, first: int, passage: int, norm: np.float32, index: _Index) -> np.float32:
    """What the rows from the first on add to one passage."""
    total = np.float32(0)
    for number in range(first, len(plan.rows)):
        count = np.float32(index.table[plan.rows[number], passage])
        total += plan.heavy[number] * (count / (count + norm))
    return total


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _replace_least(heap: Floats, value: np.float32) -> None:
    """Put a larger value in the place of the least, which comes first."""
    at, child = 0, 1
    while child < len(heap):
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    heap[at] = value


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _candidates(
    terms: Integers, weights: Doubles, k: int, index: _Index, norms: Floats, window: int, few: int
) -> Integers:
    """All passages, ascending, that may be among the best k, and few others.

    An estimate is a float32 sum of n positive products; it is off by less than a factor of 1 +- (n + 8) u, u = 2^-24,
    and `slack` is 4 (n + 16) u. What is below the k-th largest estimate by more than that cannot be among the best.
    """
    slack = (len(terms) + 16) * 2.0**-22
    plan = _planned(terms, weights, index)
    sums, best = np.empty(window, dtype=np.float32), np.zeros(min(k, len(norms)), dtype=np.float32)
    kept, estimates = np.empty(len(norms), dtype=np.int64), np.empty(len(norms), dtype=np.float32)
    made, floor = 0, np.float32(0)
    for first in range(0, len(norms), window):
        some = norms[first : first + window]
        here = sums[: len(some)]
        here[:] = 0
        _add_lists(here, first, plan, index, some)
        added = _add_rows(here, first, plan, index, some, floor, few)
        least = max(floor - plan.rests[added], _TINY)
        for start in range(0, len(here), _BLOCK):
            end = min(start + _BLOCK, len(here))
            if _reaching(here, start, end, least) == 0:
                continue
            for place in range(start, end):
                if here[place] < least:
                    continue
                estimate = here[place] + _rest(plan, added, first + place, some[place], index)
                if estimate >= floor:
                    kept[made], estimates[made] = first + place, estimate
                    made += 1
                if estimate > best[0]:
                    _replace_least(best, estimate)
                    floor = np.float32(best[0] * (1.0 - slack))
                    least = max(floor - plan.rests[added], _TINY)
    return kept[:made][estimates[:made] >= floor]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _count(term: int, passage: int, index: _Index) -> np.int64:
    """How often the term stands in the passage; the halving has no branch that could be guessed wrong."""
    if index.rows[term] >= 0:
        return np.int64(index.table[index.rows[term], passage])
    low, size = index.starts[term], index.starts[term + 1] - index.starts[term]
    while size > 1:
        half = size // 2
        low += half * np.int64(index.passages[low + half] <= passage)
        size -= half
    return np.int64(index.counts[low]) * np.int64(index.passages[low] == passage)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _scores(
    numbers: Integers, terms: Integers, weights: Doubles, index: _Index, formula: tuple[float, float, float]
) -> Doubles:
    """The scores of some passages, term by term; norms are above 0 so that a count of 0 adds 0 also where k1 is 0."""
    k1, b, average = formula
    scores = np.zeros(len(numbers), dtype=np.float64)
    norms = np.maximum(k1 * (1.0 - b + b * (index.lengths[numbers] / average)), 1e-300)
    for place in range(len(terms)):
        for number in range(len(numbers)):
            count = _count(terms[place], numbers[number], index)
            scores[number] += weights[place] * (count / (count + norms[number]))
    return scores


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _search(
    query: Terms, k: int, arrays: tuple[Any, ...], statistics: tuple[Any, ...], window: int, few: int
) -> tuple[Integers, Rows, Doubles]:
    """Bucket, passage and score of the best k; candidates ascend, and a stable sort leaves equals in that order."""
    index = _Index(*arrays)  # a plain tuple reaches compiled code in half the time
    norms, frequencies, passages, formula = statistics
    terms, weights = _weigh(query, index, norms, frequencies, passages)
    numbers = _candidates(terms, weights, k, index, norms, window, few)
    scores = _scores(numbers, terms, weights, index, formula)
    order = np.argsort(-scores, kind="mergesort")[:k]
    best = numbers[order]
    buckets = np.searchsorted(index.offsets, best, side="right") - 1
    return buckets.astype(np.int32), (best - index.offsets[buckets]).astype(np.uint32), scores[order]
