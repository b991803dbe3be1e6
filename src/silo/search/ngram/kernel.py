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

from silo.search.places import Documents, Weights

Ints = NDArray[np.int64]
Buckets = tuple[Any, Ints, Ints, int]
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


_entry = numba.njit(cache=True, nogil=True)
_inner = numba.njit(nogil=True)
_pointer: Any = intrinsic(_cast)
_ones: Any = intrinsic(_population)
signed: Any = np.int64
_word: Any = np.uint64


@_inner
def open_bucket(index: Buckets, number: int) -> OpenBucket:
    kind, table, allowed, begin = index
    tokens, suffixes = _pointer(table[number, 0], kind.dtype), _pointer(table[number, 1], np.uint32)
    firsts, places, width = _pointer(table[number, 2], np.uint32), table[number, 3], table[number, 4]
    bitmap, ranks = _pointer(allowed[number, 0], np.uint8), _pointer(allowed[number, 1], np.uint64)
    return OpenBucket(tokens, suffixes, firsts, bitmap, ranks, places, width, allowed[number, 1] != 0, begin)


@_inner
def _matches(bucket: OpenBucket, place: int, pattern: Ints) -> bool:
    at = len(pattern) if place + len(pattern) <= bucket.places else -1
    while at > 0 and bucket.tokens[place + at - 1] == pattern[at - 1]:
        at -= 1
    return at == 0


@_inner
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


@_inner
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


@_inner
def spans_of(index: Buckets, pattern: Ints) -> Ints:
    """The span of a pattern in each bucket; nothing begins with an empty one or one that leaves its document."""
    spans = np.zeros((len(index[1]), 2), dtype=np.int64)
    if len(pattern) and not (pattern == index[3]).any():
        for number in range(len(spans)):
            spans[number, 0], spans[number, 1] = span_of(open_bucket(index, number), pattern)
    return spans


@_inner
def _is_below(bucket: OpenBucket, size: int, row: int, token: int) -> bool:
    """Whether the token after the first `size` of a suffix is below `token`, or there is none."""
    after = signed(bucket.suffixes[row]) + size
    return bool(after == bucket.places or bucket.tokens[after] < token)


@_inner
def _narrow(bucket: OpenBucket, size: int, low: int, high: int, token: int) -> int:
    """The first suffix of a span with a next token not below `token`, if any."""
    while low < high:
        middle = (low + high) >> 1
        if _is_below(bucket, size, middle, token):
            low = middle + 1
        else:
            high = middle
    return low


@_inner
def _narrow_near(bucket: OpenBucket, size: int, low: int, high: int, token: int) -> int:
    """What `_narrow` says, sooner where it is near `low`."""
    step = 1
    while low + step <= high and _is_below(bucket, size, low + step - 1, token):
        step *= 2
    return _narrow(bucket, size, low + step // 2, min(low + step - 1, high), token)


@_inner
def split(bucket: OpenBucket, size: int, low: int, high: int, token: int) -> tuple[int, int]:
    """The suffixes of a span that go on with `token`."""
    low = _narrow(bucket, size, low, high, max(token, 0))
    return low, _narrow_near(bucket, size, low, high, token + 1)


@_inner
def _rank(bucket: OpenBucket, row: int) -> int:
    """How many of the first `row` suffixes are allowed."""
    block = 2 * (row >> 6)
    before = (_word(1) << _word(row & 63)) - _word(1)
    rank: int = signed(bucket.ranks[block]) + signed(_ones(bucket.ranks[block + 1] & before))
    return rank


@_inner
def count_allowed(bucket: OpenBucket, low: int, high: int) -> int:
    """How many suffixes of a span are allowed."""
    return _rank(bucket, high) - _rank(bucket, low) if bucket.limited else high - low


@_inner
def count_followed(bucket: OpenBucket, size: int, low: int, high: int) -> int:
    """How many suffixes of a span are allowed and go on in their document."""
    if not count_allowed(bucket, low, high):
        return 0
    first = _narrow_near(bucket, size, low, high, 0)
    begins = _narrow_near(bucket, size, first, high, bucket.begin)
    past = _narrow_near(bucket, size, begins, high, bucket.begin + 1)
    return count_allowed(bucket, first, begins) + count_allowed(bucket, past, high)


@_inner
def usable(bucket: OpenBucket, place: int, size: int, followed: bool) -> bool:
    """Whether the occurrence at a place is allowed and, if asked for, followed in its document."""
    if bucket.limited and not (bucket.bitmap[place >> 3] >> (place & 7)) & 1:
        return False
    after = place + size
    return not followed or (after < bucket.places and bucket.tokens[after] != bucket.begin)


@_inner
def reach_of(ids: Ints, begin: int) -> int:
    """How many tokens there are after the last `begin`."""
    reach = 0
    while reach < len(ids) and ids[len(ids) - 1 - reach] != begin:
        reach += 1
    return reach


@_inner
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


@_entry
def longest_usable(index: Buckets, ids: Ints, followed: bool) -> int:
    """The length of the longest usable suffix of `ids` in any bucket."""
    best, reach = 0, reach_of(ids, index[3])
    for number in range(len(index[1])):
        best = lengthen(open_bucket(index, number), ids, best, reach, followed)
    return best


@_inner
def next_tokens(index: Buckets, size: int, spans: Ints) -> tuple[NDArray[np.uint32], Ints, int]:
    """Each bucket's next tokens and their counts, and how many documents end instead.

    The suffixes of a span are in the order of their next tokens: those with the same one are counted, not visited.
    """
    room = (spans[:, 1] - spans[:, 0]).sum()
    tokens, counts, known, ends = np.empty(room, dtype=np.uint32), np.empty(room, dtype=np.int64), 0, 0
    for number in range(len(spans)):
        bucket, low, high = open_bucket(index, number), spans[number, 0], spans[number, 1]
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


@_inner
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


@_inner
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


@_entry
def levels(index: Buckets, ids: Ints, start: int, orders: Ints, most: int) -> tuple[NDArray[np.int32], Ints, Ints]:
    """Bucket by bucket, so that one stays in the processor's cache for the whole text."""
    lengths, known = np.zeros(len(ids) - start, dtype=np.int32), np.zeros(len(ids) - start, dtype=np.int64)
    totals = np.zeros((len(known), len(orders) + 1), dtype=np.int64)
    hits = np.zeros_like(totals)
    for number in range(len(index[1])):
        bucket = open_bucket(index, number)
        _add_orders(bucket, ids, start, orders, known, totals, hits)
        _add_longest(bucket, ids, start, orders[-1], most, known, lengths, totals[:, -1], hits[:, -1])
    return lengths, totals, hits


@_inner
def _add_orders(bucket: OpenBucket, ids: Ints, start: int, orders: Ints, known: Ints, totals: Ints, hits: Ints) -> None:
    """Add the counts of one bucket; `known[row]` becomes the length of its longest context, at most the last order.

    `spans[n]` is the span of the last n tokens. Split by the next token it is `spans[n + 1]` of the row after, so that
    no pattern is looked for from the start; what nothing follows is not split.
    """
    deepest = orders[-1]
    spans, counts = np.zeros((deepest + 2, 2), dtype=np.int64), np.zeros(deepest + 1, dtype=np.int64)
    filled = min(reach_of(ids[:start], bucket.begin), deepest)
    for size in range(1, filled + 1):
        spans[size, 0], spans[size, 1] = span_of(bucket, ids[start - size : start])
    for row in range(len(known)):
        token = ids[start + row]
        known[row] = _count_spans(bucket, spans, filled, counts)
        for size in range(known[row], 0, -1):
            spans[size + 1, 0], spans[size + 1, 1] = split(bucket, size, spans[size, 0], spans[size, 1], token)
        for level in range(len(orders)):
            size = orders[level]
            if size <= known[row]:
                totals[row, level] += counts[size]
                hits[row, level] += _count_hits(bucket, spans[size + 1, 0], spans[size + 1, 1], token)
        spans[1, 0], spans[1, 1] = span_of(bucket, ids[start + row : start + row + 1])
        filled = min(known[row] + 1, deepest) if token != bucket.begin else 0


@_inner
def _count_spans(bucket: OpenBucket, spans: Ints, filled: int, counts: Ints) -> int:
    """Count what follows the last 1, 2 and so on tokens; how many of these contexts anything follows."""
    for size in range(1, filled + 1):
        counts[size] = count_followed(bucket, size, spans[size, 0], spans[size, 1])
        if not counts[size]:
            return size - 1
    return filled


@_inner
def _count_hits(bucket: OpenBucket, low: int, high: int, token: int) -> int:
    """The size of a span that was split by a token: 0 for one that opens the next document."""
    return count_allowed(bucket, low, high) if token != bucket.begin else 0


@_inner
def _add_longest(
    bucket: OpenBucket,
    ids: Ints,
    start: int,
    deepest: int,
    most: int,
    known: Ints,
    lengths: NDArray[np.int32],
    totals: Ints,
    hits: Ints,
) -> None:
    """Add the counts of matches longer than the `deepest` order, where no other bucket has a longer one.

    Such a match has `far` tokens (0: there is none) and is looked for again only when it breaks off, up to `reach`.
    """
    far, low, high, reach = 0, 0, 0, reach_of(ids[:start], bucket.begin)
    for row in range(len(lengths)):
        at = start + row
        if known[row] < deepest:
            far = 0
        elif not far:
            far, low, high = _find_far(bucket, ids[:at], deepest, min(reach, most))
        reach = max(far, known[row]) + 1
        if min(reach - 1, most) > lengths[row]:
            lengths[row], totals[row], hits[row] = min(reach - 1, most), 0, 0
        if far:
            total = count_followed(bucket, far, low, high)
            low, high = split(bucket, far, low, high, ids[at])
            if far == lengths[row]:
                totals[row] += total
                hits[row] += _count_hits(bucket, low, high, ids[at])
            far = far + 1 if far < most and count_followed(bucket, far + 1, low, high) else 0


@_inner
def _find_far(bucket: OpenBucket, ids: Ints, deepest: int, most: int) -> tuple[int, int, int]:
    """The longest suffix of `ids` that anything follows, if it has more than `deepest` tokens, and its span."""
    far = lengthen(bucket, ids, deepest, most, True)
    if far <= deepest:
        return 0, 0, 0
    low, high = span_of(bucket, ids[len(ids) - far :])
    return far, low, high


@_entry
def followers(index: Buckets, context: Ints) -> tuple[NDArray[np.uint32], Ints, int]:
    """What follows a context: tokens, counts, and their sum."""
    found, each, _ = next_tokens(index, len(context), spans_of(index, context))
    tokens, counts = tally(found, each)
    return tokens, counts, counts.sum()


@_inner
def _document_at(place: int, firsts: Ints, hints: NDArray[np.int32], shift: int) -> int:
    """The document that has a place, as in `places`: numba's cache would not notice a change over there."""
    row = signed(hints[place >> shift])
    while firsts[row + 1] <= place:
        row += 1
    return int(row)


@_entry
def holders(
    index: Buckets, ids: Ints, sizes: Ints, weights: Weights, documents: Documents, room: tuple[Any, ...]
) -> tuple[Ints, Weights]:
    """The documents with an allowed occurrence, and what theirs weigh.

    Counts are added up before they are multiplied, so that a sum does not depend on the order of occurrences.
    `absent`: a bucket has no occurrence of so many tokens, and none of more.
    """
    (counts, sums, here, held), (bases, firsts, hints, shift) = room, documents
    known, absent = 0, np.full(len(index[1]), reach_of(ids, index[3]) + 1)
    for level in range(len(sizes)):
        size, some = sizes[level], 0
        for number in range(len(absent)):
            if not 0 < size < absent[number]:
                continue
            bucket, base = open_bucket(index, number), bases[number]
            low, high = span_of(bucket, ids[len(ids) - size :])
            if low == high:
                absent[number] = size
            for row in range(low, high):
                place = signed(bucket.suffixes[row])
                if usable(bucket, place, size, False):
                    document = _document_at(base + place, firsts, hints, shift)
                    if counts[document] == 0:
                        here[some] = document
                        some += 1
                    counts[document] += 1
        for document in here[:some]:
            if sums[document] == 0:
                held[known] = document
                known += 1
            sums[document] += counts[document] * weights[level]
            counts[document] = 0
    found, sum_of = held[:known].astype(np.int64), np.empty(known)
    for at in range(known):
        sum_of[at], sums[found[at]] = sums[found[at]], 0
    return found, sum_of


@_entry
def continuations(index: Buckets, ids: Ints, limit: int) -> Any:
    """The fields of `Continuations`."""
    length = longest_usable(index, ids, True)
    pattern = ids[len(ids) - length :]
    spans = spans_of(index, pattern)
    found, each, ends = next_tokens(index, length, spans)
    tokens, counts = tally(found, each)
    total, named = counts.sum(), 0
    buckets, places = np.empty(min(limit, total), dtype=np.int32), np.empty(min(limit, total), dtype=np.uint32)
    for number in range(len(spans)):
        low, high, room = spans[number, 0], spans[number, 1], len(places) - named
        if room and low < high:
            for place in first_places(open_bucket(index, number), pattern, low, high, room, True):
                buckets[named], places[named] = number, place + length
                named += 1
    return length, tokens, counts, total, ends, buckets, places


@_entry
def longest_match(index: Buckets, ids: Ints) -> tuple[int, int, int]:
    """The fields of `Match`."""
    length = longest_usable(index, ids, False)
    pattern = ids[len(ids) - length :]
    spans = spans_of(index, pattern)
    for number in range(len(spans)):
        low, high = spans[number, 0], spans[number, 1]
        for place in first_places(open_bucket(index, number), pattern, low, high, min(1, length), False):
            return length, number, place
    return 0, -1, -1
