"""Kind `gutenberg`: Project Gutenberg plain texts without header and trailer, which become facts and evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from silo.errors import SiloError
from silo.recipe import Limits
from silo.records import Candidate, Evidence, Quarantined, Tier
from silo.sources.reader.fields import Defaults, assess_statement, defaults_of, strip_endings
from silo.sources.reader.files import decode_text
from silo.sources.reader.plan import SourcePart, refuse_special

_START = re.compile(r"^[ \t]*\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG[^*]{0,400}\*\*\*[^\n]*\n?", re.M | re.I)
_END = re.compile(r"^[ \t]*\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG[^*]{0,400}\*\*\*", re.M | re.I)
_OLD_START = re.compile(r"^[ \t]*\*END[ *]*THE SMALL PRINT[^\n]*\n?", re.M | re.I)
_CLOSING = re.compile(r"^[ \t]*(?:\*+ ?)?(?:This is the )?End of (?:the |this )?Project Gutenberg[^\n]*", re.M | re.I)
_FIELD = re.compile(
    r"^(Title|Author|Editor|Translator|Release Date|Language|Rights):[ \t]*(\S[^\n]*(?:\n[ \t]+\S[^\n]*)*)", re.M | re.I
)
_NUMBER = re.compile(r"\[?\b(?:e-?book|e-?text)\s*#\s*(\d{1,7})", re.I)
_CHARSET = re.compile(rb"^Character set encoding:[ \t]*([\w-]{1,20})", re.M | re.I)
_LATIN = {"iso-8859-1": "latin-1", "latin-1": "latin-1", "latin1": "latin-1", "iso-latin-1": "latin-1"}
_LATIN |= {"windows-1252": "cp1252", "cp1252": "cp1252"}
_COPYRIGHTED = re.compile(
    r"this is a COPYRIGHTED Project Gutenberg[^\n]{0,80}"
    r"|^[ \t]*(?:copyright|©)[ \t]{1,9}(?:\(c\)|©)?[ \t]{0,9}\d{4}[^\n]{0,120}"
    r"|^(?:Rights|Copyright Status):[ \t]*(?=copyrighted)[^\n]{0,120}",
    re.M | re.I,
)
_PUBLIC = re.compile(
    r"(?:not\s+protected\s+by\s+(?:U\.?S\.?\s+)?copyright(?:\s+law)?|no\s+one\s+owns\s+a\s+United\s+States\s+copyright"
    r"|Public\s+domain\s+in\s+the\s+USA|for\s+PUBLIC\s+DOMAIN\s+E-?(?:texts|books)|is\s+in\s+the\s+PUBLIC\s+DOMAIN)",
    re.I,
)


@dataclass(frozen=True, slots=True)
class _Book:
    header: str
    body: str
    trailer: str


def read_gutenberg(part: SourcePart, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The one book of a file."""
    defaults = defaults_of(part, limits)
    try:
        book = _split_book(_read_book(Path(part.path), limits.max_record_bytes))
        yield _candidate(book, defaults)
    except SiloError as error:
        yield Quarantined(part.label, error.code, error.message)


def _read_book(path: Path, max_bytes: int) -> str:
    """The text, in UTF-8 or in the older encoding its own header names."""
    refuse_special(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise SiloError("input-unreadable", f"{path.name} cannot be read: {error.strerror}") from None
    try:
        text = decode_text(data, path.name, max_bytes)
    except SiloError as error:
        charset = _CHARSET.search(data[:20_000])
        encoding = _LATIN.get(charset[1].decode().lower()) if charset else None
        if error.code != "utf8-invalid" or encoding is None:
            raise
        text = data.decode(encoding, "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _split_book(text: str) -> _Book:
    starts = list(_START.finditer(text)) or list(_OLD_START.finditer(text))
    if len(starts) != 1:
        raise SiloError("gutenberg-markers", f"{'several' if starts else 'no'} START lines")
    begin = starts[0].end()
    end = _END.search(text, begin) or _CLOSING.search(text, begin)
    if end is None:
        raise SiloError("gutenberg-markers", "no END line after the START line")
    body = text[begin : end.start()].strip()
    tail = _CLOSING.search(body, max(0, len(body) - 300))
    if tail:
        body = body[: tail.start()].rstrip()
    return _Book(text[:begin], body, text[end.start() :])


def _candidate(book: _Book, defaults: Defaults) -> Candidate:
    facts = {name.lower(): " ".join(value.split())[:300] for name, value in _FIELD.findall(book.header)}
    number = _NUMBER.search(book.header)
    meta = {key.replace(" ", "_"): value for key, value in facts.items() if key != "rights"}
    if number:
        meta["ebook"] = number[1]
    return Candidate(
        external_id=number[1] if number else strip_endings(defaults.label),
        text=book.body,
        source=defaults.source if defaults.source != strip_endings(defaults.label) else "Project Gutenberg",
        domain=defaults.domain or "books",
        evidence=_evidence(book, defaults.label) + defaults.evidence,
        owner=defaults.owner or facts.get("author", ""),
        url=f"https://www.gutenberg.org/ebooks/{number[1]}" if number else "",
        meta=meta,
    )


def _evidence(book: _Book, label: str) -> tuple[Evidence, ...]:
    evidence: list[Evidence] = []
    for name, text in (("header", book.header), ("trailer", book.trailer)):
        where = f"{label}: {name}"
        if claim := _COPYRIGHTED.search(text):
            asserted = " ".join(claim[0].split())
            evidence.append(Evidence(asserted, where, "gutenberg", 1.0, Tier.restricted))
        if statement := _PUBLIC.search(text):
            reading = assess_statement("Public domain in the USA", where, "gutenberg")
            evidence.append(replace(reading, asserted=" ".join(statement[0].split())))
    return tuple(evidence)
