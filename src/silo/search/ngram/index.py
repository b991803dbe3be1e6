"""Suffix search (infinity-gram): what allowed documents hold after a context, or after its longest known part, exactly.

A bucket is `tokens` (uint16 or uint32, documents end to end, each opened by the token `begin`) and `suffixes` (uint32,
the places of `tokens` in the order of the text from there to the end of the bucket, a text before its extensions).
Nothing is sampled, capped or estimated, and no stretch reaches from one document into the next. With some documents
allowed every answer is the answer of buckets that hold these alone: an erased or forbidden document decides neither a
length nor a count nor which occurrences are named.

The kernels read the buckets where they lie, by address: `NgramIndex` checks types, sizes and ranges when it is made
and keeps the arrays alive. They run without the interpreter lock and share nothing they write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydivsufsort import divsufsort

from silo.errors import SiloError
from silo.search.dtypes import Float64s, Int32s, Int64s, UInt8s, UInt32s, UInt64s
from silo.search.ngram.kernel import (
    RANK_BLOCK,
    TABLE_WIDTH,
    BucketArrays,
    Texts,
    count_followers,
    count_levels,
    find_continuations,
    find_longest,
    find_longest_match,
    weigh_documents,
)
from silo.search.places import TokenTable

Tokens = NDArray[np.uint16] | UInt32s
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
    tokens: UInt32s
    counts: Int64s
    total: int
    ends: int
    buckets: Int32s
    places: UInt32s


class NextTokens(NamedTuple):
    """The tokens (uint32, ascending) after all of a context, their counts (int64), and the sum of these."""

    tokens: UInt32s
    counts: Int64s
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """What is known before each token (row) of a text, for contexts of given orders and the longest one.

    `lengths` (int32 [rows]): tokens of the longest context that anything follows. `totals` and `hits` (int64
    [rows, orders + 1]): how often the last n tokens are followed in their document, and by the row's own token. The
    last column is of the longest context where that is longer than all orders, else 0.
    """

    lengths: Int32s
    totals: Int64s
    hits: Int64s


class Holders(NamedTuple):
    """Documents that hold some tokens, what this weighs, and how many were met by the end of each size.

    They are in the order in which they were met: by text, size, then bucket.
    """

    rows: Int64s
    weights: Float64s
    ends: Int64s


class Match(NamedTuple):
    """The longest suffix that occurs, and the bucket and place where its first occurrence begins (-1, -1 if none)."""

    length: int
    bucket: int
    place: int


@dataclass(frozen=True, slots=True, eq=False)
class AllowedSuffixes:
    """The documents that may be counted and named; made once per policy by `NgramIndex.allow`."""

    _table: Int64s
    _addresses: Int64s
    _kept: tuple[NDArray[Any], ...]


def suffix_array(tokens: Tokens) -> UInt32s:
    """Every place of `tokens`, sorted by the tokens from there on; the same array on every machine."""
    places = divsufsort(np.ascontiguousarray(tokens)) if len(tokens) else np.empty(0)
    return np.asarray(places, dtype=np.uint32)


class NgramIndex:
    """Searches buckets as one text. Given in the order of their document ids, their cuts show in no answer."""

    def __init__(self, buckets: Sequence[tuple[Tokens, UInt32s]], begin: int) -> None:
        self._buckets = [_check_bucket(number, begin, *bucket) for number, bucket in enumerate(buckets)]
        self._begin = int(begin)
        self._no_tokens = np.empty(0, dtype=self._buckets[0][0].dtype if self._buckets else np.uint16)
        _require_sound(
            all(tokens.dtype == self._no_tokens.dtype for tokens, _ in self._buckets), "buckets of different types"
        )
        largest = max((int(tokens.max()) for tokens, _ in self._buckets if len(tokens)), default=0)
        width = min(largest + 1, TABLE_WIDTH)
        self._firsts = np.zeros((len(self._buckets), width + 1), dtype=np.uint32)
        self._table = np.empty((len(self._buckets), 5), dtype=np.int64)
        for row, firsts, (tokens, suffixes) in zip(self._table, self._firsts, self._buckets, strict=True):
            firsts[1:] = np.bincount(np.minimum(tokens, np.int64(width)), minlength=width)[:width].cumsum()
            row[:] = tokens.ctypes.data, suffixes.ctypes.data, firsts.ctypes.data, len(tokens), width
        self._everything = self.allow([None] * len(self._buckets))

    def allow(self, bitmaps: Sequence[UInt8s | None]) -> AllowedSuffixes:
        """Per bucket None for all of it, or one bit per place: bit `place & 7` of byte `place >> 3`.

        A document is allowed with all of its places or none. What is made of a bitmap takes a quarter byte per place.
        """
        _require(len(bitmaps) == len(self._buckets), f"{len(bitmaps)} bitmaps for {len(self._buckets)} buckets")
        addresses, kept = np.zeros((len(bitmaps), 2), dtype=np.int64), list[NDArray[Any]]()
        for number, bitmap in enumerate(bitmaps):
            if bitmap is not None:
                suffixes = self._buckets[number][1]
                plain = bitmap.dtype == np.uint8 and bitmap.ndim == 1 and bitmap.flags.c_contiguous
                enough = plain and 8 * len(bitmap) >= len(suffixes)
                _require(enough, f"bitmap {number} is not plain uint8 with {len(suffixes)} bits")
                kept += [bitmap, _rank_allowed(bitmap, suffixes)]
                addresses[number] = [array.ctypes.data for array in kept[-2:]]
        return AllowedSuffixes(self._table, addresses, tuple(kept))

    def continuations(
        self,
        prefix: Ids,
        *,
        allowed: AllowedSuffixes | None = None,
        longest: int = 1000,
        limit: int = 64,
        length: int | None = None,
    ) -> Continuations:
        """What follows the longest suffix (at most `longest` tokens, after the last `begin`) that anything follows.

        With a `length` what follows so many of the last tokens, whether or not they are the longest here: for buckets
        that are a part of others.
        """
        last = _copy_last(prefix, longest)
        _require(length is None or 0 <= length <= len(last), f"length is {length}, of {len(last)} tokens")
        wanted = -1 if length is None else length
        return Continuations(*find_continuations(self._arrays_of(allowed), last, max(limit, 0), wanted))

    def longest(self, prefix: Ids, *, allowed: AllowedSuffixes | None = None, longest: int = 1000) -> int:
        """The length `continuations` finds, without counting what follows."""
        return self.longest_of([prefix], allowed=allowed, longest=longest)[0]

    def longest_of(
        self, prefixes: Sequence[Ids], *, allowed: AllowedSuffixes | None = None, longest: int = 1000
    ) -> list[int]:
        """As `longest`, of each prefix."""
        lengths: list[int] = find_longest(self._arrays_of(allowed), _join_last(prefixes, longest)).tolist()
        return lengths

    def longest_match(self, ids: Ids, *, allowed: AllowedSuffixes | None = None, longest: int = 1000) -> Match:
        """The longest suffix of `ids` (at most `longest` tokens, after the last `begin`) that occurs at all."""
        return Match(*find_longest_match(self._arrays_of(allowed), _copy_last(ids, longest)))

    def followers(self, context: Ids, *, allowed: AllowedSuffixes | None = None) -> NextTokens:
        """What follows all of the context; nothing if it is empty or contains `begin`."""
        return self.followers_of([context], allowed=allowed)[0]

    def followers_of(self, contexts: Sequence[Ids], *, allowed: AllowedSuffixes | None = None) -> list[NextTokens]:
        """As `followers`, of each context; read-only."""
        joined = _join_last(contexts, max(map(len, contexts), default=0))
        tokens, counts, ends, totals = count_followers(self._arrays_of(allowed), joined)
        tokens.flags.writeable = counts.flags.writeable = False
        spans = map(slice, [0, *ends[:-1].tolist()], ends.tolist())
        return [NextTokens(tokens[at], counts[at], total) for at, total in zip(spans, totals.tolist(), strict=True)]

    def weigh_documents(
        self,
        ids: Ids,
        sizes: Sequence[int],
        weights: Sequence[float],
        table: TokenTable,
        *,
        allowed: AllowedSuffixes | None = None,
    ) -> Holders:
        """The documents, as numbers of the table, that hold the last tokens of `ids`, and what this weighs.

        An occurrence of the last `sizes[i]` tokens weighs `weights[i]`, which is more than 0. No tokens, or tokens with
        `begin` among them, occur nowhere.
        """
        return self.weigh_documents_of([ids], [len(sizes)], sizes, weights, table, allowed=allowed)

    def weigh_documents_of(
        self,
        texts: Sequence[Ids],
        ends: ArrayLike,
        sizes: ArrayLike,
        weights: ArrayLike,
        table: TokenTable,
        *,
        allowed: AllowedSuffixes | None = None,
    ) -> Holders:
        """As `weigh_documents`, of each text in turn.

        Sizes and weights of all texts stand in a row; those of each end at `ends`.
        """
        lasts, wanted = np.array(ends, dtype=np.int64), np.array(sizes, dtype=np.int64)
        each, bounds = np.array(weights, dtype=np.float64), [0, *lasts.tolist()]
        if len(lasts) != len(texts) or bounds != sorted(bounds) or bounds[-1] != len(wanted):
            raise ValueError(f"sizes end at {bounds[1:]}, of {len(texts)} texts and {len(wanted)} sizes")
        flat = wanted.tolist()
        by_text = [max(flat[low:high], default=0) for low, high in pairwise(bounds)]
        if any(size > len(ids) for size, ids in zip(by_text, texts, strict=True)):
            raise ValueError(f"sizes are {flat}, for {' and '.join(map(str, map(len, texts)))} tokens")
        if len(each) != len(wanted) or each.min(initial=1) <= 0:
            raise ValueError("every size needs a weight above 0")
        joined = _join_last(texts, int(wanted.max(initial=0)))
        with table.counters() as counters:
            arrays = self._arrays_of(allowed)
            return Holders(*weigh_documents(arrays, joined, (lasts, wanted, each), table.documents, tuple(counters)))

    def levels(
        self,
        ids: Ids,
        start: int = 0,
        *,
        orders: Sequence[int],
        allowed: AllowedSuffixes | None = None,
        longest: int = 1000,
    ) -> Levels:
        """Score a text: a row for each of `ids[start:]`, with what is known of all that is before it."""
        _require(0 <= start <= len(ids), f"start is {start}, not 0 to {len(ids)}")
        rising = all(low < high for low, high in pairwise((0, *orders)))
        _require(len(orders) > 0 and rising, f"orders are {tuple(orders)}, not ascending from 1 or more")
        sizes = np.array(orders, dtype=np.int64)
        return Levels(*count_levels(self._arrays_of(allowed), _copy_last(ids, len(ids)), start, sizes, max(longest, 0)))

    def _arrays_of(self, allowed: AllowedSuffixes | None) -> BucketArrays:
        chosen = allowed or self._everything
        _require(chosen._table is self._table, "what is allowed was allowed for another search")
        return self._no_tokens, self._table, chosen._addresses, self._begin


def add_levels(parts: Sequence[Levels]) -> Levels:
    """The levels of a text in several sets of documents as in one: the longest context counts where it is found."""
    lengths = np.max([part.lengths for part in parts], axis=0)
    totals, hits = np.sum([part.totals for part in parts], axis=0), np.sum([part.hits for part in parts], axis=0)
    for part in parts:
        shorter = part.lengths < lengths
        totals[shorter, -1] -= part.totals[shorter, -1]
        hits[shorter, -1] -= part.hits[shorter, -1]
    return Levels(lengths, totals, hits)


def add_next_tokens(parts: Sequence[NextTokens]) -> NextTokens:
    """What follows a context in several sets of documents as in one; read-only."""
    if len(parts) == 1:
        return parts[0]
    tokens, where = np.unique(np.concatenate([part.tokens for part in parts]), return_inverse=True)
    counts = np.zeros(len(tokens), dtype=np.int64)
    np.add.at(counts, where, np.concatenate([part.counts for part in parts]))
    tokens.flags.writeable = counts.flags.writeable = False
    return NextTokens(tokens, counts, sum(part.total for part in parts))


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _require_sound(holds: bool, message: str) -> None:
    if not holds:
        raise SiloError("store-damaged", f"the suffixes of a bucket cannot be searched: {message}")


def _check_bucket(number: int, begin: int, tokens: Tokens, suffixes: UInt32s) -> tuple[Tokens, UInt32s]:
    for array, kinds in ((tokens, ("uint16", "uint32")), (suffixes, ("uint32",))):
        plain = array.ndim == 1 and array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative
        _require_sound(
            plain and array.dtype.name in kinds, f"bucket {number} is not made of plain {' or '.join(kinds)}"
        )
    _require_sound(len(tokens) == len(suffixes), f"bucket {number} has {len(tokens)} tokens, {len(suffixes)} suffixes")
    _require_sound(not len(tokens) or tokens[0] == begin, f"bucket {number} does not begin with token {begin}")
    _require_sound(not len(tokens) or suffixes.max() < len(tokens), f"bucket {number} has a suffix that is not a place")
    return tokens, suffixes


def _copy_last(ids: Ids, longest: int) -> Int64s:
    """The last tokens, always copied: a kernel would be compiled anew for an array that is read-only or strided."""
    return np.array(ids[max(0, len(ids) - max(longest, 0)) :], dtype=np.int64, order="C")


def _join_last(texts: Sequence[Ids], longest: int) -> Texts:
    """The last tokens of some texts, one after the other, and where those of each end."""
    parts = [np.asarray(ids, dtype=np.int64)[max(0, len(ids) - max(longest, 0)) :] for ids in texts]
    joined = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    return joined, np.array([*accumulate(map(len, parts))], dtype=np.int64)


def _rank_allowed(bitmap: UInt8s, suffixes: UInt32s) -> UInt64s:
    """For every block of suffixes how many before them are allowed, and which of them are: see the kernel."""
    bits = np.zeros(RANK_BLOCK * (len(suffixes) // RANK_BLOCK + 1), dtype=np.bool_)
    bits[: len(suffixes)] = np.unpackbits(bitmap, bitorder="little").view(np.bool_)[suffixes]
    words = np.packbits(bits, bitorder="little").view(np.uint64)
    counts = np.bitwise_count(words).astype(np.uint64)
    return np.stack([counts.cumsum() - counts, words], axis=1)
