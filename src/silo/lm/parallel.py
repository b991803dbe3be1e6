"""Work on several cores at once: each core takes whole items of it, instead of a share of every small operation.

On a processor, operations of small networks are too short to split: two threads that wait for each other after each
of them lose a tenth or more. Items that share nothing do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def core_count() -> int:
    """How many cores this thread may use."""
    import torch  # whoever asks has loaded it; those who only might ask have not

    return torch.get_num_threads()


def map_on_cores(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results of all items, in their order, as many at a time as this thread may use cores; one item gets all."""
    import torch

    count = core_count()
    if count == 1 or len(items) == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(work, items))
