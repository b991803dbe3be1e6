"""Domains below the bar are seen more often, per training set, and only text that may train counts."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from silo.corpus.weights import domain_weights, set_tokens
from silo.recipe import WeightsRecipe
from silo.records import Tier

ROWS = st.lists(st.tuples(st.sampled_from(list(Tier)), st.sampled_from("abcde"), st.integers(1, 1000)), min_size=1)


def _table(*rows: tuple[Tier, str, int]) -> list[dict[str, Any]]:
    return [
        {"tier": tier, "domain": domain, "tokens": tokens, "train_tokens": tokens if tier < "restricted" else 0}
        for tier, domain, tokens in rows
    ]


def test_the_papers_rule() -> None:
    table = _table(
        (Tier.pd, "law", 960), (Tier.pd, "news", 40), (Tier.sw, "code", 9000), (Tier.restricted, "mail", 100_000)
    )
    weights = domain_weights(table, WeightsRecipe())
    assert weights["pd"] == {"law": 1.0, "news": 3.0}
    assert weights["pdsw"] == {"law": 1.0, "news": 3.0, "code": 1.0}
    assert weights["all"]["law"] == 3.0


def test_text_without_the_train_right_is_in_no_training_set() -> None:
    table = [{"tier": "pd", "domain": "held out", "tokens": 50, "train_tokens": 0}, *_table((Tier.pd, "law", 50))]
    assert set_tokens(table, "pdswby") == {"law": 50}
    assert set_tokens(table, "all") == {"held out": 50, "law": 50}


@given(ROWS)
def test_exactly_the_domains_below_the_bar_are_raised(rows: list[tuple[Tier, str, int]]) -> None:
    weights = domain_weights(_table(*rows), WeightsRecipe(below=0.2, factor=5.0))["all"]
    everything = sum(tokens for _, _, tokens in rows)
    for domain, weight in weights.items():
        share = sum(tokens for _, name, tokens in rows if name == domain) / everything
        assert weight == (5.0 if share < 0.2 else 1.0)
