"""A lab over a few short texts, with models that train in a second: experiments run whole, figures mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from silo.experiments.lab import RECIPES, Lab
from silo.lm import network as presets
from silo.lm.network import Preset
from tests.conftest import record, words, write_jsonl

TINY = Preset("demo", 32, 2, 2, 64, vocabulary=300, context=64, tied=True)
DOMAINS = {"laws": "CC0-1.0", "code": "MIT", "notes": "", "mail": ""}
SMALLER = {"preset": '"demo"', "max_tokens": "4096", "batch_tokens": "512", "context": "64", "validation_tokens": "400"}


def make_lab(root: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Two permitted and two restricted domains; the built-in recipes, with small numbers in them."""
    monkeypatch.setitem(presets.PRESETS, "demo", TINY)
    torch.set_num_threads(1)
    data, recipes = root / "in", root / "recipes"
    data.mkdir(parents=True)
    recipes.mkdir()
    for at, (domain, licence) in enumerate(DOMAINS.items()):
        for part, (split, count) in enumerate((("train", 40), ("validation", 6), ("test", 6))):
            write_jsonl(
                data / f"{domain}.{split}.jsonl",
                [
                    record(
                        f"{domain}-{split}-{n}", words(1000 * at + 100 * part + n, 60), domain=domain, license=licence
                    )
                    for n in range(count)
                ],
            )
    for file in RECIPES.glob("*.toml"):
        (recipes / file.name).write_text("".join(_smaller(line) for line in file.read_text().splitlines(keepends=True)))
    return Lab(root / "work", data, recipes=recipes)


def _smaller(line: str) -> str:
    name = line.partition("=")[0].strip()
    return f"{name} = {SMALLER[name]}\n" if name in SMALLER else line
