"""Experiments that anybody can try: small numbers, on the Python packages of the machine instead of our data.

Files of installed distributions become four domains: code and the prose of its docstrings, each permissively licensed
or restricted. A file and its docstrings are in the same split.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from silo.experiments.harness.data import SPLITS
from silo.experiments.harness.lab import RECIPES, Lab
from silo.files import canonical_json, commit, remove_tree
from silo.progress import Advance
from silo.recipe import SourceRecipe
from silo.records import Document, Tier
from silo.sources import read_documents

QUICK = RECIPES / "quick"
"""What is smaller than in the recipes of the same names."""

_EXCLUDED = ("torch", "transformers", "sympy", "numpy", "matplotlib", "mypy", "fonttools", "pyarrow")
"""Distributions that are too large to be read for this."""
_MOST_BYTES = 800_000
"""Of a domain, in all splits together."""
_FILE_CHARS = range(800, 20_000)
_PROSE_CHARS = range(300, 20_000)


def open_quick_lab(
    folder: Path, *, talk: Callable[[str], None] = lambda _: None, advance: Advance = lambda *_: None
) -> Lab:
    """A lab with small recipes over the packages of this machine, which are read once."""
    data = folder / "packages"
    if not data.exists():
        talk("packages: code and docstrings of the Python packages of this machine")
        write_packages(data, SourceRecipe("distributions", ("*",), exclude=_EXCLUDED))
    return Lab(folder, data, changes=QUICK, named=" --quick", talk=talk, advance=advance)


def write_packages(folder: Path, source: SourceRecipe) -> None:
    """Write `DOMAIN.{train,validation,test}.jsonl` from the Python files of a source."""
    building = folder.with_name(folder.name + ".building")
    remove_tree(building)
    building.mkdir(parents=True)
    files = [item for item in read_documents(source, folder, []) if item.domain == "code" and item.rights.store]
    records: dict[str, list[dict[str, Any]]] = {}
    for record in _records(sorted(files, key=_draw)):
        records.setdefault(record["domain"], []).append(record)
    for domain, found in records.items():
        for at, split in enumerate(SPLITS):
            lines = [canonical_json(record) for record in _first_bytes(found) if _split(record) == at]
            (building / f"{domain}.{split}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    commit(building, folder)


def _records(files: Iterable[Document]) -> Iterator[dict[str, Any]]:
    """Of every file its text, and its docstrings if they are long enough."""
    for file in files:
        kind = "restricted" if file.tier == Tier.restricted else "permissive"
        base = {
            "source": file.source,
            "owner": file.owner,
            "license": file.license,
            "metadata": {"file": file.id, "package": file.meta["package"]},
        }
        if len(file.text) in _FILE_CHARS:
            yield {**base, "id": file.external_id, "text": file.text, "domain": f"code_{kind}"}
        if len(prose := docstrings(file.text)) in _PROSE_CHARS:
            yield {**base, "id": f"{file.external_id}#docstrings", "text": prose, "domain": f"docs_{kind}"}


def docstrings(code: str) -> str:
    """The docstrings of a Python file in their order, without indentation."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    return "\n\n".join(text for text in found if text)


def _first_bytes(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    size = 0
    for record in records:
        size += len(record["text"].encode())
        if size > _MOST_BYTES:
            return
        yield record


def _draw(file: Document) -> bytes:
    return hashlib.sha256(file.id.encode()).digest()


def _split(record: dict[str, Any]) -> int:
    """The place in `SPLITS`, by the file: a fifth is validation text, a fifth test text."""
    lot = hashlib.sha256(record["metadata"]["file"].encode()).digest()[-1] % 5
    return 2 if lot == 1 else 1 if lot == 0 else 0
