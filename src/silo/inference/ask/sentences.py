"""Sentences of a text with their places in it, and the words that carry what a text says.

A sentence ends at its full stop, at the end of a paragraph, and at the end of a heading, a list item or a row of a
table, so that what is quoted can stand alone. Nothing is changed: a sentence is a range of characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_LONGEST = 400
"""Characters of a sentence; code and tables have none of their own, and are cut at line ends or spaces."""

_BLOCK = re.compile(r"\n[ \t]*\n|\n(?=[ \t]*(?:[-*+•|#>]|\d{1,3}[.)])[ \t]?)")
"""Between paragraphs, and before list items, table rows, headings and quotations."""
_STOP = re.compile(r"(?<=[.!?])[\"'”’)\]`*_]*\s+(?=[\"'“‘(\[`*_]*[A-Z0-9\u00c0-\u024f\u0370-\u1fff])|(?<=[。！？])")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Za-z]|e\.g|i\.e|cf|vs|etc|approx|ca|Dr|Mr|Mrs|Ms|Prof|St|No|Fig|Vol|Jr|Sr)\.$"
)

_WORD = re.compile(r"[\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
"""A run of letters and digits, or one ideograph or kana, as passage search cuts words."""


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
        begin = start
        for first, last in _between(text, _STOP, start, end):
            if last < end and _ABBREVIATION.search(text, begin, _stripped_end(text, first, last)):
                continue
            yield from _cut(text, begin, last)
            begin = last
        if begin < end:
            yield from _cut(text, begin, end)


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


def content_words(text: str) -> list[str]:
    """The words of a text, in lower case, that are not function words of English; all of them if there is no other."""
    words = [match[0].lower() for match in _WORD.finditer(text)]
    return [word for word in words if word not in function_words()] or words


def stems(text: str) -> frozenset[str]:
    """The content words of a text as stems."""
    return frozenset(map(stem, content_words(text)))


@cache
def function_words() -> frozenset[str]:
    """Words that say how others belong together, and those by which a question asks."""
    return frozenset(files("silo.inference.ask").joinpath("function-words.txt").read_text(encoding="utf-8").split())


def stem(word: str) -> str:
    """A word without the endings by which English varies it: erase, erased, erases and erasing are one.

    Words are compared by their stems, never shown as such; that a few different ones fall together does little harm.
    """
    if len(word) > 3 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 3 and word.endswith("s") and word[-2] not in "sui":
        word = word[:-1]
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
        word = word[:-1]
    return word.removesuffix("e") if len(word) > 3 else word
