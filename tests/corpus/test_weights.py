"""Domains below the bar are seen more often, per training set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from silo.corpus.weights import domain_weights
from silo.recipe import WeightsRecipe
from silo.records import Tier

COUNTS = st.dictionaries(st.tuples(st.sampled_from(list(Tier)), st.sampled_from("abcde")), st.integers(1, 1000))


def test_the_papers_rule() -> None:
    tokens = {(Tier.pd, "law"): 960, (Tier.pd, "news"): 40, (Tier.sw, "code"): 9000, (Tier.restricted, "mail"): 100_000}
    weights = domain_weights(tokens, WeightsRecipe())
    assert weights["pd"] == {"law": 1.0, "news": 3.0}
    assert weights["pdsw"] == {"law": 1.0, "news": 3.0, "code": 1.0}
    assert weights["all"]["law"] == 3.0


@given(COUNTS)
def test_exactly_the_domains_below_the_bar_are_raised(tokens: dict[tuple[Tier, str], int]) -> None:
    weights = domain_weights(tokens, WeightsRecipe(below=0.2, factor=5.0))["all"]
    everything = sum(tokens.values())
    for domain, weight in weights.items():
        share = sum(count for (_, name), count in tokens.items() if name == domain) / everything
        assert weight == (5.0 if share < 0.2 else 1.0)
