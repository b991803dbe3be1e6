"""Weights that look at less: what is left out changes its own methods, and nothing else."""

from __future__ import annotations

import pytest

from silo.experiments.harness.lab import Lab
from silo.experiments.run import run_experiment
from tests.experiments.small import write_recipe

RECIPE = """
question = "Does it run?"
paper = "none"
differences = "All."
models = ["pdsw"]
domains = ["notes"]
methods = ["knn", "ngram", "knn+ngram"]
neighbours = 64
sample = { document_tokens = 50 }
variants = [
    { name = "neighbours: one weight", neighbours = [] },
    { name = "all after all", neighbours = ["distance", "peak", "kinds"] },
    { name = "matches: length alone", matches = ["length"] },
    { name = "untuned", untuned = true },
]
"""


@pytest.mark.slow
def test_what_is_left_out_concerns_its_own_methods(lab: Lab) -> None:
    write_recipe(lab, "gates", RECIPE)
    result, _ = run_experiment(lab, "gates")
    ratios = result.facts["ratios"]
    assert set(ratios["pdsw, neighbours: one weight"]) == {"knn", "knn+ngram"}
    assert set(ratios["pdsw, matches: length alone"]) == {"ngram", "knn+ngram"}
    assert not ratios["pdsw, all after all"]
    assert set(ratios["pdsw, untuned"]) == {"knn", "ngram", "knn+ngram"}
    assert all(found["mean"]["value"] != 1 for rows in ratios.values() for found in rows.values())
    assert result.plot.startswith(b"\x89PNG")
    assert result.answer.startswith("Perplexity as a multiple of that with all of them: pdsw, ")
