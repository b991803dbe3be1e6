"""Spans of suffixes: where the suffixes of a bucket begin alike, and how many of them are allowed and go on.

A span is [low, high) in the suffix order of one bucket: the suffixes that begin with the same `size` tokens. A pattern
never contains `begin`, so all of an occurrence lies in one document and is allowed if its first place is. Everything
runs without the interpreter lock and shares nothing it writes; `NgramIndex` has checked all that is read here.

All compiled functions of the search are in this file: numba's cache on disk notices a change of the file that a
function is in, and of no other. Only those that Python calls are cached; the others are compiled into them.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from silo.search.dtypes import Float64s, Int32s, Int64s, UInt32s
from silo.search.places import DocumentTable

BucketArrays = tuple[Any, Int64s, Int64s, int]
"""What a search reads, as plain values: an empty array of the type of tokens; per bucket the addresses of tokens,
suffixes and table of first tokens, the number of places and the width of the table; per bucket the addresses of the
bitmap and the ranks of what is allowed, 0 and 0 for everything; the token `begin`."""

TABLE_WIDTH = 1 << 18
"""Entries of the table of first tokens and of the counters by token. It holds any usual vocabulary (GPT-2: 50k,
Gemma: 256k); ids from here on share one entry and are counted by sorting, so that a stray id costs no memory."""
Texts = tuple[Int64s, Int64s]
"""The tokens of some texts, one after the other, and where each of them ends."""
_MOST_SORTED = 256
"""So many next tokens are sorted to be added up; for more, counters as wide as the largest id are quicker."""


RANK_BLOCK = 64
"""Suffixes that share a rank: which of them are allowed fits the bits of one integer."""
_RANK_SHIFT = 6
"""log2 of it."""


class _Bucket(NamedTuple):
    """Pointers to the arrays, their sizes, whether anything is forbidden. Plain values: to pass them on costs nothing.

    `ranks` has two numbers for every `RANK_BLOCK` suffixes: how many before them are allowed, and which of them are, as
    bits.
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


def _population(_context: Any, _bits: Any) -> Any:
    word: Any = types.uint64
    return word(word), lambda _context, builder, _signature, arguments: builder.ctpop(arguments[0])


_entry = numba.njit(cache=True, nogil=True)
_inner = numba.njit(nogil=True)
_point_to: Any = intrinsic(_cast)
_count_ones: Any = intrinsic(_population)
_int64: Any = np.int64
_uint64: Any = np.uint64
"""Explicit types: numba turns a mix of signed and unsigned integers into floats."""


@_inner
def _open_bucket(index: BucketArrays, number: int) -> _Bucket:
    no_tokens, table, allowed, begin = index
    tokens, suffixes = _point_to(table[number, 0], no_tokens.dtype), _point_to(table[number, 1], np.uint32)
    firsts, places, width = _point_to(table[number, 2], np.uint32), table[number, 3], table[number, 4]
    bitmap, ranks = _point_to(allowed[number, 0], np.uint8), _point_to(allowed[number, 1], np.uint64)
    return _Bucket(tokens, suffixes, firsts, bitmap, ranks, places, width, allowed[number, 1] != 0, begin)


@_inner
def _matches(bucket: _Bucket, place: int, pattern: Int64s) -> bool:
    at = len(pattern) if place + len(pattern) <= bucket.places else -1
    while at > 0 and bucket.tokens[place + at - 1] == pattern[at - 1]:
        at -= 1
    return at == 0


@_inner
def _find_bound(bucket: _Bucket, pattern: Int64s, low: int, high: int, past: bool) -> int:
    """The first suffix in [low, high) not below the pattern, or `past` all that begin with it.

    What the suffixes on both sides share with the pattern is not compared again.
    """
    shared_low, shared_high = 0, 0
    while low < high:
        middle = (low + high) >> 1
        place = _int64(bucket.suffixes[middle])
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
def _find_span(bucket: _Bucket, pattern: Int64s) -> tuple[int, int]:
    """The suffixes that begin with the pattern; their end is looked for near their start."""
    first, width, step = pattern[0], bucket.width, 1
    known = 0 <= first < width
    low = _int64(bucket.firsts[max(0, min(first, width))])
    end = _int64(bucket.firsts[first + 1]) if known else bucket.places
    if known and len(pattern) == 1:
        return low, end
    low = _find_bound(bucket, pattern, low, end, False)
    while low + step <= end and _matches(bucket, _int64(bucket.suffixes[low + step - 1]), pattern):
        step *= 2
    return low, _find_bound(bucket, pattern, low + step // 2, min(low + step, end), True)


@_inner
def _find_spans(index: BucketArrays, pattern: Int64s) -> Int64s:
    """The span of a pattern in each bucket; nothing begins with an empty one or one that leaves its document."""
    _, table, _, begin = index
    spans = np.zeros((len(table), 2), dtype=np.int64)
    if len(pattern) and not (pattern == begin).any():
        for number in range(len(spans)):
            spans[number, 0], spans[number, 1] = _find_span(_open_bucket(index, number), pattern)
    return spans


@_inner
def _is_below(bucket: _Bucket, size: int, row: int, token: int) -> bool:
    """Whether the token after the first `size` of a suffix is below `token`, or there is none."""
    after = _int64(bucket.suffixes[row]) + size
    return bool(after == bucket.places or bucket.tokens[after] < token)


@_inner
def _narrow(bucket: _Bucket, size: int, low: int, high: int, token: int) -> int:
    """The first suffix of a span with a next token not below `token`, if any."""
    while low < high:
        middle = (low + high) >> 1
        if _is_below(bucket, size, middle, token):
            low = middle + 1
        else:
            high = middle
    return low


@_inner
def _narrow_near(bucket: _Bucket, size: int, low: int, high: int, token: int) -> int:
    """What `_narrow` says, sooner where it is near `low`."""
    step = 1
    while low + step <= high and _is_below(bucket, size, low + step - 1, token):
        step *= 2
    return _narrow(bucket, size, low + step // 2, min(low + step - 1, high), token)


@_inner
def _split(bucket: _Bucket, size: int, low: int, high: int, token: int) -> tuple[int, int]:
    """The suffixes of a span that go on with `token`."""
    low = _narrow(bucket, size, low, high, max(token, 0))
    return low, _narrow_near(bucket, size, low, high, token + 1)


@_inner
def _count_before(bucket: _Bucket, row: int) -> int:
    """How many of the first `row` suffixes are allowed."""
    block = 2 * (row >> _RANK_SHIFT)
    before = (_uint64(1) << _uint64(row & RANK_BLOCK - 1)) - _uint64(1)
    rank: int = _int64(bucket.ranks[block]) + _int64(_count_ones(bucket.ranks[block + 1] & before))
    return rank


@_inner
def _count_allowed(bucket: _Bucket, low: int, high: int) -> int:
    """How many suffixes of a span are allowed."""
    return _count_before(bucket, high) - _count_before(bucket, low) if bucket.limited else high - low


@_inner
def _count_followed(bucket: _Bucket, size: int, low: int, high: int) -> int:
    """How many suffixes of a span are allowed and go on in their document."""
    if not _count_allowed(bucket, low, high):
        return 0
    first = _narrow_near(bucket, size, low, high, 0)
    begins = _narrow_near(bucket, size, first, high, bucket.begin)
    past = _narrow_near(bucket, size, begins, high, bucket.begin + 1)
    return _count_allowed(bucket, first, begins) + _count_allowed(bucket, past, high)


@_inner
def _is_usable(bucket: _Bucket, place: int, size: int, followed: bool) -> bool:
    """Whether the occurrence at a place is allowed and, if asked for, followed in its document."""
    if bucket.limited and not (bucket.bitmap[place >> 3] >> (place & 7)) & 1:
        return False
    after = place + size
    return not followed or (after < bucket.places and bucket.tokens[after] != bucket.begin)


@_inner
def _count_after_begin(ids: Int64s, begin: int) -> int:
    """How many tokens there are after the last `begin`."""
    reach = 0
    while reach < len(ids) and ids[len(ids) - 1 - reach] != begin:
        reach += 1
    return reach


@_inner
def _lengthen(bucket: _Bucket, ids: Int64s, best: int, most: int, followed: bool) -> int:
    """The length of the longest usable suffix of `ids`, from `best` (if none is longer) to `most` tokens.

    The bucket is first asked for one token more than `best`, then in steps that double, then halve.
    """
    step, ceiling = 1, most + 1
    while best + 1 < ceiling:
        size = min(best + step, ceiling - 1)
        low, high = _find_span(bucket, ids[len(ids) - size :])
        if _count_followed(bucket, size, low, high) if followed else _count_allowed(bucket, low, high):
            best, step = size, 2 * step
        else:
            ceiling, step = size, max(1, (size - best) // 2)
    return best


@_inner
def _find_longest(index: BucketArrays, ids: Int64s, followed: bool) -> int:
    """The length of the longest usable suffix of `ids` in any bucket."""
    _, table, _, begin = index
    best, reach = 0, _count_after_begin(ids, begin)
    for number in range(len(table)):
        best = _lengthen(_open_bucket(index, number), ids, best, reach, followed)
    return best


@_inner
def _text_of(texts: Texts, number: int) -> Int64s:
    ids, ends = texts
    return ids[ends[number - 1] if number else 0 : ends[number]]


@_entry
def find_longest(index: BucketArrays, texts: Texts) -> Int64s:
    """The length of the longest suffix of each text that anything follows."""
    lengths = np.empty(len(texts[1]), dtype=np.int64)
    for number in range(len(lengths)):
        lengths[number] = _find_longest(index, _text_of(texts, number), True)
    return lengths


@_inner
def _make_room(array: Any, filled: int, more: int) -> Any:
    """The array, or a longer one that begins with what fills it, with room for so many more."""
    if filled + more <= len(array):
        return array
    longer = np.empty(max(2 * len(array), filled + more), dtype=array.dtype)
    longer[:filled] = array[:filled]
    return longer


@_inner
def _count_next_tokens(index: BucketArrays, size: int, spans: Int64s) -> tuple[UInt32s, Int64s, int]:
    """Each bucket's next tokens and their counts, and how many documents end instead.

    The suffixes of a span are in the order of their next tokens: those with the same one are counted, not visited.
    """
    room = (spans[:, 1] - spans[:, 0]).sum()
    tokens, counts, filled, ends = np.empty(room, dtype=np.uint32), np.empty(room, dtype=np.int64), 0, 0
    for number in range(len(spans)):
        bucket, low, high = _open_bucket(index, number), spans[number, 0], spans[number, 1]
        row = _narrow_near(bucket, size, low, high, 0)
        ends += _count_allowed(bucket, low, row)
        while row < high:
            token = _int64(bucket.tokens[_int64(bucket.suffixes[row]) + size])
            past = _narrow_near(bucket, size, row, high, token + 1)
            count = _count_allowed(bucket, row, past)
            if token == bucket.begin:
                ends += count
            elif count:
                tokens[filled], counts[filled] = token, count
                filled += 1
            row = past
    return tokens[:filled], counts[:filled], ends


@_inner
def _sum_by_token(tokens: UInt32s, counts: Int64s) -> tuple[UInt32s, Int64s]:
    """The distinct tokens, ascending, and their counts: with a counter for each id, or by sorting if they are few."""
    if len(tokens) > _MOST_SORTED and tokens.max() < TABLE_WIDTH:
        counters = np.zeros(tokens.max() + 1, dtype=np.int64)
        for at in range(len(tokens)):
            counters[tokens[at]] += counts[at]
        counted = np.flatnonzero(counters)
        return counted.astype(np.uint32), counters[counted]
    distinct, sums, filled = np.empty_like(tokens), np.zeros_like(counts), 0
    for at in np.argsort(tokens):
        if not filled or distinct[filled - 1] != tokens[at]:
            distinct[filled] = tokens[at]
            filled += 1
        sums[filled - 1] += counts[at]
    return distinct[:filled], sums[:filled]


@_inner
def _find_first_places(bucket: _Bucket, pattern: Int64s, low: int, high: int, room: int, followed: bool) -> Int64s:
    """The smallest places where a usable occurrence begins, ascending, at most `room`.

    A frequent pattern is soon met in the text itself; that is given up after as many places as there are suffixes.
    """
    room, kept, limit = min(room, high - low), 0, bucket.places
    places = np.empty(2 * room, dtype=np.int64)
    for place in range(high - low):
        if kept == room:
            return places[:room]
        if _matches(bucket, place, pattern) and _is_usable(bucket, place, len(pattern), followed):
            places[kept] = place
            kept += 1
    kept = 0
    for row in range(low, high):
        place = _int64(bucket.suffixes[row])
        if place < limit and _is_usable(bucket, place, len(pattern), followed):
            places[kept] = place
            kept += 1
            if kept == 2 * room:
                places.sort()
                kept, limit = room, places[room - 1]
    return np.sort(places[:kept])[:room]


@_entry
def count_levels(
    index: BucketArrays, ids: Int64s, start: int, orders: Int64s, most: int
) -> tuple[Int32s, Int64s, Int64s]:
    """The fields of `Levels`, bucket by bucket, so that one stays in the processor's cache for the whole text.

    A match grows with the text: the span of the last tokens, split by the next one, is the span to look at there.
    """
    _, table, _, _ = index
    lengths, depths = np.zeros(len(ids) - start, dtype=np.int32), np.zeros(len(ids) - start, dtype=np.int64)
    totals = np.zeros((len(depths), len(orders) + 1), dtype=np.int64)
    hits = np.zeros_like(totals)
    for number in range(len(table)):
        bucket = _open_bucket(index, number)
        _add_orders(bucket, ids, start, orders, depths, totals, hits)
        _add_longest(bucket, ids, start, orders[-1], most, depths, lengths, totals[:, -1], hits[:, -1])
    return lengths, totals, hits


@_inner
def _add_orders(
    bucket: _Bucket, ids: Int64s, start: int, orders: Int64s, depths: Int64s, totals: Int64s, hits: Int64s
) -> None:
    """Add the counts of one bucket; `depths[row]` becomes the length of its longest context, at most the last order.

    `spans[n]` is the span of the last n tokens. Split by the next token it is `spans[n + 1]` of the row after, so that
    no pattern is looked for from the start; what nothing follows is not split.
    """
    deepest = orders[-1]
    spans, counts = np.zeros((deepest + 2, 2), dtype=np.int64), np.zeros(deepest + 1, dtype=np.int64)
    filled = min(_count_after_begin(ids[:start], bucket.begin), deepest)
    for size in range(1, filled + 1):
        spans[size, 0], spans[size, 1] = _find_span(bucket, ids[start - size : start])
    for row in range(len(depths)):
        token = ids[start + row]
        depths[row] = _count_spans(bucket, spans, filled, counts)
        for size in range(depths[row], 0, -1):
            spans[size + 1, 0], spans[size + 1, 1] = _split(bucket, size, spans[size, 0], spans[size, 1], token)
        for level in range(len(orders)):
            size = orders[level]
            if size <= depths[row]:
                totals[row, level] += counts[size]
                hits[row, level] += _count_hits(bucket, spans[size + 1, 0], spans[size + 1, 1], token)
        spans[1, 0], spans[1, 1] = _find_span(bucket, ids[start + row : start + row + 1])
        filled = min(depths[row] + 1, deepest) if token != bucket.begin else 0


@_inner
def _count_spans(bucket: _Bucket, spans: Int64s, filled: int, counts: Int64s) -> int:
    """Count what follows the last 1, 2 and so on tokens; how many of these contexts anything follows."""
    for size in range(1, filled + 1):
        counts[size] = _count_followed(bucket, size, spans[size, 0], spans[size, 1])
        if not counts[size]:
            return size - 1
    return filled


@_inner
def _count_hits(bucket: _Bucket, low: int, high: int, token: int) -> int:
    """The size of a span that was split by a token: 0 for one that opens the next document."""
    return _count_allowed(bucket, low, high) if token != bucket.begin else 0


@_inner
def _add_longest(
    bucket: _Bucket,
    ids: Int64s,
    start: int,
    deepest: int,
    most: int,
    depths: Int64s,
    lengths: Int32s,
    totals: Int64s,
    hits: Int64s,
) -> None:
    """Add the counts of matches longer than the `deepest` order, where no other bucket has a longer one.

    Such a match has `length` tokens (0: there is none) and is looked for again only when it breaks off, up to `reach`.
    """
    length, low, high, reach = 0, 0, 0, _count_after_begin(ids[:start], bucket.begin)
    for row in range(len(lengths)):
        at = start + row
        if depths[row] < deepest:
            length = 0
        elif not length:
            length, low, high = _find_long(bucket, ids[:at], deepest, min(reach, most))
        reach = max(length, depths[row]) + 1
        if min(reach - 1, most) > lengths[row]:
            lengths[row], totals[row], hits[row] = min(reach - 1, most), 0, 0
        if length:
            total = _count_followed(bucket, length, low, high)
            low, high = _split(bucket, length, low, high, ids[at])
            if length == lengths[row]:
                totals[row] += total
                hits[row] += _count_hits(bucket, low, high, ids[at])
            length = length + 1 if length < most and _count_followed(bucket, length + 1, low, high) else 0


@_inner
def _find_long(bucket: _Bucket, ids: Int64s, deepest: int, most: int) -> tuple[int, int, int]:
    """The longest suffix of `ids` that anything follows, if it has more than `deepest` tokens, and its span."""
    length = _lengthen(bucket, ids, deepest, most, True)
    if length <= deepest:
        return 0, 0, 0
    low, high = _find_span(bucket, ids[len(ids) - length :])
    return length, low, high


@_entry
def count_followers(index: BucketArrays, contexts: Texts) -> tuple[UInt32s, Int64s, Int64s, Int64s]:
    """What follows each context: tokens, counts, where those of each context end, and how often anything follows."""
    tokens, counts, filled = np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64), 0
    ends, totals = np.empty(len(contexts[1]), dtype=np.int64), np.empty(len(contexts[1]), dtype=np.int64)
    for number in range(len(ends)):
        context = _text_of(contexts, number)
        by_bucket, each, _ = _count_next_tokens(index, len(context), _find_spans(index, context))
        distinct, sums = _sum_by_token(by_bucket, each)
        last = filled + len(distinct)
        tokens, counts = _make_room(tokens, filled, len(distinct)), _make_room(counts, filled, len(distinct))
        tokens[filled:last], counts[filled:last] = distinct, sums
        ends[number], totals[number], filled = last, sums.sum(), last
    return tokens[:filled], counts[:filled], ends, totals


@_inner
def _find_document(place: int, firsts: Int64s, hints: Int32s, shift: int) -> int:
    """The document that has a place, as in `places`: numba's cache would not notice a change over there."""
    row = _int64(hints[place >> shift])
    while firsts[row + 1] <= place:
        row += 1
    return int(row)


@_entry
def weigh_documents(
    index: BucketArrays,
    texts: Texts,
    levels: tuple[Int64s, Int64s, Float64s],
    documents: DocumentTable,
    counters: tuple[Any, ...],
) -> tuple[Int64s, Float64s, Int64s]:
    """The documents with an allowed occurrence, what theirs weigh, and how many were met by the end of each size.

    `levels`: where those of each text end, how many of its last tokens each looks for, and what an occurrence weighs.
    `counters` are the fields of `DocumentCounters`.
    """
    level_ends, sizes, weights = levels
    _, sums, _, at_any_size = counters
    rows, row_sums, filled = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64), 0
    ends, first = np.empty(len(sizes), dtype=np.int64), 0
    for number in range(len(level_ends)):
        last = level_ends[number]
        ids, here = _text_of(texts, number), ends[first:last]
        found = _weigh_occurrences(index, ids, sizes[first:last], weights[first:last], documents, counters, here)
        here += filled
        rows, row_sums = _make_room(rows, filled, found), _make_room(row_sums, filled, found)
        for document in at_any_size[:found]:
            rows[filled], row_sums[filled], sums[document] = document, sums[document], 0
            filled += 1
        first = last
    return rows[:filled], row_sums[:filled], ends


@_inner
def _weigh_occurrences(
    index: BucketArrays,
    ids: Int64s,
    sizes: Int64s,
    weights: Float64s,
    documents: DocumentTable,
    counters: tuple[Any, ...],
    ends: Int64s,
) -> int:
    """Write down which documents have an allowed occurrence, their sums, and how many were met by the end of each size.

    Counts are added up before they are multiplied, so that a sum does not depend on the order of occurrences.
    `absent`: a bucket has no occurrence of so many tokens, and none of more.
    """
    (counts, sums, at_this_size, at_any_size), (bases, firsts, hints, shift) = counters, documents
    _, table, _, begin = index
    total, absent = 0, np.full(len(table), _count_after_begin(ids, begin) + 1)
    for level in range(len(sizes)):
        size, filled = sizes[level], 0
        for number in range(len(absent)):
            if not 0 < size < absent[number]:
                continue
            bucket, base = _open_bucket(index, number), bases[number]
            low, high = _find_span(bucket, ids[len(ids) - size :])
            if low == high:
                absent[number] = size
            for row in range(low, high):
                place = _int64(bucket.suffixes[row])
                if _is_usable(bucket, place, size, False):
                    document = _find_document(base + place, firsts, hints, shift)
                    if counts[document] == 0:
                        at_this_size[filled] = document
                        filled += 1
                    counts[document] += 1
        for document in at_this_size[:filled]:
            if sums[document] == 0:
                at_any_size[total] = document
                total += 1
            sums[document] += counts[document] * weights[level]
            counts[document] = 0
        ends[level] = total
    return total


@_entry
def find_continuations(index: BucketArrays, ids: Int64s, limit: int, length: int) -> Any:
    """The fields of `Continuations`, for so many of the last tokens; a length below 0 is to be found."""
    if length < 0:
        length = _find_longest(index, ids, True)
    pattern = ids[len(ids) - length :]
    spans = _find_spans(index, pattern)
    by_bucket, each, ends = _count_next_tokens(index, length, spans)
    tokens, counts = _sum_by_token(by_bucket, each)
    total, filled = counts.sum(), 0
    buckets, places = np.empty(min(limit, total), dtype=np.int32), np.empty(min(limit, total), dtype=np.uint32)
    for number in range(len(spans)):
        low, high, room = spans[number, 0], spans[number, 1], len(places) - filled
        if room and low < high:
            for place in _find_first_places(_open_bucket(index, number), pattern, low, high, room, True):
                buckets[filled], places[filled] = number, place + length
                filled += 1
    return length, tokens, counts, total, ends, buckets, places


@_entry
def find_longest_match(index: BucketArrays, ids: Int64s) -> tuple[int, int, int]:
    """The fields of `Match`."""
    length = _find_longest(index, ids, False)
    pattern = ids[len(ids) - length :]
    spans = _find_spans(index, pattern)
    for number in range(len(spans)):
        low, high = spans[number, 0], spans[number, 1]
        for place in _find_first_places(_open_bucket(index, number), pattern, low, high, min(1, length), False):
            return length, number, place
    return 0, -1, -1
