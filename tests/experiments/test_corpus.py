"""Tables of the corpus, its overlap with evaluation text, and the correlation with what a model loses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from silo.evaluation.intervals import Estimate
from silo.experiments.corpus import OverlapRecipe, correlate
from silo.experiments.harness.lab import RECIPES, Lab
from silo.experiments.run import run_experiment
from silo.recipe import load_recipe
from tests.experiments.small import make_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        yield make_lab(tmp_path_factory.mktemp("corpus"), patch)


def test_what_the_corpus_is_made_of(lab: Lab) -> None:
    result, _ = run_experiment(lab, "corpus-stats")
    overview, distribution = result.tables
    assert {(row[0], row[1]) for row in overview.rows} >= {("laws", "pd"), ("code", "sw"), ("notes", "restricted")}
    shares = {row[0]: row[1:] for row in distribution.rows}
    assert shares["laws"][0] == "100.0" and shares["code"][-2] == "59.1"
    assert "in the paper that of pdsw is code (59 %)" in result.answer and result.plot.startswith(b"\x89PNG")


def test_overlap_beside_the_gap(lab: Lab) -> None:
    recipe = lab.recipes / "ngram-overlap.toml"
    recipe.write_text(recipe.read_text().replace("min_documents = 3", "min_documents = 1"))
    result, _ = run_experiment(lab, "ngram-overlap")
    assert set(result.facts["gaps"]) == {"laws", "code", "notes", "mail"}
    assert set(result.facts["overlap"]["rows"]) == {"laws", "code"}
    gap = result.facts["gaps"]["notes"]
    assert gap["low"] <= gap["value"] <= gap["high"]
    assert {"coverage", "Jaccard", "the paper's rows"} <= set(result.facts["correlations"])
    assert "its rows give" in result.answer and result.plot.startswith(b"\x89PNG")


def test_the_coefficient_is_that_of_numpy_and_has_an_interval() -> None:
    rng = np.random.default_rng(0)
    left = rng.normal(size=14)
    right = -left + rng.normal(size=14)
    found = Estimate.of(correlate(left.tolist(), right.tolist()))
    assert found.value == pytest.approx(np.corrcoef(left, right)[0, 1])
    assert -1 <= found.low < found.value < found.high <= 1
    assert np.isnan(correlate([1.0, 2.0], [1.0, 2.0])[0])


def test_the_papers_rows_give_about_what_it_states() -> None:
    rows = load_recipe(RECIPES / "ngram-overlap.toml", OverlapRecipe).published.values()
    found = Estimate.of(correlate([row[0] for row in rows], [1 - row[2] / row[1] for row in rows]))
    assert -0.8 < found.value < -0.6
