"""Experiments on what a store is used for, on small text: they run whole, go on after a kill, and keep their promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from silo.experiments.lab import Lab
from silo.experiments.result import Result, load_result
from silo.experiments.run import run_experiment
from tests.conftest import record, words, write_jsonl
from tests.experiments.small import make_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        yield make_lab(tmp_path_factory.mktemp("lab"), patch)


def run_small(lab: Lab, name: str, recipe: str) -> Result:
    """One run with this recipe; what is on disk is what was returned, and a second run measures nothing."""
    (lab.recipes / f"{name}.toml").write_text(f'question = "Does it run?"\npaper = "tab:none"\n{recipe}')
    result, place = run_experiment(lab, name)
    loaded = load_result(place)
    assert (loaded.answer, loaded.tables, loaded.plot) == (result.answer, result.tables, result.plot)
    told: list[str] = []
    again, _ = run_experiment(Lab(lab.folder, lab.data, recipes=lab.recipes, talk=told.append), name)
    assert not told
    assert again.tables == result.tables
    return result


OPTOUT = """
models = ["pdsw"]
reference = "all"
series = "series.all.jsonl"
background = "notes"
methods = ["lm", "ric", "knn", "ngram", "knn+ngram"]
neighbours = 64
volume_tokens = 200
validation_tokens = 400
block_tokens = 50
"""


def _write_series(folder: Path) -> None:
    refrain = words(9_000, 40)
    volumes = [
        record(f"volume-{n}", f"{refrain} {words(9_001 + n, 30)}", domain="series", license="CC0-1.0") for n in range(3)
    ]
    write_jsonl(folder / "series.all.jsonl", volumes)


def test_other_volumes_help_until_they_are_erased(lab: Lab) -> None:
    _write_series(lab.data)
    result = run_small(lab, "optout", OPTOUT)
    volume = result.facts["volumes"]["pdsw"]["volume-0"]
    assert volume["ngram; others"]["value"] < volume["ngram; without"]["value"]
    assert volume["ngram; all"]["value"] <= volume["ngram; others"]["value"]
    assert {"lm", "reference", "ric; others", "reference + knn+ngram; all"} <= set(volume)
    erased = result.facts["erasures"]["pdsw"]
    assert erased["documents"] == 3
    assert erased["digest_changed_by_adding"] and erased["digest_as_before"] and erased["scores_as_before"]
    assert not erased["failed_checks"]
    assert "exactly what they were" in result.answer
