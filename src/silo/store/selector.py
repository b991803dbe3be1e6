"""Which documents to list or erase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from silo.store.bucket import NAMED, Bucket, external_id_hash
from silo.store.policy.conditions import Among, Mask


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
        rows: list[int] = np.flatnonzero(mask).tolist()
        return list(filter(_contains(bucket, self.query), rows)) if self.query else rows


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
