"""An append-only log that shows whether it was ever rewritten: every line holds the SHA-256 of the line before it.

On disk `log.jsonl`: each line is the canonical JSON of `n` (1, 2, ...), `previous` (SHA-256 of the bytes of the line
before, without its newline; 64 zeros in the first), `kind`, `check` (SHA-256 of the canonical JSON of all the rest,
which guards the last line) and the content. An entry's hash is the SHA-256 of its own line.

What was appended is on the disk before `append` returns. A last line without newline was never acknowledged: the
writer cuts it off, readers pass over it. Any other damage is an error. That whole entries are missing at the end shows
by the rest of the store (see `evidence`) or by something outside: a receipt, an anchor. An entry never holds a
document's id or text.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from silo.errors import SiloError
from silo.files import append_line, canonical_json, cut_torn_line, fingerprint, require_torn

NOTHING_BEFORE = "0" * 64
"""`previous` of the first entry, and the hash of the head of an empty log."""

_OWN_FIELDS = frozenset({"n", "previous", "kind", "check"})
_KIND = re.compile(r"[a-z][a-z-]{0,39}")
_DOCUMENT_ID = re.compile(r"[0-9a-f]{32}")
_LONGEST_WORD = 128


class Head(NamedTuple):
    """The end of a log: how many entries there are and the hash of the last."""

    n: int
    hash: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log; `hash` is the SHA-256 of its bytes."""

    n: int
    previous: str
    kind: str
    content: Mapping[str, Any]
    hash: str


class AuditLog:
    """An opened log. One process at a time may write: the caller holds the store's lock."""

    def __init__(self, path: Path, entries: list[Entry], size: int, *, read_only: bool) -> None:
        self._path = path
        self._entries = entries
        self._size = size
        self._read_only = read_only
        self._failed = False

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Self:
        """Read the whole log and check it; a writer makes a missing one and cuts off a torn last line."""
        if not read_only and not path.exists():
            cut_torn_line(path)
        data = _read(path)
        size = data.rfind(b"\n") + 1
        entries = _entries(path, data[:size], _head([]))
        if size < len(data):
            require_torn(path, data[size:])
            if not read_only:
                cut_torn_line(path)
        return cls(path, entries, size, read_only=read_only)

    @property
    def is_current(self) -> bool:
        """True while nobody else has written to the log and no write of ours has failed."""
        return not self._failed and self._path.exists() and self._path.stat().st_size == self._size

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, oldest first."""
        return tuple(self._entries)

    def head(self) -> Head:
        """Number and hash of the last entry."""
        return _head(self._entries)

    def follow(self) -> None:
        """Take in what others have appended since; a log that lost entries meanwhile is damaged."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._size)
                data = stream.read()
                shorter = stream.seek(0, os.SEEK_END) < self._size
        except FileNotFoundError:
            raise _damaged(self._path, "the file was removed") from None
        if shorter:
            raise _damaged(self._path, "entries are missing at its end")
        size = data.rfind(b"\n") + 1
        self._entries += _entries(self._path, data[:size], self.head())
        self._size += size

    def append(self, kind: str, content: Mapping[str, Any]) -> Entry:
        """Add an entry durably. After a failed write nothing more is taken until the log is opened again."""
        _require_anonymous(kind, content)
        self._require_writable()
        line = _line(self.head(), kind, content)
        self._failed = True
        self._size = append_line(self._path, line + b"\n")
        self._failed = False
        entry = _entry(line)
        self._entries.append(entry)
        return entry

    def _require_writable(self) -> None:
        if self._read_only:
            raise ValueError(f"{self._path} was opened for reading")
        if self._failed:
            raise SiloError("disk-failed", f"an earlier write to {self._path} failed")
        if not self._path.exists():
            raise _damaged(self._path, "the file was removed")
        if self._path.stat().st_size != self._size:
            raise SiloError("busy", f"{self._path} was written by another process")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise SiloError("input-missing", f"there is no log {path}") from None
    except OSError as error:
        raise SiloError("input-unreadable", f"{path} cannot be read: {error.strerror}") from None


def _head(entries: Sequence[Entry]) -> Head:
    return Head(entries[-1].n, entries[-1].hash) if entries else Head(0, NOTHING_BEFORE)


def _entries(path: Path, data: bytes, before: Head) -> list[Entry]:
    """The entries of whole lines, each following from the one before."""
    entries: list[Entry] = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=before.n + 1):
        head = _head(entries) if entries else before
        try:
            entry = _entry(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _damaged(path, f"line {number} is not as it was written") from None
        if (entry.n, entry.previous) != (head.n + 1, head.hash):
            raise _damaged(path, f"line {number} does not follow from the line before")
        entries.append(entry)
    return entries


def _line(head: Head, kind: str, content: Mapping[str, Any]) -> bytes:
    """The bytes of the entry after `head`, without the newline."""
    rest = {**content, "n": head.n + 1, "previous": head.hash, "kind": kind}
    return canonical_json({**rest, "check": fingerprint(rest)})


def _entry(line: bytes) -> Entry:
    """The entry of one line, which must be byte for byte what `_line` makes of it."""
    fields = json.loads(line)
    head = Head(fields["n"] - 1, fields["previous"])
    content = {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
    if _line(head, fields["kind"], content) != line:
        raise ValueError("not canonical, or changed")
    return Entry(fields["n"], fields["previous"], fields["kind"], content, hashlib.sha256(line).hexdigest())


def _damaged(path: Path, what: str) -> SiloError:
    return SiloError("store-damaged", f"{path}: {what}", "the log was changed: restore it from a copy")


def _require_anonymous(kind: str, content: Mapping[str, Any]) -> None:
    """Refuse what could name a document or repeat its text: ids, long strings, anything but plain values."""
    if not _KIND.fullmatch(kind):
        raise ValueError(f"{kind!r} is not the kind of an entry")
    if _OWN_FIELDS & content.keys():
        raise ValueError(f"the log itself writes {', '.join(sorted(_OWN_FIELDS))}")
    rest: list[Any] = [dict(content)]
    while rest:
        value = rest.pop()
        if isinstance(value, Mapping):
            rest += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            rest += value
        elif isinstance(value, str):
            if len(value) > _LONGEST_WORD or _DOCUMENT_ID.fullmatch(value):
                raise ValueError("the log takes no document ids and no text")
        elif not isinstance(value, bool | int | None):
            raise ValueError(f"the log takes no {type(value).__name__}")
