"""Compare the token search with faiss on the same machine, in the same run, on the same keys.

    OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python benchmarks/search.py [--model DIR | --keys FILE.npy] [--times 10]

The reference is a bare faiss IVF-PQ index at the paper's setting: 4,096 lists, 64 bytes, 8 probes, k = 1,024. Against
it run the token search on the very same codes, and the token search at the default setting: with numbers of probes, and
as stores search, which goes on until enough rows were seen. Recall@k is measured against exact search over the keys.
For `--times` as many rows the codes are repeated, for timing only. Every round times all contenders one after the
other; ratios are medians over rounds. Keys are a model's, of restricted text; or those of a file; or synthetic. They
are cut into samples for the codec, queries, and rows. Keys, codecs and codes are kept in `--work` and used again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from silo.lm.encode import DocumentEncoder
from silo.lm.manifest import codec_key
from silo.lm.model import LanguageModel
from silo.search.dtypes import Float32s
from silo.search.knn.codec import Codec, CodecSettings, Encoded
from silo.search.knn.index import KeyRows, KnnIndex, SearchTables
from silo.store.view import PROBES as STORE_PROBES
from silo.store.view import ROWS_PER_NEIGHBOUR
from store import RESTRICTED, documents

ROOT = Path(__file__).parent.parent
K = 1024
PROBES = 8
BATCH = 512
PAPER = CodecSettings(rotation="none", lists=4096, code_bytes=64)
OURS = CodecSettings(rotation="pca", dimensions=128, lists=4096, code_bytes=32)

Search = Callable[[Float32s], NDArray[np.int64]]
Times = tuple[Float32s, Float32s]


@dataclass(frozen=True, slots=True)
class Keys:
    """Disjoint keys for learning, asking and storing."""

    samples: Float32s
    queries: Float32s
    rows: Float32s


def main() -> None:
    arguments = parsed()
    faiss.omp_set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if arguments.model:
        arguments.keys = model_keys(arguments)
    keys = read_keys(arguments) if arguments.keys else make_keys(arguments)
    truth = exact(keys)
    results = []
    for times in (1, arguments.times):
        contenders = list(make_contenders(keys, times, arguments))
        timed = rounds([search for _, search in contenders], keys.queries, arguments.rounds)
        for (name, search), times_taken in zip(contenders, timed, strict=True):
            share = recall(search(keys.queries), truth, len(keys.rows)) if times == 1 else None
            results.append(row(name, times * len(keys.rows), share, times_taken, timed[0]))
        print(table(results[-len(contenders) :]), flush=True)
    write(results, arguments)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--keys", type=Path, help="a .npy file [rows, width]; synthetic keys where it is left out")
    parser.add_argument("--model", type=Path, help="make keys with this model")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--buckets", type=int, default=16)
    parser.add_argument("--probes", type=int, nargs="+", default=[8, 10, 12], help="probes of the default setting")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "search")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "search.json")
    return parser.parse_args()


def make_keys(arguments: argparse.Namespace, width: int = 256) -> Keys:
    """A mixture of 20,000 clusters of unequal weight; the variance decays from direction to direction."""
    shape = np.random.default_rng(0)
    spectrum = np.arange(1, width + 1) ** -0.5
    turn = np.linalg.qr(shape.standard_normal((width, width)))[0]
    middles = shape.standard_normal((20_000, width)) * spectrum
    weights = 1 / np.arange(10, 20_010)
    weights /= weights.sum()

    def draw(count: int, seed: int) -> Float32s:
        rng = np.random.default_rng(seed)
        out = np.empty((count, width), dtype=np.float32)
        for first in range(0, count, 50_000):
            some = out[first : first + 50_000]
            noise = rng.standard_normal(some.shape) * spectrum * 0.6
            some[:] = (middles[rng.choice(20_000, len(some), p=weights)] + noise) @ turn
        return out

    return Keys(draw(arguments.samples, 1), draw(BATCH, 2), draw(arguments.rows, 3))


def model_keys(arguments: argparse.Namespace) -> Path:
    """The keys of a model in a file, from restricted train text in equal shares."""
    wanted = BATCH + arguments.samples + arguments.rows
    path: Path = arguments.work / f"{arguments.model.name}-{wanted}.npy"
    if not path.exists():
        encoder = DocumentEncoder(LanguageModel.open(arguments.model), codec_key(arguments.model))
        begin = np.array([encoder.tokenizer.begin], dtype=np.uint32)
        texts = [document.text for document in documents(list(RESTRICTED), int(1.5 * wanted))]
        np.random.default_rng(0).shuffle(texts)
        found, count = list[Float32s](), 0
        for first in range(0, len(texts), 64):
            tokens = [np.concatenate([begin, ids]) for ids in encoder.tokenizer.encode(texts[first : first + 64])]
            found += encoder.keys(tokens)
            count += sum(map(len, tokens)) - len(tokens)
            if count >= wanted:
                break
        arguments.work.mkdir(parents=True, exist_ok=True)
        np.save(path, np.concatenate(found)[:wanted], allow_pickle=False)
    return path


def read_keys(arguments: argparse.Namespace) -> Keys:
    """Shuffled, then cut: queries, samples, rows."""
    source = np.load(arguments.keys, mmap_mode="r", allow_pickle=False)
    order = np.random.default_rng(0).permutation(len(source))[: BATCH + arguments.samples + arguments.rows]
    keys = np.asarray(source[np.sort(order)], dtype=np.float32)[np.argsort(np.argsort(order))]
    return Keys(keys[BATCH : BATCH + arguments.samples], keys[:BATCH], keys[BATCH + arguments.samples :])


def exact(keys: Keys) -> NDArray[np.int64]:
    flat = faiss.IndexFlatL2(keys.rows.shape[1])
    flat.add(keys.rows)
    found: NDArray[np.int64] = flat.search(keys.queries, K)[1]
    return found


def recall(found: NDArray[np.int64], truth: NDArray[np.int64], rows: int) -> float:
    """The share of the true neighbours that were found."""
    hits = [np.intersect1d(mine, right).size for mine, right in zip(found % rows, truth, strict=True)]
    return float(np.mean(hits) / truth.shape[1])


def learned(name: str, settings: CodecSettings, keys: Keys, arguments: argparse.Namespace) -> tuple[Codec, Encoded]:
    """A codec and the codes of all rows, from the working folder if they are there."""
    source = arguments.keys.stem if arguments.keys else "synthetic"
    path = arguments.work / f"{source}-{arguments.rows}-{arguments.samples}-{name}"
    if not path.exists():
        arguments.work.mkdir(parents=True, exist_ok=True)
        Codec.learn(keys.samples, settings).save(path)
    codec = Codec.open(path)
    codes = path.with_suffix(".codes.npz")
    if not codes.exists():
        encoded = codec.encode(keys.rows)
        np.savez(codes, lists=encoded.lists, codes=encoded.codes)
    with np.load(codes, allow_pickle=False) as stored:
        return codec, Encoded(stored["lists"], stored["codes"])


def make_contenders(keys: Keys, times: int, arguments: argparse.Namespace) -> Iterator[tuple[str, Search]]:
    """The reference first. Every search answers with row numbers."""
    codec, encoded = learned("paper", PAPER, keys, arguments)
    index = faiss_index(codec)
    for number in range(times):
        add_encoded(index, encoded, np.arange(len(encoded), dtype=np.int64) + number * len(encoded))
    yield f"faiss, paper, {PROBES} probes", faiss_search(index, codec)
    yield f"ours, paper, {PROBES} probes", row_search(filled(codec, encoded, times, arguments.buckets), PROBES)
    rows = filled(*learned("default", OURS, keys, arguments), times, arguments.buckets)
    for probes in arguments.probes:
        yield f"ours, default, {probes} probes", row_search(rows, probes)
    yield "ours, default, as stores search", row_search(rows, STORE_PROBES, ROWS_PER_NEIGHBOUR * K)


def faiss_index(codec: Codec) -> faiss.IndexPreTransform:
    """An empty index with exactly the codec's rotation, centroids and codebooks; fill it with `add_encoded`."""
    arrays, settings = codec.arrays, codec.settings
    turn = faiss.LinearTransform(codec.width, codec.rotated_width, True)
    faiss.copy_array_to_vector(arrays.matrix.ravel(), turn.A)
    faiss.copy_array_to_vector(-(arrays.matrix @ arrays.mean), turn.b)
    turn.is_trained = True
    coarse = faiss.IndexFlatL2(codec.rotated_width)
    coarse.add(arrays.centroids)
    inner = faiss.IndexIVFPQ(coarse, codec.rotated_width, settings.lists, settings.code_bytes, 8)
    faiss.copy_array_to_vector(arrays.codebooks.ravel(), inner.pq.centroids)
    inner.is_trained = True
    inner.use_precomputed_table = 0
    inner.precompute_table()
    return faiss.IndexPreTransform(turn, inner)


def add_encoded(index: faiss.IndexPreTransform, encoded: Encoded, ids: NDArray[np.int64]) -> None:
    """Put codes under their ids into an index made by `faiss_index`, list by list; nothing is quantised again."""
    inner = faiss.extract_index_ivf(index)
    assert inner.invlists is not None
    order = np.argsort(encoded.lists, kind="stable")
    numbers, starts = np.unique(encoded.lists[order], return_index=True)
    for number, rows in zip(numbers, np.split(order, starts[1:]), strict=False):
        some, codes = np.ascontiguousarray(ids[rows]), np.ascontiguousarray(encoded.codes[rows])
        inner.invlists.add_entries(int(number), len(rows), faiss.swig_ptr(some), faiss.swig_ptr(codes))
    inner.ntotal += len(encoded)
    index.ntotal += len(encoded)


def faiss_search(index: faiss.IndexPreTransform, codec: Codec) -> Search:
    """Without rotation the keys need only the mean taken off; the index proper is spared a product with ones."""
    inner = faiss.extract_index_ivf(index)
    inner.nprobe = PROBES

    def run(keys: Float32s) -> NDArray[np.int64]:
        assert index.ntotal, "the index owns the inner one and must outlive it"
        found: NDArray[np.int64] = inner.search(keys - codec.arrays.mean, K)[1]
        return found

    return run


@dataclass(frozen=True, slots=True)
class Filled:
    """A token search, and the number of the first row of each bucket."""

    search: KnnIndex
    firsts: NDArray[np.int64]


def filled(codec: Codec, encoded: Encoded, times: int, buckets: int) -> Filled:
    firsts = np.linspace(0, len(encoded), buckets + 1).astype(np.int64)
    some = [bucket(encoded, int(first), int(last), codec) for first, last in pairwise(firsts)]
    if times > 1:
        some = [repeated(rows, times) for rows in some]
    return Filled(KnnIndex(SearchTables(codec), some), firsts)


def row_search(rows: Filled, probes: int, rows_wanted: int = 0) -> Search:
    def run(keys: Float32s) -> NDArray[np.int64]:
        found = rows.search.search(keys, K, probes=probes, rows_wanted=rows_wanted)
        return found.places + rows.firsts[found.buckets]

    return run


def bucket(encoded: Encoded, first: int, last: int, codec: Codec) -> KeyRows:
    """Rows first to last as a bucket."""
    lists = encoded.lists[first:last]
    order = np.argsort(lists, kind="stable")
    offsets = np.searchsorted(lists[order], np.arange(codec.settings.lists + 1)).astype(np.uint32)
    return KeyRows(offsets, encoded.codes[first:last][order], order.astype(np.uint32))


def repeated(rows: KeyRows, times: int) -> KeyRows:
    """Every row several times in its list, under places of its own."""
    lists = np.repeat(np.arange(len(rows.offsets) - 1), rows.offsets[1:] - rows.offsets[:-1])
    order = np.argsort(np.tile(lists, times), kind="stable")
    places = (np.arange(times)[:, None] * len(rows) + rows.places).ravel()[order]
    return KeyRows(rows.offsets * np.uint32(times), rows.codes[order % len(rows)], places.astype(np.uint32))


def rounds(searches: list[Search], queries: Float32s, count: int) -> list[Times]:
    """Seconds per query of every search, one query at a time and all at once, in rounds."""
    single = np.empty((len(searches), count), dtype=np.float32)
    whole = np.empty_like(single)
    for search in searches:
        search(queries[:2])
        search(queries)
    for number in range(count):
        some = [one[None] for one in np.roll(queries, -64 * number, axis=0)[:64]]
        for at, search in enumerate(searches):
            single[at, number] = seconds_each(search, some)
            whole[at, number] = seconds_each(search, [queries]) / len(queries)
    return list(zip(single, whole, strict=True))


def seconds_each(search: Search, batches: list[Float32s]) -> float:
    """Processor time, which other programs on the machine disturb less than the clock's."""
    start = time.process_time()
    for batch in batches:
        search(batch)
    return (time.process_time() - start) / len(batches)


def row(name: str, rows: int, share: float | None, mine: Times, first: Times) -> dict[str, Any]:
    return {
        "search": name,
        "rows": rows,
        "recall": None if share is None else round(share, 4),
        "microseconds_one": round(float(np.median(mine[0])) * 1e6, 1),
        "microseconds_batch": round(float(np.median(mine[1])) * 1e6, 1),
        "times_faster_one": round(float(np.median(first[0] / mine[0])), 2),
        "times_faster_batch": round(float(np.median(first[1] / mine[1])), 2),
    }


def table(results: list[dict[str, Any]]) -> str:
    head = ("search", "rows", "recall", "us, 1", f"us, {BATCH}", "x, 1", f"x, {BATCH}")
    lines = ["{:32} {:>11} {:>7} {:>8} {:>8} {:>6} {:>6}".format(*head)]
    for one in results:
        share = "" if one["recall"] is None else f"{one['recall']:.3f}"
        lines.append(
            f"{one['search']:32} {one['rows']:>11,} {share:>7} {one['microseconds_one']:>8.0f} "
            f"{one['microseconds_batch']:>8.0f} {one['times_faster_one']:>6.2f} {one['times_faster_batch']:>6.2f}"
        )
    return "\n".join(lines)


def write(results: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    threads = {name: os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    content = {
        "keys": arguments.keys.name if arguments.keys else "synthetic",
        "k": K,
        "batch": BATCH,
        "buckets": arguments.buckets,
        "samples": arguments.samples,
        "paper": asdict(PAPER),
        "default": asdict(OURS),
        "rounds": arguments.rounds,
        "machine": {"python": platform.python_version(), "cpu": cpu_name(), "faiss": faiss.__version__, **threads},
        "results": results,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(page(content), encoding="utf-8")


def page(content: dict[str, Any]) -> str:
    """The results as a page."""
    lines = [
        "# Token search against faiss",
        "",
        f"Keys: {content['keys']}. k {content['k']:,}, one thread, processor time, medians of {content['rounds']}",
        "rounds. The reference is a bare faiss index at the paper's setting (4,096 lists, 64 bytes a key, 8 probes);",
        "`ours, paper` reads the same codes, `ours, default` has 32 bytes a key. Recall is against exact search over",
        "the keys and was measured at one million rows only: ten million rows are the same rows repeated ten times,",
        "which shows the time and says nothing of recall.",
        "",
        "| search | rows | recall | one key, us | in a batch, us | times faster, one | in a batch |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in content["results"]:
        share = "" if one["recall"] is None else f"{one['recall']:.3f}"
        figures = (
            one["microseconds_one"],
            one["microseconds_batch"],
            one["times_faster_one"],
            one["times_faster_batch"],
        )
        lines.append(f"| {one['search']} | {one['rows']:,} | {share} | {' | '.join(map(str, figures))} |")
    return "\n".join([*lines, "", "Made by `benchmarks/search.py`.", ""])


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
