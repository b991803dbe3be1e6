"""The loops of the token search: the nearest lists, distances of their rows, and the smallest k of them.

A query's result depends on that query and the rows alone. Every sum has one written order and no fused or reassociated
arithmetic; bounds only decide what is looked at, never what is returned. The one entry, `search_rows`, runs without
the interpreter's lock and shares nothing that it writes, so that threads may each take a part of the queries.

A row's distance is |x - c - r|^2 = |x - c|^2 + (|r|^2 + 2 c r) - 2 x r, with x the query, c the centroid of the list
and r the codewords. The bracket is a number per row, its term, known beforehand; the last part needs one table per
query. Rows that do not pass a ceiling go to a pool; when it is full, it is cut to the smallest and the ceiling sinks.

All compiled functions of the search are in this file: numba's cache on disk notices a change of the file that a
function is in, and of no other.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from silo.search.knn.quantise import Codes, Floats

Words = NDArray[np.uint32]
Numbers = NDArray[np.int64]
Keys = NDArray[np.uint64]
Doubles = NDArray[np.float64]

DIGITS = 4096
"""Values of one digit; the loops take a scratch array of as many counters."""


@numba.njit(nogil=True)
def _range(bits: Words) -> tuple[np.int64, np.int64]:
    smallest, largest = bits[0], bits[0]
    for value in bits:
        smallest = min(smallest, value)
        largest = max(largest, value)
    return np.int64(smallest), np.int64(largest)


@numba.njit(nogil=True)
def _float(bits: np.int64) -> np.float32:
    one = np.array([bits], dtype=np.uint32)
    value: np.float32 = one.view(np.float32)[0]
    return value


@numba.njit(nogil=True)
def ceiling_of(values: Floats, count: int, most: int, digits: Numbers) -> np.float32:
    """A ceiling for at least `count` of the values, and for at most `most` unless they are equal.

    A histogram of the leading bits in which the values differ leads to a narrow range; within it the next bits are
    counted, and so on.
    """
    bits = values.view(np.uint32)
    low, high = _range(bits)
    below = 0
    while True:
        shift = 0
        while (high - low) >> shift >= 2048:
            shift += 1
        digits[:2048] = 0
        for at in range(len(bits)):
            value = np.int64(bits[at])
            if low <= value <= high:
                digits[np.uint64((value - low) >> shift)] += 1
        digit = 0
        while below + digits[digit] < count:
            below += digits[digit]
            digit += 1
        low, high = low + (digit << shift), min(high, low + ((digit + 1) << shift) - 1)
        if below + digits[digit] <= most or shift == 0:
            return _float(high)


@numba.njit(nogil=True)
def sort_pairs(values: Floats, numbers: Numbers, spare: Numbers, keys: Keys, digits: Numbers) -> None:
    """Sort by value, then number. `spare` [count] and `keys` [2, count] are scratch."""
    if len(values) <= 48:
        _insert(values, numbers)
        return
    count = len(values)
    bits = values.view(np.uint32)
    low, high = _range(bits)
    here, there = keys[0], keys[1]
    for at in range(count):
        here[at] = np.uint64(bits[at] - low) << np.uint64(32) | np.uint64(at)
        spare[at] = numbers[at]
    width = 0
    while (high - low) >> width:
        width += 1
    passes = -(-width // 12)
    each = np.uint64(-(-width // max(passes, 1)))
    shift = np.uint64(32)
    for _ in range(passes):
        _distribute(here[:count], there, shift, digits[: 1 << each])
        here, there = there, here
        shift += each
    for at in range(count):
        bits[at] = np.uint32(here[at] >> np.uint64(32)) + low
        numbers[at] = spare[here[at] & np.uint64(0xFFFFFFFF)]
    _sort_equals(bits, numbers)


@numba.njit(nogil=True)
def _insert(values: Floats, numbers: Numbers) -> None:
    for at in range(1, len(values)):
        value, number = values[at], numbers[at]
        to = at
        while to and (values[to - 1] > value or (values[to - 1] == value and numbers[to - 1] > number)):
            values[to], numbers[to] = values[to - 1], numbers[to - 1]
            to -= 1
        values[to], numbers[to] = value, number


@numba.njit(nogil=True)
def _distribute(keys: Keys, out: Keys, shift: np.uint64, digits: Numbers) -> None:
    """Order keys by one digit; those with the same digit stay in their order."""
    last = np.uint64(len(digits) - 1)
    digits[:] = 0
    for key in keys:
        digits[key >> shift & last] += 1
    total = 0
    for digit in range(len(digits)):
        here = digits[digit]
        digits[digit] = total
        total += here
    for key in keys:
        digit = key >> shift & last
        to = digits[digit]
        out[np.uint64(to)] = key
        digits[digit] = to + 1


@numba.njit(nogil=True)
def _sort_equals(bits: Words, numbers: Numbers) -> None:
    """Sort the numbers of each run of equal bits that is not sorted yet."""
    at = 1
    while at < len(bits):
        if bits[at] == bits[at - 1] and numbers[at] < numbers[at - 1]:
            first, last = at - 1, at + 1
            while first and bits[first - 1] == bits[at]:
                first -= 1
            while last < len(bits) and bits[last] == bits[at]:
                last += 1
            numbers[first:last].sort()
            at = last
        at += 1


SKETCH = 64
"""Numbers in a sketch; short ones are filled up with zeros."""

_PANEL = 128
_FINEST = 8191
"""A key's sketch is rounded to 14 bits, so that 64 products with bytes fit into 32 bits."""


class ListTables(NamedTuple):
    """What the search of lists needs of a codec. A sketched number is a byte times its scale."""

    centroids: Floats  # [lists, out]
    directions: Doubles  # [out, 64], orthonormal columns, then zeros
    sketches: NDArray[np.int8]  # [panels, 64, 128]: the lists of a panel lie side by side
    scales: Doubles  # [64]
    squares: Floats  # [panels * 128], of the sketches; inf where there is no list
    rest: int  # which number of the sketch is the length of the rest, -1 for none
    longest: float  # of the centroids
    roughest: float  # how far a sketch may be from the number it stands for
    largest: float  # the length of the longest sketch, in bytes


def list_tables(centroids: Floats) -> ListTables:
    """Lay out centroids [lists, out]."""
    exact = centroids.astype(np.float64)
    directions, rest = _directions(exact)
    sketches = _sketches(exact, directions, rest)
    scales = np.maximum(np.abs(sketches).max(axis=0), 1e-30) / 127
    rounded = np.round(sketches / scales)
    panels = -(-len(exact) // _PANEL)
    padded = np.zeros((panels * _PANEL, SKETCH), dtype=np.int8)
    padded[: len(exact)] = rounded
    squares = np.full(len(padded), np.inf, dtype=np.float32)
    squares[: len(exact)] = np.square(rounded * scales).sum(axis=1)
    return ListTables(
        np.ascontiguousarray(centroids),
        directions,
        np.ascontiguousarray(padded.reshape(panels, _PANEL, SKETCH).transpose(0, 2, 1)),
        scales,
        squares,
        rest,
        float(np.linalg.norm(exact, axis=1).max()),
        float(np.linalg.norm(rounded * scales - sketches, axis=1).max()),
        float(np.linalg.norm(rounded, axis=1).max()),
    )


def _directions(centroids: Doubles) -> tuple[Doubles, int]:
    """The directions that tell the lists apart best, as columns, and the place of the rest if they are not all."""
    width = centroids.shape[1]
    count = width if width <= SKETCH else SKETCH - 1
    vectors = np.linalg.eigh(centroids.T @ centroids)[1]
    directions = np.zeros((width, SKETCH))
    directions[:, :count] = vectors[:, ::-1][:, :count]
    return directions, -1 if count == width else count


def _sketches(centroids: Doubles, directions: Doubles, rest: int) -> Doubles:
    sketches: Doubles = centroids @ directions
    if rest >= 0:
        left = np.square(centroids).sum(axis=1) - np.square(sketches).sum(axis=1)
        sketches[:, rest] = np.sqrt(np.maximum(left, 0))
    return sketches


class ListScratch(NamedTuple):
    """What one thread writes to while it looks for lists. Axis: padded = lists up to a whole panel."""

    sketch: Doubles  # [64]
    bounds: Floats  # [padded], squared distances to the sketches
    exact: Floats  # [lists], below zero where not measured yet
    distances: Floats  # [lists]
    order: Numbers  # [lists]


def list_scratch(lists: int) -> ListScratch:
    """Room for the search among so many lists."""
    return ListScratch(
        np.empty(SKETCH),
        np.empty(-(-lists // _PANEL) * _PANEL, dtype=np.float32),
        np.empty(lists, dtype=np.float32),
        np.empty(lists, dtype=np.float32),
        np.empty(lists, dtype=np.int64),
    )


@numba.njit(nogil=True)
def _sketch(query: Floats, tables: ListTables, sketch: Doubles) -> float:
    """Fill in a key's sketch; returns the key's square."""
    sketch[:] = 0
    square = 0.0
    for at in range(len(query)):
        value = np.float64(query[at])
        square += value * value
        for number in range(64):
            sketch[number] += value * tables.directions[at, number]
    if tables.rest >= 0:
        left = square
        for number in range(64):
            left -= sketch[number] * sketch[number]
        sketch[tables.rest] = np.sqrt(max(left, 0.0))
    return square


@numba.njit(nogil=True)
def start_lists(query: Floats, tables: ListTables, work: ListScratch) -> tuple[float, float]:
    """Squared distances from a key to all sketches.

    Returns how far rounding may have moved a root, and a square.
    """
    square = _sketch(query, tables, work.sketch)
    largest = 1e-30
    for number in range(64):
        work.sketch[number] *= tables.scales[number]
        largest = max(largest, abs(work.sketch[number]))
    step = largest / 8191
    rounded = np.empty(64, dtype=np.int32)
    error = 0.0
    for number in range(64):
        value = np.rint(work.sketch[number] / step)
        rounded[number] = np.int32(value)
        error += (work.sketch[number] - value * step) ** 2
    _measure_sketches(rounded, tables.sketches, tables.squares, np.float32(square), np.float32(2 * step), work.bounds)
    work.exact[:] = -1
    length = np.sqrt(square)
    return (
        tables.roughest + 1e-6 * (length + tables.longest),
        2 * np.sqrt(error) * tables.largest + 2e-6 * (length + tables.longest) ** 2,
    )


@numba.njit(nogil=True)
def _measure_sketches(
    query: NDArray[np.int32],
    sketches: NDArray[np.int8],
    squares: Floats,
    square: np.float32,
    step: np.float32,
    bounds: Floats,
) -> None:
    sums = np.empty(128, dtype=np.int32)
    for panel in range(len(sketches)):
        sums[:] = 0
        for at in range(0, 64, 4):
            q0, q1, q2, q3 = query[at], query[at + 1], query[at + 2], query[at + 3]
            for lane in range(128):
                left = np.int32(q0 * sketches[panel, at, lane] + q1 * sketches[panel, at + 1, lane])
                right = np.int32(q2 * sketches[panel, at + 2, lane] + q3 * sketches[panel, at + 3, lane])
                sums[lane] = np.int32(sums[lane] + left + right)
        for lane in range(128):
            bound = (square + squares[panel * 128 + lane]) - step * np.float32(sums[lane])
            bounds[panel * 128 + lane] = bound if bound > 0 else np.float32(0)


@numba.njit(nogil=True)
def _distance(query: Floats, centroid: Floats) -> np.float32:
    """The squared distance; eight sums side by side, added up in one order."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = np.float32(0)
    whole = len(query) // 8 * 8
    for at in range(0, whole, 8):
        g0, g1 = query[at] - centroid[at], query[at + 1] - centroid[at + 1]
        g2, g3 = query[at + 2] - centroid[at + 2], query[at + 3] - centroid[at + 3]
        g4, g5 = query[at + 4] - centroid[at + 4], query[at + 5] - centroid[at + 5]
        g6, g7 = query[at + 6] - centroid[at + 6], query[at + 7] - centroid[at + 7]
        s0 += g0 * g0
        s1 += g1 * g1
        s2 += g2 * g2
        s3 += g3 * g3
        s4 += g4 * g4
        s5 += g5 * g5
        s6 += g6 * g6
        s7 += g7 * g7
    for at in range(whole, len(query)):
        gap = query[at] - centroid[at]
        s0 += gap * gap
    return ((s0 + s4) + (s1 + s5)) + ((s2 + s6) + (s3 + s7))


@numba.njit(nogil=True)
def _measure_lists(query: Floats, centroids: Floats, ceiling: np.float32, work: ListScratch) -> int:
    """Measure the lists whose bound does not pass the ceiling; returns how many there are."""
    count = 0
    for at in range(len(centroids)):
        if work.bounds[at] <= ceiling:
            work.order[count] = at
            count += 1
    for rank in range(count):
        at = work.order[rank]
        if work.exact[at] < 0:
            work.exact[at] = _distance(query, centroids[at])
        work.distances[rank] = work.exact[at]
    return count


@numba.njit(nogil=True)
def order_lists(
    query: Floats,
    tables: ListTables,
    slips: tuple[float, float],
    count: int,
    work: ListScratch,
    spare: Numbers,
    keys: Keys,
    digits: Numbers,
) -> None:
    """Put the nearest `count` lists at the front of `work.order`, and their distances into `work.exact`.

    The lists with the nearest sketches are measured, which gives a distance that `count` lists do not pass; then every
    list is measured whose sketch, give or take the rounding, does not pass it either.
    """
    lists = len(tables.centroids)
    first = min(lists, count + count // 2 + 8)
    ceiling = np.float32(np.inf) if first == lists else ceiling_of(work.bounds[:lists], first, 2 * first, digits)
    measured = _measure_lists(query, tables.centroids, ceiling, work)
    if measured < lists:
        root = np.sqrt(np.float64(ceiling_of(work.distances[:measured], count, count, digits)))
        further = np.float32(((root * (1 + 1e-4) + slips[0]) ** 2 + slips[1]) * (1 + 1e-6))
        if further > ceiling:
            measured = _measure_lists(query, tables.centroids, further, work)
    sort_pairs(work.distances[:measured], work.order[:measured], spare, keys, digits)


_signed: Any = np.int64
"""Without it the loops would mix signed and unsigned numbers, which numba turns into floats."""


_USUAL = 32
"""Bytes of a code for which the loops are compiled once more: a number known beforehand is a sixth faster."""


class RowTables(NamedTuple):
    """Where the rows of every bucket are. Addresses are those of arrays that the caller keeps alive."""

    starts: Words  # [lists + 1, buckets]: the first row of each list
    codes: Numbers  # [buckets], addresses of uint8 [rows, code bytes]
    terms: Numbers  # [buckets], addresses of float32 [rows]
    places: Numbers  # [buckets], addresses of uint32 [rows]
    rows: int


class Pool(NamedTuple):
    """What one thread writes to while it looks at rows. A row is its bucket and place in one number."""

    table: Floats  # [code bytes * 256]
    distances: Floats  # [pool]
    rows: Numbers  # [pool]
    picked: Numbers  # [256]
    spare: Numbers  # [pool or lists, whichever is more]
    keys: Keys  # [2, pool or lists]
    digits: Numbers  # [4096]


def _reader(kind: Any) -> Any:
    """A function of the loops that reads a number at an address, aligned or not."""

    @intrinsic
    def read(_: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], context.get_value_type(kind).as_pointer()))
            value.align = 1
            return value

        return kind(types.int64), generate

    return read


_byte, _place, _word, _term = (_reader(kind) for kind in (types.uint8, types.uint32, types.uint64, types.float32))


@intrinsic
def _fetch_line(_: Any, _address: Any) -> Any:
    """Ask for the cache line at an address, which will soon be read."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        module: Any = builder.module
        function = module.globals.get(_PREFETCH) or ir.Function(module, kind, _PREFETCH)
        builder.call(function, [builder.inttoptr(arguments[0], pointer), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


_PREFETCH = "llvm.prefetch.p0"
_fetch: Any = _fetch_line


@numba.njit(cache=True, nogil=True)
def row_terms(offsets: Words, codes: Codes, centroids: Floats, codebooks: Floats, terms: Floats) -> None:
    """|r|^2 + 2 c r of every row, in double precision until the end."""
    part = codebooks.shape[2]
    for number in range(len(centroids)):
        for row in range(offsets[number], offsets[number + 1]):
            total = 0.0
            for byte in range(codes.shape[1]):
                for at in range(part):
                    value = np.float64(codebooks[byte, codes[row, byte], at])
                    total += value * (value + 2.0 * np.float64(centroids[number, byte * part + at]))
            terms[row] = total


Scratch = tuple[tuple[Any, ...], tuple[Any, ...]]
"""All that one thread writes to besides its results; it may be used again, one search after the other."""


def scratch(code_bytes: int, lists: int, k: int) -> Scratch:
    """Room for a search of the nearest k rows."""
    return tuple(list_scratch(lists)), tuple(_pool(code_bytes, 2 * k + 2048, lists))


def _pool(code_bytes: int, size: int, lists: int) -> Pool:
    most = max(size, lists)
    return Pool(
        np.empty(code_bytes * 256, dtype=np.float32),
        np.empty(size, dtype=np.float32),
        np.empty(size, dtype=np.int64),
        np.empty(256, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty((2, most), dtype=np.uint64),
        np.empty(DIGITS, dtype=np.int64),
    )


@numba.njit(nogil=True)
def _products(query: Floats, products: Floats, table: Floats) -> None:
    """-2 x r for every codeword of every part."""
    part = products.shape[1]
    for byte in range(len(products)):
        some = table[byte * 256 : byte * 256 + 256]
        some[:] = 0
        for at in range(part):
            value = query[byte * part + at]
            panel = products[byte, at]
            for lane in range(256):
                some[lane] += value * panel[lane]


@numba.njit(nogil=True)
def _cut(held: int, k: int, most: int, pool: Pool) -> tuple[int, np.float32]:
    """Keep the smallest k rows of the pool, and perhaps more but at most `most`; returns how many, and a ceiling."""
    distances, rows, spare = pool.distances, pool.rows, pool.spare
    ceiling = ceiling_of(distances[:held], k, most, pool.digits)
    kept, equal = 0, 0
    for at in range(held):
        distance, row = distances[at], rows[at]
        spare[equal] = row
        equal += distance == ceiling
        distances[kept], rows[kept] = distance, row
        kept += distance < ceiling
    if kept + equal > most:
        spare[:equal].sort()
        equal = k - kept
    for at in range(equal):
        distances[kept + at], rows[kept + at] = ceiling, spare[at]
    return kept + equal, ceiling


@numba.njit(nogil=True, inline="always")
def _fetch_rows(codes: int, terms: int, places: int, width: int, first: int, last: int) -> None:
    """Ask for the first rows of a list in a bucket."""
    last = min(last, first + 64)
    if first < last:
        for at in range(first * width, last * width, 64):
            _fetch(codes + at)
        for at in range(first * 4, last * 4, 64):
            _fetch(terms + at)
            _fetch(places + at)


@numba.njit(nogil=True, inline="always")
def _pick(places: int, bitmap: int, first: int, last: int, picked: Numbers) -> int:
    """The rows from first to last whose place is allowed; returns how many."""
    count = 0
    for row in range(first, last):
        place = np.int64(_place(places + 4 * row))
        picked[count] = row
        count += int((_byte(bitmap + (place >> 3)) >> np.uint8(place & 7)) & 1)
    return count


@numba.njit(nogil=True, inline="always")
def _sum(code: int, width: int, table: Floats) -> np.float32:
    """The table's entries for one code, which is read eight bytes at a time; those of eight are added up in pairs."""
    total = np.float32(0)
    last, at = np.uint64(255), np.uint64(0)
    for address in range(code, code + width - 7, 8):
        word = _word(address)
        s0 = table[at + (word & last)] + table[at + np.uint64(1024) + (word >> np.uint64(32) & last)]
        s1 = table[at + np.uint64(256) + (word >> np.uint64(8) & last)]
        s1 += table[at + np.uint64(1280) + (word >> np.uint64(40) & last)]
        s2 = table[at + np.uint64(512) + (word >> np.uint64(16) & last)]
        s2 += table[at + np.uint64(1536) + (word >> np.uint64(48) & last)]
        s3 = table[at + np.uint64(768) + (word >> np.uint64(24) & last)]
        s3 += table[at + np.uint64(1792) + (word >> np.uint64(56))]
        total += (s0 + s1) + (s2 + s3)
        at += np.uint64(2048)
    for byte in range(width & ~7, width):
        total += table[byte * 256 + _byte(code + byte)]
    return total


@numba.njit(nogil=True, inline="always")
def _keep(
    some: Any,
    bucket: int,
    codes: int,
    terms: int,
    places: int,
    width: int,
    base: np.float32,
    ceiling: np.float32,
    held: int,
    pool: Pool,
) -> int:
    """Put some rows, as far as they do not pass the ceiling, into the pool; returns how many it then holds."""
    table, distances, kept = pool.table, pool.distances, pool.rows
    for row in some:
        distance = base + _term(terms + 4 * row) + _sum(codes + row * width, width, table)
        distance = distance if distance > 0 else np.float32(0)
        distances[held] = distance
        kept[held] = bucket << 32 | np.int64(_place(places + 4 * row))
        held += int(distance <= ceiling)
    return held


@numba.njit(nogil=True)
def _scan_list(
    number: int,
    following: int,
    base: np.float32,
    k: int,
    rows: RowTables,
    bitmaps: Numbers,
    held: int,
    ceiling: np.float32,
    pool: Pool,
) -> tuple[int, np.float32, int]:
    """Put the allowed rows of a list that do not pass the ceiling into the pool.

    Returns how many rows the pool then holds, its ceiling, and how many rows were allowed.
    """
    picked, width, size, buckets = pool.picked, len(pool.table) // 256, len(pool.distances), len(rows.codes)
    seen = 0
    for bucket in range(buckets):
        ahead = (bucket + 2) % buckets
        next_list = number if ahead == bucket + 2 else following
        _fetch_rows(
            rows.codes[ahead],
            rows.terms[ahead],
            rows.places[ahead],
            width,
            rows.starts[next_list, ahead],
            rows.starts[next_list + 1, ahead],
        )
        codes, terms, places = rows.codes[bucket], rows.terms[bucket], rows.places[bucket]
        last = _signed(rows.starts[number + 1, bucket])
        for first in range(_signed(rows.starts[number, bucket]), last, 256):
            if held + 256 > size:
                held, ceiling = _cut(held, k, k + (size - k) // 4, pool)
            end = min(first + 256, last)
            if not bitmaps[bucket]:
                some, seen = range(first, end), seen + end - first
                if width == _USUAL:
                    held = _keep(some, bucket, codes, terms, places, _USUAL, base, ceiling, held, pool)
                else:
                    held = _keep(some, bucket, codes, terms, places, width, base, ceiling, held, pool)
                continue
            count = _pick(places, bitmaps[bucket], first, end, picked)
            seen += count
            if width == _USUAL:
                held = _keep(picked[:count], bucket, codes, terms, places, _USUAL, base, ceiling, held, pool)
            else:
                held = _keep(picked[:count], bucket, codes, terms, places, width, base, ceiling, held, pool)
    return held, ceiling, seen


@numba.njit(nogil=True)
def _search(
    query: Floats,
    k: int,
    probes: int,
    wanted: int,
    tables: ListTables,
    rows: RowTables,
    bitmaps: Numbers,
    work: ListScratch,
    pool: Pool,
) -> int:
    """Put the nearest k rows at the front of the pool, in order; returns how many there are."""
    lists = len(tables.centroids)
    slips = start_lists(query, tables, work)
    held, seen, done, ceiling = 0, 0, 0, np.float32(np.inf)
    ordered = min(lists, max(probes, wanted * lists // max(rows.rows, 1)))
    while True:
        order_lists(query, tables, slips, ordered, work, pool.spare, pool.keys, pool.digits)
        while done < ordered and (done < probes or seen < wanted):
            number = work.order[done]
            done += 1
            following = work.order[min(done, ordered - 1)]
            held, ceiling, allowed = _scan_list(
                number, following, work.exact[number], k, rows, bitmaps, held, ceiling, pool
            )
            seen += allowed
        if done == lists or (done >= probes and seen >= wanted):
            break
        ordered = min(lists, 2 * ordered)
    if held > k:
        held, ceiling = _cut(held, k, k + k // 8, pool)
    sort_pairs(pool.distances[:held], pool.rows[:held], pool.spare, pool.keys, pool.digits)
    return min(held, k)


@numba.njit(cache=True, nogil=True)
def search_rows(
    queries: Floats,
    probes: int,
    wanted: int,
    list_tables: tuple[Any, ...],
    products: Floats,
    row_tables: tuple[Any, ...],
    bitmaps: Numbers,
    buckets: NDArray[np.int32],
    places: Words,
    distances: Floats,
    scratch: tuple[tuple[Any, ...], tuple[Any, ...]],
) -> None:
    """The nearest rows of every query, as many as the outputs [queries, k] have columns; -1 and inf where none is left.

    `list_tables`, `row_tables` and the two parts of `scratch` are the fields of `ListTables`, `RowTables`,
    `ListScratch` and `Pool`: a plain tuple reaches compiled code in half the time, and numba's cache on disk cannot
    be read any more once a class that it names is gone. `products` are the codewords times -2 [code bytes, part, 256].
    `bitmaps` holds an address per bucket, 0 where all rows are allowed.
    """
    tables, rows = ListTables(*list_tables), RowTables(*row_tables)
    work, pool = ListScratch(*scratch[0]), Pool(*scratch[1])
    k = buckets.shape[1]
    for at in range(len(queries)):
        _products(queries[at], products, pool.table)
        found = _search(queries[at], k, probes, wanted, tables, rows, bitmaps, work, pool)
        for rank in range(found):
            buckets[at, rank] = pool.rows[rank] >> 32
            places[at, rank] = pool.rows[rank] & 0xFFFFFFFF
            distances[at, rank] = pool.distances[rank]
        buckets[at, found:] = -1
        places[at, found:] = 0
        distances[at, found:] = np.inf
