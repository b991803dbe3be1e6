"""`--quick`: splits of packages, small recipes that fit the large ones, and its own places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from silo.cli import main
from silo.errors import ExitStatus
from silo.experiments.harness.data import SPLITS, find_domains
from silo.experiments.harness.lab import RECIPES, Lab
from silo.experiments.harness.quick import QUICK, docstrings, write_packages
from silo.experiments.run import EXPERIMENTS
from silo.recipe import SourceRecipe
from tests.conftest import record, words, write_jsonl
from tests.experiments.test_recipes import recipe_kind


def _code(seed: int) -> str:
    lines = "\n".join(f"    x{n} = {words(seed + n, 3).split()!r}" for n in range(30))
    return f'"""{words(seed, 60)}"""\n\n\ndef f():\n    """{words(seed + 1, 60)}"""\n{lines}\n'


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Sixty files of two packages, one of them without a licence."""
    files = [
        record(
            f"p{n % 2}-1.0:m{n}.py",
            _code(100 * n),
            domain="code",
            license="" if n % 2 else "MIT",
            metadata={"package": f"p{n % 2}-1.0"},
        )
        for n in range(60)
    ]
    write_jsonl(tmp_path / "files.jsonl", files)
    write_packages(tmp_path / "packages", SourceRecipe("jsonl", (str(tmp_path / "files.jsonl"),)))
    return tmp_path / "packages"


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_files_and_their_docstrings_are_four_domains_in_fair_splits(packages: Path) -> None:
    domains = find_domains(packages)
    assert set(domains) == {"code_permissive", "code_restricted", "docs_permissive", "docs_restricted"}
    places: dict[str, set[str]] = {}
    for files in domains.values():
        assert all(_read(files[split]) for split in SPLITS)
        for split, file in files.items():
            for item in _read(file):
                places.setdefault(item["metadata"]["file"], set()).add(split)
    assert len(places) == 60 and all(len(splits) == 1 for splits in places.values())
    assert {item["license"] for item in _read(domains["docs_permissive"]["train"])} == {"MIT"}


def test_docstrings_are_prose_and_broken_files_have_none() -> None:
    code = 'class A:\n    """One.\n\n    Two.\n    """\n\n    def f(self):\n        """Three."""\n'
    assert docstrings(code) == "One.\n\nTwo.\n\nThree."
    assert docstrings("def f(:\n") == ""


@pytest.mark.parametrize("name", sorted(path.stem for path in QUICK.glob("*.toml")))
def test_a_quick_recipe_changes_keys_of_the_large_one(name: str, tmp_path: Path) -> None:
    large, quick = Lab(tmp_path, tmp_path), Lab(tmp_path, tmp_path, changes=QUICK)
    assert quick.recipe(name, recipe_kind(name)) != large.recipe(name, recipe_kind(name))


def test_every_experiment_has_a_recipe() -> None:
    assert set(EXPERIMENTS) <= {path.stem for path in RECIPES.glob("*.toml")}


def test_quick_has_its_own_data_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", "parametric", "--quick", "--data", "x"]) == ExitStatus.USAGE
    assert main(["experiment", "report", "--quick"]) != 0
    assert not (tmp_path / "docs").exists()
