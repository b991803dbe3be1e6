"""Every row of a search is traced to a document: bucket and place -> document, position in it, and token."""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from silo.datastore.bucket import Bucket

_SHIFT = 8
Numbers = NDArray[np.int64]
Weights = NDArray[np.float64]


class TokenTable:
    """The tokens and documents of all buckets of a view, laid out for fast look-up."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        sizes = [len(bucket.tokens) for bucket in buckets]
        self._bases = np.cumsum([0, *sizes]).astype(np.int64)
        kind = buckets[0].tokens.dtype if buckets else np.dtype("<u2")
        self._tokens = np.empty(int(self._bases[-1]), dtype=kind)
        firsts: list[Numbers] = []
        for bucket, base in zip(buckets, self._bases, strict=False):
            self._tokens[base : base + len(bucket.tokens)] = bucket.tokens
            firsts.append(bucket.index["first"].astype(np.int64) + base)
        self._firsts: Numbers = np.concatenate([*firsts, self._bases[-1:]])
        marks = np.arange(0, int(self._bases[-1]) + 1, 1 << _SHIFT)
        self._hints: Numbers = np.searchsorted(self._firsts, marks, side="right") - 1
        self._idle: list[tuple[Numbers, Weights]] = []

    def look_up(self, buckets: NDArray[np.int32], places: NDArray[np.uint32]) -> tuple[Numbers, Numbers, Numbers]:
        """Numbers of documents (-1 for bucket -1), positions within them, and tokens; in the shape given."""
        found = np.empty((3, buckets.size), dtype=np.int64)
        _look_up(buckets.ravel(), places.ravel(), self._bases, self._firsts, self._hints, self._tokens, found)
        rows, positions, values = found.reshape(3, *buckets.shape)
        return rows, positions, values

    def weigh(
        self, buckets: NDArray[np.int32], places: NDArray[np.uint32], ends: Numbers, weights: Weights
    ) -> tuple[Numbers, Weights]:
        """The numbers of the documents that hold these places, ascending, and the weight of what each holds.

        A place before `ends[0]` weighs `weights[0]`, one from there to `ends[1]` `weights[1]`, and so on.
        """
        try:
            work = self._idle.pop()
        except IndexError:
            work = np.zeros((3, len(self._firsts) - 1), dtype=np.int64), np.zeros(len(self._firsts) - 1)
        found = _weigh(buckets, places, ends, weights, self._bases, self._firsts, self._hints, *work)
        self._idle.append(work)
        rows, sums = found
        return rows, sums


@numba.njit(cache=True, nogil=True)
def _document(place: int, firsts: Numbers, hints: Numbers) -> int:
    row: int = hints[place >> _SHIFT]
    while firsts[row + 1] <= place:
        row += 1
    return row


@numba.njit(cache=True, nogil=True)
def _weigh(
    buckets: Any,
    places: Any,
    ends: Numbers,
    weights: Weights,
    bases: Numbers,
    firsts: Numbers,
    hints: Numbers,
    numbers: Numbers,
    sums: Weights,
) -> tuple[Numbers, Weights]:
    """Counts are added up before they are multiplied, so that sums do not depend on the order of places.

    `numbers` and `sums` are zeros, one for each document, and are left so.
    """
    counts, here, held = numbers
    start, known = 0, 0
    for level in range(len(ends)):
        some = 0
        for at in range(start, ends[level]):
            row = _document(bases[buckets[at]] + np.int64(places[at]), firsts, hints)
            if counts[row] == 0:
                here[some] = row
                some += 1
            counts[row] += 1
        for row in here[:some]:
            if sums[row] == 0:
                held[known] = row
                known += 1
            sums[row] += counts[row] * weights[level]
            counts[row] = 0
        start = ends[level]
    rows = np.sort(held[:known])
    found = sums[rows]
    sums[rows] = 0
    return rows, found


@numba.njit(cache=True, nogil=True)
def _look_up(
    buckets: Any, places: Any, bases: Numbers, firsts: Numbers, hints: Numbers, tokens: Any, found: Numbers
) -> None:
    for at in range(len(buckets)):
        if buckets[at] < 0:
            found[0, at] = found[1, at] = found[2, at] = -1
            continue
        place = bases[buckets[at]] + np.int64(places[at])
        row = _document(place, firsts, hints)
        found[0, at] = row
        found[1, at] = place - firsts[row]
        found[2, at] = tokens[place]
