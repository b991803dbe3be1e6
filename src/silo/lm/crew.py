"""The processes of a training run: one, or several started by `torchrun` and joined through accelerate."""

from __future__ import annotations

import os
from typing import Any

import torch


class Crew:
    """Who takes part in a run, and what they must do together."""

    def __init__(self) -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self._accelerator: Any = None
        if self.world > 1:
            from accelerate import Accelerator

            self._accelerator = Accelerator(cpu=not torch.cuda.is_available())

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        if self._accelerator:
            self._accelerator.wait_for_everyone()

    def wrap(self, network: Any, optimiser: Any) -> tuple[Any, Any]:
        return self._accelerator.prepare(network, optimiser) if self._accelerator else (network, optimiser)

    def backward(self, loss: torch.Tensor) -> None:
        if self._accelerator:
            self._accelerator.backward(loss)
        else:
            loss.backward()  # type: ignore[no-untyped-call]

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        return self._accelerator.reduce(value, "mean") if self._accelerator else value
