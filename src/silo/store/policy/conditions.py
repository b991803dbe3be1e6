"""A tree of conditions on what the index of a bucket holds of its documents; no record is read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silo.store.bucket import NAMED, TIERS, Bucket

Mask = NDArray[np.bool_]

FIELDS = ("tier", *NAMED)


@dataclass(frozen=True, slots=True)
class Among:
    """Documents of which a field (one of `FIELDS`) has one of the values."""

    field: str
    values: frozenset[str]

    def mask(self, bucket: Bucket) -> Mask:
        return np.isin(bucket.index[self.field], _value_numbers(bucket, self.field, self.values))


@dataclass(frozen=True, slots=True)
class QuoteBelow:
    """Documents of which fewer than `tokens` tokens in a row may be quoted."""

    tokens: int

    def mask(self, bucket: Bucket) -> Mask:
        mask: Mask = bucket.index["quote"] < self.tokens
        return mask


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
        mask = np.ones(len(bucket), dtype=np.bool_)
        for part in self.parts:
            mask &= part.mask(bucket)
        return mask


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Documents that meet a condition; without conditions, none."""

    parts: tuple[Condition, ...] = ()

    def mask(self, bucket: Bucket) -> Mask:
        mask = np.zeros(len(bucket), dtype=np.bool_)
        for part in self.parts:
            mask |= part.mask(bucket)
        return mask


Condition = Among | QuoteBelow | Not | All | AnyOf


def join(kind: type[All] | type[AnyOf], parts: Iterable[Condition]) -> Condition:
    """The conditions as one of a kind, flat and each once, so that narrowing again and again does not grow."""
    flat = tuple(dict.fromkeys(_flatten(kind, parts)))
    return flat[0] if len(flat) == 1 else kind(flat)


def _flatten(kind: type[All] | type[AnyOf], parts: Iterable[Condition]) -> Iterator[Condition]:
    for part in parts:
        if isinstance(part, kind):
            yield from _flatten(kind, part.parts)
        else:
            yield part


def named_values(condition: Condition) -> Iterator[tuple[str, str]]:
    """Every field and value that a condition compares."""
    match condition:
        case Among(field, values):
            yield from ((field, value) for value in values)
        case Not(part):
            yield from named_values(part)
        case All(parts) | AnyOf(parts):
            for part in parts:
                yield from named_values(part)
        case QuoteBelow():
            return


def _value_numbers(bucket: Bucket, field: str, wanted: frozenset[str]) -> list[int]:
    if field == "tier":
        return [at for at, tier in enumerate(TIERS) if tier in wanted]
    names = bucket.names[field]  # sorted, and there may be as many as documents
    places = ((bisect_left(names, name), name) for name in wanted)
    return [at for at, name in places if names[at : at + 1] == [name]]
