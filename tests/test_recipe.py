"""Recipes are strict: unknown keys, wrong types and missing keys are refused with advice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.recipe import CorpusRecipe, TrainRecipe, load_recipe, parse_recipe

RECIPES = Path(__file__).parent.parent / "recipes"


@pytest.mark.parametrize(
    ("content", "code", "advice"),
    [
        ({}, "recipe-key", "'source' is missing"),
        ({"source": [], "tokeniser": ""}, "recipe-key", "did you mean 'tokenizer'?"),
        ({"source": [{"kind": "jsonl", "path": []}]}, "recipe-key", "did you mean 'paths'?"),
        ({"source": [{}]}, "recipe-key", "'kind' is missing"),
        ({"source": {}}, "recipe-value", "must be a list"),
        ({"source": ["x"]}, "recipe-value", "must be a table"),
        ({"source": [], "shard_mb": "big"}, "recipe-value", "must be a whole number"),
        ({"source": [], "shard_mb": True}, "recipe-value", "must be a whole number"),
        ({"source": [], "dedup": {"enabled": 1}}, "recipe-value", "must be true or false"),
        ({"source": [], "dedup": 5}, "recipe-value", "must be a table"),
        ({"source": [], "groups": {"a": "b"}}, "recipe-value", "must be a list"),
        ({"source": [], "zzz": 1}, "recipe-key", "known keys"),
    ],
)
def test_bad_recipes_are_refused_with_advice(content: dict[str, Any], code: str, advice: str) -> None:
    with pytest.raises(SiloError) as caught:
        parse_recipe(content, CorpusRecipe, where="r.toml")
    assert caught.value.code == code
    assert advice in caught.value.message


def test_whole_numbers_are_taken_for_numbers_and_defaults_fill_the_rest() -> None:
    recipe = parse_recipe({"source": [], "dedup": {"threshold": 1}}, CorpusRecipe, where="r")
    assert recipe.dedup.threshold == 1.0
    assert recipe.dedup.ngram == 13


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="recipe-missing"):
        load_recipe(tmp_path / "none.toml", CorpusRecipe)
    with pytest.raises(SiloError, match="recipe-missing"):
        load_recipe(tmp_path, CorpusRecipe)
    (tmp_path / "bad.toml").write_text("a = = b")
    with pytest.raises(SiloError, match="recipe-syntax"):
        load_recipe(tmp_path / "bad.toml", CorpusRecipe)
    (tmp_path / "latin.toml").write_bytes(b'tokenizer = "\xe9"')
    with pytest.raises(SiloError, match="recipe-syntax"):
        load_recipe(tmp_path / "latin.toml", CorpusRecipe)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_our_own_recipes_load(path: Path) -> None:
    if path.stem.startswith("lm-"):
        assert load_recipe(path, TrainRecipe).max_tokens > 0
    else:
        assert load_recipe(path, CorpusRecipe).source
