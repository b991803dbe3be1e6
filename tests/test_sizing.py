"""The simulation of sizes behaves as what it stands for: more parts are faster, a dead node loses nothing."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

SIZING = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "sizing.py"))
UNITS: Any = SIZING["Units"](
    disk_bytes=46.0,
    own_bytes=6.0,
    mapped_bytes=42.0,
    text_bytes=3.3,
    key_microseconds=64.0,
    key_microseconds_per_million_rows=29.0,
    least_key_microseconds=290.0,
    open_seconds_per_gb=2.0,
    prepare_seconds_per_million=0.25,
    filled_per_second_and_core=5000.0,
)
PLAN: Any = SIZING["Plan"]("test", 1e9, parts=16)


def run(*, seed: int = 0, **changes: Any) -> Any:
    return SIZING["simulate"](replace(PLAN, **changes), UNITS, batches=400, seed=seed)


def test_one_seed_gives_one_result() -> None:
    assert run() == run() != run(seed=1)


def test_more_parts_answer_a_key_faster_and_take_more_searchers() -> None:
    few, many = run(parts=8), run(parts=64)
    assert many.key_milliseconds < few.key_milliseconds
    assert many.tokens_per_searcher == few.tokens_per_searcher / 8
    assert few.busy > many.busy


def test_twice_the_tokens_take_twice_the_disk_and_memory() -> None:
    one, two = run(), run(tokens=2e9)
    assert np.isclose(two.disk_tb, 2 * one.disk_tb)
    assert two.memory_gb_per_node * two.nodes > 1.9 * one.memory_gb_per_node * one.nodes
    assert two.filling_core_hours >= 2 * one.filling_core_hours - 1


def test_a_dead_node_loses_nothing_with_two_replicas_and_something_with_one() -> None:
    two, one = run(batches_per_second=2.0), run(batches_per_second=2.0, replicas=1)
    assert two.lost == 0 < one.lost
    assert two.p99_ms_with_a_dead_node >= two.median_ms
    assert one.hours_a_year_without_some_part > two.hours_a_year_without_some_part


def test_a_cluster_that_is_asked_too_much_falls_behind() -> None:
    calm, flooded = run(parts=64), run(parts=64, batches_per_second=200.0)
    assert calm.busy < 1 < flooded.busy
    assert flooded.p99_ms > 10 * calm.p99_ms


def test_replicas_of_one_part_are_on_different_nodes() -> None:
    for parts, per_node in ((16, 30), (16, 2), (64, 30), (7, 3)):
        plan = replace(PLAN, parts=parts)
        replica = np.arange(parts * 2).reshape(parts, 2)
        nodes = SIZING["_nodes_of"](replica, plan, per_node)
        assert (nodes[:, 0] != nodes[:, 1]).all()


def test_finer_lists_read_fewer_rows_and_compare_with_more_lists() -> None:
    huge: dict[str, Any] = {"tokens": 1e12, "parts": 1000, "batches_per_second": 0.1}
    assert run(**huge, lists=65_536).key_milliseconds < run(**huge).key_milliseconds / 4
    assert run(tokens=1e8, parts=1, lists=1 << 20).key_milliseconds > run(tokens=1e8, parts=1).key_milliseconds


def test_the_units_are_those_that_were_measured() -> None:
    units = SIZING["Units"].read(SIZING["RESULTS"])
    assert 40 < units.disk_bytes < 60
    assert 0 < units.own_bytes < units.disk_bytes
    assert units.key_microseconds_per_million_rows > 0
