"""The loops of the token search: distances of the rows of the nearest lists, and the smallest k of them.

A query's result depends on that query and the rows alone. Every sum has one written order and no fused or reassociated
arithmetic; bounds only decide what is looked at, never what is returned. The one entry, `search_rows`, runs without
the interpreter's lock and shares nothing that it writes, so that threads may each take a part of the queries.

A row's distance is |x - c - r|^2 = |x - c|^2 + (|r|^2 + 2 c r) - 2 x r, with x the query, c the centroid of the list
and r the codewords. The bracket is a number per row, its term, known beforehand; the last part needs one table per
query. Rows that do not pass a ceiling go to a pool; when it is full, it is cut to the smallest and the ceiling sinks.
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

from silo.search.knn.lists import ListScratch, ListTables, list_scratch, order_lists, start_lists
from silo.search.knn.quantise import Codes, Floats
from silo.search.knn.smallest import DIGITS, Keys, Numbers, Words, ceiling_of, sort_pairs

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


class Scratch(NamedTuple):
    """All that one thread writes to besides its results; it may be used again, one search after the other."""

    lists: ListScratch
    pool: Pool


def scratch(code_bytes: int, lists: int, k: int) -> Scratch:
    """Room for a search of the nearest k rows."""
    return Scratch(list_scratch(lists), _pool(code_bytes, 2 * k + 2048, lists))


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


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True, inline="always")
def _fetch_rows(codes: int, terms: int, places: int, width: int, first: int, last: int) -> None:
    """Ask for the first rows of a list in a bucket."""
    last = min(last, first + 64)
    if first < last:
        for at in range(first * width, last * width, 64):
            _fetch(codes + at)
        for at in range(first * 4, last * 4, 64):
            _fetch(terms + at)
            _fetch(places + at)


@numba.njit(cache=True, nogil=True, inline="always")
def _pick(places: int, bitmap: int, first: int, last: int, picked: Numbers) -> int:
    """The rows from first to last whose place is allowed; returns how many."""
    count = 0
    for row in range(first, last):
        place = np.int64(_place(places + 4 * row))
        picked[count] = row
        count += int((_byte(bitmap + (place >> 3)) >> np.uint8(place & 7)) & 1)
    return count


@numba.njit(cache=True, nogil=True, inline="always")
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


@numba.njit(cache=True, nogil=True, inline="always")
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


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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
    tables: ListTables,
    products: Floats,
    rows: RowTables,
    bitmaps: Numbers,
    buckets: NDArray[np.int32],
    places: Words,
    distances: Floats,
    work: Scratch,
) -> None:
    """The nearest rows of every query, as many as the outputs [queries, k] have columns; -1 and inf where none is left.

    `products` are the codewords times -2 [code bytes, part, 256]. `bitmaps` holds an address per bucket, 0 where all
    rows are allowed.
    """
    k, pool = buckets.shape[1], work.pool
    for at in range(len(queries)):
        _products(queries[at], products, pool.table)
        found = _search(queries[at], k, probes, wanted, tables, rows, bitmaps, work.lists, pool)
        for rank in range(found):
            buckets[at, rank] = pool.rows[rank] >> 32
            places[at, rank] = pool.rows[rank] & 0xFFFFFFFF
            distances[at, rank] = pool.distances[rank]
        buckets[at, found:] = -1
        places[at, found:] = 0
        distances[at, found:] = np.inf
