"""Which documents: a `Selector` names those to list or erase, a `Policy` those that an answer may come from.

A policy is a tree of conditions on what the index of a bucket holds of its documents: it reads no record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.store.bucket import NAMED, TIERS, Bucket, external_id_hash

Mask = NDArray[np.bool_]
Names = frozenset[str]

FIELDS = ("tier", *NAMED)
_LISTS = dict(zip(("tiers", "licenses", "owners", "domains", "sources"), FIELDS, strict=True))


@dataclass(frozen=True, slots=True)
class Among:
    """Documents of which a field (one of `FIELDS`) has one of the values."""

    field: str
    values: Names

    def mask(self, bucket: Bucket) -> Mask:
        return np.isin(bucket.index[self.field], _numbers(bucket, self.field, self.values))


@dataclass(frozen=True, slots=True)
class QuoteBelow:
    """Documents of which fewer than `tokens` tokens in a row may be quoted."""

    tokens: int

    def mask(self, bucket: Bucket) -> Mask:
        found: Mask = bucket.index["quote"] < self.tokens
        return found


@dataclass(frozen=True, slots=True)
class Not:
    """Documents that do not meet the condition."""

    part: Condition

    def mask(self, bucket: Bucket) -> Mask:
        return ~self.part.mask(bucket)


@dataclass(frozen=True, slots=True)
class All:
    """Documents that meet every condition; without conditions, all."""

    parts: tuple[Condition, ...] = ()

    def mask(self, bucket: Bucket) -> Mask:
        found = np.ones(len(bucket), dtype=np.bool_)
        for part in self.parts:
            found &= part.mask(bucket)
        return found


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Documents that meet a condition; without conditions, none."""

    parts: tuple[Condition, ...] = ()

    def mask(self, bucket: Bucket) -> Mask:
        found = np.zeros(len(bucket), dtype=np.bool_)
        for part in self.parts:
            found |= part.mask(bucket)
        return found


Condition = Among | QuoteBelow | Not | All | AnyOf


def joined(kind: type[All] | type[AnyOf], parts: Iterable[Condition]) -> Condition:
    """The conditions as one of a kind, flat and each once, so that narrowing again and again does not grow."""
    flat = tuple(dict.fromkeys(_flat(kind, parts)))
    return flat[0] if len(flat) == 1 else kind(flat)


def _flat(kind: type[All] | type[AnyOf], parts: Iterable[Condition]) -> Iterator[Condition]:
    for part in parts:
        if isinstance(part, kind):
            yield from _flat(kind, part.parts)
        else:
            yield part


def _numbers(bucket: Bucket, field: str, wanted: Names) -> list[int]:
    if field == "tier":
        return [at for at, tier in enumerate(TIERS) if tier in wanted]
    names = bucket.names[field]  # sorted, and there may be as many as documents
    places = ((bisect_left(names, name), name) for name in wanted)
    return [at for at, name in places if names[at : at + 1] == [name]]


@dataclass(frozen=True, slots=True)
class Policy:
    """The documents a request may use: those that meet the condition, less those in `without` (document ids).

    A policy may only be narrowed.
    """

    condition: Condition = All()
    without: Names = frozenset()

    @classmethod
    def of(cls, *, without: Iterable[str] = (), **lists: Any) -> Self:
        """A policy from plain lists, each a limit unless it is None; unknown names of lists are refused."""
        if unknown := set(lists) - set(_LISTS):
            raise SiloError("usage", f"a policy has no '{min(unknown)}': use {', '.join(_LISTS)}, without")
        limits = (Among(_LISTS[name], frozenset(lists[name])) for name in _LISTS if lists.get(name) is not None)
        return cls(joined(All, limits), frozenset(without))

    def narrowed(self, other: Policy) -> Policy:
        """What both allow."""
        return Policy(joined(All, (self.condition, other.condition)), self.without | other.without)

    def allows(self, bucket: Bucket) -> Mask:
        """Per document of a bucket, whether it may be used."""
        left_out = np.array([bytes.fromhex(name) for name in self.without], dtype="V16")
        return self.condition.mask(bucket) & ~np.isin(bucket.index["id"], left_out)


EVERYTHING = Policy()


@dataclass(frozen=True, slots=True)
class Selector:
    """Documents to list or erase: all conditions that are given must hold. One without conditions selects nothing.

    `document` is an internal id or the record's own; `query` is text that the document contains, white space and case
    aside.
    """

    document: str = ""
    owner: str = ""
    source: str = ""
    license: str = ""
    domain: str = ""
    query: str = ""

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) for item in fields(self))

    def rows(self, bucket: Bucket) -> list[int]:
        """The rows of a bucket's documents that are meant."""
        if not self:
            return []
        mask = np.ones(len(bucket), dtype=np.bool_)
        if self.document:
            mask &= _with_id(bucket, self.document)
        for column in NAMED:
            if wanted := getattr(self, column):
                mask &= Among(column, frozenset([wanted])).mask(bucket)
        found = np.flatnonzero(mask).tolist()
        return list(filter(_contains(bucket, self.query), found)) if self.query else found


def _with_id(bucket: Bucket, name: str) -> Mask:
    mask = np.zeros(len(bucket), dtype=np.bool_)
    if len(name) == 32 and set(name) <= set("0123456789abcdef"):
        row = bucket.find(bytes.fromhex(name))
        if row >= 0:
            mask[row] = True
            return mask
    for row in np.flatnonzero(bucket.index["external"] == external_id_hash(name)).tolist():
        mask[row] = bucket.external_id(row) == name
    return mask


def _contains(bucket: Bucket, query: str) -> Callable[[int], bool]:
    wanted = _folded(query)
    return lambda row: wanted in _folded(bucket.document(row).text)


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
