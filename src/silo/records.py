"""The nouns that cross packages: tiers, rights, evidence, verdicts and documents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

UNLIMITED = 2**31 - 1
"""A `quote` right without a limit, in tokens."""

PLACES = "places"
"""The key of a document's metadata under which its places stand: [line, label] pairs in the order of the lines.

A place (a page, a section, a slide, a row) begins at a line, counted from 0, and goes on to the next one. Lines and not
characters, because normalising a text and masking personal data in it keep its lines.
"""


class Tier(StrEnum):
    """How risky training on a text is: pd < sw < by < restricted. Compares by risk, also with plain strings."""

    pd = "pd"
    sw = "sw"
    by = "by"
    restricted = "restricted"

    @property
    def rank(self) -> int:
        return _TIER_RANK[self.value]

    def __lt__(self, other: str) -> bool:
        return self.rank < Tier(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= Tier(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > Tier(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= Tier(other).rank


_TIER_RANK = {tier.value: rank for rank, tier in enumerate(Tier)}

TRAINING_SETS: dict[str, tuple[Tier, ...]] = {
    "pd": (Tier.pd,),
    "pdsw": (Tier.pd, Tier.sw),
    "pdswby": (Tier.pd, Tier.sw, Tier.by),
}
"""The paper's three training sets."""


class Duty(StrEnum):
    """What a licence asks in return."""

    attribution = "attribution"
    notice = "notice"
    share_alike = "share-alike"
    non_commercial = "non-commercial"
    no_derivatives = "no-derivatives"
    payment = "payment"


class Right(StrEnum):
    """The four things that may be allowed or denied for one document."""

    train = "train"
    store = "store"
    quote = "quote"
    index = "index"  # type: ignore[assignment]  # hides str.index, which nobody needs here


@dataclass(frozen=True, slots=True)
class Rights:
    """What may be done with one document. `quote` is the longest run of tokens that may be repeated."""

    train: bool = False
    store: bool = False
    quote: int = 0
    index: bool = False

    def narrowed(self, other: Rights) -> Rights:
        """The rights both sides grant: never more than either."""
        return Rights(
            train=self.train and other.train,
            store=self.store and other.store,
            quote=min(self.quote, other.quote),
            index=self.index and other.index,
        )

    def without(self, denied: Iterable[Right]) -> Rights:
        """These rights less the denied ones."""
        gone = set(denied)
        return Rights(
            train=self.train and Right.train not in gone,
            store=self.store and Right.store not in gone,
            quote=0 if Right.quote in gone else self.quote,
            index=self.index and Right.index not in gone,
        )

    def as_json(self) -> dict[str, bool | int]:
        """A plain mapping of the four rights."""
        return {"train": self.train, "store": self.store, "quote": self.quote, "index": self.index}

    def covers(self, other: Rights) -> bool:
        """True if nothing in `other` goes beyond these rights."""
        return self.narrowed(other) == other


@dataclass(frozen=True, slots=True)
class Evidence:
    """One statement about one document: what was asserted, where, how it was read and how sure the reading is.

    Licence evidence carries `tier` and `spdx`; a preference signal carries neither and only `denies`.
    """

    asserted: str
    where: str
    method: str
    confidence: float
    tier: Tier | None = None
    spdx: str = ""
    duties: frozenset[Duty] = frozenset()
    denies: frozenset[Right] = frozenset()

    def as_json(self) -> dict[str, Any]:
        """A plain mapping with sorted lists; absent parts are left out."""
        out: dict[str, Any] = {"asserted": self.asserted, "where": self.where, "method": self.method}
        out["confidence"] = self.confidence
        if self.tier is not None:
            out["tier"] = str(self.tier)
            out["spdx"] = self.spdx
        if self.duties:
            out["duties"] = sorted(self.duties)
        if self.denies:
            out["denies"] = sorted(self.denies)
        return out

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Evidence:
        """The inverse of `as_json`."""
        return cls(
            asserted=record["asserted"],
            where=record["where"],
            method=record["method"],
            confidence=record["confidence"],
            tier=Tier(record["tier"]) if "tier" in record else None,
            spdx=record.get("spdx", ""),
            duties=frozenset(map(Duty, record.get("duties", ()))),
            denies=frozenset(map(Right, record.get("denies", ()))),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all evidence on one document adds up to. `conflicts` says in words where the evidence disagreed."""

    tier: Tier
    spdx: str
    duties: frozenset[Duty]
    rights: Rights
    evidence: tuple[Evidence, ...]
    conflicts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text found by a source, with everything that was said about its licence, before any verdict.

    `id_is_derived` where the record had no id of its own and got one from its place in the source.
    """

    external_id: str
    text: str
    source: str
    domain: str
    evidence: tuple[Evidence, ...]
    owner: str = ""
    url: str = ""
    stated_tier: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    id_is_derived: bool = False


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A record that could not be read: where it is and why. Its text is never copied."""

    where: str
    code: str
    message: str

    def as_json(self) -> dict[str, Any]:
        return {"where": self.where, "code": self.code, "message": self.message}


UNJUDGED = Rights()
"""The rights of a document before anybody has judged it: none at all."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text with its verdict. `id` depends on (source, external id) alone.

    One that is made of a text and an id, its own, and what is known besides, is judged when a store takes it: `license`
    is then a statement like that of a record, restricted if there is none, and a `tier` can make it stricter only.
    """

    id: str
    text: str
    source: str = ""
    external_id: str = ""
    owner: str = ""
    domain: str = ""
    license: str = ""
    tier: Tier = Tier.restricted
    rights: Rights = UNJUDGED
    duties: frozenset[Duty] = frozenset()
    evidence: tuple[Evidence, ...] = ()
    conflicts: tuple[str, ...] = ()
    url: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    def contains(self, text: str) -> bool:
        """Whether a text is part of it, white space and case aside; white space alone is part of nothing."""
        return contains(self.text, text)

    def as_json(self) -> dict[str, Any]:
        """The record that lies in a shard: see docs/formats.md."""
        return {
            "id": self.id,
            "external_id": self.external_id,
            "text": self.text,
            "source": self.source,
            "owner": self.owner,
            "domain": self.domain,
            "license": self.license,
            "tier": str(self.tier),
            "rights": self.rights.as_json(),
            "duties": sorted(self.duties),
            "evidence": [item.as_json() for item in self.evidence],
            "conflicts": list(self.conflicts),
            "url": self.url,
            "metadata": dict(self.meta),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Document:
        """The inverse of `as_json`."""
        return cls(
            id=record["id"],
            text=record["text"],
            source=record["source"],
            external_id=record["external_id"],
            owner=record["owner"],
            domain=record["domain"],
            license=record["license"],
            tier=Tier(record["tier"]),
            rights=Rights(**record["rights"]),
            duties=frozenset(map(Duty, record["duties"])),
            evidence=tuple(map(Evidence.from_json, record["evidence"])),
            conflicts=tuple(record["conflicts"]),
            url=record["url"],
            meta=record["metadata"],
        )


def document_id(source: str, external_id: str) -> str:
    """32 hex digits from (source, external id); the length prefix keeps the two from running together."""
    key = f"{len(source)}:{source}{external_id}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(key, digest_size=16, person=b"silo-document").hexdigest()


def contains(text: str, part: str) -> bool:
    """Whether a text is part of another, white space and case aside; white space alone is part of nothing."""
    wanted = _fold(part)
    return bool(wanted) and wanted in _fold(text)


def _fold(text: str) -> str:
    """A text as it is looked for: white space and case aside."""
    return " ".join(text.split()).casefold()


def is_document_id(name: str) -> bool:
    """True for what silo's id of a document looks like; a record's own id may look like that too."""
    return len(name) == 32 and set(name) <= set("0123456789abcdef")


def place_at(document: Document, character_offset: int) -> str:
    """Where in the document a character stands, in words such as `p. 12` or `section Leave`; empty if nobody knows."""
    line = document.text.count("\n", 0, max(0, character_offset))
    label = ""
    for first_line, name in _places(document.meta):
        if first_line > line:
            break
        label = name
    return label


def _places(meta: Mapping[str, Any]) -> list[tuple[int, str]]:
    """The places that metadata states; none if the key means something else there."""
    given = meta.get(PLACES)
    try:
        places = [(line, label) for line, label in given or ()]
    except (TypeError, ValueError):
        return []
    stated = all(type(line) is int and type(label) is str for line, label in places)
    return places if stated else []
