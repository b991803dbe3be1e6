"""BM25 passage search against bm25s (numba) and tantivy: queries per second of one core, in one interleaved run.

All three hold the same blocks of 128 words and get the same terms. The peers have every advantage: queries are turned
into token ids (bm25s) or query objects (tantivy) beforehand, bm25s gets all of them in one call, tantivy has a single
segment without positions, boosts instead of repeated words, and does not count its hits. silo gets the terms of one
query at a time. Time is CPU time of the process. bm25s must report silo's scores up to the rounding of float32, and
silo's answers over half of the passages must be, bit for bit, those of an index of that half. Exit status 1 means that
one of these fails, or that silo is somewhere below `--bar` times the faster peer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import venv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS"), "1")

import numpy as np
import zstandard

from silo.search.bm25.index import Bm25Index
from silo.search.bm25.passages import PassageArrays, build, cut
from silo.search.dtypes import UInt64s
from silo.text.words import terms

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("bm25s==0.3.16", "tantivy==0.27.0", "numba==0.68.1", "numpy==2.4.6", "zstandard==0.25.0")
BLOCK_WORDS = 128
BUCKETS = 64
K1, B = 0.9, 0.4
GAP = 1e-4
"""Larger relative differences of scores cannot come from float32."""

Run = Callable[[Sequence[int], int], list[list[float]]]
"""Answers the queries with these numbers and returns the scores of the best k of each."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A system with its index built and its queries ready."""

    name: str
    run: Run


def main() -> int:
    """Run the benchmark and write its report."""
    options = _options()
    if find_spec("bm25s") is None or find_spec("tantivy") is None:
        return _again_with_peers(options.cache)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    heldout = [Path(str(path).replace(".train.", ".test.")) for path in options.data]
    queries = {size: [terms(text) for text in _blocks(heldout, options.queries, size)] for size in (32, 512)}
    sizes = [_size(_blocks(options.data, count, BLOCK_WORDS), queries, options.rounds) for count in options.blocks]
    cases = [case for size in sizes for case in size["cases"]]
    report: dict[str, Any] = {
        "settings": {
            "block_words": BLOCK_WORDS,
            "buckets": BUCKETS,
            "queries": {str(size): len(some) for size, some in queries.items()},
            "rounds": options.rounds,
            "silo_and_bm25s": {"k1": K1, "b": B},
            "tantivy": {"k1": 1.2, "b": 0.75},
        },
        "machine": _machine(),
        "sizes": sizes,
        "lowest_ratio": min(case["ratio_to_faster_peer"] for case in cases),
        "bar": options.bar,
        "met": all(case["ratio_to_faster_peer"] >= options.bar for case in cases),
        "agrees_with_bm25s": all(case["largest_relative_gap_to_bm25s_scores"] < GAP for case in cases),
        "half_equals_rebuilt": all(size["half_equals_rebuilt"] for size in sizes),
    }
    options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    options.json.with_suffix(".md").write_text(page(report), encoding="utf-8")
    return 0 if report["met"] and report["agrees_with_bm25s"] and report["half_equals_rebuilt"] else 1


def _size(blocks: Sequence[str], queries: dict[int, list[UInt64s]], rounds: int) -> dict[str, Any]:
    """All cases over these blocks."""
    start = time.process_time()
    words = [terms(block) for block in blocks]
    analysis = sum(len(block.encode()) for block in blocks) / 1e6 / (time.process_time() - start)
    buckets, edges = _buckets(words)
    Bm25Index(buckets[:1])  # compiles
    start = time.process_time()
    search = Bm25Index(buckets, k1=K1, b=B)
    opening = time.process_time() - start
    size: dict[str, Any] = {
        "passages": len(blocks),
        "terms": int(sum(map(len, words))),
        "analysis_megabytes_per_second": round(analysis, 1),
        "bucket_megabytes": round(sum(_bytes(bucket) for bucket in buckets) / 1e6, 1),
        "open_seconds": round(opening, 3),
        "half_equals_rebuilt": _half_equals_rebuilt(search, words, edges, queries[32] + queries[512]),
        "cases": [],
    }
    for width, some in queries.items():
        systems = [_silo(search, some), _bm25s(words, some), _tantivy(words, some), _silo_half(search, edges, some)]
        for k in (1, 10):
            size["cases"].append({"query_words": width, "k": k, **_compare(systems, len(some), k, rounds)})
            print(json.dumps({"passages": len(blocks), **size["cases"][-1]}), flush=True)
    return size


def page(report: dict[str, Any]) -> str:
    """The report for reading."""
    settings, machine = report["settings"], report["machine"]
    systems = list(report["sizes"][0]["cases"][0]["queries_per_second"])
    exact = report["agrees_with_bm25s"] and report["half_equals_rebuilt"]
    lines = [
        "# Passage search (BM25) against bm25s and tantivy",
        "",
        f"In every case silo answers at least **{report['lowest_ratio']:.2f} times** as many queries per second as the",
        f"faster peer (bar {report['bar']:g}: {'met' if report['met'] else 'missed'}).",
        "",
        f"Passages of {settings['block_words']} words from all training files. Queries from the test files:",
        f"{' and '.join(f'{count} of {width} words' for width, count in settings['queries'].items())}. One core, CPU",
        f"time, medians of {settings['rounds']} rounds in which all systems take their turn. The peers get prepared",
        "queries, bm25s all of them in one call; silo gets the terms of one query at a time. In far smaller stores the",
        "call itself takes most of the time, and bm25s draws level or ahead on short queries. tantivy has its own k1",
        "and b, so that its scores are not compared.",
        f"{', '.join(f'{name} {value}' for name, value in machine.items())}.",
        "",
        f"| passages | query words | k | {' | '.join(systems)} | ratio to the faster peer | in each round |",
        "|---:" * (len(systems) + 5) + "|",
        *(_row(size["passages"], case) for size in report["sizes"] for case in size["cases"]),
        "",
        "Queries per second. Scores equal those of bm25s up to the rounding of float32, and answers over every second",
        f"passage are, bit for bit, those of an index of that half: {'yes' if exact else 'NO'}.",
        "",
        "| passages | terms | opening (s) | bucket files (MB) |",
        "|---:|---:|---:|---:|",
        *(
            f"| {size['passages']:,} | {size['terms']:,} | {size['open_seconds']} | {size['bucket_megabytes']} |"
            for size in report["sizes"]
        ),
        "",
        "Opening brings the buckets together; the first query does it, also after every change of a store.",
        "",
        "To repeat it (the first run installs the peers apart from silo):",
        "",
        "```console",
        "$ python benchmarks/bm25.py",
        "```",
    ]
    return "\n".join(lines) + "\n"


def _row(passages: int, case: dict[str, Any]) -> str:
    speeds = (f"{speed:,.0f}" for speed in case["queries_per_second"].values())
    rounds = ", ".join(f"{ratio:.2f}" for ratio in case["ratio_by_round"])
    cells = (
        f"{passages:,}",
        case["query_words"],
        case["k"],
        *speeds,
        f"**{case['ratio_to_faster_peer']:.2f}**",
        rounds,
    )
    return f"| {' | '.join(map(str, cells))} |"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = ROOT.parent / "shared" / "data"
    parser.add_argument("--data", type=Path, nargs="*", default=sorted(data.glob("*.train.jsonl.zst")))
    parser.add_argument(
        "--blocks", type=int, nargs="+", default=[10_000, 100_000], help="passages, one number per size"
    )
    parser.add_argument("--queries", type=int, default=200, help="per length, from the test split")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bar", type=float, default=1, help="how many times the faster peer is asked for")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "peers-bm25", help="where to install the peers")
    parser.add_argument(
        "--json", type=Path, default=ROOT / "docs" / "results" / "bm25.json", help="a page is written beside it"
    )
    return parser.parse_args()


def _again_with_peers(cache: Path) -> int:
    """Run this script in a virtual environment that has the peers."""
    python, done = cache / "bin" / "python", cache / "installed"
    if not done.exists():
        print(f"installing {' and '.join(PEERS[:2])} into {cache}", file=sys.stderr)
        venv.create(cache, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
        subprocess.run([*install, *PEERS], check=True)
        done.touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([str(python), *sys.argv], env=environment, check=False).returncode


def _blocks(files: Sequence[Path], want: int, width: int) -> list[str]:
    """Blocks of so many white space words, as even over the files as their sizes allow."""
    share = want // len(files) + 1
    while True:
        found = [list(islice(_file_blocks(path, width), share)) for path in files]
        every = [block for some in found for block in some]
        if len(every) >= want or all(len(some) < share for some in found):
            return [every[at * len(every) // want] for at in range(min(want, len(every)))]
        share += share // 4 + 1


def _file_blocks(path: Path, width: int) -> Any:
    with zstandard.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            words = json.loads(line)["text"].split()
            for first in range(0, len(words) - width + 1, width):
                yield " ".join(words[first : first + width])


def _buckets(words: Sequence[UInt64s]) -> tuple[list[PassageArrays], list[int]]:
    edges = [len(words) * at // BUCKETS for at in range(BUCKETS + 1)]
    return [_bucket(words[first:end]) for first, end in pairwise(edges)], edges


def _bucket(words: Sequence[UInt64s]) -> PassageArrays:
    return build(words, cut([BLOCK_WORDS] * len(words), length=BLOCK_WORDS, stride=BLOCK_WORDS))


def _bytes(bucket: PassageArrays) -> int:
    return sum(int(getattr(bucket, name).nbytes) for name in PassageArrays.__slots__)


def _silo(search: Bm25Index, queries: Sequence[UInt64s]) -> Prepared:
    return Prepared("silo", lambda some, k: [search.search(queries[at], k).scores.tolist() for at in some])


def _half(edges: Sequence[int]) -> list[np.ndarray[Any, np.dtype[np.bool_]]]:
    return [np.arange(first, end) % 2 == 0 for first, end in pairwise(edges)]


def _silo_half(search: Bm25Index, edges: Sequence[int], queries: Sequence[UInt64s]) -> Prepared:
    allowed = search.allow(_half(edges))

    def run(some: Sequence[int], k: int) -> list[list[float]]:
        return [search.search(queries[at], k, allowed=allowed).scores.tolist() for at in some]

    return Prepared("silo, every second passage allowed", run)


def _half_equals_rebuilt(
    search: Bm25Index, words: Sequence[UInt64s], edges: Sequence[int], queries: Sequence[UInt64s]
) -> bool:
    allowed, rebuilt = search.allow(_half(edges)), Bm25Index([_bucket(words[::2])], k1=K1, b=B)
    pairs = [(search.search(query, 10, allowed=allowed), rebuilt.search(query, 10)) for query in queries]
    scores = all(one.scores.tobytes() == other.scores.tobytes() for one, other in pairs)
    starts = np.array(edges)
    places = all(((starts[one.buckets] + one.passages) // 2 == other.passages).all() for one, other in pairs)
    return bool(scores and places)


def _bm25s(words: Sequence[UInt64s], queries: Sequence[UInt64s]) -> Prepared:
    module = import_module("bm25s")
    vocabulary, flat = np.unique(np.concatenate(words), return_inverse=True)
    ids = np.split(flat, np.cumsum([len(some) for some in words])[:-1])
    names = {f"{term:x}": number for number, term in enumerate(vocabulary.tolist())}
    index = module.BM25(k1=K1, b=B, method="lucene", backend="numba")
    index.index(module.tokenization.Tokenized(ids=[some.tolist() for some in ids], vocab=names), show_progress=False)
    known = [np.searchsorted(vocabulary, query[np.isin(query, vocabulary)]).tolist() for query in queries]

    def run(some: Sequence[int], k: int) -> list[list[float]]:
        found = index.retrieve([known[at] for at in some], k=k, show_progress=False, backend_selection="numba")
        scores: list[list[float]] = found.scores.tolist()
        return scores

    return Prepared("bm25s", run)


def _tantivy(words: Sequence[UInt64s], queries: Sequence[UInt64s]) -> Prepared:
    module = import_module("tantivy")
    builder = module.SchemaBuilder()
    builder.add_text_field("body", stored=False, tokenizer_name="whitespace", index_option="freq")
    schema = builder.build()
    index = module.Index(schema)
    writer = index.writer(heap_size=2_000_000_000, num_threads=1)
    for some in words:
        writer.add_document(module.Document(body=" ".join(f"{term:x}" for term in some.tolist())))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    assert (searcher.num_docs, searcher.num_segments) == (len(words), 1)

    def clause(term: int, repeats: int) -> Any:
        query = module.Query.term_query(schema, "body", f"{term:x}")
        return module.Occur.Should, module.Query.boost_query(query, float(repeats)) if repeats > 1 else query

    def prepared(query: UInt64s) -> Any:
        return module.Query.boolean_query([clause(*item) for item in Counter(query.tolist()).items()])

    ready = [prepared(query) for query in queries]

    def run(some: Sequence[int], k: int) -> list[list[float]]:
        hits = [searcher.search(ready[at], limit=k, count=False).hits for at in some]
        return [[score for score, _ in best] for best in hits]

    return Prepared("tantivy", run)


def _compare(systems: Sequence[Prepared], queries: int, k: int, rounds: int) -> dict[str, Any]:
    """Queries per second of each system: the median over rounds in which all take their turn."""
    numbers = range(queries)
    seconds: dict[str, list[float]] = {system.name: [] for system in systems}
    scores = {system.name: system.run(numbers, k) for system in systems}
    for _ in range(rounds):
        for system in systems:
            start = time.process_time()
            system.run(numbers, k)
            seconds[system.name].append(time.process_time() - start)
    gaps = [_gap(*pair) for pair in zip(scores["silo"], scores["bm25s"], strict=True)]
    turns = zip(*(seconds[name] for name in ("silo", "bm25s", "tantivy")), strict=True)
    ratios = [min(peers) / own for own, *peers in turns]
    return {
        "queries_per_second": {name: round(queries / median(some), 1) for name, some in seconds.items()},
        "ratio_to_faster_peer": round(median(ratios), 2),
        "ratio_by_round": [round(ratio, 2) for ratio in ratios],
        "largest_relative_gap_to_bm25s_scores": float(f"{max(gaps):.2g}"),
    }


def _gap(own: Sequence[float], other: Sequence[float]) -> float:
    """The largest relative difference of two lists of scores; bm25s fills up with zeros."""
    padded = [*own, *[0.0] * (len(other) - len(own))]
    return max(abs(one - two) / max(one, 1e-9) for one, two in zip(padded, other, strict=True))


def _machine() -> dict[str, Any]:
    names = ("numba", "numpy", "bm25s", "tantivy")
    cpu = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown")
    return {"cpu": cpu, "cores_used": 1, "python": platform.python_version(), **{name: version(name) for name in names}}


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
