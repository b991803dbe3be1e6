"""Token search: the rows nearest to a key, straight from immutable buckets, so that a bucket comes or goes at once.

Nothing is built over the buckets: a search reads their lists where they lie. Lists are read in the order of their
distance to the key, at least `probes` of them and then until enough allowed rows were seen, so that what is not allowed
leaves no trace: the answer is bit for bit that of buckets without those rows. Neither do batch, batch mates or threads
leave one. With as many probes as there are lists the search is exact over the codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from silo.errors import SiloError
from silo.search.knn.codec import Codec
from silo.search.knn.kernel import (
    Numbers,
    RowTables,
    Scratch,
    Words,
    list_tables,
    row_terms,
    scratch,
    search_rows,
)
from silo.search.knn.quantise import Codes, Floats

MOST_NEIGHBOURS = 32_768
"""The largest k."""

_QUERIES_PER_THREAD = 8
_THREADS = int(vars(numba.config)["NUMBA_NUM_THREADS"])
_IDLE = 8


@dataclass(frozen=True, slots=True, eq=False)
class KeyRows:
    """The rows of one bucket, sorted by list and place; those of list l are `offsets[l]` to `offsets[l + 1]`."""

    offsets: Words  # [lists + 1]
    codes: Codes  # [rows, code bytes]
    places: Words  # [rows], which token of the bucket a row stands for

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Neighbours [keys, k] by distance, bucket and place; bucket -1 and distance inf where none is left."""

    buckets: NDArray[np.int32]
    places: Words
    distances: Floats


@dataclass(frozen=True, slots=True, eq=False)
class SearchTables:
    """What searching needs of a codec, computed once for any number of buckets."""

    codec: Codec
    lists: tuple[Any, ...]
    products: Floats
    _idle: list[tuple[int, Scratch]] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, codec: Codec) -> Self:
        products = np.ascontiguousarray(-2 * codec.arrays.codebooks.transpose(0, 2, 1))
        return cls(codec, tuple(list_tables(codec.arrays.centroids)), products)

    def scratch(self, k: int) -> Scratch:
        """Room for one thread's search, if possible from an earlier one: fresh memory is slow at first."""
        try:
            made_for, work = self._idle.pop()
        except IndexError:
            made_for = 0
        settings = self.codec.settings
        return work if made_for == k else scratch(settings.code_bytes, settings.lists, k)

    def give_back(self, k: int, work: Scratch) -> None:
        """Keep a thread's room for the next search."""
        if len(self._idle) < _IDLE:
            self._idle.append((k, work))


@dataclass(frozen=True, slots=True, eq=False)
class _Bucket:
    """Checked rows, the part of their distance that no query changes, and how many places they may name."""

    rows: KeyRows
    terms: Floats
    places: int


class RowSearch:
    """Searches a list of buckets, which is fixed; `with_buckets` makes the next one when a bucket changes."""

    def __init__(self, codec: Codec | SearchTables, buckets: Sequence[KeyRows]) -> None:
        tables = codec if isinstance(codec, SearchTables) else SearchTables.of(codec)
        self._set(tables, [_prepared(rows, tables) for rows in buckets])

    def _set(self, tables: SearchTables, buckets: list[_Bucket]) -> None:
        self.tables = tables
        self._buckets = buckets
        self._rows = _row_tables(buckets, tables.codec.settings.lists)
        self._row_arrays = tuple(self._rows)
        self._all = np.zeros(len(buckets), dtype=np.int64)

    def with_buckets(self, buckets: Sequence[KeyRows]) -> RowSearch:
        """A search over other buckets; those that are the same objects as before cost nothing."""
        known = {id(bucket.rows): bucket for bucket in self._buckets}
        fresh = RowSearch.__new__(RowSearch)
        fresh._set(self.tables, [known.get(id(rows)) or _prepared(rows, self.tables) for rows in buckets])
        return fresh

    def __len__(self) -> int:
        return int(self._rows.rows)

    def search(
        self,
        keys: ArrayLike,
        k: int,
        *,
        probes: int,
        allowed: Sequence[Codes | None] | None = None,
        rows_wanted: int = 0,
        threads: int = 0,
    ) -> Found:
        """The nearest k rows of each key [keys, width] in at least `probes` lists, and in as many more as it takes to
        see `rows_wanted` or k allowed rows.

        `allowed` holds for each bucket None, or a bit for each place: bit p & 7 of byte p >> 3. `threads` is 0 for
        numba's number of threads.
        """
        _require(1 <= k <= MOST_NEIGHBOURS, f"k is {k}, not 1 to {MOST_NEIGHBOURS:,}")
        _require(probes >= 1, f"probes is {probes}, below 1")
        queries = self._rotated(keys)
        shape = (len(queries), k)
        found = Found(np.empty(shape, np.int32), np.empty(shape, np.uint32), np.empty(shape, np.float32))
        bitmaps = self._all if allowed is None else self._bitmaps(allowed)
        wanted = max(rows_wanted, k)

        def run(part: slice) -> None:
            work = self.tables.scratch(k)
            search_rows(
                queries[part],
                probes,
                wanted,
                self.tables.lists,
                self.tables.products,
                self._row_arrays,
                bitmaps,
                found.buckets[part],
                found.places[part],
                found.distances[part],
                work,
            )
            self.tables.give_back(k, work)

        _run(run, len(queries), threads or _THREADS)
        return found

    def _rotated(self, keys: ArrayLike) -> Floats:
        """Keys in rotated space, filled up to threes: so they are rotated, and padding them costs the codec time."""
        given = np.asarray(keys)
        missing = -len(given) % 3 if given.ndim == 2 else 0
        if not missing:
            return self.tables.codec.transform(given)
        return self.tables.codec.transform(np.concatenate([given, *([given[:1]] * missing)]))[: len(given)]

    def _bitmaps(self, allowed: Sequence[Codes | None]) -> Numbers:
        _require(len(allowed) == len(self._buckets), f"{len(allowed)} bitmaps for {len(self._buckets)} buckets")
        addresses = self._all.copy()
        for number, (bitmap, bucket) in enumerate(zip(allowed, self._buckets, strict=True)):
            if bitmap is None:
                continue
            if bitmap.dtype != np.uint8 or bitmap.size * 8 < bucket.places or not bitmap.flags.c_contiguous:
                raise SiloError("recipe-value", f"bitmap {number} has no bit for each of {bucket.places:,} places")
            addresses[number] = _address(bitmap)
        return addresses


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _run(run: Callable[[slice], None], queries: int, threads: int) -> None:
    """Give each thread parts of the queries; a few queries are not worth a thread."""
    parts = min(threads * 4, queries // _QUERIES_PER_THREAD) if threads > 1 else 1
    if parts < 2:
        run(slice(None))
        return
    cuts = [queries * number // parts for number in range(parts + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, map(slice, cuts[:-1], cuts[1:])))


def _prepared(rows: KeyRows, tables: SearchTables) -> _Bucket:
    """Check a bucket's arrays against the codec, since the loops trust them, and compute its terms."""
    arrays, settings = tables.codec.arrays, tables.codec.settings
    _sound(rows.offsets.shape == (settings.lists + 1,), "offsets do not fit the codec's lists")
    _sound(rows.codes.shape == (len(rows.places), settings.code_bytes), "codes do not fit the places and the codec")
    _sound(rows.places.ndim == 1, "places are not a plain array")
    for array, dtype in ((rows.offsets, np.uint32), (rows.codes, np.uint8), (rows.places, np.uint32)):
        _sound(array.dtype == dtype and array.flags.c_contiguous, f"an array is not {dtype.__name__} in C order")
    _sound(int(rows.offsets[0]) == 0 and int(rows.offsets[-1]) == len(rows.places), "offsets do not cover the rows")
    _sound(bool((rows.offsets[1:] >= rows.offsets[:-1]).all()), "offsets go back")
    terms = np.empty(len(rows.places), dtype=np.float32)
    row_terms(rows.offsets, rows.codes, arrays.centroids, arrays.codebooks, terms)
    return _Bucket(rows, terms, int(rows.places.max()) + 1 if len(rows) else 0)


def _row_tables(buckets: list[_Bucket], lists: int) -> RowTables:
    starts = np.zeros((lists + 1, len(buckets)), dtype=np.uint32)
    for number, bucket in enumerate(buckets):
        starts[:, number] = bucket.rows.offsets
    return RowTables(
        starts,
        np.array([_address(bucket.rows.codes) for bucket in buckets], dtype=np.int64),
        np.array([_address(bucket.terms) for bucket in buckets], dtype=np.int64),
        np.array([_address(bucket.rows.places) for bucket in buckets], dtype=np.int64),
        sum(len(bucket.rows) for bucket in buckets),
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise SiloError("recipe-value", message)


def _sound(holds: bool, message: str) -> None:
    if not holds:
        raise SiloError("store-damaged", f"the rows of a bucket cannot be searched: {message}")
