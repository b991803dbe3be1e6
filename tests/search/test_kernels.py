"""Compiled loops cannot go stale: numba's cache on disk notices a change of the file a function is in, and no other.

So a compiled function uses nothing that another file of silo defines, be it a compiled function or a constant. And a
function that is cached takes no class of silo: the cache is unpickled before its age is checked, and fails to load
once such a class has another name or place.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "silo"
COMPILERS = {"jit", "njit", "vectorize", "guvectorize", "stencil"}


def _compiles(expression: ast.expr, names: set[str]) -> bool:
    """Whether a decorator compiles: `numba.njit`, `numba.njit(...)`, or a name for one of these."""
    called = expression.func if isinstance(expression, ast.Call) else expression
    if isinstance(called, ast.Attribute):
        return called.attr in COMPILERS and isinstance(called.value, ast.Name) and called.value.id == "numba"
    return isinstance(called, ast.Name) and called.id in names


def _is_cached(expression: ast.expr, cached_names: set[str]) -> bool:
    if isinstance(expression, ast.Name):
        return expression.id in cached_names
    return isinstance(expression, ast.Call) and any(
        keyword.arg == "cache" and ast.unparse(keyword.value) != "False" for keyword in expression.keywords
    )


def _imported(tree: ast.Module) -> set[str]:
    """The names a file takes from other files of silo."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "silo":
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or "silo" for alias in node.names if alias.name.split(".")[0] == "silo"}
    return names


def _names(*nodes: ast.AST | None) -> set[str]:
    return {part.id for node in nodes if node for part in ast.walk(node) if isinstance(part, ast.Name)}


def _body_names(function: ast.FunctionDef) -> set[str]:
    """All names a function uses when it runs, so without those of annotations."""
    annotations = [node.annotation for node in ast.walk(function) if isinstance(node, ast.AnnAssign)]
    skipped = {id(part) for annotation in annotations for part in ast.walk(annotation)}
    return {
        part.id
        for statement in function.body
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and id(part) not in skipped
    }


@cache
def _classes(folder: Path) -> set[str]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def stale_risks(path: Path, classes: set[str]) -> list[str]:
    """What the compiled functions of one file use of others, and the classes that cached ones take."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = _imported(tree)
    compilers, cached = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "numba":
            compilers |= {alias.asname or alias.name for alias in node.names if alias.name in COMPILERS}
        if isinstance(node, ast.Assign) and _compiles(node.value, compilers):
            names = _names(*node.targets)
            compilers |= names
            cached |= names if _is_cached(node.value, cached) else set()
    risks = [f"the compiler {name} comes from another file" for name in sorted(imported & COMPILERS)]
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        made_by = [decorator for decorator in function.decorator_list if _compiles(decorator, compilers | imported)]
        if not made_by:
            continue
        foreign = _body_names(function) & imported | _names(*made_by) & imported
        risks += [f"{function.name} uses {name}" for name in sorted(foreign)]
        if any(_is_cached(decorator, cached) for decorator in made_by):
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            taken = _names(*(argument.annotation for argument in arguments)) & classes
            risks += [f"{function.name} takes {name}" for name in sorted(taken)]
    return risks


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_compiled_functions_use_nothing_of_other_files(path: Path) -> None:
    assert stale_risks(path, _classes(SOURCE)) == []


def test_what_could_go_stale_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "loops.py"
    file.write_text(
        "import numba\n"
        "from silo.search.places import Place, shift, look_up, kernel\n"
        "fast = numba.njit(cache=True, nogil=True)\n"
        "@numba.njit\ndef one(at: Place) -> Place:\n    here: Place = at\n    return here >> shift\n"
        "@numba.njit(cache=True)\ndef two(at): return look_up(at)\n"
        "@fast\ndef three(at: Place): return one(at)\n"
        "@kernel\ndef four(at): return at\n"
        "def five(at): return look_up(at)\n"
    )
    assert stale_risks(file, {"Place"}) == [
        "one uses shift",
        "two uses look_up",
        "three takes Place",
        "four uses kernel",
    ]
