"""What the tools answer: plain objects, from allowed documents as they are at this moment, quoted as far as allowed.

Text is cut where the right to quote a document, or the guard, ends; callers without the permission get none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from silo.errors import SiloError
from silo.records import Document
from silo.rights.notices import notice_lines
from silo.store.policy import EVERYTHING, Policy
from silo.store.selector import Selector
from silo.store.store import Store
from silo.text.quoting import quotable

_FOUND = 8
"""Passages of one search, and runs of one check."""
_LISTED = 100
_LEAST_RUN = 8
"""Tokens in a row from which on text counts as repeated."""
_LEAST_TEXT = 32
"""Characters of a text that is looked for: shorter ones are in some document by chance."""
_MOST_TEXT = 20_000
_MOST_IDS = 100


@dataclass(frozen=True, slots=True)
class Shelf:
    """A store under a name, with what it may be asked for: documents of a policy, and no longer runs than the guard."""

    name: str
    store: Store
    policy: Policy = EVERYTHING
    guard: int = 0

    def may_quote(self, document: Document) -> int:
        """How many tokens in a row of a document may be shown."""
        return min(document.rights.quote, self.guard or document.rights.quote)

    def with_search(self, search: str) -> bool:
        return search in self.store.config.searches


class StoreTools:
    """Five questions to some stores; with `shows_text` the answers hold text."""

    def __init__(self, shelves: Sequence[Shelf], *, shows_text: bool) -> None:
        self._shelves = shelves
        self._shows_text = shows_text

    def search(self, query: str) -> dict[str, Any]:
        """The best passages for some words, of all stores."""
        _require_length("query", query, 1)
        found = [
            (
                item.score,
                {**_named(shelf, item.document), "place": item.place, **self._text(shelf, item.document, item)},
            )
            for shelf in self._offering("bm25")
            for item in shelf.store.excerpts(query, _FOUND, shelf.policy)
        ]
        found.sort(key=lambda pair: -pair[0])
        return {"results": [{**shown, "score": round(score, 4)} for score, shown in found[:_FOUND]]}

    def fetch(self, id: str) -> dict[str, Any]:
        """One document by silo's id: what is known of it, and as much of its text as may be quoted."""
        for shelf, document in self._documents(Selector(document=f"id:{id}")):
            about = {"rights": document.rights.as_json(), "duties": sorted(map(str, document.duties))}
            return {**_named(shelf, document), "url": document.url, **about, **self._text(shelf, document)}
        raise SiloError("nothing-selected", f"there is no document {id[:64]}")

    def check_verbatim(self, text: str) -> dict[str, Any]:
        """Runs of a text's tokens that stand in documents, longest first, and whether each may be quoted so far."""
        _require_length("text", text, 1)
        runs = [run for shelf in self._offering("ngram") for run in _repeated(shelf, text)]
        runs.sort(key=lambda run: -int(run["tokens"]))
        return {"longest": runs[0]["tokens"] if runs else 0, "least": _LEAST_RUN, "runs": runs[:_FOUND]}

    def document_status(self, id: str = "", text: str = "") -> dict[str, Any]:
        """Is a document here, by silo's id, or is there one that contains a text? Erased ones are not."""
        if bool(id) == bool(text):
            raise SiloError("usage", "give either an id or a text")
        if text:
            _require_length("text", text, _LEAST_TEXT)
        selector = Selector(document=f"id:{id}") if id else Selector(query=text)
        rows: list[dict[str, Any]] = []
        for shelf, document in self._documents(selector):
            rights = document.rights.as_json()
            rows.append({**_named(shelf, document), "rights": rights, "digest": shelf.store.digest()})
            if len(rows) == _LISTED:
                break
        return {"held": bool(rows), "documents": rows}

    def notices(self, ids: list[str]) -> dict[str, Any]:
        """What the licences of some documents ask for; ids that are not here are named."""
        if len(ids) > _MOST_IDS:
            raise SiloError("usage", f"at most {_MOST_IDS} ids at a time")
        found = {name: [item for _, item in self._documents(Selector(document=f"id:{name}"))] for name in ids}
        lines = [{"id": name, "notice": line} for name, held in found.items() for line in notice_lines(held[:1])]
        return {"notices": lines, "missing": [name for name, held in found.items() if not held]}

    def _documents(self, selector: Selector) -> Iterator[tuple[Shelf, Document]]:
        for shelf in self._shelves:
            for document in shelf.store.documents(selector, shelf.policy):
                yield shelf, document

    def _offering(self, search: str) -> list[Shelf]:
        offering = [shelf for shelf in self._shelves if shelf.with_search(search)]
        if not offering:
            raise SiloError("search-missing", f"no store offers {search}")
        return offering

    def _text(self, shelf: Shelf, document: Document, part: Any = None) -> dict[str, Any]:
        """The text of a document, or of a part of it, as far as it is shown; `whole` says whether that is all."""
        if not self._shows_text:
            return {}
        text = document.text if part is None else part.text
        shown = text[: quotable(text, shelf.may_quote(document), shelf.store.tokenizer)]
        return {"text": shown, "whole": len(shown) == len(text)}


def _named(shelf: Shelf, document: Document) -> dict[str, Any]:
    names = ("id", "external_id", "source", "owner", "license")
    plain = {name: getattr(document, name) for name in names}
    return {"store": shelf.name, **plain, "tier": str(document.tier)}


def _repeated(shelf: Shelf, text: str) -> Iterator[dict[str, Any]]:
    """The longest runs of a text's tokens that documents of a store hold, none inside another."""
    ((ids, sizes),) = shelf.store.tokenizer.measure([text])
    ends, data = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]), text.encode()
    with shelf.store.reading() as view:
        lengths = [view.longest_match(ids[:end], shelf.policy).length for end in range(1, len(ids) + 1)]
        whole = [
            (length, end)
            for end, (length, next_length) in enumerate(zip(lengths, [*lengths[1:], 0], strict=True), start=1)
            if length >= _LEAST_RUN and next_length <= length
        ]
        for length, end in sorted(whole, reverse=True)[:_FOUND]:
            rows, _ = view.holders(ids[end - length : end], [length], [1.0], shelf.policy)
            documents = [view.document(row) for row in rows[:_FOUND].tolist()]
            named = [{**_named(shelf, item), "may_quote": length <= shelf.may_quote(item)} for item in documents]
            span = [len(data[: ends[at]].decode(errors="ignore")) for at in (end - length, end)]
            yield {"tokens": length, "characters": span, "documents": named}


def _require_length(name: str, text: str, least: int) -> None:
    if not least <= len(text.strip()) or len(text) > _MOST_TEXT:
        raise SiloError("usage", f"the {name} has {least} to {_MOST_TEXT:,} characters")
