"""Promises one reading of a record's fields for every kind: types and lengths are checked, gaps filled, evidence kept.

Evidence names the file and field but never the line: removing one record must not change what is kept of the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.recipe import Limits
from silo.records import Candidate, Evidence, Tier
from silo.rights import Signals, assess, load_signals
from silo.sources.reader.plan import SourcePart

_SUFFIXES = (".gz", ".zst", ".jsonl", ".json", ".ndjson", ".parquet", ".warc", ".mbox", ".txt")
_LICENSE_KEYS = ("license", "licence")
_KEPT = ("origin", "added", "created")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a source says about all of its records. `id_from_text` names records without an id by their text."""

    label: str
    source: str
    domain: str
    owner: str
    evidence: tuple[Evidence, ...]
    signals: Signals | None
    max_chars: int
    id_from_text: bool = False

    def signal_evidence(self, place: str) -> tuple[Evidence, ...]:
        """What the source's preference signals say about a path or URL."""
        return self.signals.evidence_for(place) if self.signals and place else ()


def defaults_of(part: SourcePart, limits: Limits, *, extra: tuple[Evidence, ...] = ()) -> Defaults:
    """The recipe's own statements, read once for a part."""
    recipe = part.recipe
    recipe_evidence = (assess_statement(recipe.license, "recipe: license", "recipe"),) if recipe.license else ()
    return Defaults(
        label=part.label,
        source=recipe.name or strip_endings(part.label),
        domain=recipe.domain,
        owner=recipe.owner,
        evidence=recipe_evidence + extra,
        signals=load_signals(Path(recipe.signals)) if recipe.signals else None,
        max_chars=limits.max_field_chars,
    )


def strip_endings(label: str) -> str:
    """A label without the endings that only name a format."""
    while label.endswith(_SUFFIXES):
        label = label[: label.rindex(".")]
    return label


@lru_cache(maxsize=4096)
def assess_statement(statement: str, where: str, method: str = "", confidence_cap: float = 1.0) -> Evidence:
    """`assess`, remembered: a source repeats few licence statements over many records."""
    return assess(statement, where=where, method=method, confidence_cap=confidence_cap)


def unreadable_licence(reason: str, where: str) -> Evidence:
    """Evidence for a statement that is there but cannot be read: it may forbid anything."""
    return Evidence(reason, where, "unreadable", 1.0, Tier.restricted)


def make_candidate(record: Mapping[str, Any], defaults: Defaults, where: str = "") -> Candidate:
    """A candidate from one record with the fields of docs/sources.md; a bad field raises with its code.

    `where` is the record's place in the source, such as `books.jsonl:line 7`: its id, if it has none.
    """
    longest = defaults.max_chars
    text = record.get("text")
    if text is None:
        raise SiloError("field-missing", "the record has no text")
    require_text(text)
    own_id = _own_id(record.get("id"), longest)
    derived_id = "" if own_id else _derived_id(text, where, from_text=defaults.id_from_text)
    metadata = record.get("metadata")
    if metadata is None:
        metadata = {}
    elif not isinstance(metadata, dict):
        raise SiloError("field-type", f"metadata must be an object, not {type(metadata).__name__}")
    source = read_short_field(record, "source", longest) or defaults.source
    domain = (
        read_short_field(record, "domain", longest)
        or defaults.domain
        or read_short_field(metadata, "domain", longest)
        or source
    )
    url = read_short_field(record, "url", longest)
    evidence = stated_licences(record, metadata, defaults) + defaults.evidence
    if defaults.signals:
        evidence += defaults.signal_evidence(url)
    origin = {key: record[key] for key in _KEPT if record.get(key) is not None}
    return Candidate(
        external_id=own_id or derived_id,
        text=text,
        source=source,
        domain=domain,
        evidence=evidence,
        owner=read_short_field(record, "owner", longest) or defaults.owner,
        url=url,
        stated_tier=read_short_field(record, "tier", longest),
        meta={**metadata, **origin} if origin else metadata,
        id_is_derived=bool(derived_id) and not defaults.id_from_text,
    )


def require_text(text: Any) -> None:
    """Raise unless this is a string that can be kept as text."""
    if type(text) is not str:
        raise SiloError("field-type", f"text must be a string, not {type(text).__name__}")
    if "\0" in text:
        raise SiloError("nul-byte", "the text holds NUL bytes")


def read_short_field(record: Mapping[str, Any], name: str, longest: int) -> str:
    """A short text field: empty if it is absent or null."""
    value = record.get(name)
    if value is None:
        return ""
    if type(value) is not str:
        raise SiloError("field-type", f"{name} must be a string, not {type(value).__name__}")
    if len(value) > longest:
        raise SiloError("field-too-long", f"{name} has {len(value):,} characters; at most {longest:,} are read")
    return value


def _own_id(value: Any, longest: int) -> str:
    return read_short_field({"id": str(value) if type(value) is int else value}, "id", longest)


def _derived_id(text: str, where: str, *, from_text: bool) -> str:
    """A name for a record without one: by its text, or by its place."""
    if from_text and text:
        return text_id(text)
    if from_text or not where:
        raise SiloError("field-missing", "the record has no id")
    return where


def text_id(text: str) -> str:
    """A name for a record by its text."""
    return "text:" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def stated_licences(record: Mapping[str, Any], metadata: Mapping[str, Any], defaults: Defaults) -> tuple[Evidence, ...]:
    """Every licence a record states, each as evidence of its own: none outweighs another here."""
    if "license" in record and "licence" in record:
        raise SiloError("json-duplicate-key", "license and licence are both given")
    evidence: list[Evidence] = []
    for place, holder in (("", record), ("metadata.", metadata)):
        for name in _LICENSE_KEYS:
            value = holder.get(name)
            if value is None:
                continue
            for item in value if place and isinstance(value, list) else (value,):
                statement = read_short_field({name: item}, name, defaults.max_chars)
                if statement.strip():
                    evidence.append(assess_statement(statement, f"{defaults.label}: {place}{name}"))
    return tuple(evidence)
