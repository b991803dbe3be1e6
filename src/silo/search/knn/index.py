"""Token search: the rows nearest to a key, straight from immutable buckets, so that a bucket comes or goes at once.

Nothing is built over the buckets: a search reads their lists where they lie. Lists are read in the order of their
distance to the key, at least `probes` of them and then until enough allowed rows were seen, so that what is not allowed
leaves no trace: the answer is bit for bit that of buckets without those rows. Neither do batch, batch mates or threads
leave one. With as many probes as there are lists the search is exact over the codes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from silo.errors import SiloError
from silo.search.dtypes import Float32s, Int32s, Int64s, UInt8s, UInt32s
from silo.search.knn.codec import Codec
from silo.search.knn.kernel import RowTables, Scratch, compute_terms, lay_out_lists, make_scratch, search_rows

MOST_NEIGHBOURS = 32_768
"""The largest k."""

_QUERIES_PER_THREAD = 4
"""Fewer queries than this take less time than handing them to a thread."""
_THREADS = int(vars(numba.config)["NUMBA_NUM_THREADS"])
_PARTS_PER_THREAD = 4
"""Queries differ in cost: with several parts for each thread none waits long for the last."""
_ROTATED_TOGETHER = 3
"""Rows that the codec rotates at a time."""
_MOST_IDLE = 8
"""Scratch arrays that are kept for the next search."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyRows:
    """The rows of one bucket, sorted by list and place; those of list l are `offsets[l]` to `offsets[l + 1]`."""

    offsets: UInt32s  # [lists + 1]
    codes: UInt8s  # [rows, code bytes]
    places: UInt32s  # [rows], which token of the bucket a row stands for

    def __len__(self) -> int:
        return len(self.places)


class NearestRows(NamedTuple):
    """Rows [keys, k] by distance, then bucket and place; bucket -1 and distance inf where none is left."""

    buckets: Int32s
    places: UInt32s
    distances: Float32s


@dataclass(frozen=True, eq=False)
class SearchTables:
    """What searching needs of a codec, computed once for any number of buckets, when it is first needed."""

    codec: Codec
    _idle: list[tuple[int, Scratch]] = field(default_factory=list, init=False, repr=False)

    @cached_property
    def lists(self) -> tuple[Any, ...]:
        """The fields of `ListTables`."""
        return tuple(lay_out_lists(self.codec.arrays.centroids))

    @cached_property
    def products(self) -> Float32s:
        """The codewords times -2 [code bytes, part, codewords]."""
        return np.ascontiguousarray(-2 * self.codec.arrays.codebooks.transpose(0, 2, 1))

    def take_scratch(self, k: int) -> Scratch:
        """Room for one thread's search, if possible from an earlier one: fresh memory is slow at first."""
        try:
            reserved_k, scratch = self._idle.pop()
        except IndexError:
            reserved_k = 0
        settings = self.codec.settings
        return scratch if reserved_k == k else make_scratch(settings.code_bytes, settings.lists, k)

    def return_scratch(self, k: int, scratch: Scratch) -> None:
        """Keep a thread's room for the next search."""
        if len(self._idle) < _MOST_IDLE:
            self._idle.append((k, scratch))


@dataclass(frozen=True, slots=True, eq=False)
class _Bucket:
    """Checked rows, the part of their distance that no query changes, and how many places they may name."""

    rows: KeyRows
    terms: Float32s
    places: int


class KnnIndex:
    """Searches a list of buckets, which is fixed; `with_buckets` makes the next one when a bucket changes."""

    def __init__(self, codec: Codec | SearchTables, buckets: Sequence[KeyRows]) -> None:
        tables = codec if isinstance(codec, SearchTables) else SearchTables(codec)
        self._set(tables, [_prepare(rows, tables) for rows in buckets])

    def _set(self, tables: SearchTables, buckets: list[_Bucket]) -> None:
        self.tables = tables
        self._buckets = buckets
        self._rows = _row_tables(buckets, tables.codec.settings.lists)
        self._row_arrays = tuple(self._rows)
        self._all = np.zeros(len(buckets), dtype=np.int64)

    def with_buckets(self, buckets: Sequence[KeyRows]) -> KnnIndex:
        """A search over other buckets; those that are the same objects as before cost nothing."""
        prepared = {id(bucket.rows): bucket for bucket in self._buckets}
        fresh = KnnIndex.__new__(KnnIndex)
        fresh._set(self.tables, [prepared.get(id(rows)) or _prepare(rows, self.tables) for rows in buckets])
        return fresh

    def __len__(self) -> int:
        return int(self._rows.rows)

    def search(
        self,
        keys: ArrayLike,
        k: int,
        *,
        probes: int,
        allowed: Sequence[UInt8s | None] | None = None,
        rows_wanted: int = 0,
        list_rows: Int64s | None = None,
        threads: int = 0,
    ) -> NearestRows:
        """The nearest k rows of each key [keys, width] in at least `probes` lists, and in as many more as it takes to
        see `rows_wanted` or k allowed rows.

        `allowed` holds for each bucket None, or a bit for each place: bit p & 7 of byte p >> 3. `list_rows` [lists] is
        for buckets that are a part of others: how many allowed rows each list has in all of them, so that the part
        reads the lists that all would. `threads` is 0 for numba's number of threads.
        """
        _require(1 <= k <= MOST_NEIGHBOURS, f"k is {k}, not 1 to {MOST_NEIGHBOURS:,}")
        _require(probes >= 1, f"probes is {probes}, below 1")
        queries = self._rotated(keys)
        shape = (len(queries), k)
        nearest = NearestRows(np.empty(shape, np.int32), np.empty(shape, np.uint32), np.empty(shape, np.float32))
        bitmaps = self._all if allowed is None else self._bitmaps(allowed)
        wanted = max(rows_wanted, k)
        seen = np.array(
            [] if list_rows is None else list_rows, dtype=np.int64
        )  # copied: a read-only one would be compiled for anew
        lists = self.tables.codec.settings.lists
        _require(len(seen) in (0, lists), f"list_rows has {len(seen)} numbers for {lists} lists")

        def run(part: slice) -> None:
            scratch = self.tables.take_scratch(k)
            search_rows(
                queries[part],
                probes,
                wanted,
                self.tables.lists,
                self.tables.products,
                self._row_arrays,
                bitmaps,
                seen,
                nearest.buckets[part],
                nearest.places[part],
                nearest.distances[part],
                scratch,
            )
            self.tables.return_scratch(k, scratch)

        _run(run, len(queries), threads or _THREADS)
        return nearest

    def count_rows(self, allowed: Sequence[UInt8s | None] | None = None) -> Int64s:
        """How many allowed rows each list has [lists]."""
        counts = np.zeros(self.tables.codec.settings.lists, dtype=np.int64)
        for bucket, bitmap in zip(self._buckets, allowed or [None] * len(self._buckets), strict=True):
            offsets = bucket.rows.offsets.astype(np.int64)
            if bitmap is not None:
                bits = np.unpackbits(bitmap, bitorder="little")[bucket.rows.places]
                offsets = np.concatenate([[0], np.cumsum(bits, dtype=np.int64)])[offsets]
            counts += np.diff(offsets)
        return counts

    def _rotated(self, keys: ArrayLike) -> Float32s:
        """Keys in rotated space, filled up to threes: so they are rotated, and padding them costs the codec time."""
        given = np.asarray(keys)
        missing = -len(given) % _ROTATED_TOGETHER if given.ndim == 2 else 0
        if not missing:
            return self.tables.codec.transform(given)
        return self.tables.codec.transform(np.concatenate([given, *([given[:1]] * missing)]))[: len(given)]

    def _bitmaps(self, allowed: Sequence[UInt8s | None]) -> Int64s:
        _require(len(allowed) == len(self._buckets), f"{len(allowed)} bitmaps for {len(self._buckets)} buckets")
        addresses = self._all.copy()
        for number, (bitmap, bucket) in enumerate(zip(allowed, self._buckets, strict=True)):
            if bitmap is None:
                continue
            if bitmap.dtype != np.uint8 or bitmap.size * 8 < bucket.places or not bitmap.flags.c_contiguous:
                raise ValueError(f"bitmap {number} has no bit for each of {bucket.places:,} places")
            addresses[number] = _address_of(bitmap)
        return addresses


def _address_of(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _run(run: Callable[[slice], None], queries: int, threads: int) -> None:
    """Give each thread parts of the queries; a few queries are not worth a thread."""
    parts = min(threads * _PARTS_PER_THREAD, queries // _QUERIES_PER_THREAD) if threads > 1 else 1
    if parts < 2:
        run(slice(None))
        return
    cuts = [queries * number // parts for number in range(parts + 1)]
    first, *others = map(slice, cuts[:-1], cuts[1:])
    pool = _threads_of(os.getpid(), threads)
    handed = [pool.submit(run, part) for part in others]
    try:
        run(first)
    finally:
        wait(handed)
    for part in handed:
        part.result()


@cache
def _threads_of(process: int, threads: int) -> ThreadPoolExecutor:
    """The threads that search in a process; one that is forked from it has none of them."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"silo-knn-{process}")


def _prepare(rows: KeyRows, tables: SearchTables) -> _Bucket:
    """Check a bucket's arrays against the codec, since the loops trust them, and compute its terms."""
    arrays, settings = tables.codec.arrays, tables.codec.settings
    _require_sound(rows.offsets.shape == (settings.lists + 1,), "offsets do not fit the codec's lists")
    _require_sound(
        rows.codes.shape == (len(rows.places), settings.code_bytes), "codes do not fit the places and the codec"
    )
    _require_sound(rows.places.ndim == 1, "places are not a plain array")
    for array, dtype in ((rows.offsets, np.uint32), (rows.codes, np.uint8), (rows.places, np.uint32)):
        _require_sound(
            array.dtype == dtype and array.flags.c_contiguous, f"an array is not {dtype.__name__} in C order"
        )
    _require_sound(
        int(rows.offsets[0]) == 0 and int(rows.offsets[-1]) == len(rows.places), "offsets do not cover the rows"
    )
    _require_sound(bool((rows.offsets[1:] >= rows.offsets[:-1]).all()), "offsets go back")
    terms = np.empty(len(rows.places), dtype=np.float32)
    compute_terms(rows.offsets, rows.codes, arrays.centroids, arrays.codebooks, terms)
    return _Bucket(rows, terms, int(rows.places.max()) + 1 if len(rows) else 0)


def _row_tables(buckets: list[_Bucket], lists: int) -> RowTables:
    starts = np.zeros((lists + 1, len(buckets)), dtype=np.uint32)
    for number, bucket in enumerate(buckets):
        starts[:, number] = bucket.rows.offsets
    return RowTables(
        starts,
        np.array([_address_of(bucket.rows.codes) for bucket in buckets], dtype=np.int64),
        np.array([_address_of(bucket.terms) for bucket in buckets], dtype=np.int64),
        np.array([_address_of(bucket.rows.places) for bucket in buckets], dtype=np.int64),
        sum(len(bucket.rows) for bucket in buckets),
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _require_sound(holds: bool, message: str) -> None:
    if not holds:
        raise SiloError("store-damaged", f"the rows of a bucket cannot be searched: {message}")
