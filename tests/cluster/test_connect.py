"""Joining a cluster: what is there is joined, what is not is said."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import pytest

from silo.cluster.connect import connect
from silo.errors import SiloError


def test_this_process_is_part_of_all_nodes(cluster: Any) -> None:
    import ray

    assert len([node for node in ray.nodes() if node["Alive"]]) == 3
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_whoever_is_in_a_cluster_stays_in_it(cluster: Any) -> None:
    import ray

    with connect("local"):
        assert ray.get_runtime_context().gcs_address == cluster.address
    assert ray.is_initialized()


@pytest.mark.parametrize("address", ["", "6379", "ray://127.0.0.1:10001", "127.0.0.1:port", "http://127.0.0.1:8265"])
def test_what_is_no_address_is_refused(address: str, no_cluster: None) -> None:
    with pytest.raises(SiloError) as caught, connect(address):
        pass
    assert caught.value.code == "usage"


def test_an_address_where_nobody_listens_is_said_at_once(no_cluster: None) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(SiloError) as caught, connect(f"127.0.0.1:{free.getsockname()[1]}"):
            pass
    assert caught.value.code == "cluster-unreachable"
    assert "ray start --head" in caught.value.hint


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has joined none."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SiloError) as caught, connect("local"):
        pass
    assert caught.value.code == "extra-missing"
    assert "silo-lm[ray]" in caught.value.hint
