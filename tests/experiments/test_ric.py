"""Variants of passages in the context, each against the model alone with the same input."""

from __future__ import annotations

from silo.experiments.harness.lab import Lab
from silo.experiments.ric import INPUT, TEXT
from silo.experiments.run import run_experiment
from tests.experiments.small import reopen, write_recipe

RECIPE = """
question = "Does it run?"
paper = "tab:none"
differences = "All."
models = ["pdsw"]
domains = ["notes", "mail"]
context = 48
sample = { document_tokens = 50 }
variants = [
    { name = "basic" },
    { name = "ensemble", variant = "ensemble", passages = 2, weighting = "score" },
    { name = "concat-next", variant = "concat-next" },
    { name = "often", query_tokens = 8, stride = 4 },
]
"""


def test_variants_beside_the_model_alone(lab: Lab) -> None:
    write_recipe(lab, "ric-variants", RECIPE)
    told: list[str] = []
    watched = reopen(lab, talk=told.append)
    result, _ = run_experiment(watched, "ric-variants")
    rows = result.facts["domains"]["pdsw"]["notes"]["perplexity"]
    assert list(rows) == [
        "basic",
        "ensemble",
        "concat-next",
        "often",
        "lm, 48 tokens, stride 11",
        "lm, 23 tokens, stride 11",
        "lm, 48 tokens, stride 4",
        "lm, 23 tokens, stride 4",
    ]
    assert len({item["value"] for item in rows.values()}) == len(rows)
    assert {name for item in result.facts["ratios"] for name in item} == {"model", "variant", INPUT, TEXT}
    assert "pdsw: basic has" in result.answer
    assert result.plot.startswith(b"\x89PNG")
    count = len(told)
    write_recipe(
        lab,
        "ric-variants",
        RECIPE.replace('{ name = "often"', '{ name = "more", passage_tokens = 30 }, { name = "often"'),
    )
    run_experiment(watched, "ric-variants")
    measured = [text for text in told[count:] if text.startswith("ric:")]
    assert len(measured) == 6  # the new variant and its two controls, on two domains
