"""The codec: codes depend on the row alone, learning repeats, damage is noticed, faiss agrees with plain arithmetic."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.search.dtypes import Float32s
from silo.search.knn.arrays import CodecArrays
from silo.search.knn.codec import Codec, CodecSettings, Encoded, fit
from tests.search.faiss_peer import add_encoded, faiss_index

SMALL = CodecSettings(lists=48, code_bytes=8, iterations=4)
WIDTH = 32


def clustered(rows: int, width: int = WIDTH, *, seed: int = 0) -> Float32s:
    """A mixture of stretched Gaussians away from the origin; the mixture is the same for every seed."""
    shape = np.random.default_rng(99)
    middles = shape.standard_normal((40, width)) * 3 + 1
    spread = shape.standard_normal((width, width)) * np.arange(1, width + 1) ** -0.7
    rng = np.random.default_rng(seed)
    keys = middles[rng.integers(0, 40, rows)] + rng.standard_normal((rows, width)) @ spread
    return keys.astype(np.float32)


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.learn(clustered(4000), SMALL)


@pytest.fixture(scope="module")
def crowded() -> Codec:
    """Lists and codewords so close together that nearly every choice is a near tie."""
    rng = np.random.default_rng(5)
    lists, width, count = 300, 64, 16
    turn = np.linalg.qr(rng.standard_normal((width, width)))[0].astype(np.float32)
    centroids = 1 + 1e-6 * rng.standard_normal((lists, width))
    centroids[lists // 2 :] = centroids[: lists - lists // 2]
    books = (1e-7 * rng.standard_normal((count, 256, width // count))).astype(np.float32)
    arrays = CodecArrays(np.ones(width, np.float32), turn, centroids.astype(np.float32), books)
    return Codec(CodecSettings(lists=lists, code_bytes=count), arrays, samples=0)


def same(left: Encoded, right: Encoded) -> bool:
    return np.array_equal(left.lists, right.lists) and np.array_equal(left.codes, right.codes)


def joined(parts: list[Encoded]) -> Encoded:
    return Encoded(np.concatenate([part.lists for part in parts]), np.concatenate([part.codes for part in parts]))


def picked(encoded: Encoded, rows: NDArray[np.int64]) -> Encoded:
    return Encoded(encoded.lists[rows], encoded.codes[rows])


def error_of(codec: Codec, keys: Float32s) -> float:
    return float(np.square(codec.decode(codec.encode(keys)) - keys).sum() / np.square(keys - keys.mean(0)).sum())


# A row's code depends on that row alone


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 500), max_size=8), seed=st.integers(0, 1000))
def test_any_split_gives_the_same_codes(codec: Codec, crowded: Codec, cuts: list[int], seed: int) -> None:
    for quantiser in (codec, crowded):
        keys = clustered(500, quantiser.width, seed=seed)
        whole = quantiser.encode(keys)
        parts = [quantiser.encode(part) for part in np.split(keys, sorted(cuts))]
        assert same(joined(parts), whole)


@pytest.mark.parametrize("name", ["codec", "crowded"])
def test_each_row_alone_in_any_order_and_among_any_mates(name: str, request: pytest.FixtureRequest) -> None:
    quantiser: Codec = request.getfixturevalue(name)
    rng = np.random.default_rng(1)
    keys = clustered(1000, quantiser.width, seed=3)
    whole = quantiser.encode(keys)
    assert same(joined([quantiser.encode(keys[row : row + 1]) for row in range(len(keys))]), whole)
    for _ in range(5):
        order = rng.permutation(len(keys))
        assert same(quantiser.encode(keys[order]), picked(whole, order))
        mates = np.concatenate([clustered(int(rng.integers(1, 500)), quantiser.width, seed=8), keys])
        assert same(picked(quantiser.encode(mates), np.arange(len(mates) - len(keys), len(mates))), whole)
    assert np.array_equal(quantiser.transform(keys)[7:8], quantiser.transform(keys[7:8]))


def test_threads_change_nothing(crowded: Codec) -> None:
    keys = clustered(4000, crowded.width, seed=4)
    whole = crowded.encode(keys)
    with ThreadPoolExecutor(2) as pool:
        assert same(joined(list(pool.map(crowded.encode, np.array_split(keys, 37)))), whole)


_ENCODE = """
import hashlib, sys
from pathlib import Path
from silo.search.knn.codec import Codec
from tests.search.test_codec import clustered
encoded = Codec.open(Path(sys.argv[1])).encode(clustered(3000, 64, seed=6))
print(hashlib.sha256(encoded.lists.tobytes() + encoded.codes.tobytes()).hexdigest())
"""
_LEARN = """
from silo.search.knn.codec import Codec
from tests.search.test_codec import SMALL, clustered
print(Codec.learn(clustered(4000), SMALL).fingerprint)
"""


_IMPORTS = """
import sys
from pathlib import Path
import numpy as np
from silo.search.knn.codec import Codec
codec = Codec.open(Path(sys.argv[1]))
assert not {"numba", "faiss"} & set(sys.modules), "opening"
from silo.search.knn.index import KeyRows, KnnIndex
key = np.zeros((1, codec.width), dtype=np.float32)
lists, codes = codec.quantise(key)
offsets = (np.arange(codec.settings.lists + 1) > lists[0]).astype(np.uint32)
nearest = KnnIndex(codec, [KeyRows(offsets, codes, np.zeros(1, dtype=np.uint32))]).search(key, 1, probes=1)
assert nearest.buckets.tolist() == [[0]]
assert "faiss" not in sys.modules, "searching"
print("fine")
"""


def run(script: str, *arguments: str, threads: int) -> str:
    from_root = Path(__file__).parent.parent.parent
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(from_root), **dict.fromkeys(names, str(threads))}
    command = [sys.executable, "-c", script, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=from_root)
    return result.stdout.strip()


def test_opening_a_codec_imports_no_numba_and_searching_no_faiss(codec: Codec, tmp_path: Path) -> None:
    codec.save(tmp_path / "codec")
    assert run(_IMPORTS, str(tmp_path / "codec"), threads=1) == "fine"


def test_threads_of_the_matrix_library_change_nothing(crowded: Codec, tmp_path: Path) -> None:
    crowded.save(tmp_path / "codec")
    path = str(tmp_path / "codec")
    assert run(_ENCODE, path, threads=1) == run(_ENCODE, path, threads=2)


def test_lists_and_codes_are_the_nearest(codec: Codec) -> None:
    keys = clustered(500, seed=2)
    encoded = codec.encode(keys)
    rows = codec.transform(keys)
    exact = np.square(rows[:, None].astype(np.float64) - codec.arrays.centroids).sum(axis=2)
    assert np.array_equal(encoded.lists, exact.argmin(axis=1))
    residuals = (rows - codec.arrays.centroids[encoded.lists]).reshape(len(keys), SMALL.code_bytes, 1, -1)
    errors = np.square(residuals.astype(np.float64) - codec.arrays.codebooks).sum(axis=3)
    chosen = np.take_along_axis(errors, encoded.codes[:, :, None].astype(np.int64), axis=2)[:, :, 0]
    assert np.all(chosen <= errors.min(axis=2) * (1 + 1e-4) + 1e-6)


def test_the_first_of_equal_lists_is_taken(crowded: Codec) -> None:
    assert crowded.encode(clustered(500, crowded.width)).lists.max() < crowded.settings.lists // 2


@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1.0, 1e6, 1e12])
def test_scale_does_not_lose_the_nearest_list(scale: float) -> None:
    codec = Codec.learn(clustered(1500) * np.float32(scale), replace(SMALL, lists=20))
    keys = clustered(200, seed=1) * np.float32(scale)
    exact = np.square(codec.transform(keys)[:, None].astype(np.float64) - codec.arrays.centroids).sum(axis=2)
    assert np.array_equal(codec.encode(keys).lists, exact.argmin(axis=1))


# Learning


@pytest.mark.parametrize("rotation", ["none", "pca", "opq"])
def test_learning_twice_gives_the_same_bits(rotation: str) -> None:
    chosen = CodecSettings(rotation, lists=30, code_bytes=8, iterations=3)  # type: ignore[arg-type]
    keys = clustered(2000)
    assert Codec.learn(keys, chosen).fingerprint == Codec.learn(keys, chosen).fingerprint


def test_learning_in_another_process_gives_the_same_bits() -> None:
    assert run(_LEARN, threads=1) == run(_LEARN, threads=1)


def test_learning_gives_back_the_number_of_threads() -> None:
    before = faiss.omp_get_max_threads()
    Codec.learn(clustered(300), SMALL)
    assert faiss.omp_get_max_threads() == before


def test_progress_ends_where_it_should() -> None:
    calls: list[tuple[str, int, int]] = []
    Codec.learn(clustered(2000), SMALL, advance=lambda *call: calls.append(call))
    last = {stage: (done, total) for stage, done, total in calls}
    assert list(last) == ["lists", "rotation", "codebooks"]
    assert all(done == total for done, total in last.values())


def test_more_bytes_lose_less_and_learned_codebooks_beat_random_ones() -> None:
    keys, unseen = clustered(4000), clustered(1000, seed=1)
    codecs = [Codec.learn(keys, replace(SMALL, code_bytes=count)) for count in (2, 4, 8, 16)]
    errors = [error_of(codec, unseen) for codec in codecs]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 2
    learned = codecs[2].arrays
    rng = np.random.default_rng(0)
    books = rng.normal(scale=learned.codebooks.std(), size=learned.codebooks.shape).astype(np.float32)
    random = Codec(codecs[2].settings, replace(learned, codebooks=books), samples=0)
    assert errors[2] < 0.8 * error_of(random, unseen)


def test_rotation_helps_and_keeps_distances() -> None:
    keys, unseen = clustered(4000), clustered(1000, seed=1)
    codecs = {name: Codec.learn(keys, replace(SMALL, rotation=name)) for name in ("none", "pca", "opq")}
    errors = {name: error_of(codec, unseen) for name, codec in codecs.items()}
    assert errors["pca"] < errors["none"]
    assert errors["opq"] < errors["none"]
    for codec in codecs.values():
        before = np.linalg.norm(unseen[:-1] - unseen[1:], axis=1)
        after = np.linalg.norm(np.diff(codec.transform(unseen), axis=0), axis=1)
        np.testing.assert_allclose(after, before, rtol=1e-4)


@pytest.mark.parametrize("rotation", ["none", "pca", "opq"])
def test_width_that_does_not_divide_is_padded(rotation: str) -> None:
    chosen = CodecSettings(rotation, lists=20, code_bytes=8, iterations=3)  # type: ignore[arg-type]
    keys = clustered(2000, 27)
    codec = Codec.learn(keys, chosen)
    assert (codec.width, codec.rotated_width) == (27, 32)
    assert codec.decode(codec.encode(keys)).shape == keys.shape
    assert error_of(codec, keys) < 0.3


def test_dimensions_can_be_reduced() -> None:
    keys = clustered(3000) + np.float32(50)
    codec = Codec.learn(keys, replace(SMALL, dimensions=16))
    assert codec.rotated_width == 16
    dropped = np.linalg.svd(keys - keys.mean(0), compute_uv=False)[16:]
    share = float(np.square(dropped).sum() / np.square(keys - keys.mean(0)).sum())
    assert share < error_of(codec, keys) < share + 0.1


def test_few_samples_lower_the_lists_and_say_so() -> None:
    codec = Codec.learn(clustered(400), SMALL)
    assert codec.settings.lists == 10 == len(codec.arrays.centroids)
    assert "lowered from 48 to 10" in codec.note
    assert fit(SMALL, 48 * 39).note == ""
    assert fit(SMALL, 48 * 39 - 1).settings.lists == 47


def test_identical_samples_can_be_learned() -> None:
    codec = Codec.learn(np.ones((300, 16), dtype=np.float32), SMALL)
    np.testing.assert_allclose(codec.decode(codec.encode(np.ones((2, 16)))), 1, atol=1e-3)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(SiloError, match="256 sample keys"):
        Codec.learn(clustered(255), SMALL)


@pytest.mark.parametrize(
    "wrong",
    [{"rotation": "svd"}, {"rotation": "none", "dimensions": 4}, {"dimensions": -1}, {"lists": 0}, {"code_bytes": 0}],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SiloError, match="recipe-value"):
        CodecSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"dimensions": 33}, {"code_bytes": 33}, {"dimensions": 4}])
def test_settings_that_do_not_fit_the_keys_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SiloError, match="recipe-value"):
        Codec.learn(clustered(300), replace(SMALL, **wrong))  # type: ignore[arg-type]


# Keys that cannot be


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_values_that_are_no_numbers_are_refused(codec: Codec, value: float) -> None:
    keys = clustered(300)
    keys[211, 5] = value
    for use in (codec.encode, codec.transform, lambda keys: Codec.learn(keys, SMALL)):
        with pytest.raises(SiloError, match="far too large"):
            use(keys)


@pytest.mark.parametrize("shape", [(3, WIDTH + 1), (3, WIDTH - 1), (WIDTH,), (2, 3, WIDTH), (0, 7)])
def test_keys_of_another_shape_are_refused(codec: Codec, shape: tuple[int, ...]) -> None:
    with pytest.raises(SiloError, match="shape"):
        codec.encode(np.zeros(shape, dtype=np.float32))


def test_no_rows_are_fine(codec: Codec) -> None:
    none = codec.encode(np.empty((0, WIDTH), dtype=np.float32))
    assert (none.lists.shape, none.codes.shape) == ((0,), (0, SMALL.code_bytes))
    assert (none.lists.dtype.name, none.codes.dtype.name) == ("int32", "uint8")
    assert codec.decode(none).shape == (0, WIDTH)
    add_encoded(faiss_index(codec), none, np.empty(0, dtype=np.int64))


def test_half_precision_keys_and_strided_views_are_read(codec: Codec) -> None:
    keys = clustered(50).astype(np.float16)
    assert same(codec.encode(keys), codec.encode(keys.astype(np.float32)))
    wide = np.repeat(clustered(50), 2, axis=1)
    assert same(codec.encode(wide[:, ::2]), codec.encode(clustered(50)))


# On disk


def test_saved_and_opened_again(codec: Codec, tmp_path: Path) -> None:
    codec.save(tmp_path / "codec")
    opened = Codec.open(tmp_path / "codec")
    assert (opened.settings, opened.samples, opened.note) == (codec.settings, codec.samples, codec.note)
    assert opened.fingerprint == codec.fingerprint
    assert same(opened.encode(clustered(100)), codec.encode(clustered(100)))
    names = sorted(path.name for path in (tmp_path / "codec").iterdir())
    assert names == ["centroids.npy", "codebooks.npy", "manifest.json", "matrix.npy", "mean.npy"]
    opened.save(tmp_path / "again")
    for name in names:
        assert (tmp_path / "codec" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    with pytest.raises(SiloError, match="out-exists"):
        codec.save(tmp_path / "codec")


def test_arrays_cannot_be_changed(codec: Codec) -> None:
    with pytest.raises(ValueError, match="read-only"):
        codec.arrays.centroids[0, 0] = 1


def test_the_fingerprint_covers_settings_and_arrays(codec: Codec) -> None:
    mean = codec.arrays.mean.copy()
    mean[3] = np.nextafter(mean[3], np.float32(9))
    marks = {
        codec.fingerprint,
        Codec(replace(codec.settings, seed=7), codec.arrays, codec.samples).fingerprint,
        Codec(codec.settings, replace(codec.arrays, mean=mean), codec.samples).fingerprint,
    }
    assert len(marks) == 3


def test_damage_to_any_byte_is_noticed(tmp_path: Path) -> None:
    tiny = Codec.learn(clustered(300, 1), CodecSettings(lists=1, code_bytes=1, iterations=1))
    tiny.save(tmp_path / "codec")
    flips = 0
    for path in sorted((tmp_path / "codec").iterdir()):
        whole = path.read_bytes()
        for at in range(len(whole)):
            values = (
                {whole[at] ^ 1 << at % 8, ord(" "), ord("e")} if path.suffix == ".json" else {whole[at] ^ 1 << at % 8}
            )
            for value in values - {whole[at]}:
                path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
                with pytest.raises(SiloError) as caught:
                    Codec.open(tmp_path / "codec")
                assert caught.value.code == "codec-invalid"
                flips += 1
        for cut in (0, 1, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:cut])
            with pytest.raises(SiloError, match="codec-invalid"):
                Codec.open(tmp_path / "codec")
        path.write_bytes(whole + b"\n")
        with pytest.raises(SiloError, match="codec-invalid"):
            Codec.open(tmp_path / "codec")
        path.unlink()
        with pytest.raises(SiloError, match="codec-invalid"):
            Codec.open(tmp_path / "codec")
        path.write_bytes(whole)
    assert flips > 3500
    assert Codec.open(tmp_path / "codec").fingerprint == tiny.fingerprint


def test_a_half_written_codec_is_replaced_and_never_opened(codec: Codec, tmp_path: Path) -> None:
    codec.save(tmp_path / "codec")
    shutil.move(tmp_path / "codec", tmp_path / "other.partial")
    (tmp_path / "other.partial" / "manifest.json").unlink()
    with pytest.raises(SiloError, match="codec-invalid"):
        Codec.open(tmp_path / "other.partial")
    codec.save(tmp_path / "other")
    assert Codec.open(tmp_path / "other").fingerprint == codec.fingerprint


# faiss


def filled(codec: Codec, keys: Float32s, *, precompute: bool = True) -> faiss.IndexPreTransform:
    index = faiss_index(codec, precompute=precompute)
    add_encoded(index, codec.encode(keys[:700]), np.arange(700) * 3)
    add_encoded(index, codec.encode(keys[700:]), np.arange(700, len(keys)) * 3)
    return index


@pytest.mark.parametrize("precompute", [True, False])
def test_faiss_finds_what_plain_arithmetic_finds(codec: Codec, precompute: bool) -> None:
    keys, queries = clustered(2000, seed=1), clustered(50, seed=2)
    index = filled(codec, keys, precompute=precompute)
    assert index.ntotal == 2000
    faiss.extract_index_ivf(index).nprobe = codec.settings.lists
    distances, ids = index.search(queries, 2000)
    stored = codec.reconstruct(codec.encode(keys)).astype(np.float64)
    exact = np.square(codec.transform(queries)[:, None].astype(np.float64) - stored).sum(axis=2)
    assert np.array_equal(np.sort(ids, axis=1), np.broadcast_to(np.arange(2000) * 3, ids.shape))
    np.testing.assert_allclose(distances, np.take_along_axis(exact, ids // 3, axis=1), rtol=1e-4)


def test_faiss_holds_the_codes_as_they_were_made(codec: Codec) -> None:
    keys = clustered(2000, seed=1)
    index = filled(codec, keys)
    lists = faiss.extract_index_ivf(index).invlists
    assert lists is not None
    encoded = codec.encode(keys)
    for number in range(codec.settings.lists):
        size = lists.list_size(number)
        ids = faiss.rev_swig_ptr(lists.get_ids(number), size) // 3
        codes = faiss.rev_swig_ptr(lists.get_codes(number), size * SMALL.code_bytes).reshape(size, -1)
        assert np.array_equal(ids, np.flatnonzero(encoded.lists == number))
        assert np.array_equal(codes, encoded.codes[ids])


def test_recall_against_exact_search(codec: Codec) -> None:
    keys, queries = clustered(5000, seed=1), clustered(100, seed=2)
    exact = faiss.IndexFlatL2(WIDTH)
    exact.add(keys)
    truth = exact.search(queries, 50)[1]
    index = filled(codec, keys)
    recalls = []
    for probes in (1, 8, codec.settings.lists):
        faiss.extract_index_ivf(index).nprobe = probes
        found = index.search(queries, 50)[1] // 3
        recalls.append(float(np.mean([len(set(a) & set(b)) / 50 for a, b in zip(found, truth, strict=True)])))
    assert recalls == sorted(recalls)
    assert recalls[1] > 0.6
