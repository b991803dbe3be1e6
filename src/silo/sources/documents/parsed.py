"""What a parser makes of a file: normalised text, the places in it, and what the file says about itself.

A place begins at a line of the text (see `silo.records.PLACES`). Because every block is normalised before its lines are
counted, normalising the whole text again moves none of them.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from silo.errors import SiloError
from silo.records import PLACES
from silo.sources.reader.claims import NO_CLAIMS, Claims
from silo.text.normalise import normalise

_MOST_LABEL = 80
_MOST_PLACES = 20_000
_MOST_META = 1000
_SPACE = re.compile(r"[^\S\n]+")
_BLANK_LINES = re.compile(r" ?\n(?:\s*\n)+ ?")


@dataclass(frozen=True, slots=True)
class Parsed:
    """One document out of a file. `unread` are places that could not be read, each with the reason.

    `identity` tells the messages of a mailbox apart; `owner` is who the file names as its sender.
    """

    text: str
    places: tuple[tuple[int, str], ...] = ()
    title: str = ""
    author: str = ""
    claims: Claims = NO_CLAIMS
    unread: tuple[tuple[str, str], ...] = ()
    identity: str = ""
    owner: str = ""
    about: tuple[tuple[str, str], ...] = ()

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of the document: what the file says about itself, and its places."""
        stated = (("title", self.title), ("author", self.author), *self.about)
        named = {key: words for key, value in stated if (words := " ".join(normalise(value).split())[:_MOST_META])}
        return {**named, PLACES: [list(place) for place in self.places]} if self.places else named


class TextBuilder:
    """Collects blocks of text and where places begin; more text than `max_bytes` raises."""

    def __init__(self, max_bytes: int) -> None:
        self._text = io.StringIO()
        self._places: list[tuple[int, str]] = []
        self._label = ""
        self._lines = 0
        self._bytes = 0
        self._max_bytes = max_bytes

    def begin(self, label: str) -> None:
        """The next block begins a place; a place without any text leaves no trace."""
        self._label = short_label(label)

    def add(self, text: str, *, gap: str = "\n\n") -> None:
        """A block, set off from the one before; white space alone is none."""
        block = normalise(text)
        if not block:
            return
        before = gap if self._bytes else ""
        self._lines += before.count("\n")
        if self._label:
            self._places.append((self._lines, self._label))
            self._label = ""
        self._lines += block.count("\n")
        self._text.write(before + block)
        self._bytes += len(before) + (len(block) if block.isascii() else len(block.encode("utf-8", "surrogatepass")))
        if self._bytes > self._max_bytes:
            raise SiloError("file-too-large", f"the file holds more than {self._max_bytes:,} bytes of text")

    def finish(
        self,
        *,
        title: str = "",
        author: str = "",
        claims: Claims = NO_CLAIMS,
        unread: Sequence[tuple[str, str]] = (),
    ) -> Parsed:
        """The text with its places; a file without any text raises."""
        text = self._text.getvalue()
        if not text and unread:
            raise SiloError("document-invalid", f"nothing of the file can be read; {unread[0][0]}: {unread[0][1]}")
        if not text:
            raise SiloError("document-no-text", "the file holds no text: it may be empty, or pictures of text")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SiloError("surrogate-lone", "the text holds half of a surrogate pair") from None
        return Parsed(text, bound_places(self._places), title, author, claims, tuple(unread))


def bound_places(places: Iterable[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    """The places of a document, or none if there are too many to keep: no place is better than a wrong one."""
    bounded = tuple(itertools.islice(places, _MOST_PLACES + 1))
    return bounded if len(bounded) <= _MOST_PLACES else ()


def short_label(text: str) -> str:
    """The words of a heading on one line, cut where a label would get long."""
    label = " ".join(normalise(text).split())
    return label if len(label) <= _MOST_LABEL else label[: _MOST_LABEL - 1].rstrip() + "…"


def tidy(text: str) -> str:
    """Runs of spaces as one, at most one blank line in a row: layout is not text."""
    return _BLANK_LINES.sub("\n\n", _SPACE.sub(" ", text))
