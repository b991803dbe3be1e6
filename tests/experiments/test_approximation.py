"""Codes and probes against exact search over the keys."""

from __future__ import annotations

from silo.experiments.harness.lab import Lab
from silo.experiments.run import run_experiment
from tests.experiments.small import write_recipe


def test_larger_codes_find_more(lab: Lab) -> None:
    write_recipe(
        lab,
        "approximation",
        """
        question = "Does it run?"
        paper = "tab:none"
        model = "pdsw"
        domains = ["notes"]
        kinds = ["ffn", "final"]
        store_tokens = 2000
        neighbours = 64
        sample = { document_tokens = 50 }
        searches = [
            { name = "usual", code_bytes = 8, probes = 2 },
            { name = "large", code_bytes = 16, probes = 0 },
            { name = "small", code_bytes = 2, probes = 0 },
            { name = "own", code_bytes = 8, probes = 2, learned_from = "store" },
        ]
        """,
    )
    result, _ = run_experiment(lab, "approximation")
    found = result.facts["kinds"]["ffn"]["notes"]
    recall = {row: item["value"] for row, item in found["recall"].items()}
    assert recall["exact"] == 1
    assert recall["large"] > recall["usual"] > recall["small"]
    assert found["key_bytes"]["exact"] == 128
    assert set(found["perplexity"]) == {"lm", "exact", "usual", "large", "small", "own"}
    assert "usual finds" in result.answer and "ffn keys have" in result.answer
    assert result.plot.startswith(b"\x89PNG")
