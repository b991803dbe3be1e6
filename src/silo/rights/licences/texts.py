"""Licence texts, recognised by a few fragments each (`notices.toml`). A text nobody knows is restricted.

Every licence found in a file applies. A permissive text with a further condition beside it is not that licence.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import PurePath
from typing import Any

from silo.errors import SiloError
from silo.records import Evidence, Tier
from silo.rights.licences.expression import read_expression
from silo.rights.licences.phrases import read_phrases
from silo.rights.licences.reading import Reading, all_of, row_reading, unknown_reading
from silo.rights.licences.spelling import make_uniform
from silo.rights.licences.table import Row, license_table

MAX_CHARS = 400_000
"""A longer file cannot be a licence, and what was not read cannot grant."""

METHOD = "license-text"
_SHORT = 400
_WORD_BYTES = bytes(byte if chr(byte).isalnum() and byte < 128 else 32 for byte in range(256))
_LICENSED_UNDER = re.compile(r"\b(?:licensed|licenced) under ((?:\S+ ?){1,12})")
_ARTICLES = frozenset(("the", "a", "an", "terms", "of", "and", "conditions", "either", "both", "version"))
_ITSELF = frozenset(("license", "licenses", "this", "their"))
_SPLIT_VERSION = re.compile(r"\b(\d) (\d)\b")
_TAG = re.compile(r"^[^\w\n]{0,12}SPDX-License-Identifier:[ \t]*([^\n\r]{1,400})", re.MULTILINE | re.IGNORECASE)
_LICENSE_FILE = re.compile(r"(?:un)?licen[cs]e(?:[-_.].*)?|copying(?:[-_.].*)?", re.IGNORECASE)
_NOT_PROSE = re.compile(r"\.(?:py|pyi|js|ts|json|c|h|go|rs|java|rb|toml|ya?ml|xml|sh|license|png|svg)", re.IGNORECASE)
_COMMENT_END = re.compile(r"(?:\*/|-->|#\}|--\}\}|\*\)|-\}|\"|'|\]\])\s*$")


@dataclass(frozen=True, slots=True)
class Text:
    """How one licence text is recognised, and how many words it has when nothing is added."""

    row: Row
    all: tuple[str, ...]
    none: tuple[str, ...]
    words: int

    def occurs_in(self, words: str) -> bool:
        return all(part in words for part in self.all) and not any(part in words for part in self.none)


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that puts a file under a licence; `needs` are words of which one must also occur."""

    row: Row
    pattern: re.Pattern[str]
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Notices:
    """Everything `notices.toml` holds."""

    texts: tuple[Text, ...]
    notices: tuple[Notice, ...]
    strong: re.Pattern[str]
    file: re.Pattern[str]
    benign: re.Pattern[str]


@lru_cache(maxsize=1)
def known_notices() -> Notices:
    """The fragments that come with silo, checked against the licence table."""
    return parse_notices(resources.files("silo.rights.licences").joinpath("notices.toml").read_text(encoding="utf-8"))


def parse_notices(content: str) -> Notices:
    """Read and check the fragments; an id without a row in the table is an error."""
    ids = license_table().ids
    try:
        data: dict[str, Any] = tomllib.loads(content)
        additions = data["additions"]
        return Notices(
            texts=tuple(
                Text(ids[item["spdx"].lower()], tuple(item["all"]), tuple(item.get("none", ())), int(item["words"]))
                for item in data["text"]
            ),
            notices=tuple(
                Notice(ids[item["spdx"].lower()], re.compile(item["pattern"]), tuple(item.get("needs", ())))
                for item in data["notice"]
            ),
            strong=_any_of(additions["strong"]),
            file=_any_of(additions["file"]),
            benign=_any_of(additions["benign"]),
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, re.error) as error:
        raise SiloError("license-table", f"the licence fragments cannot be used: {error!r}") from None


def _any_of(phrases: list[str]) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(map(re.escape, sorted(phrases, key=len, reverse=True))) + r")\b")


def is_license_name(name: str) -> bool:
    """True for LICENSE, LICENCE.md, COPYING.LESSER, LICENSE-MIT, UNLICENSE and the like, not for license.py."""
    return bool(_LICENSE_FILE.fullmatch(name)) and not _NOT_PROSE.fullmatch(PurePath(name).suffix or "-")


def read_license_file(text: str, *, where: str) -> Evidence:
    """What a LICENSE or COPYING file says, as one piece of evidence."""
    reading = read_text(text)
    first = next((line.strip() for line in text[:2000].splitlines() if line.strip()), "")
    return Evidence(
        asserted=first[:120],
        where=where,
        method=reading.method,
        confidence=license_table().confidence.get(reading.method, 1.0),
        tier=reading.tier,
        spdx=reading.spdx,
        duties=reading.duties,
    )


def read_text(text: str) -> Reading:
    """The reading of a whole licence text."""
    if len(text) > MAX_CHARS:
        return unknown_reading()
    words = squash(text)
    readings = [*_read_tag_lines(text), *recognise(words)]
    if not readings:
        return _read_short_file(text)
    total = all_of(readings, METHOD)
    if total.tier is Tier.restricted:
        return total
    if has_further_condition(words, whole_file=True):
        return unknown_reading("license-text-with-additions", duties=total.duties)
    if _is_much_longer(words) or _names_unknown_licence(words):
        return unknown_reading("license-text-unclear", duties=total.duties)
    return total


def squash(text: str) -> str:
    """Lower-case words with single blanks: comment marks, line ends and punctuation are gone."""
    return b" ".join(text.lower().encode("ascii", "replace").translate(_WORD_BYTES).split()).decode("ascii")


def recognise(words: str) -> list[Reading]:
    """Every licence text and notice in squashed words."""
    known = known_notices()
    rows = {text.row.spdx: text.row for text in known.texts if text.occurs_in(words)}
    for notice in known.notices:
        if notice.row.spdx not in rows and notice_start(notice, words) >= 0:
            rows[notice.row.spdx] = notice.row
    return [row_reading(rows[spdx], METHOD) for spdx in sorted(rows)]


def notice_start(notice: Notice, words: str) -> int:
    """Where the notice begins, or -1."""
    match = notice.pattern.search(words)
    if match is None or (notice.needs and not any(need in words for need in notice.needs)):
        return -1
    return match.start()


def has_further_condition(words: str, *, whole_file: bool) -> bool:
    """True if a condition stands beside the licence that does not belong to it."""
    known = known_notices()
    rest = known.benign.sub(" ", words)
    return bool(known.strong.search(rest) or (whole_file and known.file.search(rest)))


def _is_much_longer(words: str) -> bool:
    """True if far more is said than the recognised texts say: it may hold anything."""
    copies = {
        text.row.spdx: text.words * words.count(text.all[0]) for text in known_notices().texts if text.occurs_in(words)
    }
    return bool(copies) and words.count(" ") > 2 * sum(copies.values()) + 300


def _names_unknown_licence(words: str) -> bool:
    """True if something in the file is licensed under terms that are not permissive or not known."""
    table = license_table()
    for match in _LICENSED_UNDER.finditer(known_notices().benign.sub(" ", words)):
        rest = match[1].split()
        while rest and rest[0] in _ARTICLES:
            rest.pop(0)
        words_of_name = table_words(" ".join(rest))
        prefixes = (words_of_name[:size] for size in range(len(words_of_name), 0, -1))
        row = next((table.names[prefix] for prefix in prefixes if prefix in table.names), None)
        if rest and rest[0] not in _ITSELF and (row is None or row.tier is Tier.restricted):
            return True
    return False


def table_words(words: str) -> tuple[str, ...]:
    """Squashed words as the table spells them: "2 0" is a version again."""
    return license_table().words(_SPLIT_VERSION.sub(r"\1.\2", words))


def read_tags(text: str) -> list[tuple[int, str]]:
    """The SPDX-License-Identifier lines: line number and statement. A tag in the middle of a sentence is no tag."""
    tags = []
    for match in _TAG.finditer(text):
        statement = _COMMENT_END.sub("", match[1].strip()).strip()
        tags.append((text.count("\n", 0, match.start()) + 1, statement))
    return tags


def _read_tag_lines(text: str) -> list[Reading]:
    return [read_expression(statement) or unknown_reading() for _, statement in read_tags(text)]


def _read_short_file(text: str) -> Reading:
    """A file that only names its licence."""
    return read_phrases(make_uniform(text)) if len(text) <= _SHORT else unknown_reading()
