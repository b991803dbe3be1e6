"""The lists nearest to a rotated key, in order of distance and number: exactly, but without measuring most of them.

Every centroid has a sketch: its coordinates along a few directions, and the length of what those leave over. Two
sketches are never further apart than what they stand for. They are kept as bytes, rounded by a known amount, so that
one look at 64 bytes rules a list out. The lists that remain are measured by a sum with one written order; the sketches
decide what is measured, never what is returned.

numba keeps compiled loops by the file of the caller: after a change here, change the time stamp of `scan.py`.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from silo.search.knn.quantise import Floats
from silo.search.knn.smallest import Keys, Numbers, ceiling_of, sort_pairs

Doubles = NDArray[np.float64]

SKETCH = 64
"""Numbers in a sketch; short ones are filled up with zeros."""

_PANEL = 128
_FINEST = 8191
"""A key's sketch is rounded to 14 bits, so that 64 products with bytes fit into 32 bits."""


class ListTables(NamedTuple):
    """What the search of lists needs of a codec. A sketched number is a byte times its scale."""

    centroids: Floats  # [lists, out]
    directions: Doubles  # [out, 64], orthonormal columns, then zeros
    sketches: NDArray[np.int8]  # [panels, 64, 128]: the lists of a panel lie side by side
    scales: Doubles  # [64]
    squares: Floats  # [panels * 128], of the sketches; inf where there is no list
    rest: int  # which number of the sketch is the length of the rest, -1 for none
    longest: float  # of the centroids
    roughest: float  # how far a sketch may be from the number it stands for
    largest: float  # the length of the longest sketch, in bytes


def list_tables(centroids: Floats) -> ListTables:
    """Lay out centroids [lists, out]."""
    exact = centroids.astype(np.float64)
    directions, rest = _directions(exact)
    sketches = _sketches(exact, directions, rest)
    scales = np.maximum(np.abs(sketches).max(axis=0), 1e-30) / 127
    rounded = np.round(sketches / scales)
    panels = -(-len(exact) // _PANEL)
    padded = np.zeros((panels * _PANEL, SKETCH), dtype=np.int8)
    padded[: len(exact)] = rounded
    squares = np.full(len(padded), np.inf, dtype=np.float32)
    squares[: len(exact)] = np.square(rounded * scales).sum(axis=1)
    return ListTables(
        np.ascontiguousarray(centroids),
        directions,
        np.ascontiguousarray(padded.reshape(panels, _PANEL, SKETCH).transpose(0, 2, 1)),
        scales,
        squares,
        rest,
        float(np.linalg.norm(exact, axis=1).max()),
        float(np.linalg.norm(rounded * scales - sketches, axis=1).max()),
        float(np.linalg.norm(rounded, axis=1).max()),
    )


def _directions(centroids: Doubles) -> tuple[Doubles, int]:
    """The directions that tell the lists apart best, as columns, and the place of the rest if they are not all."""
    width = centroids.shape[1]
    count = width if width <= SKETCH else SKETCH - 1
    vectors = np.linalg.eigh(centroids.T @ centroids)[1]
    directions = np.zeros((width, SKETCH))
    directions[:, :count] = vectors[:, ::-1][:, :count]
    return directions, -1 if count == width else count


def _sketches(centroids: Doubles, directions: Doubles, rest: int) -> Doubles:
    sketches: Doubles = centroids @ directions
    if rest >= 0:
        left = np.square(centroids).sum(axis=1) - np.square(sketches).sum(axis=1)
        sketches[:, rest] = np.sqrt(np.maximum(left, 0))
    return sketches


class ListScratch(NamedTuple):
    """What one thread writes to while it looks for lists. Axis: padded = lists up to a whole panel."""

    sketch: Doubles  # [64]
    bounds: Floats  # [padded], squared distances to the sketches
    exact: Floats  # [lists], below zero where not measured yet
    distances: Floats  # [lists]
    order: Numbers  # [lists]


def list_scratch(lists: int) -> ListScratch:
    """Room for the search among so many lists."""
    return ListScratch(
        np.empty(SKETCH),
        np.empty(-(-lists // _PANEL) * _PANEL, dtype=np.float32),
        np.empty(lists, dtype=np.float32),
        np.empty(lists, dtype=np.float32),
        np.empty(lists, dtype=np.int64),
    )


@numba.njit(cache=True, nogil=True)
def _sketch(query: Floats, tables: ListTables, sketch: Doubles) -> float:
    """Fill in a key's sketch; returns the key's square."""
    sketch[:] = 0
    square = 0.0
    for at in range(len(query)):
        value = np.float64(query[at])
        square += value * value
        for number in range(64):
            sketch[number] += value * tables.directions[at, number]
    if tables.rest >= 0:
        left = square
        for number in range(64):
            left -= sketch[number] * sketch[number]
        sketch[tables.rest] = np.sqrt(max(left, 0.0))
    return square


@numba.njit(cache=True, nogil=True)
def start_lists(query: Floats, tables: ListTables, work: ListScratch) -> tuple[float, float]:
    """Squared distances from a key to all sketches.

    Returns how far rounding may have moved a root, and a square.
    """
    square = _sketch(query, tables, work.sketch)
    largest = 1e-30
    for number in range(64):
        work.sketch[number] *= tables.scales[number]
        largest = max(largest, abs(work.sketch[number]))
    step = largest / 8191
    rounded = np.empty(64, dtype=np.int32)
    error = 0.0
    for number in range(64):
        value = np.rint(work.sketch[number] / step)
        rounded[number] = np.int32(value)
        error += (work.sketch[number] - value * step) ** 2
    _measure_sketches(rounded, tables.sketches, tables.squares, np.float32(square), np.float32(2 * step), work.bounds)
    work.exact[:] = -1
    length = np.sqrt(square)
    return (
        tables.roughest + 1e-6 * (length + tables.longest),
        2 * np.sqrt(error) * tables.largest + 2e-6 * (length + tables.longest) ** 2,
    )


@numba.njit(cache=True, nogil=True)
def _measure_sketches(
    query: NDArray[np.int32],
    sketches: NDArray[np.int8],
    squares: Floats,
    square: np.float32,
    step: np.float32,
    bounds: Floats,
) -> None:
    sums = np.empty(128, dtype=np.int32)
    for panel in range(len(sketches)):
        sums[:] = 0
        for at in range(0, 64, 4):
            q0, q1, q2, q3 = query[at], query[at + 1], query[at + 2], query[at + 3]
            for lane in range(128):
                left = np.int32(q0 * sketches[panel, at, lane] + q1 * sketches[panel, at + 1, lane])
                right = np.int32(q2 * sketches[panel, at + 2, lane] + q3 * sketches[panel, at + 3, lane])
                sums[lane] = np.int32(sums[lane] + left + right)
        for lane in range(128):
            bound = (square + squares[panel * 128 + lane]) - step * np.float32(sums[lane])
            bounds[panel * 128 + lane] = bound if bound > 0 else np.float32(0)


@numba.njit(cache=True, nogil=True)
def _distance(query: Floats, centroid: Floats) -> np.float32:
    """The squared distance; eight sums side by side, added up in one order."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = np.float32(0)
    whole = len(query) // 8 * 8
    for at in range(0, whole, 8):
        g0, g1 = query[at] - centroid[at], query[at + 1] - centroid[at + 1]
        g2, g3 = query[at + 2] - centroid[at + 2], query[at + 3] - centroid[at + 3]
        g4, g5 = query[at + 4] - centroid[at + 4], query[at + 5] - centroid[at + 5]
        g6, g7 = query[at + 6] - centroid[at + 6], query[at + 7] - centroid[at + 7]
        s0 += g0 * g0
        s1 += g1 * g1
        s2 += g2 * g2
        s3 += g3 * g3
        s4 += g4 * g4
        s5 += g5 * g5
        s6 += g6 * g6
        s7 += g7 * g7
    for at in range(whole, len(query)):
        gap = query[at] - centroid[at]
        s0 += gap * gap
    return ((s0 + s4) + (s1 + s5)) + ((s2 + s6) + (s3 + s7))


@numba.njit(cache=True, nogil=True)
def _measure_lists(query: Floats, centroids: Floats, ceiling: np.float32, work: ListScratch) -> int:
    """Measure the lists whose bound does not pass the ceiling; returns how many there are."""
    count = 0
    for at in range(len(centroids)):
        if work.bounds[at] <= ceiling:
            work.order[count] = at
            count += 1
    for rank in range(count):
        at = work.order[rank]
        if work.exact[at] < 0:
            work.exact[at] = _distance(query, centroids[at])
        work.distances[rank] = work.exact[at]
    return count


@numba.njit(cache=True, nogil=True)
def order_lists(
    query: Floats,
    tables: ListTables,
    slips: tuple[float, float],
    count: int,
    work: ListScratch,
    spare: Numbers,
    keys: Keys,
    digits: Numbers,
) -> None:
    """Put the nearest `count` lists at the front of `work.order`, and their distances into `work.exact`.

    The lists with the nearest sketches are measured, which gives a distance that `count` lists do not pass; then every
    list is measured whose sketch, give or take the rounding, does not pass it either.
    """
    lists = len(tables.centroids)
    first = min(lists, count + count // 2 + 8)
    ceiling = np.float32(np.inf) if first == lists else ceiling_of(work.bounds[:lists], first, 2 * first, digits)
    measured = _measure_lists(query, tables.centroids, ceiling, work)
    if measured < lists:
        root = np.sqrt(np.float64(ceiling_of(work.distances[:measured], count, count, digits)))
        further = np.float32(((root * (1 + 1e-4) + slips[0]) ** 2 + slips[1]) * (1 + 1e-6))
        if further > ceiling:
            measured = _measure_lists(query, tables.centroids, further, work)
    sort_pairs(work.distances[:measured], work.order[:measured], spare, keys, digits)
