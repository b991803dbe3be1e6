"""Suffix search against the infini-gram engine: microseconds per next-token distribution on the same tokens.

    python benchmarks/suffix.py [--tokenizer tokenizer.json] [--peer-python /path/to/python]

One million tokens in one bucket and ten million in ten, from the training files of ../shared; the prefixes come from
the validation files. Every system gets the same prefixes in turn, some at a time, in three rounds; the least time of
each prefix counts. infini-gram is asked for exact counts, with a shard per bucket and with a single shard, and with its
default, an estimate from about 1,000 occurrences. It is built for indexes far larger than memory and starts threads for
every shard and for every part of a large count, which a busy machine with few cores makes slow to wait for: hence CPU
time (all threads) beside wall time, and CPU time decides. Prefixes with an unknown last token are left out: infini-gram
then counts the whole text, silo says nothing. silo alone is timed by its CPU time at scoring a text with contexts of
several lengths (`levels`) and at counting what follows a pattern and who holds it (`followers`, `holders`). Exit status
1: silo does not need `--bar` times less CPU time than the better exact infini-gram, or an answer differs from the naive
search.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import venv
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
PEER = "infini-gram==2.6.0"
BEGIN, SEPARATOR = 0, 65535
EXACT = 1 << 60
ROUNDS, CHUNK, PREFIX = 3, 100, 200
ORDERS = (1, 2, 3, 4, 5, 6)

Tokens = NDArray[np.uint16]
Buckets = list[tuple[Tokens, NDArray[np.uint32]]]
Answer = tuple[int, dict[int, int]]
Times = NDArray[np.float64]
"""Microseconds [prefixes, 2]: wall and CPU."""
Ask = Callable[[list[list[int]]], tuple[Times, list[Answer]]]
"""Prefixes in, out come times and what was answered: a length and counts."""


@dataclass(frozen=True)
class Peer:
    """An infini-gram engine in a process of its own."""

    process: subprocess.Popen[str]

    def ask(self, prefixes: list[list[int]], support: int) -> tuple[Times, list[Answer]]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps({"prefixes": prefixes, "support": support}), file=self.process.stdin, flush=True)
        reply = json.loads(self.process.stdout.readline())
        answers = [(length, {int(token): count for token, count in counts}) for length, counts in reply["answers"]]
        return np.array(reply["microseconds"]), answers

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def main() -> int:
    options = parse()
    if options.serve is not None:
        serve(options.serve)
        return 0
    if not (SHARED / "data").is_dir():
        print("../shared/data is not here: nothing to measure")
        return 0
    train = tokens_of("train", 10_000_000, options.tokenizer)
    held_out = tokens_of("validation", 300_000, options.tokenizer)
    ends = np.random.default_rng(0).integers(PREFIX, len(held_out), options.prefixes)
    prefixes = [held_out[end - PREFIX : end].tolist() for end in ends]
    python = peer_python(options)
    sizes = [measure(train, count, prefixes, held_out, python) for count in (1, 10)]
    result = {"settings": settings(options), "machine": machine(), "sizes": sizes}
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    exact = [
        values["cpu"]["mean"]
        for size in sizes
        for name, values in size["ratios_to_silo"].items()
        if name.startswith("infini-gram, exact")
    ]
    return 0 if min(exact, default=options.bar) >= options.bar and not any(size["wrong"] for size in sizes) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, default=SHARED / "tokenizers" / "gpt-neox-20b" / "tokenizer.json")
    parser.add_argument("--prefixes", type=int, default=300)
    parser.add_argument("--bar", type=float, default=10, help="how many times infini-gram's speed is asked for")
    parser.add_argument("--peer-python", type=Path, help="a Python that has infini-gram and numpy")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build" / "suffix-peer", help="where to install it otherwise"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "results" / "suffix.json")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def tokens_of(split: str, count: int, tokenizer: Path) -> Tokens:
    """At least `count` tokens of whole documents, an equal part from each file, in an order that mixes the files."""
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer))
    paths = sorted((SHARED / "data").glob(f"*.{split}.jsonl.zst"))
    texts = [text for path in paths for text in texts_of(path, 8 * count // len(paths))]
    order = np.random.default_rng(1).permutation(len(texts))
    parts: list[list[int]] = []
    total = 0
    for number in order:
        ids = encoder.encode(texts[number], add_special_tokens=False).ids
        parts.append([BEGIN, *(token for token in ids if token != BEGIN)])
        total += len(parts[-1])
        if total >= count:
            break
    return np.array([token for part in parts for token in part], dtype=np.uint16)


def texts_of(path: Path, characters: int) -> Iterator[str]:
    import zstandard

    with path.open("rb") as file:
        for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8"):
            if characters <= 0:
                return
            text = str(json.loads(line)["text"])
            characters -= len(text)
            yield text


def measure(
    train: Tokens, count: int, prefixes: list[list[int]], held_out: Tokens, python: Path | None
) -> dict[str, Any]:
    """All systems at one size."""
    from silo.search.ngram.index import NgramIndex, suffix_array
    from silo.search.places import TokenTable

    starts = np.flatnonzero(train == BEGIN)
    edges = [*starts[np.searchsorted(starts, 1_000_000 * np.arange(count))], 0]
    edges[-1] = len(train) if 1_000_000 * count >= starts[-1] else starts[np.searchsorted(starts, 1_000_000 * count)]
    arrays = [np.ascontiguousarray(train[low:high]) for low, high in pairwise(edges)]
    began = time.perf_counter()
    buckets: Buckets = [(tokens, suffix_array(tokens)) for tokens in arrays]
    sorted_after = time.perf_counter()
    search = NgramIndex(buckets, BEGIN)
    table = TokenTable([(tokens, np.flatnonzero(tokens == BEGIN)) for tokens, _ in buckets])
    opened_after = time.perf_counter()
    bitmaps = [np.packbits(np.cumsum(tokens == BEGIN) % 10 != 0, bitorder="little") for tokens in arrays]
    policies = {"silo": None, "silo, a tenth of the documents erased": search.allow(bitmaps)}
    allowed_after = time.perf_counter()
    systems = {name: silo_system(search, allowed) for name, allowed in policies.items()}
    known = [prefix for prefix in prefixes if search.continuations(prefix).length]
    peers: list[Peer] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            if python is not None:
                peers.append(start_peer(python, arrays, Path(folder) / "shards"))
                systems["infini-gram, exact"] = lambda some: peers[0].ask(some, EXACT)
                systems["infini-gram, default"] = lambda some: peers[0].ask(some, 1000)
            if python is not None and count > 1:
                peers.append(start_peer(python, [np.concatenate(arrays)], Path(folder) / "one"))
                systems["infini-gram, exact, one shard"] = lambda some: peers[1].ask(some, EXACT)
            times, answers = rounds(systems, known)
        finally:
            for peer in peers:
                peer.stop()
    times["bisect in Python"], plain = ask_plainly(buckets, known)
    return {
        "tokens": sum(len(tokens) for tokens in arrays),
        "buckets": count,
        "sort_seconds": round(sorted_after - began, 3),
        "open_milliseconds": round(1000 * (opened_after - sorted_after), 1),
        "allow_milliseconds": round(1000 * (allowed_after - opened_after), 1),
        "prefixes": len(known),
        "prefixes_with_unknown_last_token": len(prefixes) - len(known),
        "microseconds": {name: summary(values) for name, values in times.items()},
        "ratios_to_silo": ratios(times, "silo"),
        "microseconds_per_token_of_a_text": {
            name: per_token(search, held_out[:30_000], allowed) for name, allowed in policies.items()
        },
        "microseconds_per_pattern": {
            name: [per_pattern(search, table, known, order, allowed) for order in ORDERS]
            for name, allowed in policies.items()
        },
        "mean_length": round(float(np.mean([length for length, _ in answers["silo"]])), 2),
        "median_length": float(np.median([length for length, _ in answers["silo"]])),
        "wrong": sum(ours != other for ours, other in zip(answers["silo"], plain, strict=True)),
        **agreement(answers),
    }


def silo_system(search: Any, allowed: Any) -> Ask:
    def ask(prefixes: list[list[int]]) -> tuple[Times, list[Answer]]:
        times, answers = [], []
        for prefix in map(np.array, prefixes):
            began, cpu = time.perf_counter_ns(), time.process_time_ns()
            answer = search.continuations(prefix, allowed=allowed)
            times.append(((time.perf_counter_ns() - began) / 1000, (time.process_time_ns() - cpu) / 1000))
            counts = zip(answer.tokens.tolist(), answer.counts.tolist(), strict=True)
            answers.append((answer.length, dict(counts)))
        return np.array(times), answers

    return ask


def rounds(systems: dict[str, Ask], prefixes: list[list[int]]) -> tuple[dict[str, Times], dict[str, list[Answer]]]:
    """The least times of each prefix under each system, and the answers."""
    times = {name: np.full((len(prefixes), 2), np.inf) for name in systems}
    answers: dict[str, list[Answer]] = {name: [] for name in systems}
    for ask in systems.values():
        ask(prefixes[:3])
    for number in range(ROUNDS):
        for low in range(0, len(prefixes), CHUNK):
            for name, ask in systems.items():
                taken, said = ask(prefixes[low : low + CHUNK])
                times[name][low : low + CHUNK] = np.minimum(times[name][low : low + CHUNK], taken)
                answers[name] += said if number == 0 else []
    return times, answers


def ask_plainly(buckets: Buckets, prefixes: list[list[int]]) -> tuple[Times, list[Answer]]:
    """A few lines of Python with `bisect`: the reference for the answers, and what a naive search costs."""
    times, answers = [], []
    for prefix in prefixes:
        began, cpu = time.perf_counter_ns(), time.process_time_ns()
        known = prefix[len(prefix) - prefix[::-1].index(BEGIN) :] if BEGIN in prefix else prefix
        answer: Answer = (0, {})
        for size in range(1, len(known) + 1):
            counts: Counter[int] = Counter()
            for tokens, suffixes in buckets:
                counts += followers(tokens, suffixes, known[len(known) - size :])
            if not counts:
                break
            answer = (size, dict(sorted(counts.items())))
        times.append(((time.perf_counter_ns() - began) / 1000, (time.process_time_ns() - cpu) / 1000))
        answers.append(answer)
    return np.array(times), answers


def followers(tokens: Tokens, suffixes: NDArray[np.uint32], pattern: list[int]) -> Counter[int]:
    size = len(pattern)
    low = bisect_left(suffixes, pattern, key=lambda place: tokens[place : place + size].tolist())
    high = bisect_left(suffixes, [*pattern[:-1], pattern[-1] + 1], key=lambda p: tokens[p : p + size].tolist())
    after = suffixes[low:high].astype(np.int64) + size
    following, counts = np.unique(tokens[after[after < len(tokens)]], return_counts=True)
    return Counter({t: c for t, c in zip(following.tolist(), counts.tolist(), strict=True) if t != BEGIN})


def per_token(search: Any, text: Tokens, allowed: Any) -> float:
    """Microseconds per token of `levels`."""
    return round(least(lambda: search.levels(text, orders=ORDERS, allowed=allowed)) / len(text), 2)


def per_pattern(search: Any, table: Any, prefixes: list[list[int]], order: int, allowed: Any) -> dict[str, float]:
    """Mean microseconds of the queries about the last tokens of prefixes, and how often these occur on average."""
    patterns = [np.array(prefix[-order:]) for prefix in prefixes if BEGIN not in prefix[-order:]]
    followers = least(lambda: [search.followers(pattern, allowed=allowed) for pattern in patterns])

    def held(pattern: NDArray[np.int64]) -> float:
        return float(search.weigh_documents(pattern, [order], [1.0], table, allowed=allowed)[1].sum())

    holders = least(lambda: [held(pattern) for pattern in patterns])
    found = sum(map(held, patterns))
    numbers = {"followers": followers, "holders": holders, "occurrences": found}
    return {"order": order} | {name: round(number / len(patterns), 1) for name, number in numbers.items()}


def least(action: Callable[[], object]) -> float:
    """Microseconds of processor time, the least of the rounds after a first call."""
    action()
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        action()
        times.append(1e6 * (time.process_time() - began))
    return min(times)


def summary(times: Times) -> dict[str, dict[str, float]]:
    def of(values: Times) -> dict[str, float]:
        numbers = {"mean": np.mean(values), "median": np.median(values), "p99": np.percentile(values, 99)}
        return {name: round(float(number), 1) for name, number in numbers.items()}

    return {"wall": of(times[:, 0]), "cpu": of(times[:, 1])}


def ratios(times: dict[str, Times], ours: str) -> dict[str, dict[str, dict[str, float]]]:
    """How many times as long as silo each other takes."""
    base = summary(times[ours])
    return {
        name: {
            clock: {key: round(value / base[clock][key], 2) for key, value in numbers.items()}
            for clock, numbers in summary(values).items()
        }
        for name, values in times.items()
        if name != ours
    }


def agreement(answers: dict[str, list[Answer]]) -> dict[str, Any]:
    """Shares of the prefixes where exact infini-gram says the same, or stops at a longer match that ends a document."""
    theirs = answers.get("infini-gram, exact")
    if theirs is None:
        return {}
    pairs = [
        (ours, (n, {t: c for t, c in counts.items() if t != BEGIN}))
        for ours, (n, counts) in zip(answers["silo"], theirs, strict=True)
    ]
    same = sum(ours == other for ours, other in pairs)
    ended = sum(other[0] > ours[0] and not other[1] for ours, other in pairs)
    return {"infini_gram_says_the_same": same / len(pairs), "infini_gram_stops_at_an_end": ended / len(pairs)}


def peer_python(options: argparse.Namespace) -> Path | None:
    """A Python with the peer, or None where it cannot be installed."""
    if options.peer_python is not None:
        return Path(options.peer_python)
    python, done = options.cache / "bin" / "python", options.cache / "installed"
    if not done.exists():
        venv.create(options.cache, with_pip=True, clear=True)
        install = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--only-binary",
            ":all:",
            PEER,
            f"numpy=={np.__version__}",
        ]
        if subprocess.run(install, check=False).returncode:
            print(f"{PEER} cannot be installed here: only the naive search is compared", file=sys.stderr)
            return None
        done.touch()
    return Path(python)


def start_peer(python: Path, arrays: list[Tokens], folder: Path) -> Peer:
    """Index token arrays as shards with the peer's own tool, and start its engine."""
    folder.mkdir()
    for number, tokens in enumerate(arrays):
        np.where(tokens == BEGIN, np.uint16(SEPARATOR), tokens).astype("<u2").tofile(folder / f"tokenized.{number}")
        (2 * np.flatnonzero(tokens == BEGIN)).astype("<u8").tofile(folder / f"offset.{number}")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    flags = ["--token_dtype", "u16", "--shards", str(len(arrays)), "--cpus", "1", "--mem", "4", "--ulimit", str(files)]
    index = [str(python), "-m", "infini_gram.indexing", "--data_dir", str(folder), "--save_dir", str(folder), *flags]
    subprocess.run(index, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    command = [str(python), str(Path(__file__).resolve()), "--serve", str(folder)]
    return Peer(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))


def serve(folder: Path) -> None:
    """Answer with infini-gram, in the peer's Python."""
    engine = importlib.import_module("infini_gram.engine").InfiniGramEngine(
        index_dir=str(folder), eos_token_id=BEGIN, load_to_ram=True
    )
    for line in sys.stdin:
        request = json.loads(line)
        times, answers = [], []
        for prefix in request["prefixes"]:
            known = prefix[len(prefix) - prefix[::-1].index(BEGIN) :] if BEGIN in prefix else prefix
            began, cpu = time.perf_counter_ns(), time.process_time_ns()
            answer = engine.infgram_ntd(prompt_ids=known, max_support=request["support"])
            times.append(((time.perf_counter_ns() - began) / 1000, (time.process_time_ns() - cpu) / 1000))
            counts = [(token, entry["cont_cnt"]) for token, entry in answer["result_by_token_id"].items()]
            answers.append((answer["suffix_len"], sorted(counts)))
        print(json.dumps({"microseconds": times, "answers": answers}), flush=True)


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "prefixes": options.prefixes,
        "prefix_tokens": PREFIX,
        "rounds": ROUNDS,
        "vocabulary": len(json.loads(options.tokenizer.read_text())["model"]["vocab"]),
        "counted": "least time of each prefix over the rounds",
    }


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    load = round(os.getloadavg()[1], 1)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_average": load,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "peer": PEER,
    }


if __name__ == "__main__":
    sys.exit(main())
