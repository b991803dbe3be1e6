"""One licence statement to one piece of evidence. Never raises on any string."""

from __future__ import annotations

import re
from functools import lru_cache

from silo.records import Evidence
from silo.rights.licences.expression import read_expression
from silo.rights.licences.phrases import read_phrases
from silo.rights.licences.reading import Reading, row_reading, unknown_reading
from silo.rights.licences.spelling import make_uniform
from silo.rights.licences.table import license_table
from silo.rights.licences.texts import read_text
from silo.rights.licences.weblinks import is_url, read_url

MAX_ASSERTED = 300
"""A longer statement is cut in the evidence; the reading always sees all of it."""

_SHORT = 400
_CLASSIFIER = re.compile(r"license\s*::\s*(?:osi approved\s*(?:::\s*|$))?(.*)", re.IGNORECASE)


def assess(statement: str, *, where: str, method: str = "", confidence_cap: float = 1.0) -> Evidence:
    """One statement as evidence. `method` renames how it was read; `confidence_cap` bounds how sure it is."""
    reading = _read_short(statement) if len(statement) <= _SHORT else _read(statement)
    confidence = license_table().confidence.get(reading.method, 1.0)
    return Evidence(
        asserted=shorten(statement),
        where=where,
        method=method or reading.method,
        confidence=min(confidence, confidence_cap),
        tier=reading.tier,
        spdx=reading.spdx,
        duties=reading.duties,
    )


def shorten(statement: str) -> str:
    """The statement as evidence quotes it: one line, bounded."""
    if len(statement) <= MAX_ASSERTED:
        return statement
    return statement[: MAX_ASSERTED - 1] + "…"


@lru_cache(maxsize=8192)
def _read_short(statement: str) -> Reading:
    return _read(statement)


def _read(statement: str) -> Reading:
    """Exact spellings first, then SPDX expressions, then words; long statements are licence texts."""
    if len(statement) > _SHORT:
        return read_text(statement)
    text = make_uniform(statement)
    if not text:
        return unknown_reading("none")
    table = license_table()
    row = table.ids.get(text.lower())
    if row is not None:
        return row_reading(row, "spdx")
    if classifier := _CLASSIFIER.fullmatch(text):
        row = table.classifiers.get(classifier[1].lower())
        return row_reading(row, "classifier") if row else unknown_reading()
    if is_url(text) and " " not in text:
        return read_url(text)
    row = table.names.get(table.words(text)) if "(" not in text else None
    if row is not None and text.isascii():
        return row_reading(row, "name")
    return read_expression(text) or read_phrases(text)
