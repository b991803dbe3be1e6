"""What is shipped: every experiment has a recipe that can be read, and a line in the docs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from silo.experiments.harness.lab import RECIPES
from silo.experiments.run import EXPERIMENTS
from silo.recipe import load_recipe

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"


@pytest.mark.parametrize(("name", "module"), EXPERIMENTS.items())
def test_every_experiment_has_a_recipe_and_a_line_in_the_docs(name: str, module: str) -> None:
    recipe = load_recipe(RECIPES / f"{name}.toml", import_module(f"silo.experiments.{module}").Recipe)
    assert recipe.question.endswith("?")
    assert f"| `{name}` |" in PAGE.read_text(encoding="utf-8")
