"""One spelling for many: turns a licence statement into canonical words, so that "GPLv3+" and "GPL 3.0 or later" agree.

Nothing is guessed here. Letters that merely look like ASCII stay what they are and so never match the table.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping

Words = tuple[str, ...]

_HYPHENS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"), "-")
_QUOTES = dict.fromkeys(map(ord, "\u2018\u2019\u201c\u201d`\"'"), " ")
_COMMA_VERSION = re.compile(r", ?(?=(?:version|ver|v)\.? ?\d)", re.ASCII | re.IGNORECASE)
_SEPARATORS = re.compile(r"[\s\-_]+")
_NUMBER = re.compile(r"v?\.?(\d{1,4}(?:\.\d{1,4}){0,3})(\+?)", re.ASCII)
_NAME_AND_NUMBER = re.compile(r"([a-z]{2,12}?)v?(\d{1,2}(?:\.\d{1,2}){0,2})(\+?)", re.ASCII)
_EDGES = ".:!*#<>="
_VERSION_WORDS = frozenset(("version", "ver", "v"))
_AFTER_VERSION = frozenset(("international", "unported", "generic", "universal"))


def make_uniform(statement: str) -> str:
    """Compatibility forms folded (full-width letters become ASCII), dashes and blanks made uniform."""
    folded = unicodedata.normalize("NFKC", statement).translate(_HYPHENS)
    return _COMMA_VERSION.sub(" ", " ".join(folded.split()))


def canonical_words(text: str, synonyms: Mapping[Words, Words]) -> Words:
    """The comparable words of one clause, in order."""
    words: list[str] = []
    for raw in _SEPARATORS.split(text.translate(_QUOTES).lower()):
        word = raw.strip(_EDGES)
        if word:
            words.extend(_split_number(word))
    return replace_runs(_drop_version_words(words), synonyms)


def _split_number(word: str) -> list[str]:
    number = _NUMBER.fullmatch(word)
    if number:
        return _number_words(number[1], number[2])
    name_and_number = _NAME_AND_NUMBER.fullmatch(word)
    if name_and_number:
        return [name_and_number[1], *_number_words(name_and_number[2], name_and_number[3])]
    return [word]


def _number_words(digits: str, plus: str) -> list[str]:
    while digits.endswith(".0"):
        digits = digits[:-2]
    return [digits, "or", "later"] if plus else [digits]


def _drop_version_words(words: list[str]) -> list[str]:
    """Without "version" before a number and "international", "unported", ... after one."""
    kept = []
    for at, word in enumerate(words):
        if word in _VERSION_WORDS and at + 1 < len(words) and words[at + 1][0].isdigit():
            continue
        if word in _AFTER_VERSION and at and words[at - 1][0].isdigit():
            continue
        kept.append(word)
    return kept


def replace_runs(words: Iterable[str], synonyms: Mapping[Words, Words]) -> Words:
    """Each longest run of words that has a synonym replaced by it, from left to right."""
    sequence = tuple(words)
    longest = max(map(len, synonyms), default=0)
    out: list[str] = []
    at = 0
    while at < len(sequence):
        for size in range(min(longest, len(sequence) - at), 0, -1):
            run = synonyms.get(sequence[at : at + size])
            if run is not None:
                out.extend(run)
                at += size
                break
        else:
            out.append(sequence[at])
            at += 1
    return tuple(out)
