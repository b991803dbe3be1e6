"""How many machines does a store of some size take, how fast does it answer, and what happens when a machine dies?

    python benchmarks/sizing.py [--seed 0]

A simulation. What a token costs on disk and in memory, and a search on a processor, is read from what was measured
(docs/results/store.json, search.json, open.json); network, prices and failures are assumptions, which stand in `Plan`
and in the result. Keys come in batches, at random times. Each part of the store answers a batch on one of its replicas,
the one with the least work; one that has not answered after `hedge_seconds` is asked no longer alone; the batch is done
with its last part. In the middle of the run one node dies: what it was asked goes to the other replicas after the same
time, and the node is back when it has fetched and opened its parts. Writes docs/results/sizing.json and sizing.md.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.files import write_json

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
MEASURED_LISTS = 4096
HOURS_A_MONTH = 730
CORES_FILLING = 2
BUCKET_BITS = 16
"""The longest prefix of a bucket: there are at most 2^16 of them."""


@dataclass(frozen=True, slots=True)
class Units:
    """What was measured: per token, per key that is searched, per gigabyte that is opened."""

    disk_bytes: float
    own_bytes: float
    mapped_bytes: float
    text_bytes: float
    key_microseconds: float
    key_microseconds_per_million_rows: float
    least_key_microseconds: float
    open_seconds_per_gb: float
    prepare_seconds_per_million: float
    filled_per_second_and_core: float

    @classmethod
    def read(cls, folder: Path) -> Units:
        """The units that benchmarks have left in a folder."""
        store, search, opened = (json.loads((folder / f"{name}.json").read_bytes()) for name in UNIT_FILES)
        few, many = (_microseconds(search, "8 probes", rows) for rows in (1_000_000, 10_000_000))
        slope = (many - few) / 9
        figures, smallest, largest = store["store"], opened["rows"][0], opened["rows"][-1]
        held = [row["search"]["first search"]["own_mb"] * 2**20 for row in (smallest, largest)]
        disk_bytes, more_tokens = figures["bytes"] / figures["tokens"], largest["tokens"] - smallest["tokens"]
        opening = largest["first opening"]["open"]["processor_seconds"]
        preparing = [row["search"]["first search"]["processor_seconds"] for row in (smallest, largest)]
        return cls(
            disk_bytes=disk_bytes,
            own_bytes=(held[1] - held[0]) / more_tokens,
            mapped_bytes=figures["knn_bytes_per_token"] + figures["ngram_bytes_per_token"],
            text_bytes=figures["text_bytes"] / figures["tokens"],
            key_microseconds=few - slope,
            key_microseconds_per_million_rows=slope,
            least_key_microseconds=_microseconds(search, "as stores search", 1_000_000),
            open_seconds_per_gb=opening / (largest["tokens"] * disk_bytes / 1e9),
            prepare_seconds_per_million=(preparing[1] - preparing[0]) / more_tokens * 1e6,
            filled_per_second_and_core=store["filling"]["add_tokens_per_second"] / CORES_FILLING,
        )


UNIT_FILES = ("store", "search", "open")


def _microseconds(search: dict[str, Any], kind: str, rows: int) -> float:
    found = (row for row in search["results"] if row["search"] == f"ours, default, {kind}" and row["rows"] == rows)
    return float(next(found)["microseconds_batch"])


@dataclass(frozen=True, slots=True)
class Plan:
    """A cluster, and all that is assumed about it."""

    name: str
    tokens: float
    parts: int
    replicas: int = 2
    lists: int = MEASURED_LISTS
    batch: int = 64
    batches_per_second: float = 20.0
    node_cores: int = 32
    node_memory_gb: float = 256.0
    node_dollars_an_hour: float = 2.0
    object_dollars_gb_month: float = 0.023
    network_seconds: float = 0.0005
    network_gb_per_second: float = 1.25
    message_microseconds: float = 300.0
    hedge_seconds: float = 0.25
    node_hours_between_failures: float = 5000.0
    seconds_to_notice: float = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What comes of a plan."""

    nodes: int
    searchers_per_node: int
    tokens_per_searcher: float
    memory_gb_per_node: float
    disk_tb: float
    dollars_a_month: float
    key_milliseconds: float
    busy: float
    keys_per_second_at_most: float
    median_ms: float
    p99_ms: float
    p99_ms_with_a_dead_node: float
    hedged: float
    lost: int
    recovery_seconds: float
    hours_a_year_without_some_part: float
    buckets: int
    tokens_per_bucket: float
    filling_core_hours: float


def key_seconds(plan: Plan, units: Units) -> float:
    """Processor time that one part needs for one key: lists to compare with, then the rows of those that are read."""
    millions, finer = plan.tokens / plan.parts / 1e6, plan.lists / MEASURED_LISTS
    rows = units.key_microseconds_per_million_rows * millions / finer
    return max(units.least_key_microseconds, units.key_microseconds * finer + rows) / 1e6


def searchers_of(plan: Plan, units: Units) -> tuple[int, float]:
    """How many searchers fit a node by memory and processors, and the gigabytes that one takes."""
    each = plan.tokens / plan.parts * (units.own_bytes + units.mapped_bytes) / 1e9
    return max(1, min(plan.node_cores - 2, int(0.8 * plan.node_memory_gb / each))), each


def simulate(plan: Plan, units: Units, *, batches: int = 2000, seed: int = 0) -> Outcome:
    """Run a plan."""
    rng = np.random.default_rng(seed)
    per_node, each_gb = searchers_of(plan, units)
    nodes = max(plan.replicas, math.ceil(plan.parts * plan.replicas / per_node))
    per_node = math.ceil(plan.parts * plan.replicas / nodes)
    service = plan.batch * key_seconds(plan, units) + plan.message_microseconds / 1e6
    merging = plan.parts * plan.message_microseconds / 1e6
    part_gb = plan.tokens / plan.parts * units.disk_bytes / 1e9
    opening = part_gb * units.open_seconds_per_gb + plan.tokens / plan.parts / 1e6 * units.prepare_seconds_per_million
    recovery = plan.seconds_to_notice + per_node * part_gb / plan.network_gb_per_second + opening
    latencies, during, hedged, lost = _run(plan, service, per_node, recovery, batches, rng)
    total = latencies + merging + 2 * plan.network_seconds
    down = recovery / 3600 / plan.node_hours_between_failures
    hours = 24 * 365 * (1 - (1 - down**plan.replicas) ** plan.parts)
    disk_tb = plan.tokens * units.disk_bytes / 1e12
    buckets = int(min(2**BUCKET_BITS, max(1, plan.tokens * units.text_bytes / (4 << 20))))
    rent = nodes * plan.node_dollars_an_hour * HOURS_A_MONTH + disk_tb * 1000 * plan.object_dollars_gb_month
    return Outcome(
        nodes=nodes,
        searchers_per_node=per_node,
        tokens_per_searcher=plan.tokens / plan.parts,
        memory_gb_per_node=round(per_node * each_gb, 1),
        disk_tb=round(disk_tb, 3),
        dollars_a_month=round(rent),
        key_milliseconds=round(1000 * key_seconds(plan, units), 3),
        busy=round(plan.batches_per_second * service / plan.replicas, 3),
        keys_per_second_at_most=round(plan.batch / max(service / plan.replicas, merging)),
        median_ms=_milliseconds(total, 50),
        p99_ms=_milliseconds(total, 99),
        p99_ms_with_a_dead_node=_milliseconds(during + merging + 2 * plan.network_seconds, 99),
        hedged=round(hedged, 5),
        lost=lost,
        recovery_seconds=round(recovery, 1),
        hours_a_year_without_some_part=round(hours, 4),
        buckets=buckets,
        tokens_per_bucket=round(plan.tokens / buckets),
        filling_core_hours=round(plan.tokens / units.filled_per_second_and_core / 3600),
    )


def _milliseconds(seconds: NDArray[np.float64], percent: float) -> float:
    return round(1000 * float(np.percentile(seconds, percent)), 1)


def _run(
    plan: Plan, service: float, per_node: int, recovery: float, batches: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64], float, int]:
    """Seconds of each batch until its last part has answered, those while a node is dead, the share of questions that
    were put twice, and how many batches found a part without a live replica.

    `work` is when each replica of each part is free again.
    """
    gaps = rng.exponential(1 / plan.batches_per_second, batches)
    arrivals = np.cumsum(gaps)
    dies, back = arrivals[batches // 2], arrivals[batches // 2] + recovery
    replica = np.arange(plan.parts * plan.replicas).reshape(plan.parts, plan.replicas)
    on_dead_node = _nodes_of(replica, plan, per_node) == 0
    work = np.zeros(replica.shape)
    latencies, parts, twice, lost = np.zeros(batches), np.arange(plan.parts), 0, 0
    for number, now in enumerate(arrivals):
        dead = on_dead_node & (dies <= now < back)
        lost += int(dead.all(axis=1).any())
        free = np.where(dead, np.inf, np.maximum(work, now))
        chosen = free.argmin(axis=1)
        takes = service * rng.gamma(16, 1 / 16, plan.parts)
        done = free[parts, chosen] + takes
        killed = on_dead_node[parts, chosen] & (now < dies) & (done > dies)
        slow = killed | (done - now > plan.hedge_seconds)
        work[parts, chosen] = np.where(np.isfinite(done), done, work[parts, chosen])
        if plan.replicas > 1 and slow.any():
            other = (chosen + 1) % plan.replicas
            second = np.maximum(free[parts, other], now + plan.hedge_seconds) + takes
            work[parts, other] = np.where(slow & np.isfinite(second), second, work[parts, other])
            done = np.where(killed, second, np.where(slow, np.minimum(done, second), done))
            twice += int(slow.sum())
        latencies[number] = np.max(np.where(np.isfinite(done), done, now)) - now
    during = latencies[(arrivals >= dies) & (arrivals < back)]
    return latencies, during, twice / (batches * plan.parts), lost


def _nodes_of(replica: NDArray[np.int64], plan: Plan, per_node: int) -> NDArray[np.int64]:
    """The node of each replica of each part: replicas of one part are on different nodes."""
    nodes = max(plan.replicas, math.ceil(plan.parts * plan.replicas / per_node))
    part, number = np.divmod(replica, plan.replicas)
    node: NDArray[np.int64] = (part + number * max(1, nodes // plan.replicas)) % nodes
    return node


PLANS = (
    Plan("100 million tokens", 1e8, parts=8),
    Plan("1 billion, 16 parts", 1e9, parts=16, batches_per_second=8.0),
    Plan("1 billion, 64 parts", 1e9, parts=64),
    Plan("100 billion, 65,536 lists", 1e11, parts=800, lists=65_536, batches_per_second=2.0),
    Plan("1 trillion, 4,096 lists", 1e12, parts=4000, batches_per_second=0.25),
    Plan("1 trillion, 262,144 lists", 1e12, parts=4000, lists=262_144, batches_per_second=0.25),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "sizing")
    arguments = parser.parse_args()
    units = Units.read(RESULTS)
    found = [(plan, simulate(plan, units, seed=arguments.seed)) for plan in PLANS]
    rows = [{"plan": asdict(plan), "outcome": asdict(outcome)} for plan, outcome in found]
    write_json(arguments.out.with_suffix(".json"), {"units": asdict(units), "seed": arguments.seed, "rows": rows})
    arguments.out.with_suffix(".md").write_text(page(units, found), encoding="utf-8")
    return 0


def page(units: Units, found: list[tuple[Plan, Outcome]]) -> str:
    """The result as a page."""
    assumed = {name: value for name, value in asdict(PLANS[0]).items() if name not in ("name", "tokens", "parts")}
    lines = [
        "# Sizing, simulated",
        "",
        "Made by `benchmarks/sizing.py`: a simulation. The unit costs were measured on one machine; everything else is",
        "assumed, and none of it was measured on such clusters.",
        "",
        "| measured unit | value |",
        "|---|---:|",
        *(f"| {name.replace('_', ' ')} | {value:,.3f} |" for name, value in asdict(units).items()),
        "",
        "| assumed, where a plan says nothing else | value |",
        "|---|---:|",
        *(f"| {name.replace('_', ' ')} | {value:,} |" for name, value in assumed.items()),
        "",
        f"| | {' | '.join(plan.name for plan, _ in found)} |",
        f"|---|{'---:|' * len(found)}",
        f"| parts | {' | '.join(f'{plan.parts:,}' for plan, _ in found)} |",
        f"| batches a second | {' | '.join(f'{plan.batches_per_second:g}' for plan, _ in found)} |",
    ]
    for name in asdict(found[0][1]):
        values = (getattr(outcome, name) for _, outcome in found)
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(f'{value:,}' for value in values)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
