"""How long does a store take to open, and how much memory does it hold, as it grows beyond what fits?

    python benchmarks/open.py STORE [--millions 10 30 100] [--work DIR]

The buckets of a store are repeated until it has so many tokens, as files of their own; the answers of such a store mean
nothing, its bytes are as many and are read as usual. Each size is opened by fresh processes: when nothing is remembered
of its files, again, and then to search. Time is of the clock and of the processor; memory is what the process holds by
itself (`own`) and what it has mapped and touched of files (`mapped`), which the system takes back when it needs it.
Writes docs/results/open.json and open.md. Takes 45 bytes of disk per token at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from silo.files import copy_file, remove_tree, write_json
from silo.store.erasure.digest import Digest
from silo.store.erasure.evidence import announce_generation, seal
from silo.store.erasure.log import AuditLog
from silo.store.manifest import Generation, read_generation, write_generation
from silo.store.paths import StorePaths
from silo.store.store import Store

ROOT = Path(__file__).parent.parent
QUERIES, K = 64, 64
ROUNDS = ("first opening", "next opening")

Row = dict[str, Any]


def main() -> int:
    arguments = parsed()
    if arguments.measure:
        print(json.dumps(measured(arguments.store, search=arguments.search)))
        return 0
    rows: list[Row] = []
    for millions in arguments.millions:
        place = arguments.work / f"{millions}m"
        repeat(StorePaths(arguments.store), StorePaths(place), millions * 1_000_000)
        rows.append({"tokens": read_generation(StorePaths(place)).totals["tokens"], **opened(place, arguments.work)})
        remove_tree(place)
    before = json.loads(arguments.before.read_bytes())["rows"] if arguments.before else []
    result = {"rows": rows, "before": before, "queries": QUERIES, "k": K}
    write_json(arguments.out.with_suffix(".json"), result)
    arguments.out.with_suffix(".md").write_text(page(rows, before), encoding="utf-8")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--millions", type=int, nargs="+", default=[10, 30, 100])
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "open")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "open")
    parser.add_argument("--before", type=Path, metavar="JSON", help="the result of an earlier silo, to be shown too")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--search", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def repeat(source: StorePaths, target: StorePaths, tokens: int) -> None:
    """Make a store of at least so many tokens whose buckets are those of another one, again and again."""
    remove_tree(target.root)
    target.buckets.mkdir(parents=True)
    for path in (*source.lasting(), source.suppression, source.signing_key.parent):
        subprocess.run(["cp", "-a", path, target.root], check=True)
    given = read_generation(source)
    names, entries, held = given.files(), {}, 0
    prefixes = sorted(given.buckets)
    depth = max(1, (tokens // max(1, given.totals["tokens"]) * len(prefixes)).bit_length() + 1)
    for number in range(1 << depth):
        if held >= tokens:
            break
        old, prefix = prefixes[number % len(prefixes)], f"{number:0{depth}b}"
        entries[prefix] = given.buckets[old]
        held += entries[prefix].tokens
        made = Generation.of(given.config, {prefix: entries[prefix]}, Digest.of()).files()[prefix]
        copy_file(source.buckets / names[old], target.buckets / made)
    log, generation = AuditLog.open(target.log), Generation.of(given.config, entries, Digest.of())
    write_generation(target, generation, lambda name: announce_generation(log, name))
    seal(target, log)
    os.sync()


def opened(place: Path, work: Path) -> Row:
    """What fresh processes measure; the checksums that they remember lie in a folder of their own."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(work / "cache")}
    remove_tree(work / "cache")
    time.sleep(4)  # files that have just changed are not remembered
    command = [sys.executable, __file__, str(place), "--measure"]
    found: Row = {}
    for name, more in ((ROUNDS[0], []), (ROUNDS[1], []), ("search", ["--search"])):
        done = subprocess.run([*command, *more], env=environment, check=True, capture_output=True, text=True)
        found[name] = json.loads(done.stdout)
    return found


def measured(place: Path, *, search: bool) -> Row:
    """Open a store in this process, and search it if that is asked for."""
    store, row = timed(lambda: Store.open(place))
    result: Row = {"open": row}
    if search:
        assert store.codec is not None
        keys = np.random.default_rng(0).normal(size=(QUERIES, store.codec.arrays.mean.size)).astype(np.float32)
        result["first search"] = timed(lambda: store.search(keys[:1], K))[1]
        result["searches"] = timed(lambda: store.search(keys, K))[1]
        result["continuations"] = timed(lambda: store.continuations(list(range(1, 9))))[1]
    return result


def timed(run: Any) -> tuple[Any, Row]:
    """What a call gives, what it took, and the memory that is held then."""
    begin, processor = time.perf_counter(), time.process_time()
    result = run()
    seconds = {"seconds": time.perf_counter() - begin, "processor_seconds": time.process_time() - processor}
    return result, {**{name: round(value, 3) for name, value in seconds.items()}, **memory()}


def memory() -> dict[str, int]:
    """Megabytes that this process holds by itself, and of files that it has mapped and touched."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in lines if line.startswith("Rss")}
    return {"own_mb": sizes["RssAnon"], "mapped_mb": sizes["RssFile"]}


def page(rows: list[Row], before: list[Row]) -> str:
    """The figures as a page."""
    lines = [
        "# Opening a store, and what it holds in memory",
        "",
        "Measured by `benchmarks/open.py` with the buckets of a store of e-mail (knn and ngram), repeated. Seconds",
        "of the processor, of the clock in brackets; megabytes. `own` is memory of the process, `mapped` what it has",
        "touched of files, which the system can take back. The machine was busy: processor time counts. The codec",
        "of that store has few lists, so that its searches are slow; search.md has the speed of search.",
        "",
        *table(rows),
    ]
    if before:
        lines += ["", "Before checksums were remembered and tokens looked up where they lie:", "", *table(before)]
    return "\n".join(lines) + "\n"


def table(rows: list[Row]) -> list[str]:
    """One line for each size."""
    lines = [
        "| tokens | first opening | next opening | own, mapped then | first search | own, mapped then | 64 searches |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        first, later, search = (row[name] for name in (*ROUNDS, "search"))
        cells = [
            f"{row['tokens']:,}",
            shown(first["open"]),
            shown(later["open"]),
            held(later["open"]),
            shown(search["first search"]),
            held(search["first search"]),
            shown(search["searches"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def shown(figures: Row) -> str:
    return f"{figures['processor_seconds']:.2f} ({figures['seconds']:.1f})"


def held(figures: Row) -> str:
    return f"{figures['own_mb']:,}, {figures['mapped_mb']:,}"


if __name__ == "__main__":
    raise SystemExit(main())
