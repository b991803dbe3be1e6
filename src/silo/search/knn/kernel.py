"""The loops of the token search: the nearest lists, distances of their rows, and the smallest k of them.

A query's result depends on that query and the rows alone. Every sum has one written order and no fused or reassociated
arithmetic; bounds only decide what is looked at, never what is returned. The one entry, `search_rows`, runs without
the interpreter's lock and shares nothing that it writes, so that threads may each take a part of the queries.

A row's distance is |x - c - r|^2 = |x - c|^2 + (|r|^2 + 2 c r) - 2 x r, with x the query, c the centroid of the list
and r the codewords. The bracket is a number per row, its term, known beforehand; the last part needs one table per
query. Rows that do not pass a ceiling are kept as candidates; when their room is full, the smallest stay and the
ceiling sinks.

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

from silo.search.dtypes import Float32s, Float64s, Int32s, Int64s, UInt8s, UInt32s, UInt64s

CODEWORDS = 256
"""Codewords of one part, and so entries of its table: a code is a byte. As in `quantise`, from where compiled code
must not take it."""
_CACHE_LINE = 64
"""Bytes that the processor fetches at a time."""

_DIGIT_BITS = 12
"""Bits sorted in one pass: float32 takes three passes at most, and the counters (32 KiB) just fit the first-level
cache."""
DIGITS = 1 << _DIGIT_BITS
"""Values of one digit; the loops take a scratch array of as many counters."""
_BINS = 2048
"""Bins of a histogram that looks for a ceiling: half the cache is left for the values."""
_FEW_PAIRS = 48
"""So many pairs are sorted by insertion; clearing the counters alone takes longer."""


@numba.njit(nogil=True)
def _find_range(bits: UInt32s) -> tuple[np.int64, np.int64]:
    """The smallest and the largest."""
    smallest, largest = bits[0], bits[0]
    for value in bits:
        smallest = min(smallest, value)
        largest = max(largest, value)
    return np.int64(smallest), np.int64(largest)


@numba.njit(nogil=True)
def _as_float(bits: np.int64) -> np.float32:
    """The float that has these bits."""
    one = np.array([bits], dtype=np.uint32)
    value: np.float32 = one.view(np.float32)[0]
    return value


@numba.njit(nogil=True)
def find_ceiling(values: Float32s, count: int, most: int, digits: Int64s) -> np.float32:
    """A ceiling for at least `count` of the values, and for at most `most` unless they are equal.

    Floats that are not negative sort like their bits, so both this and `sort_pairs` count digits instead of comparing:
    the time is linear, and equal values cost no more than others. A histogram of the leading bits in which the values
    differ leads to a narrow range; within it the next bits are counted, and so on.
    """
    bits = values.view(np.uint32)
    low, high = _find_range(bits)
    below = 0
    while True:
        shift = 0
        while (high - low) >> shift >= _BINS:
            shift += 1
        digits[:_BINS] = 0
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
            return _as_float(high)


@numba.njit(nogil=True)
def sort_pairs(values: Float32s, numbers: Int64s, spare: Int64s, keys: UInt64s, digits: Int64s) -> None:
    """Sort by value, then number. `spare` [count] and `keys` [2, count] are scratch."""
    if len(values) <= _FEW_PAIRS:
        _insertion_sort(values, numbers)
        return
    count = len(values)
    bits = values.view(np.uint32)
    low, high = _find_range(bits)
    here, there = keys[0], keys[1]
    for at in range(count):
        here[at] = np.uint64(bits[at] - low) << np.uint64(32) | np.uint64(at)
        spare[at] = numbers[at]
    width = 0
    while (high - low) >> width:
        width += 1
    passes = -(-width // _DIGIT_BITS)
    each = np.uint64(-(-width // max(passes, 1)))
    shift = np.uint64(32)
    for _ in range(passes):
        _sort_by_digit(here[:count], there, shift, digits[: 1 << each])
        here, there = there, here
        shift += each
    for at in range(count):
        bits[at] = np.uint32(here[at] >> np.uint64(32)) + low
        numbers[at] = spare[here[at] & np.uint64(0xFFFFFFFF)]
    _sort_ties(bits, numbers)


@numba.njit(nogil=True)
def _insertion_sort(values: Float32s, numbers: Int64s) -> None:
    """Sort few pairs by value, then number."""
    for at in range(1, len(values)):
        value, number = values[at], numbers[at]
        to = at
        while to and (values[to - 1] > value or (values[to - 1] == value and numbers[to - 1] > number)):
            values[to], numbers[to] = values[to - 1], numbers[to - 1]
            to -= 1
        values[to], numbers[to] = value, number


@numba.njit(nogil=True)
def _sort_by_digit(keys: UInt64s, out: UInt64s, shift: np.uint64, digits: Int64s) -> None:
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
def _sort_ties(bits: UInt32s, numbers: Int64s) -> None:
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
"""Numbers in a sketch, one cache line of bytes; short ones are filled up with zeros."""
_PANEL = 128
"""Lists bounded together: their 32-bit sums stay in the first-level cache while a panel of sketches streams by."""
_BYTE_STEPS = 127
"""A sketched number is rounded to so many steps on either side of 0: a signed byte."""
_QUERY_STEPS = 8191
"""A query's sketch is rounded to 14 bits, so that 64 products with bytes fit into 32 bits: 64 * 127 * 8191 < 2^31."""
_TINY = 1e-30
"""A scale of 0 becomes this, so that nothing is divided by 0."""
_ROUNDING = 1e-6
"""Sixteen float32 roundings, relative: what the sums of a bound or a distance may be off by at usual widths."""
_ROOT_SLACK = 1e-4
"""A distance is measured in float32; its root is taken to be off by less than this, relative. Far more than it is:
a list too many is measured, none is lost."""
_MORE_LISTS = 8
"""Lists measured besides one and a half times those asked for: sketches misplace a few, and a second look is dearer."""
_LANES = 8
"""Sums side by side in a distance; their order decides the last bits of every answer, so it must not change."""


class ListTables(NamedTuple):
    """What the search of lists needs of a codec. A sketched number is a byte times its scale."""

    centroids: Float32s  # [lists, out]
    directions: Float64s  # [out, SKETCH], orthonormal columns, then zeros
    sketches: NDArray[np.int8]  # [panels, SKETCH, panel]: the lists of a panel lie side by side
    scales: Float64s  # [SKETCH]
    squares: Float32s  # [panels * panel], of the sketches; inf where there is no list
    rest: int  # which number of the sketch is the length of the rest, -1 for none
    longest: float  # of the centroids
    roughest: float  # how far a sketch may be from the number it stands for
    largest: float  # the length of the longest sketch, in bytes


def lay_out_lists(centroids: Float32s) -> ListTables:
    """Lay out centroids [lists, out]."""
    exact = centroids.astype(np.float64)
    directions, rest = _find_directions(exact)
    sketches = _sketch_centroids(exact, directions, rest)
    scales = np.maximum(np.abs(sketches).max(axis=0), _TINY) / _BYTE_STEPS
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


def _find_directions(centroids: Float64s) -> tuple[Float64s, int]:
    """The directions that tell the lists apart best, as columns, and the place of the rest if they are not all."""
    width = centroids.shape[1]
    count = width if width <= SKETCH else SKETCH - 1
    vectors = np.linalg.eigh(centroids.T @ centroids)[1]
    directions = np.zeros((width, SKETCH))
    directions[:, :count] = vectors[:, ::-1][:, :count]
    return directions, -1 if count == width else count


def _sketch_centroids(centroids: Float64s, directions: Float64s, rest: int) -> Float64s:
    sketches: Float64s = centroids @ directions
    if rest >= 0:
        left = np.square(centroids).sum(axis=1) - np.square(sketches).sum(axis=1)
        sketches[:, rest] = np.sqrt(np.maximum(left, 0))
    return sketches


class ListScratch(NamedTuple):
    """What one thread writes to while it looks for lists. Axis: padded = lists up to a whole panel."""

    sketch: Float64s  # [SKETCH]
    bounds: Float32s  # [padded], squared distances to the sketches
    exact: Float32s  # [lists], below zero where not measured yet
    distances: Float32s  # [lists]
    order: Int64s  # [lists]


def make_list_scratch(lists: int) -> ListScratch:
    """Room for the search among so many lists."""
    return ListScratch(
        np.empty(SKETCH),
        np.empty(-(-lists // _PANEL) * _PANEL, dtype=np.float32),
        np.empty(lists, dtype=np.float32),
        np.empty(lists, dtype=np.float32),
        np.empty(lists, dtype=np.int64),
    )


@numba.njit(nogil=True)
def _sketch_query(query: Float32s, tables: ListTables, sketch: Float64s) -> float:
    """Fill in a key's sketch; returns the key's square."""
    sketch[:] = 0
    square = 0.0
    for at in range(len(query)):
        value = np.float64(query[at])
        square += value * value
        for number in range(SKETCH):
            sketch[number] += value * tables.directions[at, number]
    if tables.rest >= 0:
        left = square
        for number in range(SKETCH):
            left -= sketch[number] * sketch[number]
        sketch[tables.rest] = np.sqrt(max(left, 0.0))
    return square


@numba.njit(nogil=True)
def bound_lists(query: Float32s, tables: ListTables, list_scratch: ListScratch) -> tuple[float, float]:
    """Squared distances from a key to all sketches.

    Two sketches are never further apart than what they stand for, so these bound the distances from below. Returns by
    how much rounding may have moved a root, and a square.
    """
    square = _sketch_query(query, tables, list_scratch.sketch)
    largest = _TINY
    for number in range(SKETCH):
        list_scratch.sketch[number] *= tables.scales[number]
        largest = max(largest, abs(list_scratch.sketch[number]))
    step = largest / _QUERY_STEPS
    rounded = np.empty(SKETCH, dtype=np.int32)
    error = 0.0
    for number in range(SKETCH):
        value = np.rint(list_scratch.sketch[number] / step)
        rounded[number] = np.int32(value)
        error += (list_scratch.sketch[number] - value * step) ** 2
    _bound_panels(
        rounded, tables.sketches, tables.squares, np.float32(square), np.float32(2 * step), list_scratch.bounds
    )
    list_scratch.exact[:] = -1
    length = np.sqrt(square)
    return (
        tables.roughest + _ROUNDING * (length + tables.longest),
        2 * np.sqrt(error) * tables.largest + 2 * _ROUNDING * (length + tables.longest) ** 2,
    )


@numba.njit(nogil=True)
def _bound_panels(
    query: Int32s,
    sketches: NDArray[np.int8],
    squares: Float32s,
    square: np.float32,
    step: np.float32,
    bounds: Float32s,
) -> None:
    """Squared distances of sketches from their products, four numbers of the sketch at a time."""
    sums = np.empty(_PANEL, dtype=np.int32)
    for panel in range(len(sketches)):
        sums[:] = 0
        for at in range(0, SKETCH, 4):
            q0, q1, q2, q3 = query[at], query[at + 1], query[at + 2], query[at + 3]
            for lane in range(_PANEL):
                left = np.int32(q0 * sketches[panel, at, lane] + q1 * sketches[panel, at + 1, lane])
                right = np.int32(q2 * sketches[panel, at + 2, lane] + q3 * sketches[panel, at + 3, lane])
                sums[lane] = np.int32(sums[lane] + left + right)
        for lane in range(_PANEL):
            bound = (square + squares[panel * _PANEL + lane]) - step * np.float32(sums[lane])
            bounds[panel * _PANEL + lane] = bound if bound > 0 else np.float32(0)


@intrinsic
def _sum_squared_gaps(_: Any, _left: Any, _right: Any, _blocks: Any) -> Any:
    """Eight sums side by side over blocks of eight floats at two addresses.

    Written as vectors, since the compiler does not find them in a loop: a whole search takes a tenth less time. The
    numbers are those of eight plain sums.
    """
    make_type: Any = types.UniTuple
    sums_type = make_type(types.float32, _LANES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, integer = ir.VectorType(ir.FloatType(), _LANES), ir.IntType(64)
        pointers = [builder.inttoptr(address, vector.as_pointer()) for address in arguments[:2]]
        before = builder.block
        head, body, end = (builder.append_basic_block(name) for name in ("head", "body", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        block, sums = builder.phi(integer), builder.phi(vector)
        block.add_incoming(integer(0), before)
        sums.add_incoming(ir.Constant(vector, [0.0] * _LANES), before)
        builder.cbranch(builder.icmp_signed("<", block, arguments[2]), body, end)
        builder.position_at_end(body)
        values = [builder.load(builder.gep(pointer, [block])) for pointer in pointers]
        for value in values:
            value.align = 4
        gap = builder.fsub(*values)
        block.add_incoming(builder.add(block, integer(1)), body)
        sums.add_incoming(builder.fadd(sums, builder.fmul(gap, gap)), body)
        builder.branch(head)
        builder.position_at_end(end)
        lanes = [builder.extract_element(sums, ir.IntType(32)(lane)) for lane in range(_LANES)]
        return context.make_tuple(builder, signature.return_type, lanes)

    return sums_type(types.int64, types.int64, types.int64), generate


_add_gaps: Any = _sum_squared_gaps


@numba.njit(nogil=True)
def _measure(query: Float32s, centroid: Float32s) -> np.float32:
    """The squared distance; eight sums side by side, added up in one order."""
    blocks = len(query) // _LANES
    s0, s1, s2, s3, s4, s5, s6, s7 = _add_gaps(query.ctypes.data, centroid.ctypes.data, blocks)
    for at in range(_LANES * blocks, len(query)):
        gap = query[at] - centroid[at]
        s0 += gap * gap
    total: np.float32 = ((s0 + s4) + (s1 + s5)) + ((s2 + s6) + (s3 + s7))
    return total


@numba.njit(nogil=True)
def _measure_lists(query: Float32s, centroids: Float32s, ceiling: np.float32, list_scratch: ListScratch) -> int:
    """Measure the lists whose bound does not pass the ceiling; returns how many there are."""
    count = 0
    for at in range(len(centroids)):
        if list_scratch.bounds[at] <= ceiling:
            list_scratch.order[count] = at
            count += 1
    for rank in range(count):
        at = list_scratch.order[rank]
        if list_scratch.exact[at] < 0:
            list_scratch.exact[at] = _measure(query, centroids[at])
        list_scratch.distances[rank] = list_scratch.exact[at]
    return count


@numba.njit(nogil=True)
def order_lists(
    query: Float32s,
    tables: ListTables,
    errors: tuple[float, float],
    count: int,
    list_scratch: ListScratch,
    spare: Int64s,
    keys: UInt64s,
    digits: Int64s,
) -> None:
    """Put the nearest `count` lists at the front of the scratch's `order`, and their distances into its `exact`.

    The lists with the nearest sketches are measured, which gives a distance that `count` lists do not pass; then every
    list is measured whose sketch, give or take the rounding, does not pass it either.
    """
    lists = len(tables.centroids)
    first = min(lists, count + count // 2 + _MORE_LISTS)
    ceiling = np.float32(np.inf)
    if first < lists:
        ceiling = find_ceiling(list_scratch.bounds[:lists], first, 2 * first, digits)
    measured = _measure_lists(query, tables.centroids, ceiling, list_scratch)
    if measured < lists:
        root_error, square_error = errors
        root = np.sqrt(np.float64(find_ceiling(list_scratch.distances[:measured], count, count, digits)))
        further = np.float32(((root * (1 + _ROOT_SLACK) + root_error) ** 2 + square_error) * (1 + _ROUNDING))
        if further > ceiling:
            measured = _measure_lists(query, tables.centroids, further, list_scratch)
    sort_pairs(list_scratch.distances[:measured], list_scratch.order[:measured], spare, keys, digits)


_int64: Any = np.int64
"""Without it the loops would mix signed and unsigned numbers, which numba turns into floats."""


_USUAL_WIDTH = 32
"""Bytes of a code for which the loops are compiled once more: a number known beforehand is a sixth faster."""
_ROWS = 256
"""Rows added between two looks at how full the room for candidates is."""
_ROWS_AHEAD = 64
"""Rows of the next list but one that are asked for ahead; the processor notices by itself how a longer list goes on."""
_BUCKETS_AHEAD = 2
"""How many buckets ahead they are asked for, so that memory has time to answer where lists are short."""
_SPARE_ROWS = 2048
"""Room for candidates besides twice k: with a small k it would be full after every few rows."""
_SPARE_SHARE = 4
"""Of full room a quarter beyond k may stay filled: to find exactly k takes more passes than it saves."""
_SORT_SHARE = 8
"""An eighth more than k may be sorted in the end, for the same reason."""


class RowTables(NamedTuple):
    """Where the rows of every bucket are. Addresses are those of arrays that the caller keeps alive."""

    starts: UInt32s  # [lists + 1, buckets]: the first row of each list
    codes: Int64s  # [buckets], addresses of uint8 [rows, code bytes]
    terms: Int64s  # [buckets], addresses of float32 [rows]
    places: Int64s  # [buckets], addresses of uint32 [rows]
    rows: int


class RowScratch(NamedTuple):
    """What one thread writes to while it looks at rows. A row is its bucket and place in one number."""

    table: Float32s  # [code bytes * CODEWORDS]
    distances: Float32s  # [candidates]
    rows: Int64s  # [candidates]
    picked: Int64s  # [_ROWS]
    spare: Int64s  # [candidates or lists, whichever is more]
    keys: UInt64s  # [2, candidates or lists]
    digits: Int64s  # [DIGITS]


def _make_reader(kind: Any) -> Any:
    """A function of the loops that reads a number at an address, aligned or not."""

    @intrinsic
    def read(_: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], context.get_value_type(kind).as_pointer()))
            value.align = 1
            return value

        return kind(types.int64), generate

    return read


_byte, _place, _word, _term = (_make_reader(kind) for kind in (types.uint8, types.uint32, types.uint64, types.float32))


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
def compute_terms(offsets: UInt32s, codes: UInt8s, centroids: Float32s, codebooks: Float32s, terms: Float32s) -> None:
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


def make_scratch(code_bytes: int, lists: int, k: int) -> Scratch:
    """Room for a search of the nearest k rows."""
    return tuple(make_list_scratch(lists)), tuple(_make_row_scratch(code_bytes, 2 * k + _SPARE_ROWS, lists))


def _make_row_scratch(code_bytes: int, size: int, lists: int) -> RowScratch:
    most = max(size, lists)
    return RowScratch(
        np.empty(code_bytes * CODEWORDS, dtype=np.float32),
        np.empty(size, dtype=np.float32),
        np.empty(size, dtype=np.int64),
        np.empty(_ROWS, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty((2, most), dtype=np.uint64),
        np.empty(DIGITS, dtype=np.int64),
    )


@numba.njit(nogil=True)
def _fill_table(query: Float32s, products: Float32s, table: Float32s) -> None:
    """-2 x r for every codeword of every part."""
    part = products.shape[1]
    for byte in range(len(products)):
        some = table[byte * CODEWORDS : (byte + 1) * CODEWORDS]
        some[:] = 0
        for at in range(part):
            value = query[byte * part + at]
            panel = products[byte, at]
            for lane in range(CODEWORDS):
                some[lane] += value * panel[lane]


@numba.njit(nogil=True)
def _keep_smallest(filled: int, k: int, most: int, row_scratch: RowScratch) -> tuple[int, np.float32]:
    """Keep the smallest k candidates, and perhaps more but at most `most`; returns how many, and a ceiling."""
    distances, rows, spare = row_scratch.distances, row_scratch.rows, row_scratch.spare
    ceiling = find_ceiling(distances[:filled], k, most, row_scratch.digits)
    kept, equal = 0, 0
    for at in range(filled):
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
    last = min(last, first + _ROWS_AHEAD)
    if first < last:
        for at in range(first * width, last * width, _CACHE_LINE):
            _fetch(codes + at)
        for at in range(first * 4, last * 4, _CACHE_LINE):
            _fetch(terms + at)
            _fetch(places + at)


@numba.njit(nogil=True, inline="always")
def _pick_allowed(places: int, bitmap: int, first: int, last: int, picked: Int64s) -> int:
    """The rows from first to last whose place is allowed; returns how many."""
    count = 0
    for row in range(first, last):
        place = np.int64(_place(places + 4 * row))
        picked[count] = row
        count += int((_byte(bitmap + (place >> 3)) >> np.uint8(place & 7)) & 1)
    return count


@numba.njit(nogil=True, inline="always")
def _sum_codewords(code: int, width: int, table: Float32s) -> np.float32:
    """The table's entries for one code, which is read eight bytes at a time; those of eight are added up in pairs.

    The table of byte n begins at 256 n, so that those of eight bytes take up 2,048 entries.
    """
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
        total += table[byte * CODEWORDS + _byte(code + byte)]
    return total


@numba.njit(nogil=True, inline="always")
def _add_rows(
    some: Any,
    bucket: int,
    codes: int,
    terms: int,
    places: int,
    width: int,
    base: np.float32,
    ceiling: np.float32,
    filled: int,
    row_scratch: RowScratch,
) -> int:
    """Put some rows, as far as they do not pass the ceiling, among the candidates; returns how many there then are."""
    table, distances, kept = row_scratch.table, row_scratch.distances, row_scratch.rows
    for row in some:
        distance = base + _term(terms + 4 * row) + _sum_codewords(codes + row * width, width, table)
        distance = distance if distance > 0 else np.float32(0)
        distances[filled] = distance
        kept[filled] = bucket << 32 | np.int64(_place(places + 4 * row))
        filled += int(distance <= ceiling)
    return filled


@numba.njit(nogil=True)
def _scan_list(
    number: int,
    following: int,
    base: np.float32,
    k: int,
    rows: RowTables,
    bitmaps: Int64s,
    filled: int,
    ceiling: np.float32,
    row_scratch: RowScratch,
) -> tuple[int, np.float32, int]:
    """Put the allowed rows of a list that do not pass the ceiling into the row_scratch.

    Returns how many candidates there then are, their ceiling, and how many rows were allowed.
    """
    picked, width, size, buckets = (
        row_scratch.picked,
        len(row_scratch.table) // CODEWORDS,
        len(row_scratch.distances),
        len(rows.codes),
    )
    seen = 0
    for bucket in range(buckets):
        ahead = (bucket + _BUCKETS_AHEAD) % buckets
        next_list = number if ahead == bucket + _BUCKETS_AHEAD else following
        _fetch_rows(
            rows.codes[ahead],
            rows.terms[ahead],
            rows.places[ahead],
            width,
            rows.starts[next_list, ahead],
            rows.starts[next_list + 1, ahead],
        )
        codes, terms, places = rows.codes[bucket], rows.terms[bucket], rows.places[bucket]
        last = _int64(rows.starts[number + 1, bucket])
        for first in range(_int64(rows.starts[number, bucket]), last, _ROWS):
            if filled + _ROWS > size:
                filled, ceiling = _keep_smallest(filled, k, k + (size - k) // _SPARE_SHARE, row_scratch)
            end = min(first + _ROWS, last)
            if not bitmaps[bucket]:
                some, seen = range(first, end), seen + end - first
                if width == _USUAL_WIDTH:
                    filled = _add_rows(
                        some, bucket, codes, terms, places, _USUAL_WIDTH, base, ceiling, filled, row_scratch
                    )
                else:
                    filled = _add_rows(some, bucket, codes, terms, places, width, base, ceiling, filled, row_scratch)
                continue
            count = _pick_allowed(places, bitmaps[bucket], first, end, picked)
            seen += count
            if width == _USUAL_WIDTH:
                filled = _add_rows(
                    picked[:count], bucket, codes, terms, places, _USUAL_WIDTH, base, ceiling, filled, row_scratch
                )
            else:
                filled = _add_rows(
                    picked[:count], bucket, codes, terms, places, width, base, ceiling, filled, row_scratch
                )
    return filled, ceiling, seen


@numba.njit(nogil=True)
def _search(
    query: Float32s,
    k: int,
    probes: int,
    wanted: int,
    tables: ListTables,
    rows: RowTables,
    bitmaps: Int64s,
    list_rows: Int64s,
    list_scratch: ListScratch,
    row_scratch: RowScratch,
) -> int:
    """Put the nearest k rows at the front of the row_scratch, in order; returns how many there are."""
    lists = len(tables.centroids)
    errors = bound_lists(query, tables, list_scratch)
    filled, seen, done, ceiling = 0, 0, 0, np.float32(np.inf)
    ordered = min(lists, max(probes, wanted * lists // max(rows.rows, 1)))
    while True:
        order_lists(
            query, tables, errors, ordered, list_scratch, row_scratch.spare, row_scratch.keys, row_scratch.digits
        )
        while done < ordered and (done < probes or seen < wanted):
            number = list_scratch.order[done]
            done += 1
            following = list_scratch.order[min(done, ordered - 1)]
            filled, ceiling, allowed = _scan_list(
                number, following, list_scratch.exact[number], k, rows, bitmaps, filled, ceiling, row_scratch
            )
            seen += list_rows[number] if len(list_rows) else allowed
        if done == lists or (done >= probes and seen >= wanted):
            break
        ordered = min(lists, 2 * ordered)
    if filled > k:
        filled, ceiling = _keep_smallest(filled, k, k + k // _SORT_SHARE, row_scratch)
    sort_pairs(
        row_scratch.distances[:filled],
        row_scratch.rows[:filled],
        row_scratch.spare,
        row_scratch.keys,
        row_scratch.digits,
    )
    return min(filled, k)


@numba.njit(cache=True, nogil=True)
def search_rows(
    queries: Float32s,
    probes: int,
    wanted: int,
    list_tables: tuple[Any, ...],
    products: Float32s,
    row_tables: tuple[Any, ...],
    bitmaps: Int64s,
    list_rows: Int64s,
    buckets: Int32s,
    places: UInt32s,
    distances: Float32s,
    scratch: Scratch,
) -> None:
    """The nearest rows of every query, as many as the outputs [queries, k] have columns; -1 and inf where none is left.

    `list_tables`, `row_tables` and the two parts of `scratch` are the fields of `ListTables`, `RowTables`,
    `ListScratch` and `RowScratch`: a plain tuple reaches compiled code in half the time, and numba's cache on disk
    cannot be read any more once a class that it names is gone. `products` are the codewords times -2 [code bytes,
    part, codewords]. `bitmaps` holds an address per bucket, 0 where all rows are allowed. `list_rows` says for each
    list how many rows count as seen when it was read; where it is empty they are counted.
    """
    tables, rows = ListTables(*list_tables), RowTables(*row_tables)
    list_scratch, row_scratch = ListScratch(*scratch[0]), RowScratch(*scratch[1])
    k = buckets.shape[1]
    for at in range(len(queries)):
        _fill_table(queries[at], products, row_scratch.table)
        count = _search(queries[at], k, probes, wanted, tables, rows, bitmaps, list_rows, list_scratch, row_scratch)
        for rank in range(count):
            buckets[at, rank] = row_scratch.rows[rank] >> 32
            places[at, rank] = row_scratch.rows[rank] & 0xFFFFFFFF
            distances[at, rank] = row_scratch.distances[rank]
        buckets[at, count:] = -1
        places[at, count:] = 0
        distances[at, count:] = np.inf
