"""What is shipped: every experiment has a recipe that can be read, and a line in the docs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from silo.experiments.corpus import OverlapRecipe, StatsRecipe
from silo.experiments.harness.data import DataRecipe
from silo.experiments.harness.lab import RECIPES
from silo.experiments.run import EXPERIMENTS
from silo.recipe import TrainRecipe, load_recipe

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"


def recipe_kind(name: str) -> type[Any]:
    """What a recipe of that name is read as."""
    if name.startswith("lm-"):
        return TrainRecipe
    known: dict[str, type[Any]] = {"data": DataRecipe, "corpus-stats": StatsRecipe, "ngram-overlap": OverlapRecipe}
    if name in known:
        return known[name]
    found: type[Any] = import_module(f"silo.experiments.{EXPERIMENTS[name]}").Recipe
    return found


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_recipe_and_a_line_in_the_docs(name: str) -> None:
    recipe = load_recipe(RECIPES / f"{name}.toml", recipe_kind(name))
    assert recipe.question.endswith("?")
    assert f"| `{name}` |" in PAGE.read_text(encoding="utf-8")
