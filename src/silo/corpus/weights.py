"""Domain weights as in the paper (Section 4.1): domains below a share of the tokens are seen several times as often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from silo.recipe import WeightsRecipe
from silo.records import TRAINING_SETS, Tier

SETS: dict[str, tuple[Tier, ...]] = {**TRAINING_SETS, "all": tuple(Tier)}
"""The paper's training sets, and everything: what a reference model without scruples would be trained on."""


def set_tokens(table: Iterable[Mapping[str, Any]], name: str) -> dict[str, int]:
    """Tokens per domain in one of `SETS`; a training set holds only documents that have the train right."""
    totals: dict[str, int] = {}
    for row in table:
        if row["tier"] in SETS[name]:
            tokens = row["tokens"] if name == "all" else row["train_tokens"]
            totals[row["domain"]] = totals.get(row["domain"], 0) + tokens
    return {domain: tokens for domain, tokens in sorted(totals.items()) if tokens}


def domain_weights(table: list[dict[str, Any]], recipe: WeightsRecipe) -> dict[str, dict[str, float]]:
    """For every set: how often each of its domains is seen."""
    return {name: _weights(set_tokens(table, name), recipe) for name in SETS}


def _weights(totals: Mapping[str, int], recipe: WeightsRecipe) -> dict[str, float]:
    everything = sum(totals.values())
    return {domain: recipe.factor if count < recipe.below * everything else 1.0 for domain, count in totals.items()}
