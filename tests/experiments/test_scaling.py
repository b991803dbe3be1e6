"""Lines over log size, and stores of several sizes from one domain."""

from __future__ import annotations

import numpy as np
import pytest

from silo.evaluation.figures import DomainFigures, DomainSums
from silo.experiments.harness.lab import Lab
from silo.experiments.run import run_experiment
from silo.experiments.scaling import Point, fit_line
from tests.experiments.small import write_recipe

DOCUMENTS = 40


def _point(tokens: int, perplexity: float) -> Point:
    """A store of so many tokens, with which all documents have about this perplexity."""
    counts = np.full((1, DOCUMENTS), 100.0)
    noise = np.random.default_rng(0).normal(0, 0.02, (1, DOCUMENTS))
    logs = -counts * (np.log(perplexity) + noise - noise.mean())
    labels = tuple(map(str, range(DOCUMENTS)))
    return Point(
        tokens, DomainFigures(DomainSums("notes", "out", labels, ("any",), counts, counts[0], {"knn": logs}, {}, {}))
    )


def test_a_straight_line_is_found_with_its_slope_and_where_it_leads() -> None:
    line = fit_line([_point(1000 * 2**n, 100 - 5 * n) for n in range(6)], "knn")
    assert line.slope[0] == pytest.approx(-5)
    assert line.r_squared == pytest.approx(1)
    assert line.shape == "log-linear"
    assert line.tokens_to(np.full_like(line.slope, 60.0))[0] == pytest.approx(1000 * 2**8)


def test_a_line_that_flattens_is_not_called_straight() -> None:
    line = fit_line([_point(1000 * 2**n, 20 + 80 * 0.4**n) for n in range(6)], "knn")
    assert line.shape == "flattens"


def test_a_line_that_does_not_fall_leads_nowhere() -> None:
    line = fit_line([_point(1000 * 2**n, 50 + n) for n in range(4)], "knn")
    assert np.isinf(line.tokens_to(np.full_like(line.slope, 10.0))[0])


def test_stores_of_several_sizes(lab: Lab) -> None:
    write_recipe(
        lab,
        "scaling",
        """
        question = "Does it run?"
        paper = "fig:none"
        models = ["pdsw"]
        domains = ["notes"]
        methods = ["lm", "ric", "knn", "ngram", "knn+ngram"]
        neighbours = 64
        sample = { document_tokens = 50 }
        store_tokens = { pdsw = [500, 1000, 2000, 100000000, 0] }
        fine_tuning_epochs = { pdsw = 0.2 }
        """,
    )
    result, _ = run_experiment(lab, "scaling")
    sizes = [point["tokens"] for point in result.facts["points"]]
    assert len(sizes) == 4
    assert sizes == sorted(sizes)
    fine_tuned = ["fine-tuned" in point["rows"] for point in result.facts["points"]]
    assert fine_tuned == [False, False, False, True]
    assert {line["row"] for line in result.facts["lines"]} >= {"ric", "knn", "ngram", "knn+ngram"}
    assert "every doubling of the store takes off" in result.answer
    assert result.plot.startswith(b"\x89PNG")
