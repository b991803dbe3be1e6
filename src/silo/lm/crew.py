"""The processes of a training run: one, or several started by `torchrun` and joined through accelerate."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from silo.lm.cores import cores, each_on_a_core

Batch = tuple[torch.Tensor, float]
"""Rows of tokens, and the weight of their mean loss."""


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

    @property
    def cores(self) -> int:
        """How many batches this process works on at a time; several processes take one each."""
        return 1 if self._accelerator else cores()

    def wait(self) -> None:
        if self._accelerator:
            self._accelerator.wait_for_everyone()

    def wrap(self, network: Any, optimiser: Any) -> tuple[Any, Any]:
        return self._accelerator.prepare(network, optimiser) if self._accelerator else (network, optimiser)

    def add_gradients(self, objective: Any, batches: Sequence[Batch]) -> torch.Tensor:
        """Give the parameters the gradients of the weighted sum of the batches' losses; returns that sum.

        One process works on a batch per core. Gradients are added in the order of the batches, so that the weights do
        not depend on which core was faster.
        """
        if self._accelerator:
            return torch.stack([self._backward(objective(ids) * share) for ids, share in batches]).sum()
        parameters = [item for item in objective.parameters() if item.requires_grad]

        def differentiate(batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
            loss = objective(batch[0]) * batch[1]
            return loss.detach().float(), torch.autograd.grad(loss, parameters)

        total = torch.zeros(())
        for first in range(0, len(batches), self.cores):
            for loss, gradients in each_on_a_core(differentiate, batches[first : first + self.cores]):
                total += loss
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return total

    def _backward(self, loss: torch.Tensor) -> torch.Tensor:
        self._accelerator.backward(loss)
        return loss.detach().float()

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        return self._accelerator.reduce(value, "mean") if self._accelerator else value
