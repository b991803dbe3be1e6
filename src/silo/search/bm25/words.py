"""The words of a text as integers.

A word is a run of letters, digits and combining marks, in lower case by
Unicode; everything else parts words and is dropped. An ideograph or kana is a word of its own, so that text without
spaces has words too. A word's number, its term, is a hash of its UTF-8 bytes (FNV-1a and a mixer) and the same in every
process; two words that clash, one pair in 2^64, count as one.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import unicodedata
from functools import cache

import numba
import numpy as np
from numpy.typing import NDArray

Terms = NDArray[np.uint64]
Bytes = NDArray[np.uint8]

ANALYSIS = f"words-1 unicode-{unicodedata.unidata_version}"
"""Names how `terms` works: a store filled under another name must be filled again."""

_APART, _PART, _ALONE = 0, 1, 2
_CODE_POINTS = 0x40000
"""Beyond these lie only tags, variation selectors and private use."""
_KANA = ((0x3041, 0x3100), (0x31F0, 0x3200))
_IDEOGRAPHS = ((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x40000))


def terms(text: str) -> Terms:
    """The term of each word, in order, repeats included."""
    data = np.frombuffer(text.lower().encode("utf-8", "surrogatepass"), dtype=np.uint8)
    numbers = np.empty(len(data) // 2 + 1, dtype=np.uint64)
    return numbers[: _hash_words(data, _classes(), numbers)].copy()


@cache
def _classes() -> Bytes:
    """What each code point is to a word."""
    kinds = np.zeros(_CODE_POINTS, dtype=np.uint8)
    for point in range(_CODE_POINTS):
        letter = chr(point)
        if letter.isalnum() or unicodedata.category(letter)[0] == "M":
            kinds[point] = _PART
    for first, end in (*_KANA, *_IDEOGRAPHS):
        kinds[first:end][kinds[first:end] == _PART] = _ALONE
    return kinds


@numba.njit(cache=True, nogil=True)
def _mixed(value: np.uint64) -> np.uint64:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(cache=True, nogil=True)
def _character(data: Bytes, at: int) -> tuple[np.int64, int]:
    """The code point that starts here and how many bytes it has; the bytes are valid UTF-8."""
    lead = np.int64(data[at])
    if lead < 0x80:
        return lead, 1
    second = np.int64(data[at + 1]) & 0x3F
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | second, 2
    third = np.int64(data[at + 2]) & 0x3F
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | second << 6 | third, 3
    return (lead & 0x07) << 18 | second << 12 | third << 6 | np.int64(data[at + 3]) & 0x3F, 4


@numba.njit(cache=True, nogil=True)
def _hash_words(data: Bytes, kinds: Bytes, numbers: Terms) -> int:
    """Write the number of each word and return how many there are."""
    made, at = 0, 0
    inside = False
    word = np.uint64(0)
    while at < len(data):
        point, width = _character(data, at)
        kind = kinds[point] if point < len(kinds) else _APART
        if inside and kind != _PART:
            numbers[made] = _mixed(word)
            made += 1
            inside = False
        if kind != _APART:
            if not inside:
                word = np.uint64(0xCBF29CE484222325)
            for offset in range(width):
                word = (word ^ np.uint64(data[at + offset])) * np.uint64(0x100000001B3)
            inside = kind == _PART
            if kind == _ALONE:
                numbers[made] = _mixed(word)
                made += 1
        at += width
    if inside:
        numbers[made] = _mixed(word)
        made += 1
    return made
