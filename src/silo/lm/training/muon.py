"""Muon (Jordan et al., 2024) in the precision that the hardware is fast in, matrices of one shape all at once.

The update is that of `torch.optim.Muon`, which always turns matrices in bf16, one after the other: on a processor
without bf16 that took a quarter of every step of a small model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from silo.lm.network import choose_dtype

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic whose slope at zero is so steep that few rounds bring all singular values to somewhere near one."""

_ROUNDS = 5
_SMALLEST_NORM = 1e-7
_ADAMW_SIZE = 0.2
"""Root mean square of AdamW's updates: with it, one learning rate suits both."""


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, turned into the nearest matrix whose singular values are about one; decay as in AdamW."""

    def __init__(self, matrices: Iterable[torch.Tensor], *, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": 1e-3, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move the matrices that have a gradient; there is no loss to compute again."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            for matrices in _by_shape(item for item in group["params"] if item.grad is not None):
                updates = orthogonalise(torch.stack([self._momentum(item, group["momentum"]) for item in matrices]))
                rate = group["lr"] * _ADAMW_SIZE * math.sqrt(max(updates.shape[1:]))
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)

    def _momentum(self, matrix: torch.Tensor, momentum: float) -> torch.Tensor:
        state: dict[str, Any] = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        gradient, mean = matrix.grad, state["momentum_buffer"]
        assert gradient is not None
        mean.lerp_(gradient, 1 - momentum)
        return gradient.lerp(mean, momentum)


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """Matrices [count, rows, columns] with the singular vectors of these and singular values of about one."""
    rows, columns = matrices.shape[1:]
    if rows > columns:
        return orthogonalise(matrices.mT).mT
    linear, cubic, quintic = _COEFFICIENTS
    turned = matrices.to(choose_dtype(matrices.device.type))
    turned = turned / turned.norm(dim=(1, 2), keepdim=True).clamp_min(_SMALLEST_NORM)
    for _ in range(_ROUNDS):
        gram = turned @ turned.mT
        turned = torch.baddbmm(turned, torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic), turned, beta=linear)
    return turned.to(matrices.dtype)


def _by_shape(matrices: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    groups: dict[torch.Size, list[torch.Tensor]] = {}
    for matrix in matrices:
        groups.setdefault(matrix.shape, []).append(matrix)
    yield from groups.values()
