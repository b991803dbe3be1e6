"""The licence table: `licenses.toml`, checked and indexed. What is not in it grants nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from silo.errors import SiloError
from silo.records import UNLIMITED, Duty, Rights, Tier
from silo.rights.licences.spelling import Words, canonical_words

NOASSERTION = "NOASSERTION"
_KEYS = frozenset(
    (
        "spdx",
        "versions",
        "tier",
        "duties",
        "names",
        "ids",
        "classifiers",
        "urls",
        "refined_by",
        "ported",
        "rights",
        "note",
    )
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one licence leads to."""

    spdx: str
    tier: Tier
    duties: frozenset[Duty]
    rights: Rights


@dataclass(frozen=True, slots=True)
class Table:
    """The rows under every spelling they are known by. Keys are canonical: lower case, or canonical words."""

    ids: Mapping[str, Row]
    names: Mapping[Words, Row]
    classifiers: Mapping[str, Row]
    urls: Mapping[str, Row]
    refinements: Mapping[str, frozenset[str]]
    rights: Mapping[Tier, Rights]
    confidence: Mapping[str, float]
    exceptions: frozenset[str]
    synonyms: Mapping[Words, Words]
    warnings: frozenset[Words]
    neutral: frozenset[Words]
    ports: frozenset[str]
    longest_name: int

    def words(self, text: str) -> Words:
        """The canonical words of a clause."""
        return canonical_words(text, self.synonyms)

    def ported(self, row: Row, port: str) -> Row:
        """The row of a jurisdiction port where SPDX has one, else the row itself."""
        return self.ids.get(f"{row.spdx}-{port}".lower(), row)


@lru_cache(maxsize=1)
def license_table() -> Table:
    """The table that comes with silo."""
    return parse_table(resources.files("silo.rights.licences").joinpath("licenses.toml").read_text(encoding="utf-8"))


def parse_table(content: str) -> Table:
    """Read and check a table; any inconsistency is an error, since a wrong row would grant rights."""
    try:
        return _build(tomllib.loads(content))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise SiloError("license-table", f"the licence table cannot be used: {error!r}") from None


def _build(data: Mapping[str, Any]) -> Table:
    rights = {tier: _rights(data["rights"][tier.value]) for tier in Tier}
    words = data["words"]
    synonyms = _synonyms(words["synonyms"])
    ids: dict[str, Row] = {}
    names: dict[Words, Row] = {}
    classifiers: dict[str, Row] = {}
    urls: dict[str, Row] = {}
    refinements: dict[str, frozenset[str]] = {}
    for entry in data["license"]:
        for filled in _versions(entry):
            row = _row(filled, rights)
            for key in _ids(filled, row.spdx):
                ported = Row(key, row.tier, row.duties, row.rights) if key.startswith(row.spdx) else row
                _put(ids, key.lower(), ported)
            for name in filled.get("names", ()):
                _put(names, canonical_words(name, synonyms), row)
            for tail in filled.get("classifiers", ()):
                _put(classifiers, tail.lower(), row)
            for url in filled.get("urls", ()):
                _put(urls, url.lower(), row)
            if "refined_by" in filled:
                refinements[row.spdx] = frozenset(filled["refined_by"])
    for key, row in ids.items():
        names.setdefault(canonical_words(key, synonyms), row)
    _check(names, refinements, ids)
    return Table(
        ids=ids,
        names=names,
        classifiers=classifiers,
        urls=urls,
        refinements=refinements,
        rights=rights,
        confidence={key: float(value) for key, value in data["confidence"].items()},
        exceptions=frozenset(key.lower() for key in data["exceptions"]["reviewed"]),
        synonyms=synonyms,
        warnings=frozenset(canonical_words(word, synonyms) for word in words["warnings"]),
        neutral=frozenset(canonical_words(word, {}) for word in words["neutral"]),
        ports=frozenset(words["ports"]),
        longest_name=max(map(len, names)),
    )


def _synonyms(pairs: list[list[str]]) -> dict[Words, Words]:
    return {tuple(left.split()): tuple(right.split()) for left, right in pairs}


def _versions(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The entry once for each of its versions, with {v} ("2.0") and {n} ("2") filled in."""
    if unknown := set(entry) - _KEYS:
        raise ValueError(f"row {entry.get('spdx')}: unknown keys {sorted(unknown)}")
    for version in entry.get("versions", [""]):
        number = version.removesuffix(".0")

        def fill(value: Any, version: str = version, number: str = number) -> Any:
            if isinstance(value, list):
                return [fill(item) for item in value]
            return value.replace("{v}", version).replace("{n}", number) if isinstance(value, str) else value

        filled = {key: fill(value) for key, value in entry.items()}
        filled["ported"] = [port for port in entry.get("ported", ()) if port.startswith(f"{version}-")]
        yield filled


def _ids(filled: Mapping[str, Any], spdx: str) -> Iterator[str]:
    """The row's own id, its other ids, and its ports (an id that begins with the row's own)."""
    yield spdx
    yield from (key for key in filled.get("ids", ()) if key != spdx)
    yield from (f"{spdx}-{port.split('-', 1)[1]}" for port in filled["ported"])


def _row(filled: Mapping[str, Any], rights: Mapping[Tier, Rights]) -> Row:
    if not str(filled["note"]).strip():
        raise ValueError(f"row {filled['spdx']}: the note is empty")
    tier = Tier(filled["tier"])
    default = rights[tier]
    own = _rights(filled["rights"], default) if "rights" in filled else default
    if not default.covers(own):
        raise ValueError(f"row {filled['spdx']}: its rights go beyond those of tier {tier}")
    return Row(str(filled["spdx"]), tier, frozenset(map(Duty, filled.get("duties", ()))), own)


def _rights(values: Mapping[str, Any], default: Rights | None = None) -> Rights:
    base = default or Rights()
    if unknown := set(values) - {"train", "store", "quote", "index"}:
        raise ValueError(f"unknown rights {sorted(unknown)}")
    quote = values.get("quote", base.quote)
    return Rights(
        train=bool(values.get("train", base.train)),
        store=bool(values.get("store", base.store)),
        quote=UNLIMITED if quote == "unlimited" else int(quote),
        index=bool(values.get("index", base.index)),
    )


def _put(index: dict[Any, Row], key: Any, row: Row) -> None:
    """Add a spelling; the same spelling for two licences is an error."""
    if not key:
        raise ValueError(f"row {row.spdx}: an empty spelling")
    other = index.setdefault(key, row)
    if other.spdx != row.spdx:
        raise ValueError(f"{key!r} stands for both {other.spdx} and {row.spdx}")


def _check(names: Mapping[Words, Row], refinements: Mapping[str, frozenset[str]], ids: Mapping[str, Row]) -> None:
    for family, members in refinements.items():
        if missing := [key for key in members if key.lower() not in ids]:
            raise ValueError(f"{family} is refined by {missing}, which have no row")
    if () in names:
        raise ValueError("an empty name")
