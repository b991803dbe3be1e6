"""The models alone: paired figures with intervals, marks, audits; and what was measured is not measured again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from silo.errors import SiloError
from silo.evaluation.figures import DomainFigures, DomainSums
from silo.evaluation.texts import TextLimits
from silo.experiments.harness.lab import Lab
from silo.experiments.parametric import Comparison, compare_models, mean_ratio
from silo.experiments.run import run_experiment
from silo.files import remove_tree
from silo.lm.manifest import model_fingerprint, open_manifest
from silo.recipe import TrainRecipe
from tests.experiments.small import make_lab, reopen


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        made = make_lab(tmp_path_factory.mktemp("parametric"), patch)
        recipe = made.recipes / "parametric.toml"
        recipe.write_text(recipe.read_text().replace('"pd", "pdsw", "pdswby", "all"', '"pdsw", "all"'))
        yield made


def test_permitted_models_beside_the_reference(lab: Lab) -> None:
    result, _ = run_experiment(lab, "parametric")
    assert "the audits found 0 documents" in result.answer
    for split in ("validation", "test"):
        assert set(result.facts[split]) == {"laws", "code", "notes", "mail"}
    rows = result.facts["test"]["notes"]
    assert (rows["pdsw"]["mark"], rows["all"]["mark"]) == ("out", "in")
    assert result.facts["test"]["laws"]["pdsw"]["mark"] == "in"
    perplexity = rows["pdsw"]["perplexity"]
    assert perplexity["low"] <= perplexity["value"] <= perplexity["high"]
    assert rows["all"]["ratio"] == {"value": 1.0, "low": None, "high": None}
    assert result.facts["audits"]["pdsw"]["document_tiers"].keys() <= {"pd", "sw"}
    assert not result.facts["audits"]["all"]["permitted"] and result.plot.startswith(b"\x89PNG")
    steps = [row[:4] for row in result.tables[1].rows]
    assert steps == [("all", "pdsw", "both learned", "code, laws"), ("all", "pdsw", "all alone learned", "mail, notes")]
    told: list[str] = []
    again, _ = run_experiment(reopen(lab, talk=told.append), "parametric")
    assert not told and again.facts == result.facts


def test_figures_outlive_a_training_that_ended_with_slightly_other_weights(lab: Lab) -> None:
    before, _ = run_experiment(lab, "parametric")
    place = lab.folder / "models" / "pdsw"
    weights = model_fingerprint(open_manifest(place))
    remove_tree(place)
    lab.train(place, replace(lab.recipe("lm-pdsw", TrainRecipe), seed=1))
    assert model_fingerprint(open_manifest(place)) != weights
    told: list[str] = []
    again, _ = run_experiment(reopen(lab, talk=told.append), "parametric")
    assert not told and again.facts == before.facts


def test_models_of_different_tokenizers_are_not_compared(lab: Lab, tmp_path: Path) -> None:
    recipe = (lab.recipes / "lm-pdsw.toml").read_text() + "vocabulary = 270\n"
    (lab.recipes / "lm-other.toml").write_text(recipe)
    models = {name: lab.find_model(name) for name in ("pdsw", "other")}
    with pytest.raises(SiloError, match="store-mismatch"):
        compare_models(lab, models, "notes", "test", TextLimits(), seed=0)


def test_the_mean_ratio_is_geometric_and_paired() -> None:
    items = [_comparison(domain, factor) for domain, factor in (("a", 2.0), ("b", 0.5), ("c", 1.0))]
    figure = mean_ratio(items, "x", "all")
    assert np.allclose(figure, 1.0)
    assert np.allclose(items[0].ratio("x", "all"), 2.0)


def _comparison(domain: str, factor: float) -> Comparison:
    """Two models of which one has `factor` times the perplexity of the other on every document."""
    tokens, logs = np.array([[10.0, 20.0, 5.0]]), np.array([[-30.0, -90.0, -5.0]])
    other = logs - np.log(factor) * tokens
    sums = DomainSums(domain, "in", ("1", "2", "3"), ("any",), tokens, tokens[0], {"x": other, "all": logs}, {}, {})
    return Comparison(DomainFigures(sums), {"x": "in", "all": "in"})
