"""Every row of a search is traced to a document: bucket and place -> document, position in it, and token."""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from silo.search.dtypes import Float64s, Int32s, Int64s, UInt32s

HINT_SHIFT = 8
"""log2 of the places between two hints: a look-up passes over the documents that begin after its hint, which are few,
and hints take 1/64 byte per place."""
DocumentTable = tuple[Int64s, Int64s, Int32s, int]
"""Where the places of each bucket begin among all, where each document does, which one is at every 2^n-th, and n."""


class DocumentCounters(NamedTuple):
    """Room to count by document: zeros, which are left so, and two lists of documents to be written over."""

    counts: Int32s
    sums: Float64s
    at_this_size: Int32s
    at_any_size: Int32s


class TokenTable:
    """The tokens of all buckets of a view and where documents begin in them, laid out for fast look-up."""

    def __init__(self, buckets: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        bases = np.cumsum([0, *(len(tokens) for tokens, _ in buckets)]).astype(np.int64)
        self._arrays = [np.ascontiguousarray(tokens) for tokens, _ in buckets]  # where they lie: a map stays a map
        places = ((array.__array_interface__["data"][0], array.itemsize) for array in self._arrays)
        self._tokens = np.array([*places], dtype=np.int64).reshape(-1, 2)
        starts = [first.astype(np.int64) + base for (_, first), base in zip(buckets, bases, strict=False)]
        firsts = np.concatenate([*starts, bases[-1:]])
        hints = np.searchsorted(firsts, np.arange(0, int(bases[-1]) + 1, 1 << HINT_SHIFT), side="right") - 1
        self.documents: DocumentTable = bases, firsts, hints.astype(np.int32), HINT_SHIFT
        self._idle: list[DocumentCounters] = []

    def look_up(self, buckets: Int32s, places: UInt32s) -> tuple[Int64s, Int64s, Int64s]:
        """Numbers of documents (-1 for bucket -1), positions within them, and tokens; in the shape given."""
        out = np.empty((3, buckets.size), dtype=np.int64)
        _look_up(buckets.ravel(), places.ravel(), self.documents, self._tokens, out)
        rows, positions, values = out.reshape(3, *buckets.shape)
        return rows, positions, values

    @contextmanager
    def counters(self) -> Iterator[DocumentCounters]:
        """Room to count in, for one thread at a time."""
        try:
            room = self._idle.pop()
        except IndexError:
            size = len(self.documents[1]) - 1
            counts, *lists = np.zeros((3, size), dtype=np.int32)
            room = DocumentCounters(counts, np.zeros(size), *lists)
        yield room
        self._idle.append(room)


def _make_reader(kind: Any) -> Any:
    """A function of the loop that reads a number at an address."""

    @intrinsic
    def read(_: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], context.get_value_type(kind).as_pointer()))
            value.align = 1
            return value

        return kind(types.int64), generate

    return read


_token2, _token4 = _make_reader(types.uint16), _make_reader(types.uint32)


@numba.njit(cache=True, nogil=True)
def _look_up(buckets: Any, places: Any, documents: tuple[Any, ...], tokens: Int64s, out: Int64s) -> None:
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
        address = tokens[buckets[at], 0] + np.int64(places[at]) * tokens[buckets[at], 1]
        out[2, at] = _token2(address) if tokens[buckets[at], 1] == 2 else _token4(address)
