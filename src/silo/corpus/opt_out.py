"""`silo corpus opt-out`: documents that every later view of a corpus leaves out, named as those that a store erases.

The list of ids (`opt-outs.json`) is all that changes: shards keep the text until the corpus is built anew, which takes
the list along.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from silo.corpus.corpus import Corpus
from silo.errors import SiloError, nearest_names
from silo.records import Document, is_document_id
from silo.text.normalise import text_hash

_NAMED = ("owner", "source", "license", "domain")
_ID, _EXTERNAL = "id:", "external:"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which documents are meant: all conditions that are given must hold, and have the meaning they have for a store.

    `document` is `id:` and silo's id, `external:` and that of the record, or plain; `query` is text that it contains,
    white space and case aside.
    """

    document: str = ""
    owner: str = ""
    source: str = ""
    license: str = ""
    domain: str = ""
    query: str = ""

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) for item in fields(self))

    def meets(self, document: Document) -> bool:
        """True for a document that is meant."""
        if any(wanted != getattr(document, name) for name in _NAMED if (wanted := getattr(self, name))):
            return False
        if self.document and not (self._is_id_of(document) or self._is_external_id_of(document)):
            return False
        return not self.query or document.contains(self.query)

    def _is_id_of(self, document: Document) -> bool:
        return self.document.removeprefix(_ID) == document.id

    def _is_external_id_of(self, document: Document) -> bool:
        plain = not self.document.startswith(_ID)
        return plain and self.document.removeprefix(_EXTERNAL) == document.external_id

    def in_words(self) -> str:
        given = ((item.name, getattr(self, item.name)) for item in fields(self))
        return ", ".join(f"{name} '{value}'" for name, value in given if value)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A document that is meant, without its text, of which `mark` is the hash."""

    id: str
    external_id: str
    source: str
    owner: str
    domain: str
    license: str
    tier: str
    characters: int
    mark: bytes

    @classmethod
    def of(cls, document: Document) -> Chosen:
        names = ("id", "external_id", *_NAMED)
        values = {name: getattr(document, name) for name in names}
        return cls(**values, tier=str(document.tier), characters=len(document.text), mark=text_hash(document.text))

    def as_json(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "mark"}


@dataclass(frozen=True, slots=True)
class Choice:
    """The documents that are meant: those that are in views of the corpus now, and how many had opted out before."""

    documents: tuple[Chosen, ...]
    already_out: int


def choose_documents(corpus: Corpus, selection: Selection) -> Choice:
    """Read the whole corpus for the documents that are meant; that none is, and a name of two meanings, are errors."""
    if not selection:
        raise SiloError("usage", f"say what opts out: {', '.join('--' + item.name for item in fields(selection))}")
    opted_out, chosen, already = corpus.opted_out(), [], 0
    known: dict[str, set[str]] = defaultdict(set)
    for document in (item for shard in corpus.shards() for item in shard.documents()):
        for name in (*_NAMED, "external_id"):
            known[name].add(getattr(document, name))
        if not selection.meets(document):
            continue
        if document.id in opted_out:
            already += 1
        else:
            chosen.append(Chosen.of(document))
    _require_one_meaning(selection, chosen)
    if not chosen and not already:
        near = _nearest(selection, known)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else "`silo corpus stats` shows sources, licences and domains"
        )
        raise SiloError("nothing-selected", f"no document of {corpus.root} has {selection.in_words()}", hint)
    return Choice(tuple(chosen), already)


def _require_one_meaning(selection: Selection, chosen: Iterable[Chosen]) -> None:
    """A plain name that is silo's id of one document and the record's id of another could be either."""
    name = selection.document
    if is_document_id(name) and len({item.id == name for item in chosen}) > 1:
        message = f"{name} is silo's id of one document and the own id of another"
        raise SiloError("document-ambiguous", message, f"write {_ID}{name} or {_EXTERNAL}{name}")


def _nearest(selection: Selection, known: dict[str, set[str]]) -> list[str]:
    near = []
    for name in _NAMED:
        if wanted := getattr(selection, name):
            near += [f"{name} '{other}'" for other in nearest_names(wanted, known[name])]
    if selection.document:
        wanted = selection.document.removeprefix(_EXTERNAL)
        near += [f"document '{other}'" for other in nearest_names(wanted, known["external_id"])]
    return near
