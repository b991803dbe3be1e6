"""Near-duplicate removal against dolma's Rust deduper and datatrove's: speed per core, and which documents fall.

Every system runs alone in a fresh process on one core: it reads the same JSONL file and says which documents are
duplicates. Speed is text over CPU seconds (user and system, children included), once for the whole process and once
after subtracting a run on a handful of documents with the same settings. What is found is compared with an exact
n-gram set. Exit status 1 means that silo is not `--bar` times as fast as the faster peer.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from dedup_report import markdown
from dedup_runner import BYTES_PER_NGRAM, FALSE_POSITIVE_RATE, NGRAM, PROBES, THRESHOLD
from dedup_text import EDITS, Agreement, ExactSet, Record, agreement, load_text, plant, text_bytes

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("dolma==1.2.1", "datatrove==0.10.1")
"""Installed without their dependencies: their pins of numpy exclude each other."""
PEERS_NEED = (
    *("numpy==2.4.6", "spacy==3.8.18", "xxhash==3.8.2", "regex==2026.11.9", "tokenizers==0.23.3", "dill==0.4.1"),
    *("huggingface_hub==2.4.0", "fsspec==2026.9.0", "loguru==0.7.3", "tqdm==4.70.1", "humanize==4.16.0"),
    "multiprocess==0.70.19",
)
RIVALS = ("dolma", "dolma, 7 hashes", "datatrove")
"""Systems that answer the same question, an n-gram Bloom filter over documents: the faster one sets the bar."""
ORDER = ("silo", *RIVALS[:2], "silo", *RIVALS[:2], "silo", "datatrove")
"""silo's runs lie between those of the peers, so that a busy moment of the machine does not hit one side only."""
CANARIES = 10


@dataclass(frozen=True, slots=True)
class Run:
    """One process: seconds from start to end, and what it decided."""

    wall: float
    cpu: float
    filter_seconds: float | None
    duplicates: frozenset[str]


@dataclass(frozen=True, slots=True)
class Speed:
    """Megabytes (10^6 bytes of UTF-8 text) per second."""

    system: str
    per_core: float
    per_core_with_startup: float
    wall_with_startup: float
    filter_alone: float | None
    startup_seconds: float
    duplicates: int


@dataclass(frozen=True, slots=True)
class Bench:
    """Where things are: the peers' Python, and a folder for files that go away."""

    peers_python: Path
    work: Path

    @property
    def source(self) -> Path:
        """A copy of silo's sources: an edit during the run must not mix two versions in one result."""
        return self.work / "src"


def main() -> int:
    """Run the benchmark and write its reports."""
    options = _options()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found, origin = load_text(options.data, round(options.megabytes * 1e6))
    with tempfile.TemporaryDirectory(prefix="silo-dedup-") as work:
        bench = Bench(_peers_python(options), Path(work))
        shutil.copytree(ROOT / "src", bench.source, ignore=shutil.ignore_patterns("__pycache__"))
        report: dict[str, Any] = {
            "settings": _settings(options, found, origin),
            "machine": _machine(bench),
            "source_sha256": _source_digest(bench.source),
            "speed": _speed_report(bench, found, options.bar),
            "agreement": _agreement_report(bench, found, options),
        }
    text = markdown(report)
    print(text)
    options.markdown.write_text(text, encoding="utf-8")
    options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if report["speed"]["met"] else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = ROOT.parent / "shared" / "data"
    parser.add_argument("--data", type=Path, nargs="*", default=sorted(data.glob("*.train.jsonl.zst")))
    parser.add_argument("--megabytes", type=float, default=100, help="text for the speed runs")
    parser.add_argument("--exact-megabytes", type=float, default=40, help="found text to put into the exact set")
    parser.add_argument("--copies", type=int, default=100, help="planted copies per kind of edit, at most")
    parser.add_argument("--bar", type=float, default=8, help="how many times the faster peer is asked for")
    parser.add_argument("--peers-python", type=Path, help="a Python that has dolma and datatrove")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "peers", help="where to install them otherwise")
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "results" / "dedup.json")
    parser.add_argument("--markdown", type=Path, default=ROOT / "docs" / "results" / "dedup.md")
    return parser.parse_args()


def _peers_python(options: argparse.Namespace) -> Path:
    if options.peers_python is not None:
        return Path(options.peers_python)
    python = Path(options.cache) / "bin" / "python"
    done = Path(options.cache) / "installed"
    if not done.exists():
        print(f"installing {' and '.join(PEERS)} into {options.cache}", file=sys.stderr)
        venv.create(options.cache, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
        subprocess.run([*install, *PEERS_NEED], check=True)
        subprocess.run([*install, "--no-deps", *PEERS], check=True)
        done.touch()
    return python


def _run(bench: Bench, system: str, records: Sequence[Record], *, room: int) -> Run:
    """One system on one text in a fresh process; what it writes is removed afterwards."""
    with tempfile.TemporaryDirectory(dir=bench.work) as name:
        folder = Path(name)
        (folder / "documents").mkdir()
        with (folder / "documents" / "text.jsonl").open("w", encoding="utf-8") as out:
            out.writelines(json.dumps({"id": one.id, "text": one.text}, ensure_ascii=False) + "\n" for one in records)
        python = Path(sys.executable) if system == "silo" else bench.peers_python
        command = [str(python), str(ROOT / "benchmarks" / "dedup_runner.py"), system]
        return _timed(bench, [*command, name, str(folder / "outcome.json"), str(room)])


def _timed(bench: Bench, command: list[str]) -> Run:
    print(f"running {command[2]}", file=sys.stderr)
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment |= {"PYTHONPATH": str(bench.source), "NUMBA_CACHE_DIR": str(bench.work / "numba")}
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{command[2]} failed:\n{done.stderr[-3000:]}")
    outcome = json.loads(Path(command[4]).read_text(encoding="utf-8"))
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(wall, cpu, outcome["filter_seconds"], frozenset(outcome["duplicates"]))


def _speed_report(bench: Bench, found: Sequence[Record], bar: float) -> dict[str, Any]:
    ordinary = (one for one in found if 50 <= one.text.count(" ") <= 500)
    tiny = [copy for one in itertools.islice(ordinary, CANARIES) for copy in (one, Record(f"copy {one.id}", one.text))]
    text = [*found, *tiny[1::2]]
    room = text_bytes(text)
    compiled = _run(bench, "silo", tiny, room=room)
    runs: dict[str, list[tuple[Run, Run]]] = {}
    for system in ORDER:
        pair = _run(bench, system, tiny, room=room), _run(bench, system, text, room=room)
        _require_canaries(system, tiny, pair)
        runs.setdefault(system, []).append(pair)
    speeds = [_speed(system, pairs, room, text_bytes(tiny)) for system, pairs in runs.items()]
    ratios = {name: _ratio(speeds, name) for name in ("per_core", "per_core_with_startup")}
    return {
        "megabytes": room / 1e6,
        "documents": len(text),
        "systems": [asdict(one) for one in speeds],
        "numba_compile_seconds": compiled.cpu - median(small.cpu for small, _ in runs["silo"]),
        "ratio_to_faster_peer": ratios,
        "bar": bar,
        "met": ratios["per_core"] >= bar,
    }


def _require_canaries(system: str, tiny: Sequence[Record], runs: Sequence[Run]) -> None:
    """A deduper that was set up wrongly is fast and finds nothing."""
    if any(one.id not in run.duplicates for run in runs for one in tiny[1::2]):
        raise SystemExit(f"{system} did not find exact copies: its settings did not reach it, the numbers mean nothing")


def _speed(system: str, pairs: Sequence[tuple[Run, Run]], size: int, tiny_size: int) -> Speed:
    filters = [size / 1e6 / run.filter_seconds for _, run in pairs if run.filter_seconds]
    return Speed(
        system=system,
        per_core=median((size - tiny_size) / 1e6 / (run.cpu - small.cpu) for small, run in pairs),
        per_core_with_startup=median(size / 1e6 / run.cpu for _, run in pairs),
        wall_with_startup=median(size / 1e6 / run.wall for _, run in pairs),
        filter_alone=median(filters) if filters else None,
        startup_seconds=median(small.cpu for small, _ in pairs),
        duplicates=len(pairs[0][1].duplicates),
    )


def _ratio(speeds: Sequence[Speed], measure: str) -> float:
    by_name: dict[str, float] = {one.system: getattr(one, measure) for one in speeds}
    return by_name["silo"] / max(by_name[name] for name in RIVALS)


def _agreement_report(bench: Bench, found: Sequence[Record], options: argparse.Namespace) -> dict[str, Any]:
    sample, _ = load_text(options.data, round(options.exact_megabytes * 1e6))
    planted = plant(found, copies=options.copies, exact=ExactSet(NGRAM, THRESHOLD))
    return {
        "found_text": _compared(bench, sample, ("silo",)),
        "planted": _compared(bench, planted, ("silo", *RIVALS, "datatrove MinHash")),
    }


def _compared(bench: Bench, records: Sequence[Record], systems: Sequence[str]) -> dict[str, Any]:
    exact = ExactSet(NGRAM, THRESHOLD).duplicates(records)
    decided = {system: _run(bench, system, records, room=text_bytes(records)).duplicates for system in systems}
    strangers = {one.id for one in records if one.case in {"original", "unrelated"}}
    return {
        "megabytes": text_bytes(records) / 1e6,
        "documents": len(records),
        "exact_duplicates": len(exact),
        "against_exact": {name: _scored(agreement(set(ids), exact)) for name, ids in decided.items()},
        "false_alarms": {name: len(ids & strangers) for name, ids in {"exact set": exact, **decided}.items()},
        "strangers": len(strangers),
        "found_by_case": _by_case(records, {"exact set": exact, **decided}),
    }


def _scored(one: Agreement) -> dict[str, float]:
    return {**asdict(one), "precision": one.precision, "recall": one.recall}


def _by_case(records: Sequence[Record], decided: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The share of documents of each case that each system calls a duplicate."""
    table = {}
    for case in ("unrelated", *EDITS):
        ids = {one.id for one in records if one.case == case}
        if ids:
            table[case] = {system: len(ids & chosen) / len(ids) for system, chosen in decided.items()}
    return table


def _settings(options: argparse.Namespace, found: Sequence[Record], origin: str) -> dict[str, Any]:
    return {
        "text": origin,
        "megabytes": text_bytes(found) / 1e6,
        "documents": len(found),
        "ngram": NGRAM,
        "threshold": THRESHOLD,
        "false_positive_rate": FALSE_POSITIVE_RATE,
        "probes": PROBES,
        "bytes_per_ngram": BYTES_PER_NGRAM,
        "copies_per_case": options.copies,
        "silo_runs": ORDER.count("silo"),
        "dolma_runs": ORDER.count("dolma"),
        "datatrove_runs": ORDER.count("datatrove"),
    }


def _machine(bench: Bench) -> dict[str, Any]:
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    ask = "from importlib.metadata import version as v; print(*(f'{n} {v(n)}' for n in ('dolma','datatrove','spacy')))"
    peers = subprocess.run([str(bench.peers_python), "-c", ask], capture_output=True, text=True, check=True).stdout
    words = peers.split()
    return {
        "cpu": cpu or platform.processor(),
        "cores": os.cpu_count(),
        "cores_used": 1,
        "python": platform.python_version(),
        "numba": version("numba"),
        "numpy": version("numpy"),
        **dict(zip(words[::2], words[1::2], strict=True)),
    }


def _source_digest(source: Path) -> str:
    """What was measured: the filter, its kernels and the recipe they read."""
    files = ("corpus/dedup.py", "corpus/ngrams.py", "recipe.py")
    return hashlib.sha256(b"".join((source / "silo" / name).read_bytes() for name in files)).hexdigest()


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


if __name__ == "__main__":
    sys.exit(main())
