"""Joining a Ray cluster for as long as a command runs; "local" starts one on this machine and ends it after.

Nothing is reported to anybody: usage statistics and the dashboard stay off, and a local cluster listens on 127.0.0.1.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from silo.errors import SiloError

LOCAL = "local"
_LOOPBACK = "127.0.0.1"
_ANSWER_SECONDS = 5.0
_INSTALL = "install it on every machine of the cluster with: pip install 'silo-lm[ray]'"


@contextmanager
def connect(address: str) -> Iterator[None]:
    """Be part of the cluster at `address` (HOST:PORT, "auto" for the one this machine belongs to, or "local").

    A process that has joined one already stays in that one, whatever the address, and stays in it after.
    """
    ray = import_ray(loopback=address == LOCAL or address.startswith(_LOOPBACK))
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {"num_cpus": len(os.sched_getaffinity(0)), "include_dashboard": False}
    else:
        _require_answer(address)
    try:
        ray.init(address, **options)
    except Exception as error:  # of any kind: ray raises a plain one where a node does not start in time
        raise _unreachable(address, str(error)) from None
    try:
        yield
    finally:
        ray.shutdown()


def import_ray(*, loopback: bool = False) -> Any:
    """The library, told to report to nobody; an error that says how to install it where it is missing.

    With `loopback` nodes that this process starts or looks for are those on 127.0.0.1: ray would put the address that
    other machines see in its place. Ray reads these settings when it is imported, or passes them on to a node.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")  # a node of a busy machine ends itself before
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the default to come, which it warns about
    if loopback:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise SiloError("extra-missing", "a cluster needs ray", _INSTALL) from None
    return ray


def _require_answer(address: str) -> None:
    """Refuse an address where nobody listens: ray itself would try for a minute."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        message = f"'{address}' is not the address of a cluster: HOST:PORT, auto or local"
        raise SiloError("usage", message, "the command itself must run on a machine of the cluster")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from None


def _unreachable(address: str, reason: str) -> SiloError:
    first_line = reason.strip().partition("\n")[0]
    if address == LOCAL:
        hint = "a machine that is busy may be too slow to start one: try again, or leave --ray out"
        return SiloError("cluster-unreachable", f"no Ray cluster starts on this machine: {first_line}"[:600], hint)
    return SiloError("cluster-unreachable", f"no Ray cluster answers at {address}: {first_line}"[:600])
