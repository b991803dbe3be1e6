"""A store follows a source: what it holds of the source becomes what the source has now.

Documents are compared by id. New ones come in, changed ones are replaced, and those that the source has no more are
`gone`: they leave, and may come back. Only documents of the source itself can be gone: of a folder, those under its
name; of records (JSON lines, Parquet), those of the sources that the records name. What was not read this time is not
gone: of a folder that is a file which is there and was skipped or could not be read, and all below a folder that could
not be entered; of records nobody knows what a bad one said, so it keeps everything. A document that was read and may
not be stored any more is gone, with the reason.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from silo.errors import SiloError
from silo.progress import Advance
from silo.recipe import SourceRecipe
from silo.records import Quarantined
from silo.sources import SourcePart, plan, read_documents
from silo.sources.reader.plan import expand_folders
from silo.store.adding.add import Added, Incoming, Note, decide
from silo.store.adding.admission import Admission
from silo.store.bucket import Bucket
from silo.store.policy.conditions import Among
from silo.store.view import View

NOT_THERE = "not-there"
_KINDS = ("folder", "jsonl", "parquet")


class Item(NamedTuple):
    """A document that a sync is about; `reason` says what changed, why it is gone, or why it is kept all the same."""

    id: str
    external_id: str
    source: str
    reason: str = ""


@dataclass(slots=True)
class Synced(Added):
    """What a sync did to the store, or would do; `kept` are documents of which nobody knows whether they are gone."""

    added_items: list[Item] = field(default_factory=list)
    changed_items: list[Item] = field(default_factory=list)
    gone: list[Item] = field(default_factory=list)
    kept: list[Item] = field(default_factory=list)
    would_empty: bool = False

    def require_rest(self) -> None:
        """Refuse to take out the last document of the source: that is rarely meant."""
        if self.would_empty:
            sources = ", ".join(sorted({item.source for item in self.gone}))
            raise SiloError("would-empty", f"all {len(self.gone):,} documents of {sources} would go")


def compare_source(
    source: SourceRecipe,
    base: Path,
    view: View,
    admission: Admission,
    *,
    incoming: Incoming | None,
    note: Note,
    advance: Advance,
) -> Synced:
    """What a sync has to do; documents that are to come in go to `incoming`, where there is one."""
    if source.kind not in _KINDS:
        raise SiloError("usage", f"a store can follow a folder or files of records, not {source.kind}")
    done, present, refused = Synced(), dict[bytes, str](), dict[bytes, str]()
    parts = _plan(source, base)
    for document in read_documents(source, base, done.quarantined, parts=parts, tally=done.tally, advance=advance):
        decision = decide(document, admission, done, note)
        name = bytes.fromhex(document.id)
        if decision.outcome == "refused":
            refused.setdefault(name, decision.reason)
        else:
            present[name] = document.source
        if decision.outcome in ("new", "changed"):
            item = Item(document.id, document.external_id, document.source, decision.detail)
            (done.added_items if decision.outcome == "new" else done.changed_items).append(item)
            if incoming is not None:
                incoming.take(document, changed=decision.outcome == "changed")
    sources = _own_sources(source, base, {*present.values()}, done)
    unread = _Unread(source, base, parts, done.quarantined)
    for item in (found for bucket in view.buckets for found in _missing(bucket, sources, present, view.dead)):
        name = bytes.fromhex(item.id)
        if name not in refused and unread.may_hold(item.external_id):
            done.kept.append(item._replace(reason="not-read"))
        else:
            done.gone.append(item._replace(reason=refused.get(name, NOT_THERE)))
    done.would_empty = bool(done.gone) and not done.kept and sources.isdisjoint(present.values())
    return done


def _plan(source: SourceRecipe, base: Path) -> list[SourcePart]:
    """The parts of a source; a folder without any document has none, and that is no mistake here."""
    try:
        return plan(source, base)
    except SiloError as error:
        if error.code != "input-empty" or source.kind != "folder":
            raise
        return []


def _own_sources(source: SourceRecipe, base: Path, found: set[str], done: Synced) -> set[str]:
    """The sources whose documents can be gone."""
    if source.kind == "folder":
        return {source.name} if source.name else {folder.name for folder in expand_folders(source, base)}
    if not found:
        what = f"none of {done.read + len(done.quarantined):,} records could be taken: no source is known"
        raise SiloError("input-empty", what, "to take out all of a source, use `silo store erase --source`")
    return found


class _Unread:
    """What was not read, and which documents it may have been."""

    def __init__(
        self, source: SourceRecipe, base: Path, parts: Sequence[SourcePart], unreadable: Sequence[Quarantined]
    ) -> None:
        self._anything = source.kind != "folder" and bool(unreadable)
        self._folders = expand_folders(source, base) if source.kind == "folder" else []
        self._read = {f"{part.path}/{member}" for part in parts for member in part.members}
        self._bad = {place for item in unreadable for place in _beginnings(item.where, ":")}

    def may_hold(self, external_id: str) -> bool:
        """Could this document be, or be part of, what was not read?"""
        if self._anything:
            return True
        for folder in self._folders:
            if any(place in self._bad for place in _beginnings(f"{folder.name}/{external_id}", "/#")):
                return True
            if any(self._is_skipped(folder, file) for file in _beginnings(external_id, "#")):
                return True
        return False

    def _is_skipped(self, folder: Path, file: str) -> bool:
        """Is the file there, and was not read? What is no path below the folder never was a file of it."""
        if f"{folder}/{file}" in self._read or file.startswith("/") or ".." in file.split("/"):
            return False
        try:
            path = folder / file
            return path.is_symlink() or path.is_file()
        except OSError as error:
            return error.errno != errno.ENAMETOOLONG


def _beginnings(place: str, marks: str) -> Iterator[str]:
    """A place and all that it lies in, which ends where one of the marks stands."""
    yield place
    yield from (place[:at] for at, character in enumerate(place) if character in marks)


def _missing(bucket: Bucket, sources: set[str], present: dict[bytes, str], dead: frozenset[bytes]) -> Iterator[Item]:
    """The documents of some sources that are not present."""
    for source in sorted(sources):
        for row in np.flatnonzero(Among("source", frozenset([source])).mask(bucket)).tolist():
            name = bucket.index[row]["id"].tobytes()
            if name not in present and name not in dead:
                yield Item(name.hex(), bucket.external_id(row), source)
