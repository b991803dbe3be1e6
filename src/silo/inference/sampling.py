"""Choosing a token from a distribution: greedy, temperature, top-k, top-p; a seed makes it repeatable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from silo.errors import SiloError
from silo.inference.mix import Floats


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature 0 takes the likeliest token. `top_k` 0 and `top_p` 1 leave all tokens in."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.temperature <= 100 and self.top_k >= 0 and 0 < self.top_p <= 1):
            raise SiloError("usage", "temperature is 0 to 100, top-k at least 0 and top-p above 0 and at most 1")
        if self.seed is not None and self.seed < 0:
            raise SiloError("usage", "a seed is not negative")

    def rng(self) -> np.random.Generator:
        """A generator for one text."""
        return np.random.default_rng(self.seed)

    def choose(self, probabilities: Floats, rng: np.random.Generator) -> int:
        """A token; ties of the greedy choice go to the lower number."""
        if self.temperature == 0:
            return int(probabilities.argmax())
        order = np.argsort(-probabilities, kind="stable")
        order = order[: self.top_k] if self.top_k else order
        weights = _tempered(probabilities[order], self.temperature)
        kept = int(np.searchsorted(np.cumsum(weights), self.top_p * weights.sum())) + 1
        bounds = np.cumsum(weights[:kept])
        drawn = min(int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right")), len(bounds) - 1)
        return int(order[drawn])


def _tempered(probabilities: Floats, temperature: float) -> Floats:
    with np.errstate(divide="ignore"):
        logs = np.log(probabilities)
    weights: Floats = np.exp((logs - logs.max()) / temperature)
    return weights
