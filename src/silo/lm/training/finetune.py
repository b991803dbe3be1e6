"""The baseline that a store must be compared with: the same model, its weights adapted to the store's text.

Such weights have learned from text that may not train a model. They live in memory to be measured and are never saved.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from silo.errors import SiloError
from silo.lm.model import LanguageModel
from silo.lm.network import choose_dtype, parameter_count
from silo.lm.training.distributed import ProcessGroup
from silo.lm.training.loss import Objective
from silo.lm.training.validation import mean_losses
from silo.progress import Advance
from silo.text.stream import TokenStream
from silo.text.tokenizer import Ids

_SMALL = 30_000_000
_ROWS_TOGETHER = 2
"""Of a step; a fifth faster than one by one, and a large network needs little more memory."""


@dataclass(frozen=True, slots=True)
class FineTuning:
    """How to adapt. `rate` 0 is 1e-3 for networks under 30M parameters and 1e-4 for larger ones."""

    epochs: float = 2.0
    length: int = 512
    batch_tokens: int = 4096
    rate: float = 0.0
    evaluations: int = 8
    seed: int = 0


def fine_tune(
    model: LanguageModel,
    tokens: Ids,
    validation: TokenStream,
    how: FineTuning,
    *,
    advance: Advance = lambda *_: None,
) -> tuple[LanguageModel, dict[str, Any]]:
    """A copy of the model adapted to the tokens, as it was when validation text was likeliest, and how it went."""
    length = min(how.length, model.context)
    rows = (len(tokens) - 1) // length
    if rows < 1:
        raise SiloError("input-empty", f"{len(tokens)} tokens are too few to fine-tune on")
    network = copy.deepcopy(model.network).float()
    network.train()
    per_step = max(1, how.batch_tokens // length)
    steps = max(1, math.ceil(rows * how.epochs / per_step))
    peak = how.rate or (1e-3 if parameter_count(network) < _SMALL else 1e-4)
    optimiser = torch.optim.AdamW(network.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.1)
    group = ProcessGroup(device=model.device.type)
    objective = Objective(network, choose_dtype(model.device.type))
    batches = _batches(tokens, rows, length, per_step, how.seed)
    best, kept, history = math.inf, _weights(network), []
    for step in range(steps + 1):
        if step % max(1, steps // how.evaluations) == 0 or step == steps:
            loss = mean_losses(network, {"": validation}, length)[""]
            history.append([step * per_step * length, loss])
            if loss < best:
                best, kept = loss, _weights(network)
        if step == steps:
            break
        _move(optimiser, peak * min(1.0, (step + 1) / (0.05 * steps + 1)) * (1 - step / steps))
        optimiser.zero_grad(set_to_none=True)
        group.add_gradients(objective, [(ids.to(model.device), share) for ids, share in next(batches)])
        group.clip_gradients(network, 1.0)
        optimiser.step()
        advance("fine-tune", step + 1, steps)
    network.load_state_dict(kept)
    network.eval()
    adapted = replace(model, network=network, kept_scores=None)
    return adapted, {"rate": peak, "tokens": steps * per_step * length, "validation": history, "best": best}


def _batches(tokens: Ids, rows: int, length: int, per_step: int, seed: int) -> Iterator[list[Any]]:
    """Steps of rows in random order, epoch after epoch, in small batches, each with its share of the step."""
    rng = np.random.default_rng(seed)
    waiting: list[int] = []
    while True:
        while len(waiting) < per_step:
            waiting += rng.permutation(rows).tolist()
        taken, waiting = waiting[:per_step], waiting[per_step:]
        few = [taken[at : at + _ROWS_TOGETHER] for at in range(0, per_step, _ROWS_TOGETHER)]
        yield [(_sequences(tokens, some, length), len(some) / per_step) for some in few]


def _sequences(tokens: Ids, rows: list[int], length: int) -> torch.Tensor:
    """Rows of tokens, each with the one after it."""
    return torch.from_numpy(
        np.stack([tokens[row * length : row * length + length + 1] for row in rows]).astype(np.int64)
    )


def _weights(network: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def _move(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for parameters in optimiser.param_groups:
        parameters["lr"] = rate
