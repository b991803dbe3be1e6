"""The loops of the decode engine: a pass of a LLaMA-style network over some tokens, every sum in one written order.

What a token gives depends on its own text alone. A product's output is one chain of additions from its first input to
its last; a head reads the cache page by page, and pages are cut at fixed positions. So the bits are the same however a
prompt is cut into passes, whichever texts share a pass, and on any number of threads.

A matrix is kept as *panels*: `PANEL` outputs side by side, input by input [panels, inputs, PANEL], so that a panel is
read once, from its beginning to its end, for all tokens of a pass. The cache of keys and values has the same form: what
attention does are two more products.

Threads all run `run_pass`, each with its `rank`. Each takes a share of every stage and waits for the others before the
next one (`_wait_for_others`): no thread pool of a library is involved, so any number of engines may run at once, and a
process that used one may fork.

Products may be fused multiply-adds where the processor has them, so processors may differ in the last bits. All
compiled functions are in this file: numba's cache on disk notices a change of the file that a function is in, and of
no other.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import math
import platform
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
UInt8s = NDArray[np.uint8]

PANEL = 16
"""Outputs of a panel: two vectors of AVX2, one of AVX-512."""
PAIR = 2 * PANEL
"""Outputs come in pairs of panels: a pass of up to three rows reads both at once, to keep the multipliers busy."""
PAGE = 128
"""Positions of a page of the cache; a multiple of PAIR."""


def _has_wide_vectors() -> bool:
    """Does this processor multiply sixteen floats at once (AVX-512)? Sums are the same: one chain for each output."""
    try:
        return bool(binding.get_host_cpu_features().get("avx512f", False))
    except RuntimeError:  # LLVM knows no features of this kind of processor
        return False


_LANES, _TILE_ROWS, _TILE_PANELS = (16, 8, 2) if _has_wide_vectors() else (8, 6, 1)
"""Floats of a vector; rows and panels of the largest tile, whose sums there are registers for."""
_FEW_ROWS = 3
"""So many rows or fewer are multiplied by both panels of a pair at once on every processor."""
_BLOCK_ROWS = 96
"""Rows that take turns with one panel, so that both stay in the second-level cache."""
QUERY_ROWS = 24
"""Queries (of several tokens, and of the heads that share keys) that read the cache together."""
_ROWS_PER_THREAD = 24
"""With fewer rows for each thread, weights that all threads read cost more than meetings do."""
_SPINS = 4000
"""How often a waiting thread looks before it lets others have the processor; some ten microseconds."""


FLOAT32, BF16, FP16, BLOCKS = 0, 1, 2, 3
"""How weights are stored. Known when the code runs, so that it is compiled once for all."""
_STORED = (types.float32, types.uint16, types.int16, types.uint8)
BLOCK = 32
"""Inputs of a block: their weights are whole numbers of 8 bits, times a scale, plus an offset, of each output."""
_HEAD = 2 * 4 * PANEL
"""Bytes of a panel's block before its numbers: the scales and the offsets, in float32."""
BLOCK_BYTES = _HEAD + BLOCK * PANEL


class Network(NamedTuple):
    """Weights and shape. Matrices are given as bytes, those of all layers stacked."""

    stored: int
    embedding: UInt8s  # [panels, width, bytes of PANEL weights]; the same array as `head` where they are tied.
    #                    Of BLOCKS, a panel's bytes are block after block instead: `BLOCK_BYTES` for BLOCK inputs.
    head: UInt8s
    attention_in: UInt8s  # [layers, panels, width, bytes]: queries, keys and values
    attention_out: UInt8s
    feed_in: UInt8s  # gate and up, panel by panel in turns
    feed_out: UInt8s
    attention_in_bias: Float32s  # [layers, outputs]
    attention_out_bias: Float32s
    feed_in_bias: Float32s
    feed_out_bias: Float32s
    gains: Float32s  # [2 * layers + 1, width]: before attention and before feed-forward of each layer, and the last
    shifts: Float32s
    heads: int
    key_heads: int
    head_width: int
    feed_width: int
    centred: bool  # LayerNorm takes the mean away, RMSNorm does not
    epsilon: float


class Cache(NamedTuple):
    """Addresses of pages [slots, pages], and the angles of every position.

    A page is [layers, key heads, 2, PAGE * padded head width]: keys as panels over positions, then values as panels
    over the head's width.
    """

    pages: Int64s
    cosines: Float32s  # [positions, turned pairs]
    sines: Float32s


class Tokens(NamedTuple):
    """The rows of a pass: tokens with their positions and slots, and the rows that are asked for (`wanted`)."""

    ids: Int64s
    positions: Int64s
    slots: Int64s
    wanted: Int64s


class Workspace(NamedTuple):
    """What a pass writes to: a row for each token, and for each thread."""

    stream: Float32s  # [rows, width, padded to whole pairs of panels as all that follows but two]
    normal: Float32s  # [rows, width]
    projected: Float32s  # [rows, queries, keys and values]
    attended: Float32s  # [rows, heads * head width], not padded
    gated: Float32s  # [rows, gate and up]
    activated: Float32s  # [rows, feed width], not padded
    queries: Float32s  # [threads, QUERY_ROWS, padded head width]
    sums: Float32s
    scores: Float32s  # [threads, QUERY_ROWS, positions]
    unpacked: Float32s  # [threads, weights of two panels], where weights are kept in blocks


class Outputs(NamedTuple):
    """A row for each token that is asked for; what has no columns is not computed."""

    logits: Float32s  # [wanted, padded vocabulary]
    final: Float32s  # [wanted, width]
    feed_forward: Float32s  # [wanted, width]: what the last feed-forward network was given


def _splat(kind: Any, number: Any) -> Any:
    """The number as a constant of a type, in every lane if it is a vector's."""
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def _shaped(like: Any, element: Any) -> Any:
    return ir.VectorType(element, like.count) if isinstance(like, ir.VectorType) else element


def _widen(builder: Any, value: Any, stored: Any) -> Any:
    """float32 of stored numbers, one or a vector: exact for every finite number."""
    if stored == types.float32:
        return value
    word, real = _shaped(value.type, ir.IntType(32)), _shaped(value.type, ir.FloatType())
    if stored == types.uint8:
        return builder.sitofp(builder.zext(value, word), real)
    if stored == types.uint16:  # bf16 is the upper half of a float32
        return builder.bitcast(builder.shl(builder.zext(value, word), _splat(word, 16)), real)
    # fp16: move sign, exponent and fraction to their places; the exponent is then 112 too small. Not the processor's
    # own conversion, which not all have: where it is missing the compiler calls a function that may not be there.
    moved = builder.and_(builder.shl(builder.sext(value, word), _splat(word, 13)), _splat(word, 0x8FFFE000))
    return builder.fmul(builder.bitcast(moved, real), _splat(real, 2.0**112))


def _make_reader(stored: Any) -> Any:
    """A function that reads one stored weight at an address."""

    @intrinsic
    def read(_: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], context.get_value_type(stored).as_pointer()))
            value.align = stored.bitwidth // 8
            return _widen(builder, value, stored)

        return types.float32(types.int64), generate

    return read


_read_float32, _read_bf16, _read_fp16, _read_code = map(_make_reader, _STORED)


def _multiply_add(builder: Any, left: Any, right: Any, total: Any) -> Any:
    """left * right + total: fused where the processor has it."""
    kind = total.type
    name = f"llvm.fmuladd.v{kind.count}f32"
    module = builder.module
    function = module.globals.get(name) or ir.Function(module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(function, [left, right, total])


def _fetch(builder: Any, address: Any) -> None:
    """Have what will be read soon brought near: the processor itself looks ahead by some hundred bytes only."""
    byte, word, module = ir.IntType(8).as_pointer(), ir.IntType(32), builder.module
    name = "llvm.prefetch.p0"
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = module.globals.get(name) or ir.Function(module, kind, name)
    builder.call(function, [builder.inttoptr(address, byte), word(0), word(2), word(1)])


def _make_tile(rows: int, panels: int) -> Any:
    """A function that multiplies some rows by some panels: y[row, output] += sum over inputs of x * weight.

    Written as vectors, since the compiler does not find them in loops: all sums stay in registers, and each is one
    chain from the first input to the last. A function of its own in the compiled code, since a copy of it at every
    call would make the compiler take minutes.
    """

    @intrinsic
    def tile(
        _: Any,
        _stored: Any,
        _w: Any,
        _w_bytes: Any,
        _n: Any,
        _x: Any,
        _x_bytes: Any,
        _y: Any,
        _y_bytes: Any,
        _ahead: Any,
        _ahead_step: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            for number, stored in enumerate(_STORED):
                with builder.if_then(builder.icmp_signed("==", arguments[0], ir.IntType(64)(number))):
                    builder.call(_find_tile(builder.module, stored, rows, panels), arguments[1:])
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), generate

    return tile


def _find_tile(module: Any, stored: Any, rows: int, panels: int) -> Any:
    """The compiled function of a tile; written where a module has it not yet."""
    name = f"silo_tile_{rows}x{panels}_{_LANES}_{stored}"
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 9), name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        _write_tile(ir.IRBuilder(function.append_basic_block()), function.args, stored, rows, panels)
    return function


def _write_tile(builder: Any, arguments: Any, stored: Any, rows: int, panels: int) -> None:
    """The code of a tile."""
    weights, panel_bytes, length, x, x_bytes, y, y_bytes, ahead, ahead_step = arguments
    real, integer, short = ir.FloatType(), ir.IntType(64), ir.IntType(32)
    vector, size = ir.VectorType(real, _LANES), stored.bitwidth // 8
    raw_vector = vector if stored == types.float32 else ir.VectorType(ir.IntType(stored.bitwidth), _LANES)
    columns = [(panel, at) for panel in range(panels) for at in range(PANEL // _LANES)]
    block, head = (integer(BLOCK), _HEAD) if stored == types.uint8 else (length, 0)  # others are of one block

    def load(address: Any, type_: Any, align: int) -> Any:
        value = builder.load(builder.inttoptr(address, type_.as_pointer()))
        value.align = align
        return value

    def shift(address: Any, by: Any, times: int) -> Any:
        return builder.add(address, builder.mul(by, integer(times)))

    x_rows = [shift(x, x_bytes, row) for row in range(rows)]
    w_panels = [shift(weights, panel_bytes, panel) for panel in range(panels)]
    places = [(row, *column) for row in range(rows) for column in columns]
    before, end = builder.block, builder.append_basic_block("end")
    outer, loop, after = (builder.append_basic_block(name) for name in ("block", "input", "next"))
    builder.branch(outer)

    builder.position_at_end(outer)
    start, begun, w_start = builder.phi(integer), {place: builder.phi(vector) for place in places}, builder.phi(integer)
    for counter in (start, w_start):
        counter.add_incoming(integer(0), before)
    for total in begun.values():
        total.add_incoming(_splat(vector, 0.0), before)
    w_blocks = [builder.add(panel, w_start) for panel in w_panels]
    scales, offsets = (
        {
            (panel, at): load(builder.add(w_blocks[panel], integer(first + 4 * at * _LANES)), vector, 4)
            for panel, at in columns
            if head
        }
        for first in (0, 4 * PANEL)
    )
    builder.branch(loop)

    builder.position_at_end(loop)
    inside, sums = builder.phi(integer), {place: builder.phi(vector) for place in places}
    inside.add_incoming(integer(0), outer)
    for place, total in sums.items():
        total.add_incoming(begun[place], outer)
    step = builder.add(start, inside)

    def read_input(row: int) -> Any:
        one = load(builder.add(x_rows[row], builder.shl(step, integer(2))), real, 4)
        lanes = builder.insert_element(ir.Constant(vector, ir.Undefined), one, short(0))
        spread = _splat(ir.VectorType(short, _LANES), 0)
        return builder.shuffle_vector(lanes, ir.Constant(vector, ir.Undefined), spread)

    def read_weight(panel: int, at: int) -> Any:
        place = builder.add(w_blocks[panel], builder.mul(inside, integer(PANEL * size)))
        value = load(builder.add(place, integer(head + at * _LANES * size)), raw_vector, size)
        number = _widen(builder, value, stored)
        return _multiply_add(builder, number, scales[panel, at], offsets[panel, at]) if head else number

    def add(row: int, column: tuple[int, int], weight: Any, spread: Any) -> None:
        old = sums[row, *column]
        sums[row, *column] = _multiply_add(builder, weight, spread, old)
        old.add_incoming(sums[row, *column], loop)

    if rows >= _FEW_ROWS or head:
        _fetch(builder, builder.add(ahead, builder.mul(step, ahead_step)))
    # Registers are scarce: of inputs and weights, whichever are fewer are held while the others pass by.
    if rows > len(columns):
        read = [read_weight(*column) for column in columns]
        for row in range(rows):
            spread = read_input(row)
            for column, weight in zip(columns, read, strict=True):
                add(row, column, weight, spread)
    else:
        held = [read_input(row) for row in range(rows)]
        for column in columns:
            weight = read_weight(*column)
            for row, spread in enumerate(held):
                add(row, column, weight, spread)
    following = builder.add(inside, integer(1))
    inside.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, block), loop, after)

    builder.position_at_end(after)
    next_start = builder.add(start, block)
    start.add_incoming(next_start, after)
    w_start.add_incoming(builder.add(w_start, integer(BLOCK_BYTES)), after)
    for place, total in begun.items():
        total.add_incoming(sums[place], after)
    builder.cbranch(builder.icmp_signed("<", next_start, length), outer, end)

    builder.position_at_end(end)
    for (row, panel, at), total in sums.items():
        place = builder.add(shift(y, y_bytes, row), integer(4 * (panel * PANEL + at * _LANES)))
        target = builder.inttoptr(place, vector.as_pointer())
        builder.store(builder.fadd(load(place, vector, 4), total), target).align = 4
    builder.ret_void()


_tile_1x2, _tile_2x2, _tile_3x2 = (_make_tile(rows, 2) for rows in (1, 2, 3))
_tile_3, _tile_4, _tile_5, _tile_6, _tile_7, _tile_8 = (
    _make_tile(min(rows, _TILE_ROWS), _TILE_PANELS) for rows in range(3, 9)
)


@intrinsic
def _unpack_input(_: Any, _scales: Any, _codes: Any, _target: Any) -> Any:
    """The weights of one input of a panel in blocks as float32."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        integer = ir.IntType(64)
        vector, code = (ir.VectorType(kind, _LANES) for kind in (ir.FloatType(), ir.IntType(8)))

        def place(address: Any, by: int, kind: Any) -> Any:
            return builder.inttoptr(builder.add(address, integer(by)), kind.as_pointer())

        scales, codes, target = arguments
        for at in range(0, PANEL, _LANES):
            read = [(scales, 4 * at, vector), (scales, 4 * (PANEL + at), vector), (codes, at, code)]
            scale, offset, number = (builder.load(place(*item)) for item in read)
            scale.align = offset.align = 4
            number.align = 1
            weight = _multiply_add(builder, _widen(builder, number, types.uint8), scale, offset)
            builder.store(weight, place(target, 4 * at, vector)).align = 4
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


_unpack_one: Any = _unpack_input


@numba.njit(nogil=True)
def _unpack(panel: int, length: int, target: int) -> None:
    """A panel in blocks as float32."""
    for at in range(length):
        block = panel + at // BLOCK * BLOCK_BYTES
        _unpack_one(block, block + _HEAD + at % BLOCK * PANEL, target + 4 * at * PANEL)


@numba.njit(nogil=True)
def _input_bytes(stored: int) -> int:
    """What a panel has for one input."""
    if stored == BLOCKS:
        return BLOCK_BYTES // BLOCK
    return (4 if stored == FLOAT32 else 2) * PANEL


@numba.njit(nogil=True)
def _multiply(
    stored: int,
    weights: int,
    panel_bytes: int,
    length: int,
    pairs: int,
    x: int,
    x_bytes: int,
    y: int,
    y_bytes: int,
    rows: int,
    room: int,
) -> None:
    """y += x times pairs of panels that begin at an address. Panels in blocks are unpacked in `room` for many rows."""
    for first in range(0, rows, _BLOCK_ROWS):
        block = min(_BLOCK_ROWS, rows - first)
        panels = 2 if block <= _FEW_ROWS else _TILE_PANELS
        tiles = (block + _TILE_ROWS - 1) // _TILE_ROWS
        fetched = panels * _input_bytes(stored) // tiles  # at each input of each tile, of the panels that come next
        for panel in range(0, 2 * pairs, panels):
            w, target = weights + panel * panel_bytes, y + first * y_bytes + 4 * PANEL * panel
            if stored == BLOCKS and tiles > 1:
                for at in range(panels):
                    _unpack(w + at * panel_bytes, length, room + at * 4 * PANEL * length)
                kind, read, read_bytes = FLOAT32, room, 4 * PANEL * length
            else:
                kind, read, read_bytes = stored, w, panel_bytes
            for tile in range(tiles):  # of as equal sizes as can be
                low, high = block * tile // tiles, block * (tile + 1) // tiles
                xt, yt = x + (first + low) * x_bytes, target + low * y_bytes
                ahead = w + panels * panel_bytes + tile * fetched * length
                here = high - low
                if here == 1:
                    _tile_1x2(kind, read, read_bytes, length, xt, x_bytes, yt, y_bytes, ahead, fetched)
                elif here == 2:
                    _tile_2x2(kind, read, read_bytes, length, xt, x_bytes, yt, y_bytes, ahead, fetched)
                elif here == 3 and panels == 2:
                    _tile_3x2(kind, read, read_bytes, length, xt, x_bytes, yt, y_bytes, ahead, fetched)
                elif here == 3:
                    _tile_3(kind, read, read_bytes, length, xt, x_bytes, yt, y_bytes, ahead, fetched)
                elif here == 4:
                    _tile_4(kind, read, read_bytes, length, xt, x_bytes, yt, y_bytes, ahead, fetched)
                elif here == 5:
                    _tile_5(kind, read, read_bytes, length, xt, x_bytes, yt, y_bytes, ahead, fetched)
                elif here == 6:
                    _tile_6(kind, read, read_bytes, length, xt, x_bytes, yt, y_bytes, ahead, fetched)
                elif here == 7:
                    _tile_7(kind, read, read_bytes, length, xt, x_bytes, yt, y_bytes, ahead, fetched)
                else:
                    _tile_8(kind, read, read_bytes, length, xt, x_bytes, yt, y_bytes, ahead, fetched)


@numba.njit(nogil=True)
def _add_product(stored: int, matrix: UInt8s, x: Float32s, y: Float32s, first: int, last: int, room: Float32s) -> None:
    """y += x times pairs of panels of a matrix [panels, inputs, bytes]."""
    rows = len(y)
    panel_bytes = matrix.strides[0]
    weights, target = matrix.ctypes.data + 2 * first * panel_bytes, y.ctypes.data + 4 * PAIR * first
    source, x_bytes, y_bytes = x.ctypes.data, x.strides[0], y.strides[0]
    length, pairs = matrix.shape[1], last - first
    _multiply(stored, weights, panel_bytes, length, pairs, source, x_bytes, target, y_bytes, rows, room.ctypes.data)


@numba.njit(nogil=True)
def _project(
    stored: int, matrix: UInt8s, bias: Float32s, x: Float32s, y: Float32s, first: int, last: int, room: Float32s
) -> None:
    """y = bias + x times pairs of panels."""
    for row in range(len(y)):
        for column in range(PAIR * first, PAIR * last):
            y[row, column] = bias[column]
    _add_product(stored, matrix, x, y, first, last, room)


@intrinsic
def _add_one(_: Any, _address: Any) -> Any:
    """Add one to a number that other threads add to as well; what it was before."""

    def generate(_context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        integer: Any = ir.IntType(64)
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], integer.as_pointer()), integer(1), "seq_cst")

    return types.int64(types.int64), generate


@intrinsic
def _look_at(_: Any, _address: Any) -> Any:
    """A number as other threads have left it, and with it all that they wrote before."""

    def generate(_context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def _let_others_run(_: Any) -> Any:
    """Give the processor to another thread that wants it (POSIX)."""

    def generate(context: Any, builder: Any, _: Any, _arguments: Any) -> Any:
        name, module = "sched_yield", builder.module
        function = module.globals.get(name) or ir.Function(module, ir.FunctionType(ir.IntType(32), []), name)
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _spin(_: Any) -> Any:
    """Wait a moment without work: a core's other thread, which may be the one waited for, gets its execution units."""

    def generate(context: Any, builder: Any, _: Any, _arguments: Any) -> Any:
        name, module = "llvm.x86.sse2.pause", builder.module
        if platform.machine().lower() in ("x86_64", "amd64"):
            function = module.globals.get(name) or ir.Function(module, ir.FunctionType(ir.VoidType(), []), name)
            builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate


_count_arrival: Any = _add_one
_arrivals: Any = _look_at
_pause: Any = _spin
_step_back: Any = _let_others_run


@numba.njit(nogil=True)
def _wait_for_others(meeting: Int64s, ranks: int) -> None:
    """Go on when all threads have come here. `meeting` counts arrivals, from 0 at the beginning of a pass."""
    if ranks == 1:
        return
    place = meeting.ctypes.data
    all_here = (_count_arrival(place) // ranks + 1) * ranks
    spins = 0
    while _arrivals(place) < all_here:
        spins += 1
        if spins < _SPINS:
            _pause()
        else:
            _step_back()


@numba.njit(nogil=True)
def _sum_squares(row: Float32s, mean: float) -> float:
    """Of what differs from the mean; four sums side by side, added up in one order."""
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    whole = len(row) // 4 * 4
    for at in range(0, whole, 4):
        d0, d1, d2, d3 = row[at] - mean, row[at + 1] - mean, row[at + 2] - mean, row[at + 3] - mean
        s0 += d0 * d0
        s1 += d1 * d1
        s2 += d2 * d2
        s3 += d3 * d3
    for at in range(whole, len(row)):
        s0 += (row[at] - mean) * (row[at] - mean)
    return (s0 + s1) + (s2 + s3)


@numba.njit(nogil=True)
def _normalise(row: Float32s, gain: Float32s, shift: Float32s, centred: bool, epsilon: float, out: Float32s) -> None:
    """RMSNorm, or LayerNorm where `centred`; sums in double precision."""
    mean = 0.0
    if centred:
        for at in range(len(row)):
            mean += row[at]
        mean /= len(row)
    scale = np.float32(1.0 / np.sqrt(_sum_squares(row, mean) / len(row) + epsilon))
    centre = np.float32(mean)
    for at in range(len(row)):
        out[at] = (row[at] - centre) * scale * gain[at] + shift[at]


@intrinsic
def _float_with_exponent(_: Any, _exponent: Any) -> Any:
    """2 to a power from -126 to 127, made of its bits."""

    def generate(_context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        word: Any = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.add(arguments[0], word(127)), word(23)), ir.FloatType())

    return types.float32(types.int32), generate


_two_to: Any = _float_with_exponent

_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
"""ln 2 in two parts: products with the first are exact for the whole numbers that occur."""
_E2, _E3, _E4 = np.float32(5.0000001201e-1), np.float32(1.6666665459e-1), np.float32(4.1665795894e-2)
_E5, _E6, _E7 = np.float32(8.3334519073e-3), np.float32(1.3981999507e-3), np.float32(1.9875691500e-4)
"""Coefficients of Cephes' `expf` (S. Moshier) for |x| < ln 2 / 2."""
_HALF, _ONE = np.float32(0.5), np.float32(1)
_LEAST_POWER, _MOST_POWER = np.float32(-87), np.float32(88)


@numba.njit(nogil=True, inline="always")
def _exp(x: np.float32) -> np.float32:
    """e to the x, to about one unit in the last place; the library's cannot be computed for eight floats at once."""
    x = min(max(x, _LEAST_POWER), _MOST_POWER)
    power = np.float32(np.floor(x * _LOG2_E + _HALF))
    r = (x - power * _LN2_HIGH) - power * _LN2_LOW
    tail = ((((_E7 * r + _E6) * r + _E5) * r + _E4) * r + _E3) * r + _E2
    exponential: np.float32 = ((tail * (r * r) + r) + _ONE) * _two_to(np.int32(power))
    return exponential


@numba.njit(nogil=True, fastmath={"nnan", "nsz"})
def _largest(values: Float32s) -> np.float32:
    """In any order: a maximum has no rounding."""
    largest: np.float32 = values[0]
    for at in range(1, len(values)):
        largest = max(largest, values[at])
    return largest


@numba.njit(nogil=True)
def _sum(values: Float32s) -> np.float32:
    """Four sums side by side, each of every fourth value, so that zeros at the end change nothing."""
    s0, s1, s2, s3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    whole = len(values) // 4 * 4
    for at in range(0, whole, 4):
        s0 += values[at]
        s1 += values[at + 1]
        s2 += values[at + 2]
        s3 += values[at + 3]
    if whole < len(values):
        s0 += values[whole]
    if whole + 1 < len(values):
        s1 += values[whole + 1]
    if whole + 2 < len(values):
        s2 += values[whole + 2]
    return (s0 + s1) + (s2 + s3)


@numba.njit(nogil=True)
def _clear(row: Float32s, first: int, last: int) -> None:
    for at in range(first, last):
        row[at] = 0


@numba.njit(nogil=True)
def _turn(head: Float32s, cosines: Float32s, sines: Float32s) -> None:
    """Rotary position: the first dimensions of a head, in pairs half of them apart."""
    half = len(cosines)
    for at in range(half):
        one, other = head[at], head[at + half]
        head[at] = one * cosines[at] - other * sines[at]
        head[at + half] = other * cosines[at] + one * sines[at]


@numba.njit(nogil=True)
def _padded(width: int) -> int:
    return (width + PAIR - 1) // PAIR * PAIR


@numba.njit(nogil=True)
def _page_address(network: Network, page: int, layer: int, head: int) -> int:
    """Where the keys of a head begin in a page; its values follow after PAGE padded rows."""
    return page + 4 * ((layer * network.key_heads + head) * 2 * PAGE * _padded(network.head_width))


@intrinsic
def _write_float(_: Any, _address: Any, _value: Any) -> Any:
    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.FloatType().as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate


_write: Any = _write_float


@numba.njit(nogil=True)
def _remember(
    network: Network, cache: Cache, tokens: Tokens, projected: Float32s, layer: int, row: int, head: int
) -> None:
    """Write a token's key, turned, and its value into the cache."""
    width, position = network.head_width, tokens.positions[row]
    page = _page_address(network, cache.pages[tokens.slots[row], position // PAGE], layer, head)
    place = position % PAGE
    first = (network.heads + head) * width
    key = projected[row, first : first + width]
    _turn(key, cache.cosines[position], cache.sines[position])
    keys = page + 4 * (place // PANEL * width * PANEL + place % PANEL)
    values = page + 4 * (PAGE * _padded(width) + place * PANEL)
    first += network.key_heads * width
    for at in range(width):
        _write(keys + 4 * at * PANEL, key[at])
        _write(values + 4 * (at // PANEL * PAGE * PANEL + at % PANEL), projected[row, first + at])


@numba.njit(nogil=True)
def _score_softly(scores: Float32s, seen: int) -> np.float32:
    """exp of the first scores, less the largest of them, and 0 for the rest; returns their sum."""
    largest = _largest(scores[:seen])
    for at in range(seen):
        scores[at] = _exp(scores[at] - largest)
    _clear(scores, seen, len(scores))
    return _sum(scores[:seen])


@numba.njit(nogil=True)
def _attend(
    network: Network,
    cache: Cache,
    tokens: Tokens,
    scratch: Workspace,
    layer: int,
    head: int,
    first: int,
    last: int,
    rank: int,
) -> None:
    """Attention of some consecutive tokens of one text, for the query heads that share one head of keys."""
    width, padded, group = network.head_width, _padded(network.head_width), network.heads // network.key_heads
    scale, rows = np.float32(1.0 / np.sqrt(width)), (last - first) * group
    queries, sums, pages = scratch.queries[rank], scratch.sums[rank], cache.pages[tokens.slots[first]]
    span, scores = tokens.positions[last - 1] + 1, scratch.scores[rank]
    reach = (span + PAIR - 1) // PAIR * PAIR
    for at in range(rows):
        row, start = first + at // group, (head * group + at % group) * width
        position = tokens.positions[row]
        for column in range(width):
            queries[at, column] = scratch.projected[row, start + column] * scale
        _turn(queries[at], cache.cosines[position], cache.sines[position])
        _clear(scores[at], 0, reach)
        _clear(sums[at], 0, padded)
    x, x_bytes, y, y_bytes = queries.ctypes.data, queries.strides[0], scores.ctypes.data, scores.strides[0]
    for number in range((span + PAGE - 1) // PAGE):
        keys, here = _page_address(network, pages[number], layer, head), min(PAGE, span - number * PAGE)
        pairs, bytes_ = (here + PAIR - 1) // PAIR, 4 * width * PANEL
        _multiply(FLOAT32, keys, bytes_, width, pairs, x, x_bytes, y + 4 * PAGE * number, y_bytes, rows, 0)
    for at in range(rows):
        total = _score_softly(scores[at, :reach], tokens.positions[first + at // group] + 1)
        queries[at, 0] = _ONE / total
    x, y, x_bytes, y_bytes = scores.ctypes.data, sums.ctypes.data, scores.strides[0], sums.strides[0]
    for number in range((span + PAGE - 1) // PAGE):
        values = _page_address(network, pages[number], layer, head) + 4 * PAGE * padded
        here = min(PAGE, span - number * PAGE)
        _multiply(
            FLOAT32, values, 4 * PAGE * PANEL, here, padded // PAIR, x + 4 * PAGE * number, x_bytes, y, y_bytes, rows, 0
        )
    for at in range(rows):
        row, start = first + at // group, (head * group + at % group) * width
        for column in range(width):
            scratch.attended[row, start + column] = sums[at, column] * queries[at, 0]


@numba.njit(nogil=True)
def _attend_all(
    network: Network, cache: Cache, tokens: Tokens, scratch: Workspace, layer: int, rank: int, ranks: int
) -> None:
    """Attention of all rows: consecutive ones of a text together, a few at a time; threads take turns."""
    rows, most = len(tokens.ids), max(1, QUERY_ROWS // (network.heads // network.key_heads))
    turn, first = 0, 0
    while first < rows:
        last = first + 1
        while last < rows and last - first < most and tokens.slots[last] == tokens.slots[first]:
            last += 1
        for head in range(network.key_heads):
            if turn % ranks == rank:
                _attend(network, cache, tokens, scratch, layer, head, first, last, rank)
            turn += 1
        first = last


@numba.njit(nogil=True, error_model="numpy")  # to look for a division by zero, the loop would take one at a time
def _activate(gated: Float32s, activated: Float32s, first: int, last: int, width: int) -> None:
    """SwiGLU of pairs of panels: gate * sigmoid(gate) * up."""
    for row in range(len(gated)):
        for pair in range(first, last):
            both, out = gated[row, PAIR * pair : PAIR * (pair + 1)], activated[row, pair * PANEL : width][:PANEL]
            gates, ups = both[:PANEL], both[PANEL:]
            for lane in range(len(out)):
                gate = gates[lane]
                out[lane] = gate / (_ONE + _exp(-gate)) * ups[lane]


@numba.njit(nogil=True)
def _read_of_block(panel: int, lane: int, at: int) -> np.float32:
    """One weight of a panel that is kept in blocks. In double precision the product is exact, as in a fused one."""
    block = panel + at // BLOCK * BLOCK_BYTES
    scale, offset = _read_float32(block + 4 * lane), _read_float32(block + 4 * PANEL + 4 * lane)
    code = _read_code(block + _HEAD + at % BLOCK * PANEL + lane)
    return np.float32(np.float64(code) * np.float64(scale) + np.float64(offset))


@numba.njit(nogil=True)
def _embed(network: Network, tokens: Tokens, stream: Float32s, first: int, last: int) -> None:
    table = network.embedding
    size = table.shape[2] // PANEL
    for row in range(first, last):
        panel, lane = table.ctypes.data + tokens.ids[row] // PANEL * table.strides[0], tokens.ids[row] % PANEL
        place = panel + lane * size
        for at in range(table.shape[1]):
            if network.stored == FLOAT32:
                stream[row, at] = _read_float32(place + at * table.strides[1])
            elif network.stored == BF16:
                stream[row, at] = _read_bf16(place + at * table.strides[1])
            elif network.stored == FP16:
                stream[row, at] = _read_fp16(place + at * table.strides[1])
            else:
                stream[row, at] = _read_of_block(panel, lane, at)


@numba.njit(nogil=True)
def _normalise_rows(network: Network, norm: int, x: Float32s, out: Float32s, first: int, last: int) -> None:
    for row in range(first, last):
        gain, shift = network.gains[norm], network.shifts[norm]
        _normalise(x[row, : len(gain)], gain, shift, network.centred, network.epsilon, out[row])


@numba.njit(nogil=True)
def _run(
    network: Network,
    cache: Cache,
    tokens: Tokens,
    scratch: Workspace,
    outputs: Outputs,
    meeting: Int64s,
    rank: int,
    ranks: int,
) -> None:
    """One thread's part of a pass. Tokens of one text stand in its order, each right after the cache's last.

    Of few rows each thread computes some outputs of all, so that it reads only its part of the weights, and they meet
    after every stage. Of many rows each has its own and computes all of their outputs: they meet for attention only.
    """
    rows, layers = len(tokens.ids), len(network.attention_in)
    low, high = rows * rank // ranks, rows * (rank + 1) // ranks
    own_rows = rows >= ranks * _ROWS_PER_THREAD
    top, bottom, sharing = (low, high, 1) if own_rows else (0, rows, ranks)
    part = 0 if own_rows else rank
    stream, normal, projected = scratch.stream[:rows], scratch.normal[top:bottom], scratch.projected[:rows]
    attended, gated, activated = scratch.attended[top:bottom], scratch.gated[top:bottom], scratch.activated[top:bottom]
    here, room = stream[top:bottom], scratch.unpacked[rank]
    _embed(network, tokens, stream, low, high)
    for layer in range(layers):
        _normalise_rows(network, 2 * layer, stream, scratch.normal, low, high)
        _wait_for_others(meeting, sharing)
        matrix = network.attention_in[layer]
        first, last = _share(matrix, part, sharing)
        bias = network.attention_in_bias[layer]
        _project(network.stored, matrix, bias, normal, projected[top:bottom], first, last, room)
        _wait_for_others(meeting, sharing)
        for row in range(low, high):
            for head in range(network.key_heads):
                _remember(network, cache, tokens, projected, layer, row, head)
        _wait_for_others(meeting, ranks)
        _attend_all(network, cache, tokens, scratch, layer, rank, ranks)
        _wait_for_others(meeting, ranks)
        matrix = network.attention_out[layer]
        first, last = _share(matrix, part, sharing)
        _add_bias(network.attention_out_bias[layer], here, first, last)
        _add_product(network.stored, matrix, attended, here, first, last, room)
        _wait_for_others(meeting, sharing)
        _normalise_rows(network, 2 * layer + 1, stream, scratch.normal, low, high)
        _wait_for_others(meeting, sharing)
        if layer == layers - 1 and not outputs.final.shape[1]:
            break
        matrix = network.feed_in[layer]
        first, last = _share(matrix, part, sharing)
        _project(network.stored, matrix, network.feed_in_bias[layer], normal, gated, first, last, room)
        _activate(gated, activated, first, last, network.feed_width)
        _wait_for_others(meeting, sharing)
        matrix = network.feed_out[layer]
        first, last = _share(matrix, part, sharing)
        _add_bias(network.feed_out_bias[layer], here, first, last)
        _add_product(network.stored, matrix, activated, here, first, last, room)
        _wait_for_others(meeting, sharing)
    _wait_for_others(meeting, ranks)
    for at in range(rank, len(tokens.wanted), ranks):
        row = tokens.wanted[at]
        for column in range(outputs.feed_forward.shape[1]):
            outputs.feed_forward[at, column] = scratch.normal[row, column]
        if outputs.final.shape[1]:
            gain, shift = network.gains[2 * layers], network.shifts[2 * layers]
            _normalise(stream[row, : len(gain)], gain, shift, network.centred, network.epsilon, outputs.final[at])
    if not outputs.logits.shape[1]:
        return
    _wait_for_others(meeting, ranks)
    first, last = _share(network.head, rank, ranks)
    for at in range(len(tokens.wanted)):
        _clear(outputs.logits[at], PAIR * first, PAIR * last)
    _add_product(network.stored, network.head, outputs.final, outputs.logits, first, last, room)


@numba.njit(cache=True, nogil=True)
def run_pass(
    network: Any, cache: Any, tokens: Any, scratch: Any, outputs: Any, meeting: Int64s, rank: int, ranks: int
) -> None:
    """One thread's part of a pass over what `Network` and the others name, each given as a plain tuple.

    numba's cache on disk would remember their classes, and fail to load once one of them has another name.
    """
    _run(
        Network(*network), Cache(*cache), Tokens(*tokens), Workspace(*scratch), Outputs(*outputs), meeting, rank, ranks
    )


@numba.njit(cache=True, nogil=True)
def multiply_panels(rows: Float32s, panels: Float32s, out: Float32s) -> None:
    """out = rows times a matrix in panels [panels, inputs, PANEL], an even number of them."""
    for row in range(len(rows)):
        _clear(out[row], 0, out.shape[1])
    source, weights, target = rows.ctypes.data, panels.ctypes.data, out.ctypes.data
    pairs, strides = len(panels) // 2, (panels.strides[0], rows.strides[0], out.strides[0])
    _multiply(FLOAT32, weights, strides[0], rows.shape[1], pairs, source, strides[1], target, strides[2], len(rows), 0)


@numba.njit(nogil=True)
def _share(matrix: UInt8s, rank: int, ranks: int) -> tuple[int, int]:
    """A thread's part of the pairs of panels."""
    pairs = len(matrix) // 2
    return pairs * rank // ranks, pairs * (rank + 1) // ranks


@numba.njit(nogil=True)
def _add_bias(bias: Float32s, stream: Float32s, first: int, last: int) -> None:
    for row in range(len(stream)):
        for column in range(PAIR * first, PAIR * last):
            stream[row, column] += bias[column]


@intrinsic
def _double_with_exponent(_: Any, _exponent: Any) -> Any:
    """2 to a power from -1022 to 1023, made of its bits."""

    def generate(_context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        word: Any = ir.IntType(64)
        wide = builder.add(builder.sext(arguments[0], word), word(1023))
        return builder.bitcast(builder.shl(wide, word(52)), ir.DoubleType())

    return types.float64(types.int32), generate


_two_to_the: Any = _double_with_exponent
_LN2_FIRST, _LN2_REST = 6.93145751953125e-1, 1.42860682030941723212e-6
_LEAST_DOUBLE_POWER = -708.0
_INVERSE_FACTORIALS = tuple(1.0 / math.factorial(number) for number in range(13, -1, -1))
"""Thirteen terms of the series reach the last bit for |x| < ln 2 / 2."""


@numba.njit(nogil=True)
def _exponentials(logits: Float32s, out: Float64s) -> float:
    """exp(logit) in double precision, 1 for the largest, three times faster than with the library's exp; their sum."""
    largest = np.float64(_largest(logits))
    for at in range(len(logits)):
        x = max(np.float64(logits[at]) - largest, _LEAST_DOUBLE_POWER)
        power = np.floor(x * 1.4426950408889634 + 0.5)
        r = (x - power * _LN2_FIRST) - power * _LN2_REST
        series = 0.0
        for factor in _INVERSE_FACTORIALS:
            series = series * r + factor
        out[at] = series * _two_to_the(np.int32(power))
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    whole = len(logits) // 4 * 4
    for at in range(0, whole, 4):
        s0 += out[at]
        s1 += out[at + 1]
        s2 += out[at + 2]
        s3 += out[at + 3]
    for at in range(whole, len(logits)):
        s0 += out[at]
    return (s0 + s1) + (s2 + s3)


@numba.njit(cache=True, nogil=True)
def softmax(logits: Float32s, probabilities: Float64s) -> None:
    """exp(logit) / sum of exp."""
    total = _exponentials(logits, probabilities)
    for at in range(len(logits)):
        probabilities[at] /= total


@numba.njit(cache=True, nogil=True)
def score_tokens(logits: Float32s, tokens: Int64s, probabilities: Float64s, peaks: Float64s) -> None:
    """What `softmax` has for a token of each row of logits, and for the likeliest one."""
    room = np.empty(logits.shape[1])
    for row in range(len(logits)):
        total = _exponentials(logits[row], room)
        probabilities[row], peaks[row] = room[tokens[row]] / total, 1.0 / total


@numba.njit(cache=True, nogil=True)
def pack_rows(rows: Any, panels: Any, first: int, turn: int, turns: int) -> None:
    """Write rows of a matrix [outputs, inputs] as outputs `first` and on; some matrices share the panels in turns."""
    for at in range(len(rows)):
        panel, lane = (first + at) // PANEL * turns + turn, (first + at) % PANEL
        for column in range(rows.shape[1]):
            panels[panel, column, lane] = rows[at, column]


@numba.njit(cache=True, nogil=True)
def pack_blocks(
    rows: Float32s,
    scales: Float32s,
    offsets: Float32s,
    panels: UInt8s,
    heads: Float32s,
    first: int,
    turn: int,
    turns: int,
) -> bool:
    """As `pack_rows`, in blocks: False where scales and offsets [outputs, blocks] do not give the weights to the bit.

    A zero may change its sign, which no product shows. `panels` [panels, bytes] and `heads` [panels, floats] are the
    same memory.
    """
    for at in range(len(rows)):
        panel, lane = (first + at) // PANEL * turns + turn, (first + at) % PANEL
        for block in range(rows.shape[1] // BLOCK):
            scale, offset, begin = np.float64(scales[at, block]), np.float64(offsets[at, block]), block * BLOCK_BYTES
            heads[panel, begin // 4 + lane] = scale
            heads[panel, begin // 4 + PANEL + lane] = offset
            for inside in range(BLOCK):
                weight = rows[at, block * BLOCK + inside]
                code = 0.0 if scale == 0 else np.floor((weight - offset) / scale + 0.5)
                if not (0 <= code <= 255 and np.float32(code * scale + offset) == weight):
                    return False
                panels[panel, begin + _HEAD + inside * PANEL + lane] = np.uint8(code)
    return True
