"""Keeps an erased work from coming back: a list of keyed hashes that tells nothing to anybody without the key.

On disk a directory `suppression/`, made whole by one rename: `key` (32 random bytes, mode 0600) and `suppressed.json`,
canonical JSON of `format`, `documents` (HMAC-SHA-256 of a document id -> sorted HMACs of the text it had), if there are
any `may_return` (the same of documents that may be added again) and `seal` (HMAC of the rest: a changed list or the
wrong key is an error, never an empty list).

A text is known again under another id, and after changes of case, white space, punctuation, accents and Unicode form.
Changed, added or removed words make it another text. A text is listed under the document whose owner objected: it keeps
new copies out, whoever brings them, and says nothing about copies that others held already (`was_erased`, not
`blocks`). A document that may be added again is listed until it is: it must not come back by itself, from a backup.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from silo.errors import SiloError
from silo.files import canonical_json, commit, disk_errors, remove_tree, sync_directory, write_atomic, write_private
from silo.text.normalise import normalise, text_hash

FORMAT = "silo-suppression-1"
KEY_FILE, LIST_FILE = "key", "suppressed.json"
KEY_BYTES = 32
LEAST_LETTERS = 32
"""Texts with fewer letters and digits are compared with their punctuation: a few letters are nobody's work."""

_NOT_LETTERS = re.compile(r"[\W_]+")
_NOT_ASCII_LETTERS = bytes(code for code in range(128) if not chr(code).isalnum())

Announce = Callable[[str], None]
Marks = Mapping[str, tuple[str, ...]]


class Suppression:
    """An opened list. One process at a time may change it: the caller holds the store's lock."""

    def __init__(self, directory: Path, key: bytes, listed: tuple[Marks, Marks], announce: Announce) -> None:
        self._directory = directory
        self._key = key
        self._announce = announce
        self._unsaved = False
        self._returnable: Marks = {}
        self._hold(*listed)

    @classmethod
    def open(cls, directory: Path, announce: Announce = lambda _: None) -> Self:
        """Read the list kept in `directory`; where there is none it is empty and nothing is written.

        `announce` is told the mark (see `list_mark`) of every new list before it is written.
        """
        if not directory.exists():
            return cls(directory, b"", ({}, {}), announce)
        key = _key(directory / KEY_FILE)
        return cls(directory, key, _listed(directory / LIST_FILE, key), announce)

    @classmethod
    def make(cls, directory: Path) -> None:
        """Make an empty list with a key of its own, if there is none."""
        if not directory.exists():
            _make(directory)

    def __len__(self) -> int:
        """How many documents are kept out."""
        return len(self._documents)

    def add(self, documents: Iterable[tuple[str, str]]) -> None:
        """Keep these (id, text) out from now on; on the disk when this returns.

        One that was erased before and may be added again, and has come back by itself, may still be added again.
        """
        given = [(document, text) for document, text in documents if not self._may_return(document, text)]
        if given:
            held = self._joined(self._documents, given)
            self._write(held, {mark: texts for mark, texts in self._returnable.items() if mark not in held})

    def note(self, documents: Iterable[tuple[str, str]], coming: Iterable[tuple[str, str]] = ()) -> None:
        """Keep in mind that these (id, text) were erased, though they may be added again; on the disk then.

        Those of `coming` are in the store now: that they were erased with this text is past.
        """
        if given := list(documents):
            noted = self._joined(self._returnable, given)
            for document, text in coming:
                noted = self._without(noted, document, text)
            self._write(self._documents, noted)

    def _joined(self, held: Marks, given: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
        """Marks with those of more documents; the key is made with the first of them."""
        if not self._key:
            self._key = _make(self._directory)
        joined = dict(held)
        for document, text in given:
            mark, texts = self._marks(document, text)
            joined[mark] = tuple(sorted({*joined.get(mark, ()), *texts}))
        return joined

    def readmit(self, document: str, text: str) -> None:
        """A document is being added: that it was erased with this text is past. On the disk after `save`."""
        if self._may_return(document, text):
            self._returnable = self._without(self._returnable, document, text)
            self._unsaved = True

    def _without(self, held: Marks, document: str, text: str) -> dict[str, tuple[str, ...]]:
        """Marks without those of one document with one text."""
        mark, texts = self._marks(document, text)
        left = tuple(known for known in held.get(mark, ()) if known not in texts)
        rest = {other: marks for other, marks in held.items() if other != mark}
        return {**rest, mark: left} if left else rest

    def save(self) -> None:
        """Make what was readmitted durable."""
        if self._unsaved:
            self._write(self._documents, self._returnable)

    def was_erased(self, document: str, text: str) -> bool:
        """Is this a document that was erased, and not added again since?"""
        return self.names(document) or self._may_return(document, text)

    def _may_return(self, document: str, text: str) -> bool:
        """Was a document erased with this text, and may it be added again?"""
        if not self._returnable:
            return False
        mark, texts = self._marks(document, text)
        return not texts.isdisjoint(self._returnable.get(mark, ()))

    def names(self, document: str) -> bool:
        """Is this very document kept out, whatever its text?"""
        return bool(self._documents) and self._mark("id", document.encode()) in self._documents

    def blocks(self, document: str, text: str) -> str | None:
        """Why a new document may not be added, or None if it may."""
        if not self._documents:
            return None
        if self.names(document):
            return "the document was erased"
        known = (name for name, mark in self._text_marks(text).items() if mark in self._texts)
        return next((_REASONS[name] for name in known), None)

    def lift(self, document: str) -> bool:
        """Let a document in again; true if it was kept out. Its text stays out while another document had it too."""
        mark = self._mark("id", document.encode())
        if mark not in self._documents:
            return False
        rest = {other: marks for other, marks in self._documents.items() if other != mark}
        self._write(rest, {**self._returnable, mark: self._documents[mark]})
        return True

    def _hold(self, documents: Marks, returnable: Marks) -> None:
        self._documents = documents
        self._returnable = returnable
        self._texts = {mark for marks in documents.values() for mark in marks}

    def _write(self, documents: Marks, returnable: Marks) -> None:
        data = _sealed(documents, returnable, self._key)
        self._announce(_list_mark(self._key, data))
        write_atomic(self._directory / LIST_FILE, data)
        self._hold(documents, returnable)
        self._unsaved = False

    def _marks(self, document: str, text: str) -> tuple[str, set[str]]:
        """The mark of an id, and those of a text."""
        return self._mark("id", document.encode()), set(self._text_marks(text).values())

    def _mark(self, what: str, value: bytes) -> str:
        return _keyed(self._key, what, value)

    def _text_marks(self, text: str) -> dict[str, str]:
        """Marks of a text by the kind of likeness they find."""
        marks = {}
        plain = normalise(text)
        if plain:
            marks["text"] = self._mark("text", text_hash(plain))
        letters = folded_letters(plain)
        if len(letters) >= LEAST_LETTERS:
            marks["letters"] = self._mark("letters", hashlib.sha256(letters.encode()).digest())
        return marks


_REASONS = {
    "text": "a document with the same text was erased",
    "letters": "a document with the same text but for punctuation and accents was erased",
}


def list_mark(directory: Path) -> str:
    """Names a list together with its key, without parsing it; the errors are those of the files."""
    return _list_mark((directory / KEY_FILE).read_bytes(), (directory / LIST_FILE).read_bytes())


def _list_mark(key: bytes, data: bytes) -> str:
    return _keyed(key, "list", hashlib.sha256(data).digest())


def folded_letters(text: str) -> str:
    """The letters and digits of a text alone, without case, accents and compatibility forms."""
    if text.isascii():
        return text.lower().encode().translate(None, _NOT_ASCII_LETTERS).decode()
    return _NOT_LETTERS.sub("", unicodedata.normalize("NFKD", text).casefold())


def _keyed(key: bytes, what: str, value: bytes) -> str:
    """HMAC-SHA-256 (hex); the name of what is hashed has no NUL, so no two kinds run together."""
    return hmac.digest(key, what.encode() + b"\0" + value, "sha256").hex()


def _sealed(documents: Marks, returnable: Marks, key: bytes) -> bytes:
    content: dict[str, Any] = {"format": FORMAT, "documents": documents}
    content |= {"may_return": returnable} if returnable else {}
    return canonical_json({**content, "seal": _keyed(key, "seal", canonical_json(content))}) + b"\n"


def _make(directory: Path) -> bytes:
    """A new key and an empty list, both or neither."""
    key, partial = secrets.token_bytes(KEY_BYTES), directory.with_name(directory.name + ".partial")
    remove_tree(partial)
    with disk_errors(directory):
        partial.mkdir(mode=0o700, parents=True)
        write_private(partial / KEY_FILE, key)
        write_atomic(partial / LIST_FILE, _sealed({}, {}, key))
        sync_directory(partial)
    commit(partial, directory)
    return key


def _key(path: Path) -> bytes:
    key = _read(path)
    if path.stat().st_mode & 0o077:
        raise SiloError("input-unreadable", f"others may read the key {path}", f"run `chmod 600 {path}`")
    if len(key) != KEY_BYTES:
        raise _damaged(f"{path} is not a key")
    return key


def _listed(path: Path, key: bytes) -> tuple[Marks, Marks]:
    """The list, byte for byte as it was written with this key: what is kept out, and what may be added again."""
    data = _read(path)
    try:
        content = json.loads(data)
        documents, returnable = (
            {mark: tuple(marks) for mark, marks in part.items()}
            for part in (content["documents"], content.get("may_return", {}))
        )
        whole = hmac.compare_digest(_sealed(documents, returnable, key), data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise _damaged(f"{path} was changed or belongs to another key")
    return documents, returnable


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except PermissionError:
        raise SiloError("input-unreadable", f"only the owner of the store may read {path}") from None
    except OSError as error:
        raise _damaged(f"{path} cannot be read: {error.strerror}") from None


def _damaged(message: str) -> SiloError:
    return SiloError("store-damaged", message, "restore the folder from a copy: without it erased works could return")
