"""Word n-grams as 64-bit hashes, and a Bloom filter over them; compiled with numba, no Python loop over words.

A word is a run of ASCII letters and digits (case folded) and other characters beyond ASCII; typographic punctuation
parts words as plain punctuation does, and an ideograph, kana or Hangul syllable is a word of its own, so that text
without spaces has n-grams too. A text of fewer than n words has one
n-gram: all of its words.

The filter is blocked: all probes of one item fall into one 64-byte block, which costs one cache miss per item.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Starts = NDArray[np.int64]

_BLOCK_WORDS = 8
_BLOCK_BITS = 512
_MAX_PROBES = 7
_GROUP = 32

_SPACE, _WORD, _LOOK = 0, 1, 2

_CLASS = np.full(256, _SPACE, dtype=np.uint8)
_CLASS[0x30:0x3A] = _CLASS[0x41:0x5B] = _CLASS[0x61:0x7B] = _CLASS[0x80:] = _WORD
_CLASS[0xC2] = _CLASS[0xE2:0xEE] = _LOOK
"""What a byte is: white space or punctuation, part of a word, or the first byte of a character to look at."""

_FOLD = np.arange(256, dtype=np.uint8)
_FOLD[0x41:0x5B] += 32


@numba.njit(inline="always")
def _mix(value: np.uint64) -> np.uint64:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(inline="always")
def _look(text: Bytes, at: int, size: int) -> int:
    """What the character at a `_LOOK` byte is: minus its length for punctuation, its length for a word of its own,
    0 for an ordinary letter.

    Punctuation is U+0080 to U+00BF, U+2000 to U+207F and U+3000 to U+303F; words of their own are U+2E80 to U+A4BF
    and U+AC00 to U+D7FF.
    """
    lead = text[at]
    if at + 1 >= size:
        return 0
    second = text[at + 1]
    if lead == 0xC2:
        return -2
    if at + 2 >= size:
        return 0
    if (lead == 0xE2 and second <= 0x81) or (lead == 0xE3 and second == 0x80):
        return -3
    if lead == 0xE2:
        return 3 if second >= 0xBA else 0
    if lead == 0xEA:
        return 3 if second < 0x93 or second >= 0xB0 else 0
    return 3 if lead < 0xED or second < 0xA0 else 0


@numba.njit(cache=True, nogil=True)
def _word_hashes(text: Bytes, out: Hashes, classes: Bytes, fold: Bytes) -> int:
    count = 0
    size = len(text)
    at = 0
    while at < size:
        kind = classes[text[at]]
        if kind == _SPACE:
            at += 1
            continue
        length = _look(text, at, size) if kind == _LOOK else 0
        if length < 0:
            at -= length
            continue
        word = np.uint64(0xCBF29CE484222325)
        if length > 0:
            for byte in text[at : at + length]:
                word = (word ^ np.uint64(byte)) * np.uint64(0x100000001B3)
            at += length
        else:
            while at < size:
                byte = text[at]
                kind = classes[byte]
                if kind == _SPACE or (kind == _LOOK and _look(text, at, size) != 0):
                    break
                word = (word ^ np.uint64(fold[byte])) * np.uint64(0x100000001B3)
                at += 1
        out[count] = _mix(word)
        count += 1
    return count


@numba.njit(cache=True, nogil=True)
def _ngram_hashes(words: Hashes, count: int, n: int, out: Hashes) -> int:
    """Polynomial rolling hash over n word hashes, finished by the mixer."""
    if count == 0:
        return 0
    base = np.uint64(0x9E3779B97F4A7C15)
    width = min(n, count)
    leaving = np.uint64(1)
    for _ in range(width):
        leaving *= base
    rolling = np.uint64(0)
    made = 0
    for at in range(count):
        rolling = rolling * base + words[at]
        if at >= width:
            rolling -= leaving * words[at - width]
        if at >= width - 1:
            out[made] = _mix(rolling + np.uint64(width))
            made += 1
    return made


def as_bytes(text: str) -> Bytes:
    """The UTF-8 bytes of a text as an array that numba reads without a copy."""
    return np.frombuffer(text.encode(), dtype=np.uint8)


def word_hashes(text: str) -> Hashes:
    """One 64-bit hash per word."""
    data = as_bytes(text)
    out = np.empty(len(data) // 2 + 1, dtype=np.uint64)
    return out[: _word_hashes(data, out, _CLASS, _FOLD)]


def ngram_hashes(text: str, n: int) -> Hashes:
    """One 64-bit hash per word n-gram, in order, repeats included."""
    words = word_hashes(text)
    out = np.empty(len(words), dtype=np.uint64)
    return out[: _ngram_hashes(words, len(words), n, out)]


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
    found = np.int64(0)
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
            found += np.int64(hit)
    return int(found)


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


def _group() -> tuple[Starts, Hashes]:
    return np.empty(_GROUP, dtype=np.int64), np.empty(_GROUP, dtype=np.uint64)


def _zeros(words: int) -> Hashes:
    """Zeroed memory that begins at a cache line, so that a block is one line and touching it fetches all of it."""
    room = np.zeros(words + _BLOCK_WORDS, dtype=np.uint64)
    skip = -room.ctypes.data % (8 * _BLOCK_WORDS) // 8
    return room[skip : skip + words]


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
