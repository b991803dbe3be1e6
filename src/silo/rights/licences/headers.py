"""Licence notices inside a document's own head: tag lines, notice sentences and short licence texts.

Names of licences in running text are no notice; only the sentences with which authors license a file are.
Text without any trigger word is passed over in a few microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from silo.records import Evidence, Tier
from silo.rights.licences.expression import read_expression
from silo.rights.licences.phrases import read_phrases
from silo.rights.licences.reading import Reading, row_reading, unknown_reading
from silo.rights.licences.spelling import make_uniform
from silo.rights.licences.table import license_table
from silo.rights.licences.texts import (
    has_further_condition,
    known_notices,
    notice_start,
    read_tags,
    squash,
    table_words,
)

HEAD_CHARS = 8192
HEAD_LINES = 60
_METHOD = "header"
_NOTICE_CHARS = 400
_WORD_CHARS = 7
_TAG_METHOD = "spdx-tag"
_TRIGGERS = ("icens", "ermission", "edistribut", "ublic domain", "onfidential", "roprietary")
_MARKS = (
    *("redistribut", "hereby", "spdx-license", "apache", "mozilla public", "eclipse public", "creative commons"),
    *("creativecommons", "cc by", "cc-by", "cc0", "public domain", "confidential", "proprietary", "misrepresented"),
    *("documentation license", "licensed under", "released under", "distributed under", "available under"),
)
_GNU = re.compile(
    r"(?:is|are) free software you can redistribute (?:it|them) and or modify (?:it|them) under the (?:same )?terms of "
    r"(?:either )?(?:version (?P<before>\d(?: \d)?) of )?(?:the )?gnu "
    r"(?P<kind>affero |lesser |library )?general public licen[sc]e"
)
_GNU_VERSION = re.compile(r"version (\d)(?: (\d)\b)?")
_GNU_IDS = {"": "GPL", "affero ": "AGPL", "lesser ": "LGPL", "library ": "LGPL"}
_OPEN = re.compile(
    r"(?:this (?:work|document|article|file|text|book|content|dataset|page|material|report|paper|software|code|is an)"
    r"(?: open access article)?|(?:except where )?otherwise noted .{0,80}|open access article)"
    r"(?: is| are)? ?(?:made available|licensed|distributed|released|published|available)? ?"
    r"under (?:a |an )?(?:the )?(?:terms of )?(?:the )?(?:conditions of the )?(?=creative commons|cc by|cc0)"
)
_NC_ND = re.compile(r"\b(?:non ?commercial|no ?deriv\w*|\bnc\b|\bnd\b)")
_COMMENT_LINE = re.compile(
    r"^[ \t]*(?:#+|//+|/\*+|\*+|--+|;+|%+|<!--|\.\.|dnl|rem|\"\"\")[ \t]*"
    r"(?:this (?:file|code|software|program|module|script|library|work|package|project) is )?"
    r"(?:dual[ -])?(?:licensed|released|distributed|made available) under (?:the terms of )?([^\n]{3,160})",
    re.MULTILINE | re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"\.(?:\s|$)")
_COMMENT_MARK = re.compile(
    r"^[ \t]*(?:#+|//+|/\*+|\*+/?|--+>?|;+|%+|<!--|\.\.|dnl|rem|\"\"\")?[ \t]*(?P<rest>.*)$", re.IGNORECASE
)


def read_header(text: str, *, where: str) -> tuple[Evidence, ...]:
    """All licence evidence in the first lines of a document, each with its line number."""
    head = text[:HEAD_CHARS]
    for trigger in _TRIGGERS:
        if trigger in head:
            break
    else:
        return ()
    head = _first_lines(head)
    lowered = head.lower()
    if not any(part in lowered for part in _MARKS):
        return ()
    evidence = {
        (reading.spdx, reading.tier): _evidence(reading, line, asserted, where)
        for line, asserted, reading in (*_read_notices(head), *_read_tag_lines(head))
    }
    return tuple(sorted(evidence.values(), key=lambda item: (item.where, item.spdx)))


def _first_lines(head: str) -> str:
    end = -1
    for _ in range(HEAD_LINES):
        end = head.find("\n", end + 1)
        if end < 0:
            return head
    return head[:end]


def _evidence(reading: Reading, line: int, asserted: str, where: str) -> Evidence:
    confidence = license_table().confidence["spdx" if reading.method == _TAG_METHOD else "header"]
    return Evidence(
        asserted=asserted[:160],
        where=f"{where}:{line}",
        method=reading.method,
        confidence=confidence,
        tier=reading.tier,
        spdx=reading.spdx,
        duties=reading.duties,
    )


def _read_tag_lines(head: str) -> Iterator[tuple[int, str, Reading]]:
    for line, statement in read_tags(head):
        read = read_expression(statement) or unknown_reading()
        yield line, statement, Reading(read.spdx, read.tier, read.duties, read.rights, _TAG_METHOD)


def _read_notices(head: str) -> Iterator[tuple[int, str, Reading]]:
    """Notice sentences anywhere in the head; a permissive one with a condition beside it is restricted."""
    words = squash(head)
    for at, size, reading in _find_notices(words):
        beside = words[max(0, at - 200) : at + size + 200]
        if reading.tier is not Tier.restricted and has_further_condition(beside, whole_file=False):
            reading = unknown_reading(_METHOD, duties=reading.duties)
        yield _line_of(head, words, at), words[at : at + 120], reading
    yield from _read_comment_lines(head)


def _line_of(head: str, words: str, at: int) -> int:
    """The line of the word at an offset into the squashed words."""
    before = words.count(" ", 0, at)
    for number, line in enumerate(head.split("\n"), start=1):
        before -= len(squash(line).split())
        if before < 0:
            return number
    return 1


def _find_notices(words: str) -> Iterator[tuple[int, int, Reading]]:
    """Where each text or notice begins, about how many characters it has, and what it says."""
    known = known_notices()
    seen: set[str] = set()
    for text in known.texts:
        if text.row.spdx not in seen and text.occurs_in(words):
            seen.add(text.row.spdx)
            yield words.find(text.all[0]), text.words * _WORD_CHARS, row_reading(text.row, _METHOD)
    for notice in known.notices:
        at = notice_start(notice, words)
        if at >= 0 and notice.row.spdx not in seen:
            seen.add(notice.row.spdx)
            yield at, _NOTICE_CHARS, row_reading(notice.row, _METHOD)
    for match in _GNU.finditer(words):
        yield match.start(), _NOTICE_CHARS, _read_gnu(match, words)
    for match in _OPEN.finditer(words):
        reading = _read_creative_commons(words[match.end() : match.end() + 400])
        if reading is not None:
            yield match.start(), _NOTICE_CHARS, reading


def _read_gnu(match: re.Match[str], words: str) -> Reading:
    """The version named before or shortly after the licence, and whether later ones are allowed."""
    tail = words[match.end() : match.end() + 220]
    name = _GNU_IDS[match["kind"] or ""]
    version = _GNU_VERSION.search(tail)
    if match["before"]:
        number = match["before"].replace(" ", ".")
    elif version:
        number = f"{version[1]}.{version[2]}" if version[2] else version[1]
    else:
        number = ""
    if number and "." not in number:
        number += ".0"
    later = "any later version" in tail or "or later" in tail
    ids = license_table().ids
    row = (
        ids.get(f"{name}-{number}-{'or-later' if later else 'only'}".lower()) or ids[f"licenseref-silo-{name}".lower()]
    )
    return row_reading(row, _METHOD)


def _read_creative_commons(tail: str) -> Reading | None:
    """The Creative Commons licence that the words begin with; NC or ND soon after it make it restricted."""
    table = license_table()
    words = table_words(tail)
    for size in range(min(table.longest_name, len(words)), 0, -1):
        row = table.names.get(words[:size])
        if row is not None:
            reading = row_reading(row, _METHOD)
            if row.tier is not Tier.restricted and _NC_ND.search(tail):
                return unknown_reading(_METHOD, duties=row.duties)
            return reading
    return None


def _read_comment_lines(head: str) -> Iterator[tuple[int, str, Reading]]:
    """ "Licensed under the X" at the beginning of a comment line, read to the end of its sentence."""
    for match in _COMMENT_LINE.finditer(head):
        line = head.count("\n", 0, match.start()) + 1
        statement = _read_sentence(match[1], head[match.end() :].split("\n")[1:3])
        reading = read_phrases(make_uniform(statement))
        if reading.method != "unrecognised":
            yield line, statement, Reading(reading.spdx, reading.tier, reading.duties, reading.rights, _METHOD)


def _read_sentence(first: str, following: list[str]) -> str:
    """The rest of the sentence, which may go on in the next comment lines."""
    parts = [first]
    for line in following:
        if _SENTENCE_END.search(parts[-1]):
            break
        rest = _COMMENT_MARK.match(line)
        words = rest["rest"].strip() if rest else ""
        if not words or words.lower().startswith(("copyright", "spdx", "@", ":")):
            break
        parts.append(words)
    sentence = " ".join(parts)
    return sentence[: end.start()] if (end := _SENTENCE_END.search(sentence)) else sentence
