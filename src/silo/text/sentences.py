"""Sentences of a text with their places in it, and the one that holds most of some words.

A sentence ends at its full stop, at the end of a paragraph, and at the end of a heading, a list item or a row of a
table, so that what is quoted can stand alone. Nothing is changed: a sentence is a range of characters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from silo.text.words import terms

_MARGIN = 400
"""Characters around a part of a text in which its first and last sentence may go on."""
_LONGEST = 400
"""Characters of a sentence; code and tables have none of their own, and are cut at line ends or spaces."""

_BLOCK = re.compile(r"\n[ \t]*\n|\n(?=[ \t]*(?:[-*+•|#>]|\d{1,3}[.)])[ \t]?)")
"""Between paragraphs, and before list items, table rows, headings and quotations."""
_STOP = re.compile(r"(?<=[.!?])[\"'”’)\]`*_]*\s+(?=[\"'“‘(\[`*_]*[A-Z0-9\u00c0-\u024f\u0370-\u1fff])|(?<=[。！？])")
_ABBREVIATION = re.compile(
    r"(?<![^\s(])(?:[A-Za-z]|e\.g|i\.e|cf|vs|etc|approx|ca|Dr|Mr|Mrs|Ms|Prof|St|No|Fig|Vol|Jr|Sr)\.$"
)
_HEADING = re.compile(r"\s*([^\n]{0,38}[^\s.,;:!?\-–—])[ \t]*\n(?=[ \t]*[\"'“‘(\[]?[A-Z\u00c0-\u024f\u0370-\u1fff])")
"""The first line of a paragraph, where it is short and the next begins as a sentence does."""
_LONGEST_ABBREVIATION = 12
"""Characters that are looked at, and more than any has: a text of initials is not read again for each of them."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """The characters of a text from `start` to `end`."""

    start: int
    end: int
    text: str


def split_sentences(text: str) -> list[Sentence]:
    """All sentences in order; what lies between them is white space."""
    return [_trim(text, start, end) for start, end in _spans(text) if text[start:end].strip()]


def _trim(text: str, start: int, end: int) -> Sentence:
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    return Sentence(start, start + len(piece.strip()), piece.strip())


def _spans(text: str) -> Iterator[tuple[int, int]]:
    for start, end in _between(text, _BLOCK, 0, len(text)):
        begin = _heading_end(text, start, end)
        yield start, begin
        for first, last in _between(text, _STOP, begin, end):
            stop = _stripped_end(text, first, last)
            if last < end and _ABBREVIATION.search(text, max(begin, stop - _LONGEST_ABBREVIATION), stop):
                continue
            yield from _cut(text, begin, last)
            begin = last
        if begin < end:
            yield from _cut(text, begin, end)


def _heading_end(text: str, start: int, end: int) -> int:
    """Where the heading ends that a paragraph begins with, as in text of a PDF; its start if it has none."""
    heading = _HEADING.match(text, start, end)
    if heading is None:
        return start
    following = text[heading.end() : end].partition("\n")[0]
    return heading.end() if len(following) > len(heading[1]) else start


def _stripped_end(text: str, first: int, last: int) -> int:
    return first + len(text[first:last].rstrip())


def _between(text: str, mark: re.Pattern[str], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges that end where a mark ends, and the rest."""
    at = start
    for match in mark.finditer(text, start, end):
        yield at, match.end()
        at = match.end()
    yield at, end


def _cut(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Pieces that are not too long, cut after a line if one ends in their second half, else after a space."""
    while end - start > _LONGEST:
        half, most = start + _LONGEST // 2, start + _LONGEST
        at = max(text.rfind("\n", half, most), -1)
        at = at if at >= 0 else text.rfind(" ", half, most)
        at = at + 1 if at >= 0 else most
        yield start, at
        start = at
    yield start, end


def best_sentence(text: str, start: int, end: int, words: str) -> tuple[int, int]:
    """Where the sentence of a part of a text begins and ends that holds most of some words.

    A word counts the more the fewer of the sentences hold it; the first of equal ones is taken.
    """
    begin = max(0, start - _MARGIN)
    near = split_sentences(text[begin : end + _MARGIN])
    inside = [item for item in near if item.start + begin < end and item.end + begin > start] or near
    if not inside:
        return start, end
    sought = set(terms(words).tolist())
    held = [sought & set(terms(item.text).tolist()) for item in inside]
    sentences_with = Counter(word for found in held for word in found)
    ratings = [sum(math.log1p(len(inside) / sentences_with[word]) for word in found) for found in held]
    best = inside[ratings.index(max(ratings))]
    return best.start + begin, best.end + begin
