"""Who is behind the rows of a view: ids, owners and the like of all documents, in memory.

What a prediction owes is looked up here, also after the generation it was made from has gone: nothing here keeps a
bucket open.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silo.store.bucket import TIERS, Bucket

_NAMED = ("owner", "license", "source")


@dataclass(frozen=True, slots=True)
class Facts:
    """Who is behind a row."""

    id: str
    external_id: str
    owner: str
    license: str
    source: str
    tier: str


class FactTable:
    """The facts of every row."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._ids = b"".join(bucket.index["id"].tobytes() for bucket in buckets)
        self._tiers = b"".join(bucket.index["tier"].tobytes() for bucket in buckets)
        self._named = [_column(buckets, kind) for kind in _NAMED]
        self._external = b"".join(bucket.sections["external_ids"].tobytes() for bucket in buckets)
        sizes = [np.diff(bucket.sections["external_ends"].astype(np.int64), prepend=0) for bucket in buckets]
        self._ends = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *sizes]))
        self._made: dict[int, Facts] = {}

    def find(self, document: str) -> int:
        """The row of a document, -1 if it is not here; rows stand in the order of ids."""
        name, rows = bytes.fromhex(document), range(len(self._tiers))
        row = bisect_left(rows, name, key=self._id)
        return row if row < len(rows) and self._id(row) == name else -1

    def _id(self, row: int) -> bytes:
        return self._ids[16 * row : 16 * row + 16]

    def __getitem__(self, row: int) -> Facts:
        facts = self._made.get(row)
        if facts is None:
            external = self._external[self._ends[row] : self._ends[row + 1]].decode()
            owner, licence, source = (names[codes[row]] for names, codes in self._named)
            name = self._id(row).hex()
            facts = self._made[row] = Facts(name, external, owner, licence, source, TIERS[self._tiers[row]])
        return facts


def _column(buckets: Sequence[Bucket], kind: str) -> tuple[list[str], NDArray[np.int32]]:
    """The different names of one kind, and the number of each row's among them."""
    numbers: dict[str, int] = {}
    codes = [np.empty(0, dtype=np.int32)]
    for bucket in buckets:
        own = np.array([numbers.setdefault(name, len(numbers)) for name in bucket.names[kind]], dtype=np.int32)
        codes.append(own[bucket.index[kind]])
    return list(numbers), np.concatenate(codes)
