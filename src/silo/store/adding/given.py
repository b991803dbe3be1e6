"""What Python code gives a store: documents, mappings and paths, each judged like every other source.

Nobody can bring a licence along: a document's tier and rights are what its evidence grants, or less. Where there is no
evidence its `license` is a statement like that of a record, and without one it is restricted.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.files import nearest_path
from silo.recipe import SourceRecipe
from silo.records import UNJUDGED, Document, Quarantined, Tier
from silo.rights import resolve
from silo.sources import Tally, judge, read_documents
from silo.sources.folder import plan_file
from silo.sources.reader.record import read_record

Given = Document | Mapping[str, Any] | str | os.PathLike[str]
"""A document, a record, or a path."""

_RECORDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".warc": "warc"}
_PACKED = (".gz", ".zst")


def as_documents(
    given: Given | Iterable[Given], unreadable: list[Quarantined], tally: Tally | None = None
) -> Iterator[Document]:
    """Every document that is given, with a verdict; records of files that cannot be read are noted."""
    items: Iterable[Given] = [given] if isinstance(given, Document | Mapping | str | os.PathLike) else given
    for number, item in enumerate(items, start=1):
        if isinstance(item, str | os.PathLike):
            yield from _read_path(Path(item).expanduser().absolute(), unreadable, tally)
            continue
        try:
            yield _judged(item)
        except SiloError as error:
            raise SiloError(error.code, f"document {number}: {error.message}", error.hint) from None


def _read_path(path: Path, unreadable: list[Quarantined], tally: Tally | None) -> Iterator[Document]:
    """The documents of a folder, the records of a file, or a file as the document that its folder would have."""
    source = source_of(path)
    parts = [plan_file(path)] if source.kind == "folder" and path.is_file() else None
    return read_documents(source, path.parent, unreadable, parts=parts, tally=tally)


def source_of(path: Path) -> SourceRecipe:
    """A folder, or a file, as a source: one of records if its name says so, else its folder."""
    if not path.exists():
        hint = nearest_path(path) or "a text needs an id: give a mapping with both"
        raise SiloError("input-missing", f"there is no file or folder {path}", hint)
    plain = path.with_suffix("") if path.suffix in _PACKED else path
    kind = "folder" if path.is_dir() else _RECORDS.get(plain.suffix.lower(), "folder")
    place = path.parent if kind == "folder" and path.is_file() else path
    return SourceRecipe(kind, (glob.escape(str(place.absolute())),))


def _judged(item: Document | Mapping[str, Any]) -> Document:
    if isinstance(item, Mapping):
        return judge(read_record(item))
    if not isinstance(item, Document):
        raise SiloError("field-type", f"a document, a mapping or a path is needed, not {type(item).__name__}")
    return _bounded(item) if item.evidence and item.rights is not UNJUDGED else _stated(item)


def _stated(document: Document) -> Document:
    """A document that nobody has judged: what it says of itself is a record like any other."""
    own = document.external_id or document.id
    fields = ("text", "source", "owner", "domain", "license", "url")
    record = {name: getattr(document, name) for name in fields}
    candidate = read_record({**record, "id": own, "metadata": dict(document.meta)})
    judged = judge(replace(candidate, evidence=(*candidate.evidence, *document.evidence)))
    if document.rights is not UNJUDGED:
        judged = replace(judged, rights=judged.rights.narrowed(document.rights))
    if document.tier != Tier.restricted:  # that is what a document has which says nothing
        judged = replace(judged, tier=max(judged.tier, document.tier, key=lambda tier: tier.rank))
    return judged


def _bounded(document: Document) -> Document:
    """A document with no more than its evidence grants."""
    verdict = resolve(document.evidence)
    tier = max(verdict.tier, document.tier, key=lambda tier: tier.rank)
    rights = document.rights.narrowed(verdict.rights)
    claims = (document.license, document.tier, document.rights, document.duties | verdict.duties)
    if claims == (verdict.spdx, tier, rights, document.duties):
        return document
    words = f"it claims {document.license or 'no licence'} as {document.tier}, its evidence says {verdict.spdx}"
    return replace(
        document,
        license=verdict.spdx,
        tier=tier,
        rights=rights,
        duties=document.duties | verdict.duties,
        conflicts=(*document.conflicts, f"{words} as {verdict.tier}: the evidence counts"),
    )
