"""How weights move: AdamW for all of them, or Muon for the matrices inside the layers and AdamW for the rest."""

from __future__ import annotations

import math
from typing import Any

import torch

from silo.lm.training.muon import Muon
from silo.recipe import TrainRecipe


class Optimiser:
    """One or several optimisers of torch that share a network's parameters among them, called as one."""

    def __init__(self, network: Any, recipe: TrainRecipe) -> None:
        parameters = [item for item in network.named_parameters() if item[1].requires_grad]
        inner = [item for name, item in parameters if recipe.optimiser == "muon" and _inside_a_layer(name, item)]
        moved = set(map(id, inner))
        rest = [item for _, item in parameters if id(item) not in moved]
        groups = [
            {"params": [item for item in rest if item.dim() >= 2], "weight_decay": recipe.weight_decay},
            {"params": [item for item in rest if item.dim() < 2], "weight_decay": 0.0},
        ]
        adam = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, recipe.beta2), eps=1e-8, fused=True)
        self.parts: list[Any] = [adam]
        if inner:
            self.parts.append(Muon(inner, weight_decay=recipe.weight_decay))

    def clear(self) -> None:
        """Forget the gradients of the last step."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def step(self, rate: float) -> None:
        """Move the weights at this learning rate."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()

    def moments(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """What is remembered of a parameter between steps; what is put in is used by the next step."""
        owner = next((part for part in self.parts if any(parameter is item for item in _parameters(part))), None)
        return {} if owner is None else owner.state[parameter]


def learning_rate(recipe: TrainRecipe, step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to `final_rate` of the peak."""
    warmup = max(1, round(recipe.warmup_share * steps))
    if step < warmup:
        return recipe.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    floor = recipe.final_rate
    return recipe.learning_rate * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def _inside_a_layer(name: str, parameter: torch.Tensor) -> bool:
    return ".layers." in name and parameter.dim() == 2


def _parameters(part: Any) -> list[torch.Tensor]:
    return [item for group in part.param_groups for item in group["params"]]
