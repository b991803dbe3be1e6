"""Spans of suffixes: where the suffixes of a bucket begin alike, and how many of them are allowed and go on.

A span is [low, high) in the suffix order of one bucket: the suffixes that begin with the same `size` tokens. A pattern
never contains `begin`, so all of an occurrence lies in one document and is allowed if its first place is. Everything
runs without the interpreter lock and shares nothing it writes; `SuffixSearch` has checked all that is read here.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Store = tuple[Any, Ints, Ints, int]
"""No tokens of the right type, of each bucket three addresses and two sizes, of each two addresses of what is allowed
(its bitmap and its ranks, 0 and 0 for everything), begin."""

TABLE_WIDTH = 1 << 18
"""Ids from here on share one entry in the table of first tokens, and are counted by sorting."""
_FEW = 256


class OpenBucket(NamedTuple):
    """Pointers to the arrays, their sizes, whether anything is forbidden. Plain values: to pass them on costs nothing.

    `ranks` has two numbers for every 64 suffixes: how many before them are allowed, and which of them are, as bits.
    """

    tokens: Any
    suffixes: Any
    firsts: Any
    bitmap: Any
    ranks: Any
    places: int
    width: int
    limited: bool
    begin: int


def _cast(_context: Any, _address: Any, kind: Any) -> Any:
    pointer: Any = types.CPointer
    return pointer(kind.dtype)(types.int64, kind), lambda context, builder, signature, arguments: builder.inttoptr(
        arguments[0], context.get_value_type(signature.return_type)
    )


def _population(_context: Any, _word: Any) -> Any:
    word: Any = types.uint64
    return word(word), lambda _context, builder, _signature, arguments: builder.ctpop(arguments[0])


kernel = numba.njit(cache=True, nogil=True)
_pointer: Any = intrinsic(_cast)
_ones: Any = intrinsic(_population)
signed: Any = np.int64
_word: Any = np.uint64


@kernel
def open_bucket(store: Store, number: int) -> OpenBucket:
    kind, table, allowed, begin = store
    tokens, suffixes = _pointer(table[number, 0], kind.dtype), _pointer(table[number, 1], np.uint32)
    firsts, places, width = _pointer(table[number, 2], np.uint32), table[number, 3], table[number, 4]
    bitmap, ranks = _pointer(allowed[number, 0], np.uint8), _pointer(allowed[number, 1], np.uint64)
    return OpenBucket(tokens, suffixes, firsts, bitmap, ranks, places, width, allowed[number, 1] != 0, begin)


@kernel
def _matches(bucket: OpenBucket, place: int, pattern: Ints) -> bool:
    at = len(pattern) if place + len(pattern) <= bucket.places else -1
    while at > 0 and bucket.tokens[place + at - 1] == pattern[at - 1]:
        at -= 1
    return at == 0


@kernel
def _bound(bucket: OpenBucket, pattern: Ints, low: int, high: int, past: bool) -> int:
    """The first suffix in [low, high) not below the pattern, or `past` all that begin with it.

    What the suffixes on both sides share with the pattern is not compared again.
    """
    shared_low, shared_high = 0, 0
    while low < high:
        middle = (low + high) >> 1
        place = signed(bucket.suffixes[middle])
        stop = min(len(pattern), bucket.places - place)
        same = min(shared_low, shared_high)
        while same < stop and bucket.tokens[place + same] == pattern[same]:
            same += 1
        if not past if same == len(pattern) else same < stop and bucket.tokens[place + same] > pattern[same]:
            high, shared_high = middle, same
        else:
            low, shared_low = middle + 1, same
    return low


@kernel
def span_of(bucket: OpenBucket, pattern: Ints) -> tuple[int, int]:
    """The suffixes that begin with the pattern; their end is looked for near their start."""
    first, width, step = pattern[0], bucket.width, 1
    known = 0 <= first < width
    low = signed(bucket.firsts[max(0, min(first, width))])
    end = signed(bucket.firsts[first + 1]) if known else bucket.places
    if known and len(pattern) == 1:
        return low, end
    low = _bound(bucket, pattern, low, end, False)
    while low + step <= end and _matches(bucket, signed(bucket.suffixes[low + step - 1]), pattern):
        step *= 2
    return low, _bound(bucket, pattern, low + step // 2, min(low + step, end), True)


@kernel
def spans_of(store: Store, pattern: Ints) -> Ints:
    """The span of a pattern in each bucket; nothing begins with an empty one or one that leaves its document."""
    spans = np.zeros((len(store[1]), 2), dtype=np.int64)
    if len(pattern) and not (pattern == store[3]).any():
        for number in range(len(spans)):
            spans[number, 0], spans[number, 1] = span_of(open_bucket(store, number), pattern)
    return spans


@kernel
def _is_below(bucket: OpenBucket, size: int, row: int, token: int) -> bool:
    """Whether the token after the first `size` of a suffix is below `token`, or there is none."""
    after = signed(bucket.suffixes[row]) + size
    return bool(after == bucket.places or bucket.tokens[after] < token)


@kernel
def _narrow(bucket: OpenBucket, size: int, low: int, high: int, token: int) -> int:
    """The first suffix of a span with a next token not below `token`, if any."""
    while low < high:
        middle = (low + high) >> 1
        if _is_below(bucket, size, middle, token):
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _narrow_near(bucket: OpenBucket, size: int, low: int, high: int, token: int) -> int:
    """What `_narrow` says, sooner where it is near `low`."""
    step = 1
    while low + step <= high and _is_below(bucket, size, low + step - 1, token):
        step *= 2
    return _narrow(bucket, size, low + step // 2, min(low + step - 1, high), token)


@kernel
def split(bucket: OpenBucket, size: int, low: int, high: int, token: int) -> tuple[int, int]:
    """The suffixes of a span that go on with `token`."""
    low = _narrow(bucket, size, low, high, max(token, 0))
    return low, _narrow_near(bucket, size, low, high, token + 1)


@kernel
def _rank(bucket: OpenBucket, row: int) -> int:
    """How many of the first `row` suffixes are allowed."""
    block = 2 * (row >> 6)
    before = (_word(1) << _word(row & 63)) - _word(1)
    rank: int = signed(bucket.ranks[block]) + signed(_ones(bucket.ranks[block + 1] & before))
    return rank


@kernel
def count_allowed(bucket: OpenBucket, low: int, high: int) -> int:
    """How many suffixes of a span are allowed."""
    return _rank(bucket, high) - _rank(bucket, low) if bucket.limited else high - low


@kernel
def count_followed(bucket: OpenBucket, size: int, low: int, high: int) -> int:
    """How many suffixes of a span are allowed and go on in their document."""
    if not count_allowed(bucket, low, high):
        return 0
    first = _narrow_near(bucket, size, low, high, 0)
    begins = _narrow_near(bucket, size, first, high, bucket.begin)
    past = _narrow_near(bucket, size, begins, high, bucket.begin + 1)
    return count_allowed(bucket, first, begins) + count_allowed(bucket, past, high)


@kernel
def usable(bucket: OpenBucket, place: int, size: int, followed: bool) -> bool:
    """Whether the occurrence at a place is allowed and, if asked for, followed in its document."""
    if bucket.limited and not (bucket.bitmap[place >> 3] >> (place & 7)) & 1:
        return False
    after = place + size
    return not followed or (after < bucket.places and bucket.tokens[after] != bucket.begin)


@kernel
def reach_of(ids: Ints, begin: int) -> int:
    """How many tokens there are after the last `begin`."""
    reach = 0
    while reach < len(ids) and ids[len(ids) - 1 - reach] != begin:
        reach += 1
    return reach


@kernel
def lengthen(bucket: OpenBucket, ids: Ints, best: int, most: int, followed: bool) -> int:
    """The length of the longest usable suffix of `ids`, from `best` (if none is longer) to `most` tokens.

    The bucket is first asked for one token more than `best`, then in steps that double, then halve.
    """
    step, ceiling = 1, most + 1
    while best + 1 < ceiling:
        size = min(best + step, ceiling - 1)
        low, high = span_of(bucket, ids[len(ids) - size :])
        if count_followed(bucket, size, low, high) if followed else count_allowed(bucket, low, high):
            best, step = size, 2 * step
        else:
            ceiling, step = size, max(1, (size - best) // 2)
    return best


@kernel
def longest_usable(store: Store, ids: Ints, followed: bool) -> int:
    """The length of the longest usable suffix of `ids` in any bucket."""
    best, reach = 0, reach_of(ids, store[3])
    for number in range(len(store[1])):
        best = lengthen(open_bucket(store, number), ids, best, reach, followed)
    return best


@kernel
def next_tokens(store: Store, size: int, spans: Ints) -> tuple[NDArray[np.uint32], Ints, int]:
    """Each bucket's next tokens and their counts, and how many documents end instead.

    The suffixes of a span are in the order of their next tokens: those with the same one are counted, not visited.
    """
    room = (spans[:, 1] - spans[:, 0]).sum()
    tokens, counts, known, ends = np.empty(room, dtype=np.uint32), np.empty(room, dtype=np.int64), 0, 0
    for number in range(len(spans)):
        bucket, low, high = open_bucket(store, number), spans[number, 0], spans[number, 1]
        row = _narrow_near(bucket, size, low, high, 0)
        ends += count_allowed(bucket, low, row)
        while row < high:
            token = signed(bucket.tokens[signed(bucket.suffixes[row]) + size])
            past = _narrow_near(bucket, size, row, high, token + 1)
            count = count_allowed(bucket, row, past)
            if token == bucket.begin:
                ends += count
            elif count:
                tokens[known], counts[known] = token, count
                known += 1
            row = past
    return tokens[:known], counts[:known], ends


@kernel
def tally(found: NDArray[np.uint32], counts: Ints) -> tuple[NDArray[np.uint32], Ints]:
    """The distinct tokens, ascending, and their counts: with a counter for each id, or by sorting if they are few."""
    if len(found) > _FEW and found.max() < TABLE_WIDTH:
        counters = np.zeros(found.max() + 1, dtype=np.int64)
        for at in range(len(found)):
            counters[found[at]] += counts[at]
        known = np.flatnonzero(counters)
        return known.astype(np.uint32), counters[known]
    tokens, sums, distinct = np.empty_like(found), np.zeros_like(counts), 0
    for at in np.argsort(found):
        if not distinct or tokens[distinct - 1] != found[at]:
            tokens[distinct] = found[at]
            distinct += 1
        sums[distinct - 1] += counts[at]
    return tokens[:distinct], sums[:distinct]


@kernel
def first_places(bucket: OpenBucket, pattern: Ints, low: int, high: int, room: int, followed: bool) -> Ints:
    """The smallest places where a usable occurrence begins, ascending, at most `room`.

    A frequent pattern is soon met in the text itself; that is given up after as many places as there are suffixes.
    """
    room, kept, limit = min(room, high - low), 0, bucket.places
    found = np.empty(2 * room, dtype=np.int64)
    for place in range(high - low):
        if kept == room:
            return found[:room]
        if _matches(bucket, place, pattern) and usable(bucket, place, len(pattern), followed):
            found[kept] = place
            kept += 1
    kept = 0
    for row in range(low, high):
        place = signed(bucket.suffixes[row])
        if place < limit and usable(bucket, place, len(pattern), followed):
            found[kept] = place
            kept += 1
            if kept == 2 * room:
                found.sort()
                kept, limit = room, found[room - 1]
    return np.sort(found[:kept])[:room]
