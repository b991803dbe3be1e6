"""A lab over a few short texts, with models that train in a second: experiments run whole, figures mean nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import pytest
import torch

from silo.experiments.harness.lab import RECIPES, Lab
from silo.lm.network import PRESETS, Preset
from silo.search.knn.codec import CodecSettings
from tests.conftest import record, words, write_jsonl

TINY = Preset("tiny", 32, 2, 2, 64, vocabulary=300, context=64, tied=True)
DOMAINS = {"laws": "CC0-1.0", "code": "MIT", "notes": "", "mail": ""}
SMALLER = {"preset": '"tiny"', "max_tokens": "2048", "batch_tokens": "512", "context": "64", "validation_tokens": "400"}
CODEC = CodecSettings(lists=8, code_bytes=8, iterations=2)


def make_lab(root: Path, patch: pytest.MonkeyPatch) -> Lab:
    """Two permitted and two restricted domains; the built-in recipes, with small numbers in them.

    It takes seconds until the corpus and the first model are there: tests share the lab of `conftest`.
    """
    patch.setitem(PRESETS, TINY.name, TINY)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    data, recipes = root / "in", root / "recipes"
    recipes.mkdir(parents=True)
    for at, (domain, licence) in enumerate(DOMAINS.items()):
        for part, (split, count) in enumerate((("train", 30), ("validation", 6), ("test", 6))):
            texts = {f"{domain}-{split}-{n}": words(1000 * at + 100 * part + n, 30) for n in range(count)}
            records = [record(name, text, domain=domain, license=licence) for name, text in texts.items()]
            write_jsonl(data / f"{domain}.{split}.jsonl", records)
    for file in RECIPES.glob("*.toml"):
        (recipes / file.name).write_text("".join(_smaller(line) for line in file.read_text().splitlines(keepends=True)))
    return Lab(root / "work", data, recipes=recipes, workers=1, codec=CODEC)


def reopen(lab: Lab, folder: Path | None = None, **changes: Any) -> Lab:
    """The same lab as another process opens it."""
    given = {"recipes": lab.recipes, "workers": lab.workers, "codec": lab.codec_settings, **changes}
    return Lab(folder or lab.folder, lab.data, **given)


def write_recipe(lab: Lab, name: str, text: str) -> None:
    """Put a recipe in place of a built-in one."""
    (lab.recipes / f"{name}.toml").write_text(text)


def _smaller(line: str) -> str:
    name = line.partition("=")[0].strip()
    return f"{name} = {SMALLER[name]}\n" if name in SMALLER else line
