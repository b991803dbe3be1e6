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

from silo.search.dtypes import Float32s, Float64s, Int32s, Int64s, UInt32s, UInt64s, Unsigned

Integers = NDArray[np.signedinteger[Any]]
"""int32 or int64."""

_BLOCK = 32
"""Passages looked at together when the few that matter are picked out of a window: a block's sums are compared in a
few instructions, and most blocks have none."""
_ROWS_PER_LOOK = 3
"""Rows added before it is counted again how many passages can still reach the floor: counting is not free either."""
_ULPS = 2.0**-22
"""Four times the unit roundoff of float32: see `_find_candidates`."""
_SPARE_TERMS = 16
"""Roundings of an estimate besides one for each term: those of weights, norms and the last sums, and then some."""
TINY = np.float32(1e-30)
"""A norm or sum of 0 becomes this: a count of 0 over a norm of 0 would be no number, and a sum must be above 0."""
_TINY_NORM = 1e-300
"""The same in double precision; far below any norm that counts."""


class Postings(NamedTuple):
    """What is derived from the buckets when they are opened; passages are numbered through.

    `slots` leads from the leading bits of a term to its place t among the ascending `terms`. A frequent term has the
    row `rows[t]` of `table`: its count in every passage. Any other has a list, from `starts[t]` to `starts[t + 1]` in
    `passages` and `counts`, and -1 in `rows`. Bucket i starts at passage `offsets[i]`.
    """

    terms: UInt64s
    slots: Int32s
    shift: np.uint64
    rows: Int32s
    table: Unsigned
    starts: Int64s
    passages: UInt32s
    counts: Unsigned
    lengths: UInt32s
    offsets: Int64s


class _QueryPlan(NamedTuple):
    """What is left of a query's lists, and its rows, heaviest first; those from i on add less than `rests[i]`."""

    at: Integers
    ends: Integers
    weights: Float32s
    rows: Integers
    heavy: Float32s
    rests: Float32s


@numba.njit(cache=True, nogil=True, error_model="numpy")
def place_postings(
    owners: Integers, starts: Integers, passages: Integers, counts: Unsigned, ends: Integers, arrays: tuple[Any, ...]
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
def _count_allowed(term: int, index: Postings, norms: Float32s) -> int:
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
def _weigh_terms(
    query: UInt64s, index: Postings, norms: Float32s, frequencies: Integers, passages: int
) -> tuple[Integers, Float64s]:
    """The terms of a sorted query that allowed passages hold, ascending, and repeats times idf of each."""
    numbers, weights = np.empty(len(query), dtype=np.int64), np.empty(len(query), dtype=np.float64)
    filled, at = 0, 0
    while at < len(query):
        word, first = query[at], at
        while at < len(query) and query[at] == word:
            at += 1
        slot = np.int64(word >> index.shift)
        for term in range(index.slots[slot], index.slots[slot + 1]):
            if index.terms[term] != word:
                continue
            if frequencies[term] < 0:
                frequencies[term] = _count_allowed(term, index, norms)
            if frequencies[term] > 0:
                df = frequencies[term]
                numbers[filled] = term
                weights[filled] = (at - first) * np.log(1.0 + (passages - df + 0.5) / (df + 0.5))
                filled += 1
    return numbers[:filled], weights[:filled]


@numba.njit(nogil=True, error_model="numpy")
def _make_plan(terms: Integers, weights: Float64s, index: Postings) -> _QueryPlan:
    """The list of a frequent term is empty."""
    rows, narrow = index.rows[terms], weights.astype(np.float32)
    dense = np.flatnonzero(rows >= 0)
    dense = dense[np.argsort(-narrow[dense])]
    heavy = narrow[dense]
    rests = np.append(np.cumsum(heavy[::-1])[::-1], np.float32(0))
    return _QueryPlan(index.starts[terms], index.starts[terms + 1], narrow, rows[dense], heavy, rests)


@numba.njit(nogil=True, error_model="numpy")
def _add_lists(sums: Float32s, first: int, plan: _QueryPlan, index: Postings, norms: Float32s) -> None:
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
def _add_row(sums: Float32s, row: Unsigned, norms: Float32s, weight: np.float32) -> None:
    for at in range(len(sums)):
        count = np.float32(row[at])
        sums[at] += weight * (count / (count + norms[at]))


@numba.njit(nogil=True, error_model="numpy", inline="always")
def _count_reaching(sums: Float32s, first: int, end: int, floor: np.float32) -> np.int32:
    """How many sums from `first` to `end` are at least the floor; inlined, for blocks are small."""
    count = np.int32(0)
    for at in range(first, end):
        count += np.int32(sums[at] >= floor)
    return count


@numba.njit(nogil=True, error_model="numpy")
def _add_rows(
    sums: Float32s, first: int, plan: _QueryPlan, index: Postings, norms: Float32s, floor: np.float32, few: int
) -> int:
    """Add rows to a window until the others can bring few passages to the floor; say how many were added."""
    for number in range(len(plan.rows)):
        left = floor - plan.rests[number]
        if number % _ROWS_PER_LOOK == 0 and left > 0 and _count_reaching(sums, 0, len(sums), left) <= few:
            return number
        _add_row(sums, index.table[plan.rows[number], first : first + len(sums)], norms, plan.heavy[number])
    return len(plan.rows)


@numba.njit(nogil=True, error_model="numpy")
def _estimate_rest(plan: _QueryPlan, first: int, passage: int, norm: np.float32, index: Postings) -> np.float32:
    """What the rows from the first on add to one passage."""
    total = np.float32(0)
    for number in range(first, len(plan.rows)):
        count = np.float32(index.table[plan.rows[number], passage])
        total += plan.heavy[number] * (count / (count + norm))
    return total


@numba.njit(nogil=True, error_model="numpy")
def _replace_least(heap: Float32s, value: np.float32) -> None:
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
def _find_candidates(
    terms: Integers, weights: Float64s, k: int, index: Postings, norms: Float32s, window: int, few: int
) -> Integers:
    """All passages, ascending, that may be among the best k, and few others.

    An estimate is a float32 sum of n positive products; it is off by less than a factor of 1 +- (n + 8) u, u = 2^-24,
    and `slack` is 4 (n + 16) u. What is below the k-th largest estimate by more than that cannot be among the best.
    """
    slack = (len(terms) + _SPARE_TERMS) * _ULPS
    plan = _make_plan(terms, weights, index)
    sums, best = np.empty(window, dtype=np.float32), np.zeros(min(k, len(norms)), dtype=np.float32)
    passages, estimates = np.empty(len(norms), dtype=np.int64), np.empty(len(norms), dtype=np.float32)
    filled, floor = 0, np.float32(0)
    for first in range(0, len(norms), window):
        some = norms[first : first + window]
        here = sums[: len(some)]
        here[:] = 0
        _add_lists(here, first, plan, index, some)
        added = _add_rows(here, first, plan, index, some, floor, few)
        least = max(floor - plan.rests[added], TINY)
        for start in range(0, len(here), _BLOCK):
            end = min(start + _BLOCK, len(here))
            if _count_reaching(here, start, end, least) == 0:
                continue
            for place in range(start, end):
                if here[place] < least:
                    continue
                estimate = here[place] + _estimate_rest(plan, added, first + place, some[place], index)
                if estimate >= floor:
                    passages[filled], estimates[filled] = first + place, estimate
                    filled += 1
                if estimate > best[0]:
                    _replace_least(best, estimate)
                    floor = np.float32(best[0] * (1.0 - slack))
                    least = max(floor - plan.rests[added], TINY)
    return passages[:filled][estimates[:filled] >= floor]


@numba.njit(nogil=True, error_model="numpy")
def _find_count(term: int, passage: int, index: Postings) -> np.int64:
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
def _score(
    numbers: Integers, terms: Integers, weights: Float64s, index: Postings, formula: tuple[float, float, float]
) -> Float64s:
    """The scores of some passages, term by term; norms are above 0 so that a count of 0 adds 0 also where k1 is 0."""
    k1, b, average = formula
    scores = np.zeros(len(numbers), dtype=np.float64)
    norms = np.maximum(k1 * (1.0 - b + b * (index.lengths[numbers] / average)), _TINY_NORM)
    for place in range(len(terms)):
        for number in range(len(numbers)):
            count = _find_count(terms[place], numbers[number], index)
            scores[number] += weights[place] * (count / (count + norms[number]))
    return scores


@numba.njit(cache=True, nogil=True, error_model="numpy")
def search_passages(
    query: UInt64s, k: int, arrays: tuple[Any, ...], statistics: tuple[Any, ...], window: int, few: int
) -> tuple[Integers, UInt32s, Float64s]:
    """Bucket, passage and score of the best k; candidates ascend, and a stable sort leaves equals in that order."""
    index = Postings(*arrays)  # a plain tuple reaches compiled code in half the time
    norms, frequencies, passages, formula = statistics
    terms, weights = _weigh_terms(query, index, norms, frequencies, passages)
    numbers = _find_candidates(terms, weights, k, index, norms, window, few)
    scores = _score(numbers, terms, weights, index, formula)
    order = np.argsort(-scores, kind="mergesort")[:k]
    best = numbers[order]
    buckets = np.searchsorted(index.offsets, best, side="right") - 1
    return buckets.astype(np.int32), (best - index.offsets[buckets]).astype(np.uint32), scores[order]
