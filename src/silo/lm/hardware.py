"""What networks compute on: a device that must be there, and the cores of a processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from silo.errors import SiloError
from silo.placement import Placement

Item = TypeVar("Item")
Result = TypeVar("Result")


def find_device(placement: Placement) -> str:
    """The device that was asked for, which must be there; cpu if nobody asked."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if placement.device == "auto":
        return next(name for name, is_there in there.items() if is_there)
    device = placement.device or "cpu"
    if not there[device.partition(":")[0]]:
        raise SiloError("device-missing", f"there is no device {device} on this machine")
    return device


def core_count() -> int:
    """How many cores this thread may use."""
    import torch  # whoever asks has loaded it; those who only might ask have not

    return torch.get_num_threads()


def map_on_cores(work: Callable[[Item], Result], items: Sequence[Item], *, device: str = "cpu") -> list[Result]:
    """The results of all items, in their order, as many at a time as this thread may use cores; one item gets all.

    Each core takes whole items, instead of a share of every small operation: operations of small networks are too short
    to split, and threads that wait for each other after each of them lose a tenth or more. Work on another device is
    done item by item.
    """
    import torch

    count = core_count()
    if count == 1 or len(items) == 1 or device != "cpu":
        return [work(item) for item in items]
    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(work, items))
