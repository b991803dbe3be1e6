"""Suffix search (infinity-gram): what allowed documents hold after a context, or after its longest known part, exactly.

A bucket is `tokens` (uint16 or uint32, documents end to end, each opened by the token `begin`) and `suffixes` (uint32,
the places of `tokens` in the order of the text from there to the end of the bucket, a text before its extensions).
Nothing is sampled, capped or estimated, and no stretch reaches from one document into the next. With some documents
allowed every answer is the answer of buckets that hold these alone: an erased or forbidden document decides neither a
length nor a count nor which occurrences are named.

The kernels read the buckets where they lie, by address: `SuffixSearch` checks types, sizes and ranges when it is made
and keeps the arrays alive. They run without the interpreter lock and share nothing they write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydivsufsort import divsufsort

from silo.errors import SiloError
from silo.search.ngram.kernel import (
    TABLE_WIDTH,
    Buckets,
    Ints,
    continuations,
    followers,
    holders,
    levels,
    longest_match,
    longest_usable,
)
from silo.search.places import TokenTable, Weights

Tokens = NDArray[np.uint16] | NDArray[np.uint32]
Suffixes = NDArray[np.uint32]
Bitmap = NDArray[np.uint8]
Ids = Sequence[int] | NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Continuations:
    """What follows the longest known suffix of a prefix.

    `length`: tokens of that suffix, 0 if even the last token is never followed by another (all else is then empty).
    `tokens` (uint32, ascending) and `counts` (int64): each next token and how often it follows; `total` is their sum.
    `ends`: how often a document ends right after the suffix; these are in neither `counts` nor `total`.
    `buckets` (int32) and `places` (uint32): where the next token of the first occurrences is, by bucket and place.
    """

    length: int
    tokens: NDArray[np.uint32]
    counts: Ints
    total: int
    ends: int
    buckets: NDArray[np.int32]
    places: NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Followers:
    """The tokens (uint32, ascending) after all of a context, their counts (int64), and the sum of these."""

    tokens: NDArray[np.uint32]
    counts: Ints
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """What is known before each token (row) of a text, for contexts of given orders and the longest one.

    `lengths` (int32 [rows]): tokens of the longest context that anything follows. `totals` and `hits` (int64
    [rows, orders + 1]): how often the last n tokens are followed in their document, and by the row's own token. The
    last column is of the longest context where that is longer than all orders, else 0.
    """

    lengths: NDArray[np.int32]
    totals: Ints
    hits: Ints


class Match(NamedTuple):
    """The longest suffix that occurs, and the bucket and place where its first occurrence begins (-1, -1 if none)."""

    length: int
    bucket: int
    place: int


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
    """The documents that may be counted and named; made once per policy by `SuffixSearch.allow`."""

    _table: Ints
    _addresses: Ints
    _kept: tuple[NDArray[Any], ...]


def suffix_array(tokens: Tokens) -> Suffixes:
    """Every place of `tokens`, sorted by the tokens from there on; the same array on every machine."""
    places = divsufsort(np.ascontiguousarray(tokens)) if len(tokens) else np.empty(0)
    return np.asarray(places, dtype=np.uint32)


class SuffixSearch:
    """Searches buckets as one text. Given in the order of their document ids, their cuts show in no answer."""

    def __init__(self, buckets: Sequence[tuple[Tokens, Suffixes]], begin: int) -> None:
        self._arrays = [_checked(number, begin, *bucket) for number, bucket in enumerate(buckets)]
        self._begin = int(begin)
        self._kind = np.empty(0, dtype=self._arrays[0][0].dtype if self._arrays else np.uint16)
        _require(all(tokens.dtype == self._kind.dtype for tokens, _ in self._arrays), "buckets of different types")
        largest = max((int(tokens.max()) for tokens, _ in self._arrays if len(tokens)), default=0)
        width = min(largest + 1, TABLE_WIDTH)
        self._firsts = np.zeros((len(self._arrays), width + 1), dtype=np.uint32)
        self._table = np.empty((len(self._arrays), 5), dtype=np.int64)
        for row, firsts, (tokens, suffixes) in zip(self._table, self._firsts, self._arrays, strict=True):
            firsts[1:] = np.bincount(np.minimum(tokens, np.int64(width)), minlength=width)[:width].cumsum()
            row[:] = tokens.ctypes.data, suffixes.ctypes.data, firsts.ctypes.data, len(tokens), width
        self._everything = self.allow([None] * len(self._arrays))

    def allow(self, bitmaps: Sequence[Bitmap | None]) -> Allowed:
        """Per bucket None for all of it, or one bit per place: bit `place & 7` of byte `place >> 3`.

        A document is allowed with all of its places or none. What is made of a bitmap takes a quarter byte per place.
        """
        _require(len(bitmaps) == len(self._arrays), f"{len(bitmaps)} bitmaps for {len(self._arrays)} buckets")
        addresses, kept = np.zeros((len(bitmaps), 2), dtype=np.int64), list[NDArray[Any]]()
        for number, bitmap in enumerate(bitmaps):
            if bitmap is not None:
                suffixes = self._arrays[number][1]
                plain = bitmap.dtype == np.uint8 and bitmap.ndim == 1 and bitmap.flags.c_contiguous
                enough = plain and 8 * len(bitmap) >= len(suffixes)
                _require(enough, f"bitmap {number} is not plain uint8 with {len(suffixes)} bits")
                kept += [bitmap, _ranks(bitmap, suffixes)]
                addresses[number] = [array.ctypes.data for array in kept[-2:]]
        return Allowed(self._table, addresses, tuple(kept))

    def continuations(
        self, prefix: Ids, *, allowed: Allowed | None = None, longest: int = 1000, limit: int = 64
    ) -> Continuations:
        """What follows the longest suffix (at most `longest` tokens, after the last `begin`) that anything follows."""
        return Continuations(*continuations(self._open(allowed), _tail(prefix, longest), max(limit, 0)))

    def longest(self, prefix: Ids, *, allowed: Allowed | None = None, longest: int = 1000) -> int:
        """The length `continuations` finds, without counting what follows."""
        return int(longest_usable(self._open(allowed), _tail(prefix, longest), True))

    def longest_match(self, ids: Ids, *, allowed: Allowed | None = None, longest: int = 1000) -> Match:
        """The longest suffix of `ids` (at most `longest` tokens, after the last `begin`) that occurs at all."""
        return Match(*longest_match(self._open(allowed), _tail(ids, longest)))

    def followers(self, context: Ids, *, allowed: Allowed | None = None) -> Followers:
        """What follows all of the context; nothing if it is empty or contains `begin`."""
        return Followers(*followers(self._open(allowed), _tail(context, len(context))))

    def holders(
        self,
        ids: Ids,
        sizes: Sequence[int],
        weights: Sequence[float],
        table: TokenTable,
        *,
        allowed: Allowed | None = None,
    ) -> tuple[Ints, Weights]:
        """The documents, as numbers of the table, that hold the last tokens of `ids`, and what this weighs.

        An occurrence of the last `sizes[i]` tokens weighs `weights[i]`, which is more than 0. No tokens, or tokens with
        `begin` among them, occur nowhere.
        """
        if max(sizes, default=0) > len(ids):
            raise SiloError("internal", f"sizes are {tuple(sizes)}, for {len(ids)} tokens")
        if len(weights) != len(sizes) or min(weights, default=1) <= 0:
            raise SiloError("internal", "every size needs a weight above 0")
        wanted, each = np.array(sizes, dtype=np.int64), np.array(weights, dtype=np.float64)
        with table.tally() as room:
            rows, sums = holders(self._open(allowed), _tail(ids, len(ids)), wanted, each, table.documents, tuple(room))
        return rows, sums

    def levels(
        self, ids: Ids, start: int = 0, *, orders: Sequence[int], allowed: Allowed | None = None, longest: int = 1000
    ) -> Levels:
        """Score a text: a row for each of `ids[start:]`, with what is known of all that is before it."""
        _require(0 <= start <= len(ids), f"start is {start}, not 0 to {len(ids)}")
        rising = all(low < high for low, high in pairwise((0, *orders)))
        _require(len(orders) > 0 and rising, f"orders are {tuple(orders)}, not ascending from 1 or more")
        sizes = np.array(orders, dtype=np.int64)
        return Levels(*levels(self._open(allowed), _tail(ids, len(ids)), start, sizes, max(longest, 0)))

    def _open(self, allowed: Allowed | None) -> Buckets:
        chosen = allowed or self._everything
        _require(chosen._table is self._table, "what is allowed was allowed for another search")
        return self._kind, self._table, chosen._addresses, self._begin


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise SiloError("internal", message)


def _checked(number: int, begin: int, tokens: Tokens, suffixes: Suffixes) -> tuple[Tokens, Suffixes]:
    for array, kinds in ((tokens, ("uint16", "uint32")), (suffixes, ("uint32",))):
        plain = array.ndim == 1 and array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative
        _require(plain and array.dtype.name in kinds, f"bucket {number} is not made of plain {' or '.join(kinds)}")
    _require(len(tokens) == len(suffixes), f"bucket {number} has {len(tokens)} tokens, {len(suffixes)} suffixes")
    _require(not len(tokens) or tokens[0] == begin, f"bucket {number} does not begin with token {begin}")
    _require(not len(tokens) or suffixes.max() < len(tokens), f"bucket {number} has a suffix that is not a place")
    return tokens, suffixes


def _tail(ids: Ids, longest: int) -> Ints:
    """The last tokens, always copied: a kernel would be compiled anew for an array that is read-only or strided."""
    return np.array(ids[max(0, len(ids) - max(longest, 0)) :], dtype=np.int64, order="C")


def _ranks(bitmap: Bitmap, suffixes: Suffixes) -> NDArray[np.uint64]:
    """For every 64 suffixes how many before them are allowed, and which of them are: see `OpenBucket`."""
    bits = np.zeros(64 * (len(suffixes) // 64 + 1), dtype=np.bool_)
    bits[: len(suffixes)] = np.unpackbits(bitmap, bitorder="little").view(np.bool_)[suffixes]
    words = np.packbits(bits, bitorder="little").view(np.uint64)
    counts = np.bitwise_count(words).astype(np.uint64)
    return np.stack([counts.cumsum() - counts, words], axis=1)
