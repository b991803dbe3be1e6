"""Suffix search (infinity-gram): what followed the longest stretch of a prefix that allowed documents hold, exactly.

A bucket is `tokens` (uint16 or uint32, documents end to end, each opened by the token `begin`) and `suffixes` (uint32,
the places of `tokens` in the order of the text from there to the end of the bucket, a text before its extensions).
Nothing is sampled, capped or estimated, and no stretch reaches from one document into the next. With a bitmap of
allowed places every answer is the answer of buckets that hold the allowed documents alone: an erased or forbidden
document decides neither a length nor a count nor which occurrences are named.

The kernels read the buckets where they lie, by address: `SuffixSearch` checks types, sizes and ranges when it is made
and keeps the arrays alive. They run without the interpreter lock and share nothing they write.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray
from pydivsufsort import divsufsort

from silo.errors import SiloError

Tokens = NDArray[np.uint16] | NDArray[np.uint32]
Suffixes = NDArray[np.uint32]
Bitmap = NDArray[np.uint8]
Ids = Sequence[int] | NDArray[np.integer[Any]]
Allowed = Sequence[Bitmap | None] | None
"""Per bucket None (everything) or one bit per place, bit `place & 7` of byte `place >> 3`; None: no limits at all."""

_Ints = NDArray[np.int64]
_Store = tuple[Any, _Ints, _Ints, int]
"""No tokens of the right type, of each bucket three addresses and two sizes, the bitmaps' addresses, begin."""

_TABLE_WIDTH = 1 << 18
"""Ids from here on share one entry in the table of first tokens, and are counted by sorting."""
_FEW = 256


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
    counts: _Ints
    total: int
    ends: int
    buckets: NDArray[np.int32]
    places: NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Per token of a text `lengths` (int32) and `totals` (int64) of the continuations before it, and its own `hits`."""

    lengths: NDArray[np.int32]
    totals: _Ints
    hits: _Ints


class Match(NamedTuple):
    """The longest suffix that occurs, and the bucket and place where its first occurrence begins (-1, -1 if none)."""

    length: int
    bucket: int
    place: int


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
        width = min(largest + 1, _TABLE_WIDTH)
        self._firsts = np.zeros((len(self._arrays), width + 1), dtype=np.uint32)
        self._everything = np.zeros(len(self._arrays), dtype=np.int64)
        self._table = np.empty((len(self._arrays), 5), dtype=np.int64)
        for row, firsts, (tokens, suffixes) in zip(self._table, self._firsts, self._arrays, strict=True):
            firsts[1:] = np.bincount(np.minimum(tokens, np.int64(width)), minlength=width)[:width].cumsum()
            row[:] = tokens.ctypes.data, suffixes.ctypes.data, firsts.ctypes.data, len(tokens), width

    def continuations(
        self, prefix: Ids, *, allowed: Allowed = None, longest: int = 1000, limit: int = 64
    ) -> Continuations:
        """What follows the longest suffix (at most `longest` tokens, after the last `begin`) that anything follows."""
        store, _kept = self._store(allowed)
        return Continuations(*_continuations(store, _tail(prefix, longest), max(limit, 0)))

    def longest_match(self, ids: Ids, allowed: Allowed = None, *, longest: int = 1000) -> Match:
        """The longest suffix of `ids` (at most `longest` tokens, after the last `begin`) that occurs at all."""
        store, _kept = self._store(allowed)
        return Match(*_longest_match(store, _tail(ids, longest)))

    def continuations_of(self, ids: Ids, start: int = 0, *, allowed: Allowed = None, longest: int = 1000) -> Statistics:
        """Score a text: a row for each of `ids[start:]`, with what `continuations` says of all that is before it."""
        _require(0 <= start <= len(ids), f"start is {start}, not 0 to {len(ids)}")
        store, _kept = self._store(allowed)
        return Statistics(*_statistics(store, _tail(ids, len(ids)), start, max(longest, 0)))

    def _store(self, allowed: Allowed) -> tuple[_Store, list[Bitmap | None]]:
        """What the kernels take, and the bitmaps: they must outlive the call."""
        kept: list[Bitmap | None] = [None] * len(self._arrays) if allowed is None else list(allowed)
        _require(len(kept) == len(self._arrays), f"{len(kept)} bitmaps for {len(self._arrays)} buckets")
        bits = self._everything if allowed is None else np.array([*map(self._bits, range(len(kept)), kept)], np.int64)
        return (self._kind, self._table, bits, self._begin), kept

    def _bits(self, number: int, bitmap: Bitmap | None) -> int:
        if bitmap is None:
            return 0
        places = len(self._arrays[number][0])
        plain = bitmap.dtype == np.uint8 and bitmap.ndim == 1 and bitmap.flags.c_contiguous
        _require(plain and 8 * len(bitmap) >= places, f"bitmap {number} is not plain uint8 with {places} bits")
        return int(bitmap.ctypes.data)


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


def _tail(ids: Ids, longest: int) -> _Ints:
    """The last tokens, always copied: a kernel would be compiled anew for an array that is read-only or strided."""
    return np.array(ids[max(0, len(ids) - max(longest, 0)) :], dtype=np.int64, order="C")


class _Bucket(NamedTuple):
    """Pointers to the arrays, their sizes, whether the bitmap counts. Plain values: to pass them on costs nothing."""

    tokens: Any
    suffixes: Any
    firsts: Any
    bitmap: Any
    places: int
    width: int
    limited: bool
    begin: int


def _cast(_context: Any, _address: Any, kind: Any) -> Any:
    pointer: Any = types.CPointer
    return pointer(kind.dtype)(types.int64, kind), lambda context, builder, signature, arguments: builder.inttoptr(
        arguments[0], context.get_value_type(signature.return_type)
    )


_kernel = numba.njit(cache=True, nogil=True)
_pointer: Any = intrinsic(_cast)
_signed: Any = np.int64


@_kernel
def _open(store: _Store, number: int) -> _Bucket:
    kind, table, bits, begin = store
    tokens, suffixes = _pointer(table[number, 0], kind.dtype), _pointer(table[number, 1], np.uint32)
    firsts, bitmap = _pointer(table[number, 2], np.uint32), _pointer(bits[number], np.uint8)
    return _Bucket(tokens, suffixes, firsts, bitmap, table[number, 3], table[number, 4], bits[number] != 0, begin)


@_kernel
def _matches(bucket: _Bucket, place: int, pattern: _Ints) -> bool:
    at = len(pattern) if place + len(pattern) <= bucket.places else -1
    while at > 0 and bucket.tokens[place + at - 1] == pattern[at - 1]:
        at -= 1
    return at == 0


@_kernel
def _bound(bucket: _Bucket, pattern: _Ints, low: int, high: int, past: bool) -> int:
    """The first suffix in [low, high) not below the pattern, or `past` all that begin with it.

    What the suffixes on both sides share with the pattern is not compared again.
    """
    shared_low, shared_high = 0, 0
    while low < high:
        middle = (low + high) >> 1
        place = _signed(bucket.suffixes[middle])
        stop = min(len(pattern), bucket.places - place)
        same = min(shared_low, shared_high)
        while same < stop and bucket.tokens[place + same] == pattern[same]:
            same += 1
        if not past if same == len(pattern) else same < stop and bucket.tokens[place + same] > pattern[same]:
            high, shared_high = middle, same
        else:
            low, shared_low = middle + 1, same
    return low


@_kernel
def _interval(bucket: _Bucket, pattern: _Ints) -> tuple[int, int]:
    """The suffixes that begin with the pattern; their end is looked for near their start."""
    first, width, step = pattern[0], bucket.width, 1
    low = _signed(bucket.firsts[max(0, min(first, width))])
    end = _signed(bucket.firsts[first + 1]) if 0 <= first < width else bucket.places
    low = _bound(bucket, pattern, low, end, False)
    while low + step <= end and _matches(bucket, _signed(bucket.suffixes[low + step - 1]), pattern):
        step *= 2
    return low, _bound(bucket, pattern, low + step // 2, min(low + step, end), True)


@_kernel
def _narrow(bucket: _Bucket, size: int, low: int, high: int, token: int) -> int:
    """The first of the suffixes [low, high), alike in `size` tokens, with a next token not below `token`, if any."""
    while low < high:
        middle = (low + high) >> 1
        after = _signed(bucket.suffixes[middle]) + size
        if after == bucket.places or bucket.tokens[after] < token:
            low = middle + 1
        else:
            high = middle
    return low


@_kernel
def _usable(bucket: _Bucket, after: int, followed: bool) -> bool:
    """Whether the occurrence that ends before `after` is allowed and, if asked for, followed in its document."""
    if bucket.limited and not (bucket.bitmap[(after - 1) >> 3] >> ((after - 1) & 7)) & 1:
        return False
    return not followed or (after < bucket.places and bucket.tokens[after] != bucket.begin)


@_kernel
def _count(bucket: _Bucket, size: int, low: int, high: int, followed: bool, enough: int = -1) -> int:
    """How many of the suffixes [low, high), alike in `size` tokens, are usable; a bitmap is read until `enough` are."""
    if bucket.limited:
        count = 0
        for row in range(low, high):
            count += _usable(bucket, _signed(bucket.suffixes[row]) + size, followed)
            if count == enough:
                break
        return count
    if not followed or low == high:
        return high - low
    first, begins = _narrow(bucket, size, low, high, 0), _narrow(bucket, size, low, high, bucket.begin)
    return begins - first + high - _narrow(bucket, size, begins, high, bucket.begin + 1)


@_kernel
def _search(store: _Store, ids: _Ints, bound: int, followed: bool) -> tuple[int, _Ints]:
    """The longest usable suffix of `ids`, at most `bound` tokens, and from where to where each bucket has it.

    Each bucket is first asked for one token more than the best so far, then in steps that double, then halve.
    """
    best, reach, rows = 0, 0, np.zeros((len(store[1]), 2), dtype=np.int64)
    while reach < min(bound, len(ids)) and ids[len(ids) - 1 - reach] != store[3]:
        reach += 1
    for number in range(len(rows)):
        bucket, step, ceiling = _open(store, number), 1, reach + 1
        while best + 1 < ceiling:
            size = min(best + step, ceiling - 1)
            low, high = _interval(bucket, ids[len(ids) - size :])
            if _count(bucket, size, low, high, followed, 1):
                best, step = size, 2 * step
            else:
                ceiling, step = size, max(1, (size - best) // 2)
    for number in range(len(rows) if best else 0):
        rows[number, 0], rows[number, 1] = _interval(_open(store, number), ids[len(ids) - best :])
    return best, rows


@_kernel
def _followers(store: _Store, size: int, rows: _Ints) -> tuple[NDArray[np.uint32], int]:
    """The next token of every usable occurrence, and how many documents end instead."""
    found, count, usable = np.empty((rows[:, 1] - rows[:, 0]).sum(), dtype=np.uint32), 0, 0
    for number in range(len(rows)):
        bucket = _open(store, number)
        for row in range(rows[number, 0], rows[number, 1]):
            after = _signed(bucket.suffixes[row]) + size
            usable += _usable(bucket, after, False)
            if _usable(bucket, after, True):
                found[count] = bucket.tokens[after]
                count += 1
    return found[:count], usable - count


@_kernel
def _tally(found: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], _Ints]:
    """The distinct tokens, ascending, and their counts: with a counter for each id, or by sorting if they are few."""
    if len(found) > _FEW and found.max() < _TABLE_WIDTH:
        counters = np.zeros(found.max() + 1, dtype=np.int64)
        for token in found:
            counters[token] += 1
        tokens = np.flatnonzero(counters)
        return tokens.astype(np.uint32), counters[tokens]
    found.sort()
    counts, distinct = np.zeros(len(found), dtype=np.int64), 0
    for token in found:
        if not distinct or found[distinct - 1] != token:
            found[distinct] = token
            distinct += 1
        counts[distinct - 1] += 1
    return found[:distinct].copy(), counts[:distinct].copy()


@_kernel
def _first_places(bucket: _Bucket, pattern: _Ints, low: int, high: int, room: int, followed: bool) -> _Ints:
    """The smallest places where a usable occurrence begins, ascending, at most `room`.

    A frequent pattern is soon met in the text itself; that is given up after as many places as there are suffixes.
    """
    room, kept, limit = min(room, high - low), 0, bucket.places
    found = np.empty(2 * room, dtype=np.int64)
    for place in range(high - low):
        if kept == room:
            return found[:room]
        if _matches(bucket, place, pattern) and _usable(bucket, place + len(pattern), followed):
            found[kept] = place
            kept += 1
    kept = 0
    for row in range(low, high):
        place = _signed(bucket.suffixes[row])
        if place < limit and _usable(bucket, place + len(pattern), followed):
            found[kept] = place
            kept += 1
            if kept == 2 * room:
                found.sort()
                kept, limit = room, found[room - 1]
    return np.sort(found[:kept])[:room]


@_kernel
def _continuations(store: _Store, ids: _Ints, limit: int) -> Any:
    length, rows = _search(store, ids, len(ids), True)
    found, ends = _followers(store, length, rows)
    tokens, counts = _tally(found)
    buckets, named = np.empty(min(limit, len(found)), dtype=np.int32), 0
    places = np.empty(len(buckets), dtype=np.uint32)
    for number in range(len(rows)):
        low, high, room = rows[number, 0], rows[number, 1], len(places) - named
        if room and low < high:
            for place in _first_places(_open(store, number), ids[len(ids) - length :], low, high, room, True):
                buckets[named], places[named] = number, place + length
                named += 1
    return length, tokens, counts, len(found), ends, buckets, places


@_kernel
def _longest_match(store: _Store, ids: _Ints) -> tuple[int, int, int]:
    length, rows = _search(store, ids, len(ids), False)
    for number in range(len(rows)):
        low, high = rows[number, 0], rows[number, 1]
        for place in _first_places(_open(store, number), ids[len(ids) - length :], low, high, min(1, length), False):
            return length, number, place
    return 0, -1, -1


@_kernel
def _statistics(store: _Store, ids: _Ints, start: int, longest: int) -> tuple[NDArray[np.int32], _Ints, _Ints]:
    """One more token matches at most one token more, and only suffixes that went on with it can be the longer match."""
    lengths = np.zeros(len(ids) - start, dtype=np.int32)
    totals, hits = np.zeros(len(lengths), dtype=np.int64), np.zeros(len(lengths), dtype=np.int64)
    length, rows = _search(store, ids[:start], longest, True)
    for row in range(len(lengths)):
        token, longer, lengths[row] = ids[start + row], 0, length
        for number in range(len(rows) if length else 0):
            bucket, low, high = _open(store, number), rows[number, 0], rows[number, 1]
            totals[row] += _count(bucket, length, low, high, True)
            low = _narrow(bucket, length, low, high, max(token, 0))
            high = _narrow(bucket, length, low, high, token + 1)
            rows[number, 0], rows[number, 1] = low, high
            if token != store[3]:
                hits[row] += _count(bucket, length, low, high, False)
                longer += _count(bucket, length + 1, low, high, True, 1)
        if longer and length < longest:
            length += 1
        else:
            length, rows = _search(store, ids[: start + row + 1], min(max(length, 1), longest), True)
    return lengths, totals, hits
