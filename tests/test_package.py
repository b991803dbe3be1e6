"""What `pip install .` and a wheel bring along: every module and every file of data, and nothing else."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from silo.cli.doctor import NEEDED

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LEFT_BEHIND = {"__pycache__", ".nbi", ".nbc", ".pyc"}
"""What running leaves in the tree."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files that setuptools would put into a wheel, from a copy of the tree; nothing is built."""
    distribution = pytest.importorskip("setuptools").Distribution
    place = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, place / name)
    shutil.copytree(ROOT / "src" / "silo", place / "src" / "silo", ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        project = distribution()
        project.parse_config_files(["pyproject.toml"])
        project.script_name = "setup.py"
        build = project.get_command_obj("build_py")
        build.ensure_finalized()
        return {str(Path(name).relative_to(build.build_lib)) for name in build.get_outputs(include_bytecode=0)}


def _source_files() -> set[str]:
    files = (path for path in (ROOT / "src" / "silo").rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT / "src")) for path in files if not LEFT_BEHIND & {path.suffix, path.parent.name}}


def test_a_wheel_has_every_module_and_every_file_of_data(packed: set[str]) -> None:
    assert packed == _source_files()
    for needed in (
        "silo/py.typed",
        "silo/rights/licences/licenses.toml",
        "silo/corpus/report/stopwords.txt",
        "silo/experiments/recipes/quick/data.toml",
    ):
        assert needed in packed


def test_a_kind_of_data_that_nobody_names_would_be_missed(packed: set[str]) -> None:
    kinds = {Path(name).suffix for name in packed} - {".py", ""}
    stated = PROJECT["tool"]["setuptools"]["package-data"]["silo"]
    assert {f".{pattern.rpartition('.')[2]}" for pattern in stated} == kinds


def test_doctor_looks_for_what_the_package_needs() -> None:
    stated = {name.split(">")[0].split("=")[0] for name in PROJECT["project"]["dependencies"]}
    assert set(NEEDED) == stated


def test_the_command_is_there() -> None:
    assert PROJECT["project"]["scripts"] == {"silo": "silo.cli.main:entry"}
    assert PROJECT["project"]["readme"] == "README.md"
