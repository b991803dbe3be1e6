"""The input of a network's last feed-forward network, taken from a pass under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_NAMES = ("mlp", "feed_forward")


class _Enough(Exception):
    """Ends a pass of which nothing more is wanted."""


@dataclass(frozen=True, slots=True)
class _Notes:
    """What was taken so far; the pass ends at `enough` inputs, with 0 it goes on."""

    inputs: list[Tensor]
    enough: int


_noted: ContextVar[_Notes | None] = ContextVar("noted", default=None)
"""Where passes of this thread put the inputs; None where nobody asks."""


@torch.inference_mode()
def watch_feed_forward(network: Any, begin: int) -> int:
    """Let every pass offer the input of the last feed-forward network, for `noting` to take; how often one does so.

    Done once, on opening: torch's hooks may not come and go while other threads run the network.
    """
    modules = [module for name, module in network.named_modules() if name.rpartition(".")[2] in _NAMES]
    for module in modules[-1:]:
        module.register_forward_pre_hook(_note)
    with noting() as inputs:
        network(input_ids=torch.tensor([[begin]], device=network.device), use_cache=False)
    return len(inputs)


def _note(_: Any, inputs: tuple[Any, ...]) -> None:
    notes = _noted.get()
    if notes is not None:
        notes.inputs.extend(inputs[:1])
        if len(notes.inputs) == notes.enough:
            raise _Enough


@contextmanager
def noting(enough: int = 0) -> Iterator[list[Tensor]]:
    """The inputs that passes of this thread offer; the block ends at once when there are `enough`."""
    inputs: list[Tensor] = []
    before = _noted.set(_Notes(inputs, enough))
    try:
        with suppress(_Enough):
            yield inputs
    finally:
        _noted.reset(before)
