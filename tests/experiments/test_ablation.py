"""One thing changed at a time: encoders, searches and stores, on the same text."""

from __future__ import annotations

import pytest

from silo.errors import SiloError
from silo.experiments.harness.lab import Lab
from silo.experiments.run import run_experiment
from tests.experiments.small import write_recipe

RECIPE = """
question = "Does it run?"
paper = "fig:none"
differences = "All."
domains = ["notes", "mail"]
methods = ["lm", "knn"]
sample = { document_tokens = 50 }
base = { name = "base", model = "pdsw", encoder = "pdsw", neighbours = 64 }
changes = [
"""


@pytest.mark.slow
def test_what_does_not_change_changes_nothing(lab: Lab) -> None:
    changes = """
        { name = "every list", probes = 100 },
        { name = "other LM", model = "all" },
        { name = "other encoder", encoder = "all" },
        { name = "short window", window = 16 },
        { name = "small store", store_tokens = 500 },
    ]
    """
    write_recipe(lab, "gap", RECIPE.replace('"notes", "mail"', '"notes"') + changes)
    result, _ = run_experiment(lab, "gap")
    ratios = result.facts["ratios"]
    exact = {"value": 1.0, "low": 1.0, "high": 1.0}
    assert ratios["every list"]["knn"]["mean"] == exact  # so few rows are compared one by one anyway
    assert ratios["other encoder"]["lm"]["mean"] == exact
    assert ratios["small store"]["lm"]["mean"] == exact
    for change in ("other LM", "short window"):
        assert ratios[change]["lm"]["mean"]["value"] != 1
    for change in ("other encoder", "small store"):
        assert ratios[change]["knn"]["mean"]["value"] != 1
    assert result.plot.startswith(b"\x89PNG")
    assert "times with other encoder" in result.answer
    assert result.answer.endswith("no other change makes it differ by more than 0.0 %.")


def test_one_store_of_all_domains_is_all_stores_together(lab: Lab) -> None:
    changes = """
        { name = "together", stores = "together" },
        { name = "one", stores = "merged" },
        { name = "others", stores = "others" },
    ]
    """
    write_recipe(lab, "merged", RECIPE + changes)
    result, _ = run_experiment(lab, "merged")
    found = {
        change: result.facts["domains"][change]["notes"]["rows"]["knn"] for change in ("together", "one", "others")
    }
    assert found["together"]["perplexity"] == found["one"]["perplexity"] != found["others"]["perplexity"]


def test_stores_that_are_none_are_refused(lab: Lab) -> None:
    write_recipe(lab, "merged", RECIPE + """{ name = "x", stores = "somewhere" }]""")
    with pytest.raises(SiloError, match="recipe-value"):
        run_experiment(lab, "merged")
