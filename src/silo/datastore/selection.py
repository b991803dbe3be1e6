"""Which documents: a `Selector` names those to list or erase, a `Policy` those that an answer may come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from silo.datastore.bucket import NAMED, TIERS, Bucket, external_mark
from silo.errors import SiloError

Mask = NDArray[np.bool_]
Names = frozenset[str]

_COLUMNS = {"licenses": "license", "owners": "owner", "domains": "domain", "sources": "source"}
assert set(_COLUMNS.values()) == set(NAMED)


@dataclass(frozen=True, slots=True)
class Policy:
    """The documents a request may use: those that every given list names, less those in `without` (document ids).

    None stands for no limit. A policy may only be narrowed.
    """

    tiers: Names | None = None
    licenses: Names | None = None
    owners: Names | None = None
    domains: Names | None = None
    sources: Names | None = None
    without: Names = frozenset()

    @classmethod
    def of(cls, **lists: Any) -> Self:
        """A policy from plain lists; unknown names of lists are refused."""
        known = {item.name for item in fields(cls)}
        if unknown := set(lists) - known:
            raise SiloError("usage", f"a policy has no '{min(unknown)}': use {', '.join(sorted(known))}")
        given: dict[str, Any] = {name: None if value is None else frozenset(value) for name, value in lists.items()}
        return cls(**given)

    def narrowed(self, other: Policy) -> Policy:
        """What both allow."""
        both = {name: _both(getattr(self, name), getattr(other, name)) for name in ("tiers", *_COLUMNS)}
        return Policy(**both, without=self.without | other.without)

    def allows(self, bucket: Bucket) -> Mask:
        """Per document of a bucket, whether it may be used."""
        mask = np.ones(len(bucket), dtype=np.bool_)
        if self.tiers is not None:
            mask &= np.isin(bucket.index["tier"], [TIERS.index(tier) for tier in self.tiers if tier in TIERS])
        for name, column in _COLUMNS.items():
            wanted = getattr(self, name)
            if wanted is not None:
                mask &= _named(bucket, column, wanted)
        for row in (bucket.find(bytes.fromhex(name)) for name in self.without):
            if row >= 0:
                mask[row] = False
        return mask


EVERYTHING = Policy()


def _both(one: Names | None, other: Names | None) -> Names | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _named(bucket: Bucket, column: str, wanted: Names) -> Mask:
    numbers = [at for at, name in enumerate(bucket.names[column]) if name in wanted]
    return np.isin(bucket.index[column], numbers)


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
                mask &= _named(bucket, column, frozenset([wanted]))
        found = np.flatnonzero(mask).tolist()
        return list(filter(_contains(bucket, self.query), found)) if self.query else found


def _with_id(bucket: Bucket, name: str) -> Mask:
    mask = np.zeros(len(bucket), dtype=np.bool_)
    if len(name) == 32 and set(name) <= set("0123456789abcdef"):
        row = bucket.find(bytes.fromhex(name))
        if row >= 0:
            mask[row] = True
            return mask
    for row in np.flatnonzero(bucket.index["external"] == external_mark(name)).tolist():
        mask[row] = bucket.document(row).external_id == name
    return mask


def _contains(bucket: Bucket, query: str) -> Callable[[int], bool]:
    wanted = _folded(query)
    return lambda row: wanted in _folded(bucket.document(row).text)


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
