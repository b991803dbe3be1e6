"""One short value for a set of records: equal sets give equal digests, whatever their history of adds and removals.

LtHash (Bellare and Micciancio 1997; Lewi et al. 2019): each record is expanded by SHAKE-256 to 1,024 little-endian u16,
and the vectors of all records are added modulo 2^16. Adding and removing are exact inverses and commute. As bytes:
2,048 for the state, then the number of records as a little-endian u64. Only the SHA-256 of it is published.

Records must be distinct: 65,536 copies of one record add up to nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

LANES = 1024
STATE_BYTES = 2 * LANES
DIGEST_BYTES = STATE_BYTES + 8

_LARGEST_COUNT = 2**64 - 1
_ELEMENT_DOMAIN = b"silo-digest-element-1\0"
_PUBLISHED_DOMAIN = b"silo-digest-published-1\0"
_BLOCK = 64
"""Records expanded before they are added up: 128 KiB, which stays in the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """The sum over a set of records, and how many they are."""

    state: NDArray[np.uint16]
    count: int

    def __post_init__(self) -> None:
        if self.state.shape != (LANES,) or self.state.dtype != np.dtype("<u2"):
            raise ValueError(f"the state of a digest is {LANES} little-endian uint16")
        if not 0 <= self.count <= _LARGEST_COUNT:
            raise ValueError(f"a digest of {self.count} records cannot be")
        self.state.setflags(write=False)

    @classmethod
    def of(cls, elements: Iterable[bytes] = ()) -> Self:
        """The digest of these records, in any order."""
        state, count, rest = np.zeros(LANES, "<u2"), 0, iter(elements)
        while block := [_expanded(element) for element in islice(rest, _BLOCK)]:
            lanes = np.frombuffer(b"".join(block), "<u2").reshape(-1, LANES)
            state += np.add.reduce(lanes, axis=0, dtype=np.uint16)
            count += len(block)
        return cls(state, count)

    def __add__(self, other: Digest) -> Digest:
        """Both sets of records together."""
        return Digest(self.state + other.state, self.count + other.count)

    def __sub__(self, other: Digest) -> Digest:
        """These records without the others, all of which must be among them."""
        return Digest(self.state - other.state, self.count - other.count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and self.as_bytes() == other.as_bytes()

    def __hash__(self) -> int:
        return hash(self.as_bytes())

    def as_bytes(self) -> bytes:
        """The state and the count, always 2,056 bytes."""
        return self.state.tobytes() + self.count.to_bytes(8, "little")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `as_bytes`."""
        if len(data) != DIGEST_BYTES:
            raise ValueError(f"a digest has {DIGEST_BYTES} bytes, not {len(data)}")
        return cls(np.frombuffer(data, "<u2", LANES).copy(), int.from_bytes(data[STATE_BYTES:], "little"))

    def published(self, config: str) -> str:
        """SHA-256 (hex) over domain, count, length of config, config and state: only config varies in length."""
        named = config.encode()
        parts = (self.count.to_bytes(8, "little"), len(named).to_bytes(8, "little"), named, self.state.tobytes())
        return hashlib.sha256(_PUBLISHED_DOMAIN + b"".join(parts)).hexdigest()


def _expanded(element: bytes) -> bytes:
    return hashlib.shake_256(_ELEMENT_DOMAIN + element).digest(STATE_BYTES)
