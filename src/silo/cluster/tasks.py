"""Work that is given to the workers of a cluster: how much there is room for, what comes back, and what goes wrong.

A worker that dies costs what it was doing: another one does it again, a few times. An error of the work itself is
raised where the command runs, as if it had been done there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from silo import __version__
from silo.cluster.connect import import_ray
from silo.errors import SiloError

RETRIES = 5
"""How often the same work may take its worker with it."""


def room_for(resource: str) -> int:
    """How many workers with a CPU or a GPU of their own the cluster has room for; none at all is an error."""
    count = int(import_ray().cluster_resources().get(resource, 0))
    if count < 1:
        raise SiloError("device-missing", f"no machine of the cluster offers a {resource}", "add one that does")
    return count


def start_beside(kind: type, **options: Any) -> Any:
    """An actor of this class on the machine of the command, which ends with it; `options` are Ray's."""
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(kind).options(num_cpus=0, scheduling_strategy=here, **options).remote()


def receive(reference: Any) -> Any:
    """What a worker made, or the error of its work."""
    ray = import_ray()
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, SiloError):
            raise error.cause from None
        if "failed to import" in str(error):
            raise SiloError("cluster-unfit", "a machine of the cluster cannot import silo") from None
        raise RuntimeError(f"on the cluster: {error}") from None
    except ray.exceptions.RayError as error:
        reason = str(error).strip().partition("\n")[0]
        raise SiloError("worker-died", f"the work of a lost worker was given up: {reason}"[:600]) from None


@contextmanager
def cancelled_after(references: Iterable[Any]) -> Iterator[None]:
    """Whatever ends the block: what is left of the work then is ended too."""
    ray = import_ray()
    try:
        yield
    finally:
        for reference in references:
            ray.cancel(reference, force=True)


def require_same_version(version: str) -> None:
    """Called by a worker: refuse to work for another version of silo, which would make other bytes."""
    if version != __version__:
        raise SiloError("cluster-unfit", f"silo is {version} where the command runs and {__version__} on {_here()}")


def unseen(what: str) -> SiloError:
    """Called by a worker: the error for a path that the command sees and this machine does not."""
    return SiloError("cluster-unfit", f"{what} is not there on {_here()}")


def _here() -> str:
    import platform

    return platform.node() or "a machine of the cluster"
