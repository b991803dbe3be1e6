"""Which buckets a set of documents makes: a function of the documents alone, so that no history shows in it.

A bucket is named by the leading bits of its documents' ids. The bits of a prefix grow until the text under it fits
`bucket_bytes`: a store of any size has buckets of one size, and an erasure rewrites little more than one of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DEPTH = 16
"""The most bits of a prefix; sizes are counted per prefix of this length."""

Sizes = NDArray[np.int64]


def no_sizes() -> Sizes:
    """Text bytes per prefix of `DEPTH` bits, for no documents."""
    return np.zeros(1 << DEPTH, dtype=np.int64)


def slot(document: bytes) -> int:
    """Where a document counts in `Sizes`."""
    return int.from_bytes(document[: DEPTH // 8], "big")


def leaves(sizes: Sizes, bucket_bytes: int) -> list[str]:
    """The prefixes, as strings of 0 and 1, of the buckets that documents of these sizes make; in order."""
    prefixes: list[str] = []
    _grow("", sizes, bucket_bytes, prefixes)
    return prefixes


def _grow(prefix: str, sizes: Sizes, bucket_bytes: int, prefixes: list[str]) -> None:
    total = int(sizes.sum())
    if not total:
        return
    if total <= bucket_bytes or len(prefix) == DEPTH:
        prefixes.append(prefix)
        return
    half = len(sizes) // 2
    _grow(prefix + "0", sizes[:half], bucket_bytes, prefixes)
    _grow(prefix + "1", sizes[half:], bucket_bytes, prefixes)


def bits_of(document: bytes) -> str:
    """The leading bits of a document's id."""
    return f"{slot(document):0{DEPTH}b}"


def leaf_of(document: bytes, prefixes: Sequence[str]) -> str | None:
    """The prefix that a document falls under; the prefixes are those of one layout, in order."""
    bits = bits_of(document)
    at = bisect_right(prefixes, bits) - 1
    return prefixes[at] if at >= 0 and bits.startswith(prefixes[at]) else None


def part_of(prefix: str, parts: int) -> int:
    """Which of so many equal ranges of document ids a bucket begins in; the buckets of a range are next to each other.

    Ids are hashes, so that ranges hold about as much each, and a bucket stays in its range when others change.
    """
    return int(prefix.ljust(DEPTH, "0"), 2) * parts >> DEPTH


def any_under(prefix: str, marks: Sequence[str]) -> bool:
    """True if any of the marks, which are in order, begins with the prefix."""
    at = bisect_left(marks, prefix)
    return at < len(marks) and marks[at].startswith(prefix)


@dataclass(frozen=True, slots=True)
class Group:
    """Buckets that must be exchanged together: everything old and new under one prefix."""

    prefix: str
    old: tuple[str, ...]
    new: tuple[str, ...]


def groups(old: Iterable[str], new: Iterable[str]) -> list[Group]:
    """Old and new buckets, gathered under the shortest prefix that covers both."""
    before, after = sorted(old), sorted(new)
    tops: list[str] = []
    for prefix in sorted({*before, *after}):
        if not tops or not prefix.startswith(tops[-1]):
            tops.append(prefix)
    return [Group(top, _under(top, before), _under(top, after)) for top in tops]


def _under(top: str, prefixes: list[str]) -> tuple[str, ...]:
    return tuple(prefix for prefix in prefixes if prefix.startswith(top))


def bucket_file(prefix: str, sha256: str) -> str:
    """The name of a bucket's file; a new content has a new name, so that old and new can lie side by side."""
    return f"{prefix or 'root'}-{sha256[:16]}.bucket"


def sizes_of(indexes: Iterable[NDArray[np.void]]) -> Sizes:
    """Text bytes per slot of the documents in some bucket indexes."""
    sizes = no_sizes()
    for index in indexes:
        raw = np.frombuffer(index["id"].tobytes(), dtype=np.uint8).reshape(-1, 16)
        slots = raw[:, 0].astype(np.int64) << 8 | raw[:, 1]
        np.add.at(sizes, slots, np.maximum(index["text_bytes"].astype(np.int64), 1))
    return sizes
