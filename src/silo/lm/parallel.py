"""Work on several cores at once: each core takes whole pieces of it, instead of a share of every small operation.

On a processor, operations of small networks are too short to split: two threads that wait for each other after each
of them lose a tenth or more. Pieces that share nothing do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def cores() -> int:
    """How many cores this thread may use."""
    return torch.get_num_threads()


def each_on_a_core(work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """The results of all pieces, in their order, as many at a time as this thread may use cores; one piece gets all."""
    count = cores()
    if count == 1 or len(pieces) == 1:
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(work, pieces))
