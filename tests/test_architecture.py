"""Imports point down, heavy libraries stay in their packages, nothing unsafe is loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "silo"

LAYERS = [
    {"errors"},
    {"records", "recipe", "files", "progress"},
    {"text"},
    {"rights"},
    {"sources"},
    {"corpus"},
    {"search"},
    {"lm", "store"},
    {"pairing"},
    {"inference"},
    {"cluster"},
    {"evaluation"},
    {"experiments", "journeys"},
    {"server", "cli"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

OWNERS = {
    "torch": {"lm"},
    "transformers": {"lm"},
    "faiss": {"search"},
    "ray": {"cluster"},
    "argparse": {"cli"},
    "rich": {"cli"},
    "pickle": set(),
    "shelve": set(),
    "requests": set(),
    "httpx": set(),
}


def _modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _package(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            if node.module == "silo":
                found |= {f"silo.{alias.name}" for alias in node.names}
    return found


def violations(path: Path, package: str) -> list[str]:
    """Imports of one file that point up or sideways, or use a library that belongs elsewhere."""
    wrong = []
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] == "silo" and len(parts) > 1 and parts[1] != package and parts[1] in RANK:
            siblings = RANK[parts[1]] == RANK[package] and {parts[1], package} == {"lm", "store"}
            if RANK[parts[1]] > RANK[package] or siblings:
                wrong.append(f"{package} imports {name}")
        if package not in OWNERS.get(parts[0], {package}):
            wrong.append(f"{package} imports {name}")
    return wrong


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    package = _package(path)
    if package in ("__init__", "__main__"):
        return
    assert package in RANK, f"{package} has no place in the layers"
    assert violations(path, package) == []


def test_an_upward_import_is_noticed(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import torch\nfrom silo.cli import main\n")
    assert violations(bad, "corpus") == ["corpus imports silo.cli", "corpus imports torch"] or set(
        violations(bad, "corpus")
    ) == {"corpus imports silo.cli", "corpus imports torch"}


def test_every_module_says_what_it_promises() -> None:
    for path in _modules():
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path} has no docstring"


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from silo.cli.main import build_parser; build_parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    for heavy in ("torch", "transformers", "numba", "numpy", "pyarrow", "matplotlib", "license_expression", "rich"):
        assert heavy not in loaded
