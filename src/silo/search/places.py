"""Every row of a search is traced to a document: bucket and place -> document, position in it, and token."""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

_SHIFT = 8
Numbers = NDArray[np.int64]
Weights = NDArray[np.float64]
Documents = tuple[Numbers, Numbers, NDArray[np.int32], int]
"""Where the places of each bucket begin among all, where each document does, which one is at every 2^n-th, and n."""


class Tally(NamedTuple):
    """Room to count by document: zeros, which are left so, and two lists of documents to be written over."""

    counts: NDArray[np.int32]
    sums: Weights
    here: NDArray[np.int32]
    held: NDArray[np.int32]


class TokenTable:
    """The tokens of all buckets of a view and where documents begin in them, laid out for fast look-up."""

    def __init__(self, buckets: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        bases = np.cumsum([0, *(len(tokens) for tokens, _ in buckets)]).astype(np.int64)
        self._tokens = np.concatenate([tokens for tokens, _ in buckets] or [np.empty(0, dtype=np.uint16)])
        starts = [first.astype(np.int64) + base for (_, first), base in zip(buckets, bases, strict=False)]
        firsts = np.concatenate([*starts, bases[-1:]])
        hints = np.searchsorted(firsts, np.arange(0, int(bases[-1]) + 1, 1 << _SHIFT), side="right") - 1
        self.documents: Documents = bases, firsts, hints.astype(np.int32), _SHIFT
        self._idle: list[Tally] = []

    def look_up(self, buckets: NDArray[np.int32], places: NDArray[np.uint32]) -> tuple[Numbers, Numbers, Numbers]:
        """Numbers of documents (-1 for bucket -1), positions within them, and tokens; in the shape given."""
        found = np.empty((3, buckets.size), dtype=np.int64)
        _look_up(buckets.ravel(), places.ravel(), self.documents, self._tokens, found)
        rows, positions, values = found.reshape(3, *buckets.shape)
        return rows, positions, values

    @contextmanager
    def tally(self) -> Iterator[Tally]:
        """Room to count in, for one thread at a time."""
        try:
            room = self._idle.pop()
        except IndexError:
            size = len(self.documents[1]) - 1
            counts, here, held = np.zeros((3, size), dtype=np.int32)
            room = Tally(counts, np.zeros(size), here, held)
        yield room
        self._idle.append(room)


@numba.njit(cache=True, nogil=True)
def _look_up(buckets: Any, places: Any, documents: tuple[Any, ...], tokens: Any, out: Numbers) -> None:
    bases, firsts, hints, shift = documents
    for at in range(len(buckets)):
        if buckets[at] < 0:
            out[0, at] = out[1, at] = out[2, at] = -1
            continue
        place = bases[buckets[at]] + np.int64(places[at])
        row = np.int64(hints[place >> shift])
        while firsts[row + 1] <= place:
            row += 1
        out[0, at] = row
        out[1, at] = place - firsts[row]
        out[2, at] = tokens[place]
