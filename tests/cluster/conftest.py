"""A Ray cluster of three nodes on this machine, one for all tests; without ray they are skipped."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from silo.cluster.connect import connect, import_ray

NODES, NODE_CPUS, OBJECT_STORE_BYTES = 3, 2, 100 << 20

if importlib.util.find_spec("ray") is None:
    _REASON = "the extra ray is not installed: `make test-ray` installs it and runs these"
elif "PYTEST_XDIST_WORKER" in os.environ:
    _REASON = "one cluster at a time: `make test-ray` runs these"
else:
    _REASON = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            if _REASON and getattr(getattr(item, "module", None), "NEEDS_RAY", True):
                item.add_marker(pytest.mark.skip(reason=_REASON))
            for warning in ("ResourceWarning", "DeprecationWarning", "FutureWarning"):  # ray's own
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{warning}"))


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """The cluster as `ray.cluster_utils.Cluster`: `nodes.address`, `nodes.worker_nodes`, `nodes.add_node`."""
    # Workers cost seconds: only those that are needed, and no nicer than the tests, or a busy machine starves them.
    os.environ |= {"RAY_prestart_worker_first_driver": "0", "RAY_worker_niceness": "0"}
    import_ray(loopback=True)
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args=_node_arguments(include_dashboard=False))
    try:
        for _ in range(NODES - 1):
            made.add_node(**_node_arguments())
        made.wait_for_nodes()
        yield made
    finally:
        made.shutdown()


def _node_arguments(**more: Any) -> dict[str, Any]:
    return {
        "num_cpus": NODE_CPUS,
        "num_gpus": 0,
        "object_store_memory": OBJECT_STORE_BYTES,
        "node_ip_address": "127.0.0.1",
        "include_log_monitor": False,
        **more,
    }


@pytest.fixture(scope="session")
def cluster(nodes: Any) -> Iterator[Any]:
    """The same, and this process is part of it."""
    with connect(nodes.address):
        yield nodes
