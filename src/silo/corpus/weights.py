"""Domain weights as in the paper (Section 4.1): domains below a share of the tokens are seen several times as often."""

from __future__ import annotations

from collections.abc import Mapping

from silo.recipe import WeightsRecipe
from silo.records import TRAINING_SETS, Tier


def domain_weights(tokens: Mapping[tuple[Tier, str], int], recipe: WeightsRecipe) -> dict[str, dict[str, float]]:
    """For every training set and for all tiers: how often each domain is seen, from tokens per (tier, domain)."""
    sets = {**TRAINING_SETS, "all": tuple(Tier)}
    return {name: _weights(_per_domain(tokens, tiers), recipe) for name, tiers in sets.items()}


def _per_domain(tokens: Mapping[tuple[Tier, str], int], tiers: tuple[Tier, ...]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for (tier, domain), count in sorted(tokens.items()):
        if tier in tiers:
            totals[domain] = totals.get(domain, 0) + count
    return totals


def _weights(totals: Mapping[str, int], recipe: WeightsRecipe) -> dict[str, float]:
    everything = sum(totals.values())
    return {domain: recipe.factor if count < recipe.below * everything else 1.0 for domain, count in totals.items()}
