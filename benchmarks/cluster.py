"""What it costs to search a store on a cluster: the same questions to searchers and to the store in this process.

    python benchmarks/cluster.py --store STORE [--nodes 3] [--parts 3] [--repeats 40]

All nodes are on this machine, so this is the price of asking, moving and merging, not what several machines gain. The
two sides take turns, and the figure is the median of the differences. Nearest rows are looked for with keys drawn
around 0, in batches of 1 and 512, with the paper's k. Results: docs/results/cluster.json.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from silo.cluster.connect import connect, import_ray
from silo.cluster.search import ClusterSearch
from silo.files import write_json
from silo.store.store import Store

ROOT = Path(__file__).parent.parent
K = 1024
BATCHES = (1, 512)
NODE: dict[str, Any] = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": 200 << 20, "node_ip_address": "127.0.0.1"}


def main() -> int:
    arguments = parsed()
    import_ray(loopback=True)
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        for _ in range(arguments.nodes - 1):
            nodes.add_node(**NODE)
        nodes.wait_for_nodes()
        with connect(nodes.address):
            result = measure(arguments)
    finally:
        nodes.shutdown()
    write_json(arguments.out, result)
    return 0


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    store = Store.open(arguments.store)
    begin = time.perf_counter()
    search = ClusterSearch.place(arguments.store, parts=arguments.parts, cpus=0.5)
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "nodes": arguments.nodes,
        "parts": search.placement.parts,
        "replicas": search.placement.replicas,
        "tokens": store.stats()["tokens"],
        "k": K,
        "placing_seconds": round(time.perf_counter() - begin, 2),
    }
    assert store.codec is not None
    keys = np.random.default_rng(0).normal(size=(BATCHES[-1], store.codec.width)).astype(np.float32)
    prefix = next(store.documents()).text.encode()[:200]
    try:
        for batch in BATCHES:
            repeats = arguments.repeats if batch == 1 else max(3, arguments.repeats // 10)
            figures = compare(store, search, lambda keys=keys[:batch]: store.search(keys, K), repeats)  # type: ignore[misc]
            result[f"search_{batch}"] = {name: round(value / batch, 4) for name, value in figures.items()}
            say(f"nearest rows, batch {batch}, ms per query: {result[f'search_{batch}']}")
        text = prefix.decode(errors="replace")
        ids = store.tokenizer.encode([text])[0].astype(np.int64)
        for name, kind, ask in (
            ("passages", "bm25", lambda: store.passages(text, 8)),
            ("continuations", "ngram", lambda: store.continuations(ids)),  # type: ignore[arg-type]
        ):
            if kind in store.config.searches:
                result[name] = compare(store, search, ask, arguments.repeats)
                say(f"{name}, ms: {result[name]}")
    finally:
        search.close()
    return result


def compare(store: Store, search: ClusterSearch, ask: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Milliseconds of both sides, in turns, after one of each that does not count."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(repeats + 1):
        for on_cluster in (False, True):
            store.searchers = search if on_cluster else None
            begin = time.perf_counter()
            ask()
            if number:
                times[on_cluster].append(1000 * (time.perf_counter() - begin))
    more = np.array(times[True]) - np.array(times[False])
    medians = {"embedded": np.median(times[False]), "cluster": np.median(times[True]), "overhead": np.median(more)}
    return {name: round(float(value), 4) for name, value in medians.items()}


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--parts", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "cluster.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
