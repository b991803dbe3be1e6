"""Free text about a licence, read conservatively: what is not understood to the last word is restricted.

A statement is split into clauses. A clause that holds nothing but table phrases and neutral words is clean; one with
unknown words beside a phrase is loose, and counts only next to a clean one. Warning words anywhere, or a clause
outside parentheses without any known phrase, make the statement restricted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from silo.records import Tier
from silo.rights.licences.reading import Reading, all_of, any_of, row_reading, unknown_reading
from silo.rights.licences.table import Table, license_table
from silo.rights.licences.weblinks import is_url, read_url

MAX_CHARS = 4000
_BREAK = re.compile(r"([()\[\]{}])|[;,|]|/(?=\D)|(?<=\D)/|[.!](?=\s|$)|(?<!creative commons)\s-\s|\n", re.IGNORECASE)
"""Where a clause ends; the Common Pile writes "Creative Commons - Attribution - https://..."."""
_INNER = re.compile(r"[^a-z]+")
_URL = re.compile(r"(?:https?://|//|www\.|creativecommons\.org/)[^\s()<>\[\],;]+", re.IGNORECASE)


@dataclass(slots=True)
class _Clause:
    """One clause as it is read: alternatives (separated by "or") of recognised phrases."""

    remark: bool
    alternatives: list[list[Reading]] = field(default_factory=lambda: [[]])
    unknown: bool = False
    warned: bool = False
    joined: bool = False
    blank: bool = True

    def readings(self) -> list[Reading]:
        return [reading for part in self.alternatives for reading in part]

    def reading(self) -> Reading:
        """Alternatives stand to choice only if each was understood and nothing is joined by "and"."""
        parts = [all_of(part, "phrase") for part in self.alternatives if part]
        free = len(parts) == len(self.alternatives) and not self.unknown and not self.joined
        return any_of(parts, "phrase") if free and len(parts) > 1 else all_of(parts, "phrase")


def read_phrases(statement: str) -> Reading:
    """The reading of a statement in words."""
    if len(statement) > MAX_CHARS:
        return unknown_reading()
    clauses = [_read_clause(text, remark) for text, remark in _clauses(statement)]
    telling = [clause for clause in clauses if clause.readings()]
    if not telling:
        return unknown_reading()
    total = all_of((clause.reading() for clause in telling), "phrase")
    if total.tier is Tier.restricted:
        return total
    if any(clause.warned for clause in clauses) or any(_is_stray(clause) for clause in clauses):
        return unknown_reading(duties=total.duties)
    loose = [clause for clause in telling if clause.unknown and not clause.remark]
    clean = [clause for clause in telling if not clause.unknown and not clause.remark]
    if not clean:
        return unknown_reading(duties=total.duties)
    return all_of([total], "loose" if loose else "phrase")


def _is_stray(clause: _Clause) -> bool:
    """A clause outside parentheses that says something, but nothing known."""
    return not clause.remark and not clause.blank and not clause.readings()


def _clauses(statement: str) -> Iterator[tuple[str, bool]]:
    """The clauses with whether they stand in parentheses; URLs are kept whole."""
    urls: list[str] = []

    def stash(match: re.Match[str]) -> str:
        urls.append(match[0].rstrip("."))
        return f" \x00{len(urls) - 1}\x00 "

    text = _URL.sub(stash, statement.replace("\x00", "?"))
    depth, start = 0, 0
    for match in [*_BREAK.finditer(text), None]:
        end = len(text) if match is None else match.start()
        clause = re.sub("\x00([0-9]+)\x00", lambda slot: urls[int(slot[1])], text[start:end])
        if clause.strip():
            yield clause, depth > 0
        if match is not None:
            start = match.end()
            bracket = match[1] or ""
            depth = max(0, depth + (bracket in "([{" and bracket != "") - (bracket in ")]}" and bracket != ""))


def _read_clause(text: str, remark: bool) -> _Clause:
    """Walk over the words, longest phrase first."""
    table = license_table()
    clause = _Clause(remark)
    links = [part for part in text.split() if is_url(part)]
    for link in links:
        reading = read_url(link)
        clause.blank = False
        if reading.method == "url":
            clause.alternatives[-1].append(reading)
        else:
            clause.unknown = True
    words = table.words(" ".join(part for part in text.split() if not is_url(part)))
    at = 0
    while at < len(words):
        at += _step(clause, table, words, at)
    dangling = bool(words) and words[-1] in ("and", "or", "&")
    clause.unknown = clause.unknown or dangling or not all(clause.alternatives[1:])
    return clause


def _step(clause: _Clause, table: Table, words: tuple[str, ...], at: int) -> int:
    """Read the longest known run of words at a position; returns how many it has."""
    for size in range(min(table.longest_name, len(words) - at), 0, -1):
        run = words[at : at + size]
        row = table.names.get(run)
        if row is not None:
            clause.blank = False
            port = words[at + size] if at + size < len(words) else ""
            ported = port in table.ports and row.spdx.startswith("CC-") and port not in ("in", "it", "no", "at", "be")
            clause.alternatives[-1].append(row_reading(table.ported(row, port) if ported else row))
            return size + ported
        if run in table.warnings:
            clause.warned = True
            clause.blank = False
            return size
        if run in table.neutral:
            clause.joined = clause.joined or run in (("and",), ("&",))
            return size
    if words[at] == "or":
        clause.alternatives.append([])
    else:
        clause.unknown = True
        clause.blank = False
        clause.warned = clause.warned or any((part,) in table.warnings for part in _INNER.split(words[at]))
    return 1
