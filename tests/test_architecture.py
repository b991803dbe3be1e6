"""The shape of the tree: imports point down, libraries stay in their packages, folders and seams stay small.

docs/architecture.md explains it. Every rule is a function over a folder, so that a planted mistake can be shown to it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "silo"

LAYERS = [
    {"errors"},
    {"records", "recipe", "files", "progress", "placement"},
    {"checksums"},
    {"page"},
    {"signing", "remote"},
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
    {"server"},
    {"cli"},
]
"""From the bottom to the top; packages of one layer do not import each other."""
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

OWNERS = {
    "torch": {"lm"},
    "transformers": {"lm"},
    "accelerate": {"lm"},
    "faiss": {"search"},
    "pypdfium2": {"sources"},
    "ray": {"cluster"},
    "fsspec": {"remote"},
    "s3fs": {"remote"},
    "jinja2": {"text"},
    "argparse": {"cli"},
    "rich": {"cli"},
    "fastapi": {"server"},
    "uvicorn": {"server"},
    "starlette": {"server"},
    "pydantic": {"server"},
    "lm_eval": {"journeys"},
    "mcp": {"server"},
    "mcp_types": {"server"},
    "pickle": set(),
    "shelve": set(),
    "requests": set(),
    "httpx": set(),
}
"""Which packages may import a library; the others may import any that is not named here."""

MOST_MODULES = 14
MOST_NAMES = 12
GROUND = {"errors", "records", "recipe", "files", "checksums", "page", "progress", "placement", "signing"}
"""Single modules at the bottom: everybody may take from them what they need."""


def _modules(source: Path) -> dict[str, Path]:
    """Modules by their dotted name below the package."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(path: Path, modules: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """(module, name) of every import, also of those inside functions and under TYPE_CHECKING.

    Our own modules come without the package's name; importing a module itself names it twice.
    """
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name.removeprefix("silo."), "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = (node.module or "").removeprefix("silo.") if node.module != "silo" else ""
            for alias in node.names:
                inner = f"{module}.{alias.name}".strip(".")
                own = node.module is not None and node.module.split(".")[0] == "silo"
                yield (inner, inner) if own and inner in modules else (module, alias.name)


def upward_imports(source: Path) -> list[str]:
    """Imports that point up or sideways, and libraries that belong to another package."""
    modules, wrong = _modules(source), []
    for name, path in modules.items():
        package = name.split(".")[0]
        if package in ("", "__main__"):
            continue
        assert package in RANK, f"{package} has no place in the layers"
        for module, _ in _imports(path, modules):
            other = module.split(".")[0]
            if module in modules and other in RANK and other != package and RANK[other] >= RANK[package]:
                wrong.append(f"{name} imports {module}")
            if module not in modules and package not in OWNERS.get(other, {package}):
                wrong.append(f"{name} imports {module}")
    return wrong


def import_cycles(source: Path) -> list[str]:
    """Modules that import each other, however far around."""
    modules = _modules(source)
    edges = {name: {module for module, _ in _imports(path, modules)} & set(modules) for name, path in modules.items()}
    done: set[str] = set()
    cycles: list[str] = []

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            cycles.append(" -> ".join([*trail[trail.index(name) :], name]))
        elif name not in done:
            for other in sorted(edges[name] - {""}):
                visit(other, [*trail, name])
            done.add(name)

    for name in modules:
        visit(name, [])
    return cycles


def crowded_folders(source: Path) -> list[str]:
    """Folders with more modules than a reader takes in at a glance."""
    counts = Counter(path.parent for path in source.rglob("*.py") if path.name != "__init__.py")
    return [f"{folder.name} has {count} modules" for folder, count in counts.items() if count > MOST_MODULES]


def wide_seams(source: Path) -> list[str]:
    """Packages that take more names from another one than two packages should have to agree on."""
    modules = _modules(source)
    taken: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, path in modules.items():
        for module, imported in _imports(path, modules):
            package, other = _taker(name), module.rpartition(".")[0] or module
            if module in modules and name.split(".")[0] != module.split(".")[0] and module not in GROUND:
                taken[package, other].add(imported)
    return [
        f"{one} takes {len(names)} names from {other}: {', '.join(sorted(names))}"
        for (one, other), names in taken.items()
        if len(names) > MOST_NAMES
    ]


def _taker(module: str) -> str:
    """Whose names are counted: a package's, but every experiment is a user of its own."""
    package = module.split(".")[0]
    return module if package == "experiments" else package


def unused_names(source: Path, more: str = "") -> list[str]:
    """Functions and classes that nothing but tests and benchmarks could call; `more` is text that names some."""
    words = Counter(re.findall(r"\w+", more))
    for path in source.rglob("*.py"):
        words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [
        f"{name}.{node.name}"
        for name, path in _modules(source).items()
        for node in ast.walk(_tree(path))
        if isinstance(node, kinds) and words[node.name] == 1 and not node.name.startswith("__")
    ]


CALLED_BY_OTHERS = "readinto tell readable render _check_value _get_help_string loglikelihood_rolling generate_until"
"""Methods that a library calls."""


def _documented() -> str:
    return " ".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("rule", [upward_imports, import_cycles, crowded_folders, wide_seams])
def test_the_tree_keeps_the_rule(rule: object) -> None:
    assert callable(rule)
    assert rule(SOURCE) == []


def test_nothing_is_kept_for_tests_alone() -> None:
    assert unused_names(SOURCE, _documented() + CALLED_BY_OTHERS) == []


def test_every_module_says_what_it_promises() -> None:
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(_tree(path)), f"{path} has no docstring"


def _plant(source: Path, **modules: str) -> Path:
    for name, text in modules.items():
        path = source / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


def test_an_import_that_points_up_is_noticed_wherever_it_hides(tmp_path: Path) -> None:
    hidden = "if TYPE_CHECKING:\n    from silo.cli.main import main\ndef f():\n    from silo.store.store import Store\n"
    found = upward_imports(
        _plant(tmp_path, cli__main="", store__store="", corpus__build="import torch\n" + hidden, lm__model="import ray")
    )
    wrong = ["torch", "cli.main", "store.store"]
    assert found == [*(f"corpus.build imports {name}" for name in wrong), "lm.model imports ray"]


def test_siblings_do_not_import_each_other(tmp_path: Path) -> None:
    planted = _plant(tmp_path, lm__model="from silo.store import store", store__store="")
    assert upward_imports(planted) == ["lm.model imports store.store"]


def test_a_cycle_is_noticed(tmp_path: Path) -> None:
    planted = _plant(tmp_path, lm__a="from silo.lm.b import f", lm__b="def f():\n    import silo.lm.a\n")
    assert import_cycles(planted) == ["lm.a -> lm.b -> lm.a"]


def test_a_crowded_folder_and_a_wide_seam_are_noticed(tmp_path: Path) -> None:
    names = ", ".join(f"n{number}" for number in range(MOST_NAMES + 1))
    many = {f"corpus__m{number}": "" for number in range(MOST_MODULES + 1)}
    planted = _plant(tmp_path, **many, lm__a=f"from silo.corpus.m1 import {names}")
    assert crowded_folders(planted) == [f"corpus has {MOST_MODULES + 1} modules"]
    assert [seam.partition(":")[0] for seam in wide_seams(planted)] == ["lm takes 13 names from corpus"]


def test_a_function_that_nobody_calls_is_noticed(tmp_path: Path) -> None:
    planted = _plant(tmp_path, lm__a="def used(): ...\ndef kept(): ...\nclass A:\n    def left(self): used()\n")
    assert unused_names(planted, "kept A") == ["lm.a.left"]


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from silo.cli.main import build_parser; build_parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    for heavy in ("torch", "transformers", "numba", "numpy", "pyarrow", "matplotlib", "license_expression", "rich"):
        assert heavy not in loaded
