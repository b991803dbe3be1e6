"""The kinds of source a recipe may name, each as a planner and a reader; and a source read through to its documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.progress import Advance
from silo.recipe import Limits, PiiRecipe, SourceRecipe
from silo.records import Candidate, Document, Quarantined, Right
from silo.sources.distributions import plan_distributions, read_distribution
from silo.sources.folder import plan_folder, read_folder
from silo.sources.gutenberg import read_gutenberg
from silo.sources.hub import plan_hub, read_hub
from silo.sources.mbox import read_mbox
from silo.sources.reader.judge import judge
from silo.sources.reader.plan import SourcePart, packing, plan_files
from silo.sources.reader.skipped import Skipped, skipped_facts
from silo.sources.recordfiles import read_records
from silo.sources.tree import plan_tree, read_tree
from silo.sources.warc import plan_warc, read_warc
from silo.text.masks import check_kinds, mask_personal_data


@dataclass(frozen=True, slots=True)
class _Kind:
    plan: Callable[[SourceRecipe, Path], list[SourcePart]]
    read: Callable[[SourcePart, Limits], Iterator[Candidate | Quarantined]]


KINDS: dict[str, _Kind] = {
    "distributions": _Kind(plan_distributions, read_distribution),
    "folder": _Kind(plan_folder, read_folder),
    "gutenberg": _Kind(plan_files, read_gutenberg),
    "hub": _Kind(plan_hub, read_hub),
    "jsonl": _Kind(plan_files, read_records),
    "mbox": _Kind(plan_files, read_mbox),
    "parquet": _Kind(plan_files, read_records),
    "tree": _Kind(plan_tree, read_tree),
    "warc": _Kind(plan_warc, read_warc),
}


@dataclass(slots=True)
class Tally:
    """What reading should tell besides documents: files that were skipped, and how many records had no id."""

    skipped: list[Skipped] = field(default_factory=list)
    derived_ids: int = 0

    def as_json(self) -> dict[str, Any]:
        """Plain values: how many files were skipped, which, and how many ids were made."""
        return skipped_facts(self.skipped) | {"derived_ids": self.derived_ids}


def plan(recipe: SourceRecipe, base: Path) -> list[SourcePart]:
    """The parts of a source, with paths relative to `base`, in a fixed order."""
    return _kind(recipe.kind).plan(recipe, base.absolute())


def read(part: SourcePart, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The records of one part in order; bad ones come as `Quarantined` and reading goes on."""
    return _kind(part.recipe.kind).read(part, limits)


def read_documents(
    source: SourceRecipe,
    base: Path,
    unreadable: list[Quarantined],
    *,
    limits: Limits | None = None,
    pii: PiiRecipe | None = None,
    tally: Tally | None = None,
    parts: Sequence[SourcePart] | None = None,
    advance: Advance = lambda *_: None,
) -> Iterator[Document]:
    """Every record of a source that can be read, with its verdict and personal data masked; the others are noted.

    `parts` are those to read, all of the source without them.
    """
    tally = tally or Tally()
    masks = pii or PiiRecipe()
    check_kinds(masks.mask)
    deny = tuple(map(Right, source.deny))
    parts = plan(source, base) if parts is None else parts
    total, before = sum(part.bytes for part in parts), 0
    for part in parts:
        text_bytes = 0
        tally.skipped += part.skipped
        for item in read(part, limits or Limits()):
            if isinstance(item, Candidate):
                tally.derived_ids += item.id_is_derived
                text_bytes += len(item.text)
                advance("read", before + min(part.bytes, int(text_bytes / packing(part))), total)
                document = judge(item, deny)
                yield replace(document, text=mask_personal_data(document.text, masks.kinds(document.domain))[0])
            else:
                unreadable.append(item)
        before += part.bytes
    advance("read", total, total)


def _kind(name: str) -> _Kind:
    if name not in KINDS:
        raise SiloError("recipe-value", f"unknown kind of source '{name}'; known: {', '.join(sorted(KINDS))}")
    return KINDS[name]
