"""Rotation, nearest list and nearest codes of each row: the same bits whatever batch, batch mates or threads.

A library's matrix product changes its last bits with the shape of the batch, and a near tie then picks another list.
Here a row's result depends on that row alone: sums run in one written order, without fused or reassociated arithmetic,
and every row passes through the same instructions (a short last block is filled up with zeros). The one matrix product
that is used only names candidates. Its error has a bound, no list within the bound of the best is left out, and the
distances that decide are then computed one by one in the fixed order.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numba
import numpy as np

from silo.search.dtypes import Float32s, Float64s, Int32s, Multiply, UInt8s
from silo.search.knn.arrays import CodecArrays

_LANES = 256
"""Sums side by side: the outputs of a panel of the rotation, or the codewords of one part."""
_TILE = 3
"""Rows handled together: a panel is read once for all of them."""
_STEP = 4
"""Dimensions added to a sum before it is stored again."""
_LISTS_TOGETHER = 64
"""Lists looked at together for one that may be the nearest; most such groups have none."""
_DOUBLE_LANES = 8
"""Sums side by side in the distance that decides; their order is part of the bits of a code."""
_TINY = np.float32(1e-30)
"""Taken off a floor, so that rounding in a product of zeros rules nothing out."""
_BLOCK = 384
"""Rows handled at a time; a multiple of the tile. It bounds memory and has no say in the result."""


@dataclass(frozen=True, slots=True)
class Quantiser:
    """The arrays of a codec, laid out for the loops below."""

    mean: Float32s
    rotation: Float32s
    centroids: Float32s
    halves: Float32s
    norms: Float32s
    codebooks: Float32s
    offsets: Float32s
    width: int

    @classmethod
    def of(cls, arrays: CodecArrays) -> Self:
        """Lay out a codec's arrays."""
        squares = np.einsum("ij,ij->i", arrays.centroids, arrays.centroids, dtype=np.float64)
        return cls(
            mean=arrays.mean,
            rotation=_lay_out_panels(arrays.matrix),
            centroids=arrays.centroids.copy(),
            halves=(squares / 2).astype(np.float32),
            norms=np.sqrt(squares).astype(np.float32),
            codebooks=_pad(arrays.codebooks.transpose(0, 2, 1), _STEP, 1),
            offsets=(-_sum_squares(arrays.codebooks) / 2).astype(np.float32),
            width=len(arrays.matrix),
        )

    def rotate(self, keys: Float32s) -> Float32s:
        """`(keys - mean) @ matrix.T`, summed from the first dimension to the last."""
        out = np.empty((len(keys), self.width), dtype=np.float32)
        for start in range(0, len(keys), _BLOCK):
            block = keys[start : start + _BLOCK] - self.mean
            rows = _pad(_pad(block, _TILE, 0), _STEP, 1)
            _rotate(rows, self.rotation, out[start : start + len(block)])
        return out

    def quantise(self, rows: Float32s, multiply: Multiply) -> tuple[Int32s, UInt8s]:
        """The nearest centroid of each rotated row, and the nearest codeword of each part of what remains."""
        lists = np.empty(len(rows), dtype=np.int32)
        codes = np.empty((len(rows), len(self.codebooks)), dtype=np.uint8)
        slack = np.float32(4 * (rows.shape[1] + 4) * np.finfo(np.float32).eps)
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            products = multiply(block, self.centroids.T)
            some = lists[start : start + _BLOCK]
            _find_nearest(block, self.centroids, products, self.halves, self.norms, slack, some)
            self._encode(block - self.centroids[some], codes[start : start + _BLOCK])
        return lists, codes

    def _encode(self, residuals: Float32s, codes: UInt8s) -> None:
        parts = residuals.reshape(len(residuals), len(self.codebooks), -1)
        padded = _pad(_pad(parts, _TILE, 0), _STEP, 2)
        _find_codes(padded, self.codebooks, self.offsets, codes)


def _sum_squares(codebooks: Float32s) -> Float64s:
    squares: Float64s = np.einsum("mkj,mkj->mk", codebooks, codebooks, dtype=np.float64)
    return squares


def _pad(array: Float32s, multiple: int, axis: int) -> Float32s:
    """The array with zeros up to the next multiple along one axis, in C order."""
    missing = -array.shape[axis] % multiple
    widths = [(0, missing if number == axis else 0) for number in range(array.ndim)]
    return np.ascontiguousarray(np.pad(array, widths) if missing else array)


def _lay_out_panels(matrix: Float32s) -> Float32s:
    """[out, in] as [panels, in, lanes]: the outputs of one panel lie side by side."""
    lanes = _pad(_pad(matrix, _LANES, 0), _STEP, 1)
    return np.ascontiguousarray(lanes.reshape(-1, _LANES, lanes.shape[1]).transpose(0, 2, 1))


@numba.njit(cache=True, nogil=True)
def _accumulate(rows: Float32s, panel: Float32s, sums: Float32s) -> None:
    """Add the products of three rows with a panel to their sums; each sum grows one dimension after the other."""
    for at in range(0, panel.shape[0], _STEP):
        a0, a1, a2, a3 = rows[0, at], rows[0, at + 1], rows[0, at + 2], rows[0, at + 3]
        b0, b1, b2, b3 = rows[1, at], rows[1, at + 1], rows[1, at + 2], rows[1, at + 3]
        c0, c1, c2, c3 = rows[2, at], rows[2, at + 1], rows[2, at + 2], rows[2, at + 3]
        for lane in range(_LANES):
            p0, p1, p2, p3 = panel[at, lane], panel[at + 1, lane], panel[at + 2, lane], panel[at + 3, lane]
            sums[0, lane] = sums[0, lane] + a0 * p0 + a1 * p1 + a2 * p2 + a3 * p3
            sums[1, lane] = sums[1, lane] + b0 * p0 + b1 * p1 + b2 * p2 + b3 * p3
            sums[2, lane] = sums[2, lane] + c0 * p0 + c1 * p1 + c2 * p2 + c3 * p3


@numba.njit(cache=True, nogil=True)
def _rotate(rows: Float32s, panels: Float32s, out: Float32s) -> None:
    sums = np.empty((_TILE, _LANES), dtype=np.float32)
    for number in range(len(panels)):
        first = number * _LANES
        lanes = min(_LANES, out.shape[1] - first)
        for at in range(0, len(rows), _TILE):
            sums[:] = 0
            _accumulate(rows[at : at + _TILE], panels[number], sums)
            for row in range(min(_TILE, len(out) - at)):
                for lane in range(lanes):
                    out[at + row, first + lane] = sums[row, lane]


@numba.njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})
def _find_floor(
    products: Float32s, halves: Float32s, norms: Float32s, length: np.float32, slack: np.float32
) -> np.float32:
    """The best score that is certain, whatever the rounding of the products was."""
    best = np.float32(-np.inf)
    for number in range(len(products)):
        certain = products[number] - halves[number] - slack * norms[number] * (length + norms[number])
        best = certain if certain > best else best
    return best


@numba.njit(cache=True, nogil=True)
def _count_candidates(
    products: Float32s, halves: Float32s, norms: Float32s, length: np.float32, slack: np.float32, floor: np.float32
) -> int:
    """How many scores may in truth reach the floor."""
    count = 0
    for number in range(len(products)):
        count += products[number] - halves[number] + slack * norms[number] * (length + norms[number]) >= floor
    return count


@numba.njit(cache=True, nogil=True)
def _measure(row: Float32s, centroid: Float32s) -> float:
    """The squared distance in double precision; eight sums side by side, added up in one order."""
    sums = np.zeros(_DOUBLE_LANES)
    whole = len(row) // _DOUBLE_LANES * _DOUBLE_LANES
    for at in range(0, whole, _DOUBLE_LANES):
        for lane in range(_DOUBLE_LANES):
            gap = np.float64(row[at + lane]) - np.float64(centroid[at + lane])
            sums[lane] += gap * gap
    for at in range(whole, len(row)):
        gap = np.float64(row[at]) - np.float64(centroid[at])
        sums[at - whole] += gap * gap
    total = 0.0
    for lane in range(_DOUBLE_LANES):
        total += sums[lane]
    return total


@numba.njit(cache=True, nogil=True)
def _find_nearest(
    rows: Float32s,
    centroids: Float32s,
    products: Float32s,
    halves: Float32s,
    norms: Float32s,
    slack: np.float32,
    lists: Int32s,
) -> None:
    """The nearest centroid among all that the products, being inexact, cannot rule out; the first of equals.

    A list's score is x c - |c|^2 / 2. A sum of d products of float32 is off by at most d u |x| |c| in any order,
    u being half of eps; `slack` is eight times d u.
    """
    for at in range(len(rows)):
        square = 0.0
        for value in rows[at]:
            square += np.float64(value) * np.float64(value)
        length = np.float32(np.sqrt(square))
        floor = _find_floor(products[at], halves, norms, length, slack) - _TINY
        best = np.inf
        for first in range(0, len(norms), _LISTS_TOGETHER):
            some = slice(first, min(first + _LISTS_TOGETHER, len(norms)))
            if not _count_candidates(products[at, some], halves[some], norms[some], length, slack, floor):
                continue
            for number in range(some.start, some.stop):
                reach = slack * norms[number] * (length + norms[number])
                if products[at, number] - halves[number] + reach >= floor:
                    distance = _measure(rows[at], centroids[number])
                    if distance < best:
                        best = distance
                        lists[at] = number


@numba.njit(cache=True, nogil=True)
def _find_first_largest(scores: Float32s, halves: Float32s) -> np.int32:
    """The place of the largest of 256 scores, the first of equals."""
    width = _LANES // 2
    for lane in range(width):
        halves[lane] = scores[lane] if scores[lane] > scores[lane + width] else scores[lane + width]
    width //= 2
    while width:
        for lane in range(width):
            halves[lane] = halves[lane] if halves[lane] > halves[lane + width] else halves[lane + width]
        width //= 2
    largest = halves[0]
    place = np.int32(_LANES)
    for lane in range(_LANES):
        here = np.int32(lane) if scores[lane] == largest else np.int32(_LANES)
        place = here if here < place else place
    return place


@numba.njit(cache=True, nogil=True)
def _find_codes(parts: Float32s, codebooks: Float32s, offsets: Float32s, codes: UInt8s) -> None:
    sums = np.empty((_TILE, _LANES), dtype=np.float32)
    halves = np.empty(_LANES // 2, dtype=np.float32)
    for part in range(len(codebooks)):
        for at in range(0, len(parts), _TILE):
            sums[:] = offsets[part]
            _accumulate(parts[at : at + _TILE, part], codebooks[part], sums)
            for row in range(min(_TILE, len(codes) - at)):
                codes[at + row, part] = _find_first_largest(sums[row], halves)
