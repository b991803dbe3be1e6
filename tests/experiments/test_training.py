"""Variants of a training recipe: what is different, what is shared, and when one has the loss of another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from silo.experiments.harness.lab import Lab
from silo.experiments.harness.result import Result
from silo.experiments.run import run_experiment
from silo.experiments.training import Variant, multiply_adds, tokens_to_reach
from silo.lm.network import PRESETS, make_network, parameter_count
from silo.recipe import TrainRecipe
from tests.experiments.small import make_lab

SHAPES = [PRESETS[name] for name in ("mini", "mini-deep", "mini-wide")]

MODELS = """
question = "Does it run?"
paper = "none"
base = "pdsw"
reference = "muon"
max_tokens = 4096
evaluate_every = 1024
learned_only = true
language_models = ["pdsw"]
store_domains = ["notes"]
methods = ["lm", "knn"]

[variants]
muon = {}
adamw = { optimiser = "adamw", learning_rate = 1e-3 }
"""

WITHOUT = """
question = "Does it run?"
paper = "none"
base = "pdsw"
reference = "pdsw"
max_tokens = 4096
evaluate_every = 1024

[variants]
pdsw = {}
"without code" = { exclude = ["code"] }
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        made = make_lab(tmp_path_factory.mktemp("training"), patch)
        (made.recipes / "models.toml").write_text(MODELS)
        (made.recipes / "no-code.toml").write_text(WITHOUT)
        yield made


@pytest.fixture(scope="module")
def models(lab: Lab) -> Result:
    return run_experiment(lab, "models")[0]


@pytest.mark.slow
def test_optimisers_are_compared_on_what_both_learned(models: Result) -> None:
    assert set(models.facts["domains"]) == {"laws", "code"}
    ratio = models.facts["domains"]["laws"]["adamw"]["ratio"]
    assert ratio["low"] <= ratio["value"] <= ratio["high"]
    assert "adamw has" in models.answer and "a store helps in" in models.answer
    assert set(models.facts["methods"]["pdsw"]["notes"]["rows"]) >= {"lm", "knn"}
    for curve in models.facts["curves"].values():
        assert [item["tokens"] for item in curve["validation"]] == [1024, 2048, 3072, 4096]


def test_an_excluded_domain_shapes_no_weights_and_equal_runs_are_shared(lab: Lab, models: Result) -> None:
    told: list[str] = []
    lab.talk = told.append
    result, _ = run_experiment(lab, "no-code")
    assert sum(text.endswith(": train") for text in told) == 1
    marks = {variant: found["mark"] for variant, found in result.facts["domains"]["code"].items()}
    assert marks == {"pdsw": "in", "without code": "out"}


def test_a_variant_changes_what_it_names() -> None:
    base = TrainRecipe("corpus", learning_rate=3e-3, reweigh=True)
    changed = Variant(optimiser="muon", reweigh=False).apply(base)
    assert (changed.optimiser, changed.reweigh, changed.learning_rate) == ("muon", False, 3e-3)


def test_tokens_to_a_loss_are_between_two_points_of_the_curve() -> None:
    points = [(100, 5.0), (200, 4.0), (300, 4.5), (400, 3.0)]
    curve = {"validation": [{"tokens": tokens, "loss": loss} for tokens, loss in points]}
    found = tokens_to_reach(curve, np.array([6.0, 4.5, 3.5, 3.0, 2.9]))
    assert found[:4].tolist() == [100, 150, 350, 400] and np.isnan(found[4])


def test_the_shapes_that_are_compared_cost_the_same() -> None:
    networks = [make_network(shape, vocabulary=8192, begin=0, seed=0) for shape in SHAPES]
    costs = [multiply_adds(network.config.to_dict(), parameter_count(network)) for network in networks]
    assert max(costs) / min(costs) < 1.05
