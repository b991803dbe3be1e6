"""The loops of passage search: estimates in float32 that skip what cannot be among the best k, then the true scores.

All compiled functions of the search are in this file: numba's cache on disk notices a change of the file that a
function is in, and of no other.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from silo.search.bm25.words import Rows, Small, Terms

Integers = NDArray[np.signedinteger[Any]]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_BLOCK = 32
"""Passages looked at together when the few that matter are picked out of a window."""
TINY = np.float32(1e-30)


class Postings(NamedTuple):
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


@numba.njit(cache=True, nogil=True, error_model="numpy")
def place_postings(
    owners: Integers, starts: Integers, passages: Integers, counts: Small, ends: Integers, arrays: tuple[Any, ...]
) -> None:
    """Add one bucket's postings behind those of the buckets before it."""
    index = Postings(*arrays)
    for number in range(len(owners)):
        term = owners[number]
        for at in range(starts[number], starts[number + 1]):
            if index.rows[term] >= 0:
                index.table[index.rows[term], passages[at]] = counts[at]
            else:
                index.passages[ends[term]] = passages[at]
                index.counts[ends[term]] = counts[at]
                ends[term] += 1


@numba.njit(nogil=True, error_model="numpy")
def _frequency(term: int, index: Postings, norms: Floats) -> int:
    """How many allowed passages hold the term."""
    count = 0
    if index.rows[term] >= 0:
        row = index.table[index.rows[term]]
        for passage in range(len(row)):
            count += (row[passage] > 0) & (norms[passage] < np.inf)
    for at in range(index.starts[term], index.starts[term + 1]):
        count += norms[index.passages[at]] < np.inf
    return count


@numba.njit(nogil=True, error_model="numpy")
def _weigh(
    query: Terms, index: Postings, norms: Floats, frequencies: Integers, passages: int
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


@numba.njit(nogil=True, error_model="numpy")
def _planned(terms: Integers, weights: Doubles, index: Postings) -> _Plan:
    """The list of a frequent term is empty."""
    rows, narrow = index.rows[terms], weights.astype(np.float32)
    dense = np.flatnonzero(rows >= 0)
    dense = dense[np.argsort(-narrow[dense])]
    heavy = narrow[dense]
    rests = np.append(np.cumsum(heavy[::-1])[::-1], np.float32(0))
    return _Plan(index.starts[terms], index.starts[terms + 1], narrow, rows[dense], heavy, rests)


@numba.njit(nogil=True, error_model="numpy")
def _add_lists(sums: Floats, first: int, plan: _Plan, index: Postings, norms: Floats) -> None:
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


@numba.njit(nogil=True, error_model="numpy")
def _add_row(sums: Floats, row: Small, norms: Floats, weight: np.float32) -> None:
    for at in range(len(sums)):
        count = np.float32(row[at])
        sums[at] += weight * (count / (count + norms[at]))


@numba.njit(nogil=True, error_model="numpy", inline="always")
def _reaching(sums: Floats, first: int, end: int, floor: np.float32) -> np.int32:
    """How many sums from `first` to `end` are at least the floor; inlined, for blocks are small."""
    count = np.int32(0)
    for at in range(first, end):
        count += np.int32(sums[at] >= floor)
    return count


@numba.njit(nogil=True, error_model="numpy")
def _add_rows(
    sums: Floats, first: int, plan: _Plan, index: Postings, norms: Floats, floor: np.float32, few: int
) -> int:
    """Add rows to a window until the others can bring few passages to the floor; say how many were added."""
    for number in range(len(plan.rows)):
        left = floor - plan.rests[number]
        if number % 3 == 0 and left > 0 and _reaching(sums, 0, len(sums), left) <= few:
            return number
        _add_row(sums, index.table[plan.rows[number], first : first + len(sums)], norms, plan.heavy[number])
    return len(plan.rows)


@numba.njit(nogil=True, error_model="numpy")
def _rest(plan: _Plan, first: int, passage: int, norm: np.float32, index: Postings) -> np.float32:
    """What the rows from the first on add to one passage."""
    total = np.float32(0)
    for number in range(first, len(plan.rows)):
        count = np.float32(index.table[plan.rows[number], passage])
        total += plan.heavy[number] * (count / (count + norm))
    return total


@numba.njit(nogil=True, error_model="numpy")
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


@numba.njit(nogil=True, error_model="numpy")
def _candidates(
    terms: Integers, weights: Doubles, k: int, index: Postings, norms: Floats, window: int, few: int
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
        least = max(floor - plan.rests[added], TINY)
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
                    least = max(floor - plan.rests[added], TINY)
    return kept[:made][estimates[:made] >= floor]


@numba.njit(nogil=True, error_model="numpy")
def _count(term: int, passage: int, index: Postings) -> np.int64:
    """How often the term stands in the passage; the halving has no branch that could be guessed wrong."""
    if index.rows[term] >= 0:
        return np.int64(index.table[index.rows[term], passage])
    low, size = index.starts[term], index.starts[term + 1] - index.starts[term]
    while size > 1:
        half = size // 2
        low += half * np.int64(index.passages[low + half] <= passage)
        size -= half
    return np.int64(index.counts[low]) * np.int64(index.passages[low] == passage)


@numba.njit(nogil=True, error_model="numpy")
def _scores(
    numbers: Integers, terms: Integers, weights: Doubles, index: Postings, formula: tuple[float, float, float]
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
def search_passages(
    query: Terms, k: int, arrays: tuple[Any, ...], statistics: tuple[Any, ...], window: int, few: int
) -> tuple[Integers, Rows, Doubles]:
    """Bucket, passage and score of the best k; candidates ascend, and a stable sort leaves equals in that order."""
    index = Postings(*arrays)  # a plain tuple reaches compiled code in half the time
    norms, frequencies, passages, formula = statistics
    terms, weights = _weigh(query, index, norms, frequencies, passages)
    numbers = _candidates(terms, weights, k, index, norms, window, few)
    scores = _scores(numbers, terms, weights, index, formula)
    order = np.argsort(-scores, kind="mergesort")[:k]
    best = numbers[order]
    buckets = np.searchsorted(index.offsets, best, side="right") - 1
    return buckets.astype(np.int32), (best - index.offsets[buckets]).astype(np.uint32), scores[order]
