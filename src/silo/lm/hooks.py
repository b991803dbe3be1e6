"""Forward hooks that capture the input of a network's last feed-forward network while a pass is under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_NAMES = ("mlp", "feed_forward")


class _StopPass(Exception):
    """Ends a pass of which nothing more is wanted."""


@dataclass(frozen=True, slots=True)
class _Capture:
    """The inputs captured so far; the pass ends at `stop_after` of them, with 0 it goes on."""

    inputs: list[Tensor]
    stop_after: int


_capture: ContextVar[_Capture | None] = ContextVar("capture", default=None)
"""Where the hook of this thread puts inputs; None where nobody asks."""


@torch.inference_mode()
def hook_last_feed_forward(network: Any, begin: int) -> int:
    """Hook the last feed-forward network, so that its inputs can be captured; how many a pass has.

    Done once, on opening: torch's hooks may not come and go while other threads run the network.
    """
    modules = [module for name, module in network.named_modules() if name.rpartition(".")[2] in _NAMES]
    for module in modules[-1:]:
        module.register_forward_pre_hook(_capture_input)
    with capture_inputs() as inputs:
        network(input_ids=torch.tensor([[begin]], device=network.device), use_cache=False)
    return len(inputs)


def _capture_input(_: Any, inputs: tuple[Any, ...]) -> None:
    capture = _capture.get()
    if capture is not None:
        capture.inputs.extend(inputs[:1])
        if len(capture.inputs) == capture.stop_after:
            raise _StopPass


@contextmanager
def capture_inputs(stop_after: int = 0) -> Iterator[list[Tensor]]:
    """The inputs that passes of this thread give the hook; the block ends at once when there are `stop_after`."""
    inputs: list[Tensor] = []
    before = _capture.set(_Capture(inputs, stop_after))
    try:
        with suppress(_StopPass):
            yield inputs
    finally:
        _capture.reset(before)
