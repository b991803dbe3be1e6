"""The training loss without ever holding all logits: head, softmax and their gradients in one pass over small chunks.

A plain loop writes tokens x vocabulary logits to memory and reads them back four times. A chunk of rows stays in the
processor's cache instead, one softmax gives both the loss and its gradient, and the gradients are ready when the loss
is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

_CHUNK_LOGITS = 1 << 21
_SMALLEST = torch.finfo(torch.float32).tiny


class Objective(nn.Module):
    """A causal LM as a function from rows of tokens to the mean loss of predicting each from those before it.

    Matrices are multiplied in `dtype` (else in that of the weights); weights and gradients keep their own.
    """

    def __init__(self, network: Any, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.network = network
        self._dtype = dtype or network.dtype
        self._no_split_modules = network._no_split_modules  # accelerate looks here for the layers to shard

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast(ids.device.type, self._dtype, enabled=self._dtype is torch.bfloat16):
            hidden = self.network.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        weight = self.network.lm_head.weight.to(self._dtype)
        flat = hidden.reshape(-1, hidden.shape[-1]).to(self._dtype), weight, ids[:, 1:].reshape(-1)
        loss: torch.Tensor = _HeadLoss.apply(*flat)  # type: ignore[no-untyped-call]
        return loss


class _HeadLoss(torch.autograd.Function):
    """Mean cross-entropy of hidden @ weight.T against the targets, softmax in fp32."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        rows = max(1, _CHUNK_LOGITS // weight.shape[0])
        to_hidden, to_weight = (
            torch.empty_like(hidden),
            torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32)),
        )
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for first in range(0, len(targets), rows):
            part, target = hidden[first : first + rows], targets[first : first + rows, None]
            gradient = torch.softmax((part @ weight.t()).float(), dim=1)
            target_probability = gradient.gather(1, target)
            total -= target_probability.clamp_min(_SMALLEST).log().sum()
            gradient.scatter_(1, target, target_probability - 1.0)
            gradient = gradient.to(weight.dtype)
            torch.mm(gradient, weight, out=to_hidden[first : first + rows])
            to_weight += gradient.t() @ part
        ctx.save_for_backward(to_hidden, to_weight)
        ctx.count = len(targets)
        return total / len(targets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        to_hidden, to_weight = ctx.saved_tensors
        scale = factor / ctx.count
        return to_hidden * scale.to(to_hidden.dtype), to_weight * scale, None
