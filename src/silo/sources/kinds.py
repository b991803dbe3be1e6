"""The kinds of source a recipe may name, each as a planner and a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from silo.errors import SiloError
from silo.recipe import Limits, SourceRecipe
from silo.records import Candidate, Quarantined
from silo.sources.distributions import plan_distributions, read_distribution
from silo.sources.folder import plan_folder, read_folder
from silo.sources.gutenberg import read_gutenberg
from silo.sources.hub import plan_hub, read_hub
from silo.sources.jsonl import read_jsonl
from silo.sources.mbox import read_mbox
from silo.sources.parquet import read_parquet
from silo.sources.reader.plan import Part, plan_files
from silo.sources.tree import plan_tree, read_tree
from silo.sources.warc import plan_warc, read_warc


@dataclass(frozen=True, slots=True)
class _Kind:
    plan: Callable[[SourceRecipe, Path], list[Part]]
    read: Callable[[Part, Limits], Iterator[Candidate | Quarantined]]


KINDS: dict[str, _Kind] = {
    "distributions": _Kind(plan_distributions, read_distribution),
    "folder": _Kind(plan_folder, read_folder),
    "gutenberg": _Kind(plan_files, read_gutenberg),
    "hub": _Kind(plan_hub, read_hub),
    "jsonl": _Kind(plan_files, read_jsonl),
    "mbox": _Kind(plan_files, read_mbox),
    "parquet": _Kind(plan_files, read_parquet),
    "tree": _Kind(plan_tree, read_tree),
    "warc": _Kind(plan_warc, read_warc),
}


def plan(recipe: SourceRecipe, base: Path) -> list[Part]:
    """The parts of a source, with paths relative to `base`, in a fixed order."""
    return _kind(recipe.kind).plan(recipe, base.absolute())


def read(part: Part, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The records of one part in order; bad ones come as `Quarantined` and reading goes on."""
    return _kind(part.recipe.kind).read(part, limits)


def _kind(name: str) -> _Kind:
    if name not in KINDS:
        raise SiloError("recipe-value", f"unknown kind of source '{name}'; known: {', '.join(sorted(KINDS))}")
    return KINDS[name]
