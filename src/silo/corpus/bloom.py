"""A Bloom filter over 64-bit hashes: a set in constant memory, compiled with numba.

The filter is blocked: all probes of one item fall into one 64-byte block, which costs one cache miss per item.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from silo.text.words import Hashes

Starts = NDArray[np.int64]

_BLOCK_WORDS = 8
_BLOCK_BITS = 512
_MAX_PROBES = 7
_GROUP = 32


@dataclass(frozen=True, slots=True)
class Bloom:
    """A set of n-gram hashes in constant memory: never misses a member, rarely takes a stranger for one."""

    bits: Hashes
    probes: int

    @classmethod
    def sized(cls, items: int, *, false_positive_rate: float, max_bytes: int) -> Bloom:
        """A filter for about `items` members at the wanted rate, or the best rate `max_bytes` can give.

        A blocked filter needs a little more room than the textbook formula; a quarter is added for that.
        """
        wanted = 1.25 * max(items, 1) * math.log2(1 / false_positive_rate) / math.log(2)
        blocks = max(64, min(math.ceil(wanted / _BLOCK_BITS), max_bytes * 8 // _BLOCK_BITS))
        per_item = blocks * _BLOCK_BITS / max(items, 1)
        probes = min(_MAX_PROBES, max(1, round(per_item * math.log(2) * 0.8)))
        return cls(_zeros(blocks * _BLOCK_WORDS), probes)

    def count_present(self, items: Hashes) -> int:
        """How many of the items, repeats counted, seem to be members."""
        return _count_present(self.bits, items, self.probes, *_group())

    def insert(self, items: Hashes) -> None:
        """Make the items members."""
        _insert(self.bits, items, self.probes, *_group())

    def false_positive_rate(self) -> float:
        """The chance that a stranger is taken for a member now, from how full each block is."""
        set_bits = np.bitwise_count(self.bits).reshape(-1, _BLOCK_WORDS).sum(axis=1, dtype=np.int64)
        return float(np.mean((set_bits / _BLOCK_BITS) ** self.probes))


def _group() -> tuple[Starts, Hashes]:
    return np.empty(_GROUP, dtype=np.int64), np.empty(_GROUP, dtype=np.uint64)


def _zeros(words: int) -> Hashes:
    """Zeroed memory that begins at a cache line, so that a block is one line and touching it fetches all of it."""
    room = np.zeros(words + _BLOCK_WORDS, dtype=np.uint64)
    skip = -room.ctypes.data % (8 * _BLOCK_WORDS) // 8
    return room[skip : skip + words]


@numba.njit(inline="always")
def _mix(value: np.uint64) -> np.uint64:
    """The finaliser of splitmix64: every input bit reaches every output bit.

    Written out here too, since numba's cache does not notice a change in another file.
    """
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(inline="always")
def _block_of(item: np.uint64, blocks: int) -> np.int64:
    return np.int64(((item >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32))


@numba.njit(inline="always")
def _touch(bits: Hashes, items: Hashes, starts: Starts, touched: Hashes) -> None:
    """Read a word of every item's block, so that the cache misses of a group overlap instead of queueing up."""
    blocks = len(bits) // 8
    for at, item in enumerate(items):
        starts[at] = _block_of(item, blocks) * 8
        touched[at] = bits[starts[at]]


@numba.njit(cache=True, nogil=True)
def _count_present(bits: Hashes, items: Hashes, probes: int, starts: Starts, touched: Hashes) -> int:
    """How many items (repeats counted) are in the filter."""
    present = np.int64(0)
    for first in range(0, len(items), len(starts)):
        group = items[first : first + len(starts)]
        _touch(bits, group, starts, touched)
        for at, item in enumerate(group):
            where = _mix(item)
            hit = np.uint64(1)
            for _ in range(probes):  # no early exit: a mispredicted branch costs more than the probes of one cache line
                bit = where & np.uint64(511)
                where >>= np.uint64(9)
                hit &= bits[starts[at] + np.int64(bit >> np.uint64(6))] >> (bit & np.uint64(63))
            present += np.int64(hit)
    return int(present)


@numba.njit(cache=True, nogil=True)
def _insert(bits: Hashes, items: Hashes, probes: int, starts: Starts, touched: Hashes) -> None:
    for first in range(0, len(items), len(starts)):
        group = items[first : first + len(starts)]
        _touch(bits, group, starts, touched)
        for at, item in enumerate(group):
            where = _mix(item)
            for _ in range(probes):
                bit = where & np.uint64(511)
                where >>= np.uint64(9)
                bits[starts[at] + np.int64(bit >> np.uint64(6))] |= np.uint64(1) << (bit & np.uint64(63))
