"""What is known before every token of a text, for contexts of several lengths: one walk through each bucket.

A match grows with the text: the span of the last tokens, split by the next one, is the span to look at there.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from silo.search.ngram.kernel import (
    Ints,
    OpenBucket,
    Store,
    count_allowed,
    count_followed,
    kernel,
    lengthen,
    open_bucket,
    reach_of,
    span_of,
    split,
)


@kernel
def levels(store: Store, ids: Ints, start: int, orders: Ints, most: int) -> tuple[NDArray[np.int32], Ints, Ints]:
    """Bucket by bucket, so that one stays in the processor's cache for the whole text."""
    lengths, known = np.zeros(len(ids) - start, dtype=np.int32), np.zeros(len(ids) - start, dtype=np.int64)
    totals = np.zeros((len(known), len(orders) + 1), dtype=np.int64)
    hits = np.zeros_like(totals)
    for number in range(len(store[1])):
        bucket = open_bucket(store, number)
        _add_orders(bucket, ids, start, orders, known, totals, hits)
        _add_longest(bucket, ids, start, orders[-1], most, known, lengths, totals[:, -1], hits[:, -1])
    return lengths, totals, hits


@kernel
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


@kernel
def _count_spans(bucket: OpenBucket, spans: Ints, filled: int, counts: Ints) -> int:
    """Count what follows the last 1, 2 and so on tokens; how many of these contexts anything follows."""
    for size in range(1, filled + 1):
        counts[size] = count_followed(bucket, size, spans[size, 0], spans[size, 1])
        if not counts[size]:
            return size - 1
    return filled


@kernel
def _count_hits(bucket: OpenBucket, low: int, high: int, token: int) -> int:
    """The size of a span that was split by a token: 0 for one that opens the next document."""
    return count_allowed(bucket, low, high) if token != bucket.begin else 0


@kernel
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


@kernel
def _find_far(bucket: OpenBucket, ids: Ints, deepest: int, most: int) -> tuple[int, int, int]:
    """The longest suffix of `ids` that anything follows, if it has more than `deepest` tokens, and its span."""
    far = lengthen(bucket, ids, deepest, most, True)
    if far <= deepest:
        return 0, 0, 0
    low, high = span_of(bucket, ids[len(ids) - far :])
    return far, low, high
