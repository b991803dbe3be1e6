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
_FEW = 4096
Numbers = NDArray[np.int64]


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

    def look_up(self, buckets: NDArray[np.int32], places: NDArray[np.uint32]) -> tuple[Numbers, Numbers, Numbers]:
        """Numbers of documents (-1 for bucket -1), positions within them, and tokens; in the shape given."""
        found = np.empty((3, buckets.size), dtype=np.int64)
        _look_up(buckets.ravel(), places.ravel(), self._bases, self._firsts, self._hints, self._tokens, found)
        rows, positions, values = found.reshape(3, *buckets.shape)
        return rows, positions, values

    def count_documents(self, buckets: NDArray[np.int32], places: NDArray[np.uint32]) -> tuple[Numbers, Numbers]:
        """The numbers of the documents that hold these places, ascending, and how many each holds."""
        rows = np.empty(len(places), dtype=np.int64)
        _documents(buckets, places, self._bases, self._firsts, self._hints, rows)
        if len(rows) <= _FEW:
            return _tally(rows)
        counts = np.bincount(rows)
        found = np.flatnonzero(counts)
        return found, counts[found]


@numba.njit(cache=True, nogil=True)
def _document(place: int, firsts: Numbers, hints: Numbers) -> int:
    row: int = hints[place >> _SHIFT]
    while firsts[row + 1] <= place:
        row += 1
    return row


@numba.njit(cache=True, nogil=True)
def _documents(buckets: Any, places: Any, bases: Numbers, firsts: Numbers, hints: Numbers, rows: Numbers) -> None:
    for at in range(len(places)):
        rows[at] = _document(bases[buckets[at]] + np.int64(places[at]), firsts, hints)


@numba.njit(cache=True, nogil=True)
def _tally(rows: Numbers) -> tuple[Numbers, Numbers]:
    """The different rows, ascending, and how often each occurs; numpy takes longer to start for a few."""
    ordered = np.sort(rows)
    found, counts = np.empty_like(ordered), np.zeros_like(ordered)
    made = 0
    for row in ordered:
        if made == 0 or found[made - 1] != row:
            found[made] = row
            made += 1
        counts[made - 1] += 1
    return found[:made], counts[:made]


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
