"""Kind `folder`: text files with a metadata file beside them; a file the metadata does not name has no licence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.recipe import Limits, SourceRecipe
from silo.records import Candidate, Evidence, Quarantined
from silo.rights import load_signals
from silo.sources.folder_metadata import Metadata, load_metadata, metadata_path
from silo.sources.reader.fields import Defaults, candidate_from, defaults_of, licence_evidence
from silo.sources.reader.files import Entry, plan_members, read_text, shown
from silo.sources.reader.plan import Part, described, folders, settle

_TEXT = frozenset({".txt", ".md", ".rst", ".text"})
_SIGNALS = ("robots.txt", "tdmrep.json", "rsl.xml")
_NAMING = frozenset({"path", "file", "file_name", "filename"})
_FIELDS = frozenset({"license", "licence", "owner", "url", "domain", "source", "tier", "text", "metadata"}) | _NAMING


def plan_folder(recipe: SourceRecipe, base: Path) -> list[Part]:
    """Parts over the text files of each folder; the metadata file is a member that yields only its own problems."""
    settled = settle(recipe, base)
    parts: list[Part] = []
    for root in folders(recipe, base):
        metadata = metadata_path(root, recipe.metadata, base)
        own = replace(settled, metadata=str(metadata or ""))
        salt = described(metadata.name, metadata) if metadata else ""

        def chosen(entry: Entry, about: str = _relative(metadata, root)) -> bool:
            if entry.relative == about:
                return False
            return entry.suffix in _TEXT and entry.relative not in _SIGNALS

        found = plan_members(root, own, chosen=chosen, base=base, salt=salt)
        parts += [replace(found[0], members=("", *found[0].members)), *found[1:]] if found else []
    if not parts:
        raise SiloError("input-empty", f"no text files in {', '.join(recipe.paths)}")
    return parts


def _relative(metadata: Path | None, root: Path) -> str:
    return metadata.relative_to(root).as_posix() if metadata and metadata.is_relative_to(root) else ""


def read_folder(part: Part, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The texts of one part, each with what the metadata and the folder's signals say about it."""
    root = Path(part.path)
    metadata = Metadata({}, ())
    if part.recipe.metadata:
        metadata = load_metadata(Path(part.recipe.metadata), limits)
    defaults = replace(defaults_of(part, limits), label=root.name, source=part.recipe.name or root.name)
    beside = load_signals(root) if any((root / name).exists() for name in _SIGNALS) else None
    for relative in part.members:
        if not relative:
            yield from (replace(bad, where=f"{root.name}/{bad.where}") for bad in metadata.problems)
            continue
        try:
            text = read_text(root, relative, limits.max_record_bytes)
            heard = beside.evidence_for("/" + relative) if beside else ()
            yield _candidate(relative, text, metadata.rows.get(relative, ()), defaults, heard)
        except SiloError as error:
            yield Quarantined(shown(root, relative), error.code, error.message)


def _candidate(
    relative: str,
    text: str,
    rows: tuple[Mapping[str, Any], ...],
    defaults: Defaults,
    heard: tuple[Evidence, ...],
) -> Candidate:
    first = rows[0] if rows else {}
    about = replace(defaults, label=f"{defaults.label}/{relative}")
    extra = {key: value for key, value in first.items() if key not in _FIELDS}
    record = {**{key: first.get(key) for key in _FIELDS - _NAMING if key in first}, "id": relative, "text": text}
    found = candidate_from({**record, "metadata": extra}, about)
    more = [evidence for row in rows[1:] for evidence in licence_evidence(row, {}, about)]
    place = () if found.url else defaults.heard("/" + relative)
    return replace(found, evidence=(*found.evidence, *more, *place, *heard))
