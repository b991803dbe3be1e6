"""Token search: what is not allowed leaves no trace, nor do batch, threads or the cut into buckets; sums are right."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.search.dtypes import Float32s, UInt8s
from silo.search.knn.arrays import CodecArrays
from silo.search.knn.codec import Codec, CodecSettings, Encoded
from silo.search.knn.index import KeyRows, KnnIndex, NearestRows, SearchTables
from tests.search.faiss_peer import add_encoded, faiss_index

Bools = NDArray[np.bool_]


def made(
    lists: int,
    width: int,
    code_bytes: int,
    *,
    seed: int = 0,
    spread: float = 1.0,
    detail: float = 0.3,
    repeats: int = 1,
) -> Codec:
    """A codec of random arrays; `repeats` is how often each centroid and codeword occurs."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((width, width)))[0].astype(np.float32)
    centroids = np.tile(rng.standard_normal((-(-lists // repeats), width)) * spread, (repeats, 1))[:lists]
    books = np.tile(rng.standard_normal((code_bytes, 256 // repeats, width // code_bytes)) * detail, (1, repeats, 1))
    mean = rng.standard_normal(width).astype(np.float32)
    arrays = CodecArrays(mean, turn, centroids.astype(np.float32), books.astype(np.float32))
    return Codec(CodecSettings(lists=lists, code_bytes=code_bytes), arrays, samples=0)


CODECS = {
    "plain": made(40, 32, 8),
    "odd": made(130, 66, 11, seed=1),
    "wide": made(300, 128, 16, seed=2),
    "equal": made(24, 16, 8, seed=3, repeats=4),
    "crowded": made(64, 32, 8, seed=4, spread=1e-6, detail=1e-7),
    "usual": made(50, 64, 32, seed=6),
    "single": made(1, 8, 2, seed=5),
}
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())


@dataclass(frozen=True)
class Rows:
    """Rows before they are cut into buckets."""

    lists: NDArray[np.int32]
    codes: UInt8s

    def __len__(self) -> int:
        return len(self.lists)


def drawn(codec: Codec, count: int, *, seed: int = 0, codewords: int = 256) -> Rows:
    """Random rows; few codewords make many equal rows. Some lists stay empty."""
    rng = np.random.default_rng(seed)
    full = rng.random(codec.settings.lists) < 0.8
    full[rng.integers(len(full))] = True
    lists = rng.choice(np.flatnonzero(full), count).astype(np.int32)
    return Rows(lists, rng.integers(0, codewords, (count, codec.settings.code_bytes)).astype(np.uint8))


def bucket(codec: Codec, rows: Rows, keep: Bools, first: int, last: int) -> KeyRows:
    """The kept rows from first to last; a row's place is its number from first on."""
    chosen = first + np.flatnonzero(keep[first:last])
    order = chosen[np.argsort(rows.lists[chosen], kind="stable")]
    offsets = np.searchsorted(rows.lists[order], np.arange(codec.settings.lists + 1)).astype(np.uint32)
    return KeyRows(offsets, rows.codes[order], (order - first).astype(np.uint32))


def buckets(codec: Codec, rows: Rows, cuts: Sequence[int], keep: Bools | None = None) -> list[KeyRows]:
    kept = np.ones(len(rows), dtype=bool) if keep is None else keep
    edges = [0, *sorted(cuts), len(rows)]
    return [bucket(codec, rows, kept, first, last) for first, last in pairwise(edges)]


def bitmaps(keep: Bools, cuts: Sequence[int]) -> list[UInt8s]:
    return [np.packbits(part, bitorder="little") for part in np.split(keep, sorted(cuts))]


def queries(codec: Codec, count: int, *, seed: int = 0) -> Float32s:
    rng = np.random.default_rng(seed)
    near = codec.arrays.centroids[rng.integers(codec.settings.lists, size=count)] @ codec.arrays.matrix
    noise = rng.standard_normal((count, codec.width)) * codec.arrays.centroids.std() * 0.5
    keys: Float32s = (near + codec.arrays.mean + noise).astype(np.float32)
    return keys


def same(left: NearestRows, right: NearestRows) -> bool:
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in ("buckets", "places", "distances"))


def numbers(found: NearestRows, cuts: Sequence[int]) -> NDArray[np.int64]:
    """Row numbers before the cut into buckets, -1 for none."""
    firsts = np.array([0, *sorted(cuts)])
    return np.where(found.buckets < 0, -1, firsts[found.buckets] + found.places.astype(np.int64))


def true_distances(codec: Codec, rows: Rows, keys: Float32s) -> NDArray[np.float64]:
    """[keys, rows] in double precision."""
    parts = codec.arrays.codebooks[np.arange(codec.settings.code_bytes), rows.codes].reshape(len(rows), -1)
    points = codec.arrays.centroids[rows.lists].astype(np.float64) + parts
    rotated = codec.transform(keys).astype(np.float64)
    distances: NDArray[np.float64] = np.square(rotated[:, None] - points[None]).sum(axis=2)
    return distances


def probed(codec: Codec, rows: Rows, key: Float32s, probes: int, wanted: int) -> NDArray[np.int64]:
    """The rows of the lists that the rule says are read, by plain arithmetic."""
    gaps = codec.transform(key[None]).astype(np.float64) - codec.arrays.centroids
    read = np.zeros(codec.settings.lists, dtype=bool)
    for number, nearest in enumerate(np.argsort(np.square(gaps).sum(axis=1), kind="stable")):
        if number >= probes and read[rows.lists].sum() >= wanted:
            break
        read[nearest] = True
    return np.flatnonzero(read[rows.lists])


# The answer is right


@pytest.mark.parametrize("name", ["plain", "odd", "wide", "single"])
@pytest.mark.parametrize(("probes", "rows_wanted"), [(1, 0), (3, 0), (3, 700), (1000, 0)])
def test_rows_and_distances_are_those_of_plain_arithmetic(name: str, probes: int, rows_wanted: int) -> None:
    codec = CODECS[name]
    rows, keys, cuts, k = drawn(codec, 3000), queries(codec, 20), [500, 1100], 50
    found = KnnIndex(codec, buckets(codec, rows, cuts)).search(keys, k, probes=probes, rows_wanted=rows_wanted)
    truth, places = true_distances(codec, rows, keys), numbers(found, cuts)
    for at, key in enumerate(keys):
        candidates = probed(codec, rows, key, probes, max(k, rows_wanted))
        best = np.sort(truth[at, candidates])[:k]
        np.testing.assert_allclose(found.distances[at], best, rtol=1e-5)
        np.testing.assert_allclose(truth[at, places[at]], best, rtol=1e-5)
        assert len(set(places[at])) == k
        assert np.isin(places[at], candidates).all()


@every_codec
def test_results_are_sorted_by_distance_bucket_and_place(codec: Codec) -> None:
    rows, cuts = drawn(codec, 4000, codewords=2), [1000, 1000, 2500]
    found = KnnIndex(codec, buckets(codec, rows, cuts)).search(queries(codec, 9), 700, probes=5)
    places = numbers(found, cuts)
    for at in range(len(places)):
        assert np.array_equal(np.lexsort((places[at], found.distances[at])), np.arange(700))


@every_codec
@pytest.mark.parametrize("k", [1, 10, 2000])
def test_of_equal_rows_those_of_the_first_buckets_and_places_stay(codec: Codec, k: int) -> None:
    """More equal rows than the search holds at a time, from several lists."""
    rows, cuts = drawn(codec, 30_000, codewords=1), [10, 9000, 20_000]
    keys = queries(codec, 3)
    found = KnnIndex(codec, buckets(codec, rows, cuts)).search(keys, k, probes=codec.settings.lists)
    whole = KnnIndex(codec, buckets(codec, rows, [])).search(keys, 30_000, probes=codec.settings.lists)
    assert np.array_equal(numbers(found, cuts), numbers(whole, [])[:, :k])
    for distances, places in zip(whole.distances, whole.places.astype(np.int64), strict=True):
        assert np.array_equal(np.lexsort((places, distances)), np.arange(30_000))


def test_the_largest_k_and_more_rows_than_the_pool() -> None:
    codec = CODECS["plain"]
    rows = drawn(codec, 150_000)
    found = KnnIndex(codec, buckets(codec, rows, [70_000])).search(queries(codec, 1), 32_768, probes=40)
    best = np.sort(true_distances(codec, rows, queries(codec, 1))[0])[:32_768]
    np.testing.assert_allclose(found.distances[0], best, rtol=1e-5)
    assert len(np.unique(numbers(found, [70_000])[0])) == 32_768


@every_codec
def test_missing_neighbours_are_marked(codec: Codec) -> None:
    rows = drawn(codec, 5)
    found = KnnIndex(codec, buckets(codec, rows, [0, 2, 5])).search(queries(codec, 4), 8, probes=1)
    assert (found.buckets[:, 5:] == -1).all()
    assert np.isinf(found.distances[:, 5:]).all()
    assert np.array_equal(np.sort(numbers(found, [0, 2, 5])[:, :5], axis=1), np.tile(np.arange(5), (4, 1)))
    nothing = KnnIndex(codec, []).search(queries(codec, 2), 3, probes=2)
    assert (nothing.buckets == -1).all()
    assert KnnIndex(codec, []).search(queries(codec, 0), 3, probes=2).places.shape == (0, 3)


def test_faiss_finds_the_same_rows() -> None:
    codec = CODECS["wide"]
    rows, keys = drawn(codec, 20_000), queries(codec, 50)
    index = faiss_index(codec)
    add_encoded(index, Encoded(rows.lists, rows.codes), np.arange(len(rows), dtype=np.int64))
    faiss.extract_index_ivf(index).nprobe = 12
    distances, places = index.search(keys, 200)
    found = KnnIndex(codec, buckets(codec, rows, [4000])).search(keys, 200, probes=12)
    np.testing.assert_allclose(found.distances, distances, rtol=1e-4)
    agreeing = [np.isin(mine, theirs).mean() for mine, theirs in zip(numbers(found, [4000]), places, strict=True)]
    assert np.mean(agreeing) > 0.999


# What is not allowed leaves no trace


@settings(max_examples=200)
@given(
    name=st.sampled_from(sorted(CODECS)),
    count=st.integers(1, 1500),
    share=st.sampled_from([0.0, 0.02, 0.5, 0.9, 1.0]),
    cuts=st.lists(st.integers(0, 1500), max_size=5),
    k=st.integers(1, 400),
    probes=st.integers(1, 70),
    rows_wanted=st.integers(0, 600),
    codewords=st.sampled_from([1, 3, 256]),
    seed=st.integers(0, 1 << 20),
)
def test_a_bitmap_equals_buckets_without_the_other_rows(
    name: str,
    count: int,
    share: float,
    cuts: list[int],
    k: int,
    probes: int,
    rows_wanted: int,
    codewords: int,
    seed: int,
) -> None:
    codec = CODECS[name]
    rows, keys = drawn(codec, count, seed=seed, codewords=codewords), queries(codec, 4, seed=seed)
    keep = np.random.default_rng(seed).random(count) < share
    cuts = [min(cut, count) for cut in cuts]
    whole = KnnIndex(codec, buckets(codec, rows, cuts))
    masked = whole.search(keys, k, probes=probes, rows_wanted=rows_wanted, allowed=bitmaps(keep, cuts))
    without = whole.with_buckets(buckets(codec, rows, cuts, keep))
    assert same(masked, without.search(keys, k, probes=probes, rows_wanted=rows_wanted))
    assert keep[numbers(masked, cuts)[masked.buckets >= 0]].all()
    together = whole.with_buckets(buckets(codec, rows, [], keep))
    one = together.search(keys, k, probes=probes, rows_wanted=rows_wanted)
    assert np.array_equal(one.distances, masked.distances)
    assert np.array_equal(numbers(one, []), numbers(masked, cuts))


def test_probing_goes_on_until_enough_allowed_rows_were_seen() -> None:
    codec = CODECS["wide"]
    rows, keys = drawn(codec, 6000), queries(codec, 10)
    keep = np.random.default_rng(1).random(6000) < 0.05
    found = KnnIndex(codec, buckets(codec, rows, [3000])).search(keys, 100, probes=1, allowed=bitmaps(keep, [3000]))
    assert (found.buckets >= 0).all()


def test_a_bitmap_for_some_buckets_only() -> None:
    codec = CODECS["plain"]
    rows, keys, cuts = drawn(codec, 900), queries(codec, 5), [300, 600]
    keep = np.ones(900, dtype=bool)
    keep[300:600:2] = False
    search = KnnIndex(codec, buckets(codec, rows, cuts))
    some = search.search(keys, 40, probes=4, allowed=[None, bitmaps(keep, cuts)[1], None])
    assert same(some, search.search(keys, 40, probes=4, allowed=bitmaps(keep, cuts)))


# A query's result depends on that query alone


@every_codec
def test_batch_order_mates_and_threads_change_nothing(codec: Codec) -> None:
    rows, keys = drawn(codec, 3000, codewords=5), queries(codec, 101)
    search = KnnIndex(codec, buckets(codec, rows, [1000, 1800]))
    whole = search.search(keys, 60, probes=4, threads=1)
    order = np.random.default_rng(0).permutation(len(keys))
    shuffled = search.search(keys[order], 60, probes=4, threads=3)
    assert same(shuffled, NearestRows(whole.buckets[order], whole.places[order], whole.distances[order]))
    for size in (1, 2, 3, 7, 50):
        parts = [search.search(keys[at : at + size], 60, probes=4) for at in range(0, len(keys), size)]
        assert np.array_equal(np.concatenate([part.places for part in parts]), whole.places)
        assert np.array_equal(np.concatenate([part.distances for part in parts]), whole.distances)


def test_one_search_serves_many_threads() -> None:
    codec = CODECS["wide"]
    search = KnnIndex(codec, buckets(codec, drawn(codec, 5000), [2000]))
    keys = queries(codec, 64)
    whole = search.search(keys, 100, probes=6)
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda key: search.search(key[None], 100, probes=6), keys))
    assert np.array_equal(np.concatenate([part.distances for part in parts]), whole.distances)
    assert np.array_equal(np.concatenate([part.places for part in parts]), whole.places)


def test_a_small_k_after_a_large_one() -> None:
    codec = CODECS["plain"]
    search = KnnIndex(codec, buckets(codec, drawn(codec, 9000), []))
    first = search.search(queries(codec, 3), 20, probes=9)
    search.search(queries(codec, 3), 5000, probes=9)
    assert same(search.search(queries(codec, 3), 20, probes=9), first)


# Buckets come and go


def test_a_bucket_added_or_taken_away_gives_a_fresh_search() -> None:
    codec = CODECS["odd"]
    rows, keys = drawn(codec, 2000), queries(codec, 6)
    parts = buckets(codec, rows, [400, 900, 1500])
    search = KnnIndex(codec, parts[:3])
    for some in (parts, parts[1:3], parts[::-1], []):
        search = search.with_buckets(some)
        fresh = KnnIndex(SearchTables(codec), some)
        assert same(search.search(keys, 30, probes=3), fresh.search(keys, 30, probes=3))
        assert len(search) == sum(map(len, some))


def test_arrays_may_be_read_only_and_lie_at_any_address() -> None:
    codec = CODECS["plain"]
    rows = buckets(codec, drawn(codec, 800), [])[0]
    memory = np.zeros(rows.codes.size + 3, dtype=np.uint8)
    memory[3:] = rows.codes.ravel()
    memory.setflags(write=False)
    moved = KeyRows(rows.offsets, memory[3:].reshape(rows.codes.shape), rows.places)
    keys = queries(codec, 5)
    assert same(KnnIndex(codec, [moved]).search(keys, 20, probes=3), KnnIndex(codec, [rows]).search(keys, 20, probes=3))


# Wrong input is refused


def test_rows_that_do_not_fit_the_codec_are_refused() -> None:
    codec = CODECS["plain"]
    good = buckets(codec, drawn(codec, 50), [])[0]
    back = good.offsets.copy()
    back[3] = 60
    wrong = [
        KeyRows(good.offsets[:-1], good.codes, good.places),
        KeyRows(back, good.codes, good.places),
        KeyRows(good.offsets + np.uint32(1), good.codes, good.places),
        KeyRows(good.offsets, good.codes[:-1], good.places),
        KeyRows(good.offsets, good.codes[:, :4], good.places),
        KeyRows(good.offsets, good.codes, good.places.astype(np.int64)),
        KeyRows(good.offsets, np.asfortranarray(good.codes), good.places),
    ]
    for rows in wrong:
        with pytest.raises(SiloError) as caught:
            KnnIndex(codec, [rows])
        assert caught.value.code == "store-damaged"


@pytest.mark.parametrize(
    ("k", "probes", "allowed"),
    [(0, 1, None), (40_000, 1, None), (1, 0, None), (1, 1, []), (1, 1, [np.zeros(3, np.uint8)])],
)
def test_senseless_questions_are_refused(k: int, probes: int, allowed: list[UInt8s | None] | None) -> None:
    codec = CODECS["plain"]
    search = KnnIndex(codec, buckets(codec, drawn(codec, 50), []))
    with pytest.raises(ValueError, match=r"k is|probes is|bitmap"):
        search.search(queries(codec, 1), k, probes=probes, allowed=allowed)


def test_keys_of_another_width_are_refused() -> None:
    codec = CODECS["plain"]
    for keys in (np.zeros((1, 31), np.float32), np.zeros(32, np.float32), np.full((1, 32), np.nan, np.float32)):
        with pytest.raises(SiloError):
            KnnIndex(codec, []).search(keys, 1, probes=1)
