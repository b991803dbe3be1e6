"""The one word hasher: words as 64-bit numbers, in two readings of what a word is; compiled with numba.

`word_hashes` and `ngram_hashes` read bytes, for deduplication, decontamination, overlap and copies: a word is a run of
ASCII letters and digits (case folded) and of other characters beyond ASCII; typographic punctuation parts words as
plain punctuation does, and an ideograph, kana or Hangul syllable is a word of its own, so that text without spaces has
n-grams too. A text of fewer than n words has one n-gram: all of its words.

`terms` reads characters, for passage search: a word is a run of letters, digits and combining marks, in lower case by
Unicode; everything else parts words and is dropped. An ideograph or kana is a word of its own.

A word's number is FNV-1a over its UTF-8 bytes, finished by a mixer: the same in every process. Two words that clash,
one pair in 2^64, count as one. Stores hold terms and receipts are checked against n-grams: no number may ever change.
"""

from __future__ import annotations

import unicodedata
from functools import cache

import numba
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]

ANALYSIS = f"words-1 unicode-{unicodedata.unidata_version}"
"""Names how `terms` works: a store filled under another name must be filled again."""

_BETWEEN, _LETTER, _ALONE, _WIDE = 0, 1, 2, 3
"""What a byte or code point is: between words, part of a word, a word of its own; `_WIDE` is the first byte of a
character that only its next bytes can tell."""

_BYTE_KINDS = np.full(256, _BETWEEN, dtype=np.uint8)
_BYTE_KINDS[0x30:0x3A] = _BYTE_KINDS[0x41:0x5B] = _BYTE_KINDS[0x61:0x7B] = _BYTE_KINDS[0x80:] = _LETTER
_BYTE_KINDS[0xC2] = _BYTE_KINDS[0xE2:0xEE] = _WIDE

_EMPTY_WORD = np.uint64(0xCBF29CE484222325)

_FOLD = np.arange(256, dtype=np.uint8)
_FOLD[0x41:0x5B] += 32

_CODE_POINTS = 0x40000
"""Beyond these lie only tags, variation selectors and private use."""
_KANA = ((0x3041, 0x3100), (0x31F0, 0x3200))
_IDEOGRAPHS = ((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x40000))


def word_hashes(text: str) -> Hashes:
    """One 64-bit hash per word, read as bytes."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    out = np.empty(len(data) // 2 + 1, dtype=np.uint64)
    return out[: _hash_byte_words(data, out, _BYTE_KINDS, _FOLD)]


def ngram_hashes(text: str, n: int) -> Hashes:
    """One 64-bit hash per n-gram of the words read as bytes, in order, repeats included."""
    words = word_hashes(text)
    out = np.empty(len(words), dtype=np.uint64)
    return out[: _hash_ngrams(words, len(words), n, out)]


def terms(text: str) -> Hashes:
    """One 64-bit hash per word, read as characters, in order, repeats included."""
    data = np.frombuffer(text.lower().encode("utf-8", "surrogatepass"), dtype=np.uint8)
    out = np.empty(len(data) // 2 + 1, dtype=np.uint64)
    return out[: _hash_character_words(data, out, _character_kinds())].copy()


@cache
def _character_kinds() -> Bytes:
    """What each code point is to a word."""
    kinds = np.zeros(_CODE_POINTS, dtype=np.uint8)
    for point in range(_CODE_POINTS):
        letter = chr(point)
        if letter.isalnum() or unicodedata.category(letter)[0] == "M":
            kinds[point] = _LETTER
    for first, end in (*_KANA, *_IDEOGRAPHS):
        kinds[first:end][kinds[first:end] == _LETTER] = _ALONE
    return kinds


@numba.njit(inline="always")
def _mix(value: np.uint64) -> np.uint64:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(inline="always")
def _hash_byte(word: np.uint64, byte: np.uint8) -> np.uint64:
    """FNV-1a: the hash of a word that goes on with one more byte; it begins with `_EMPTY_WORD`."""
    return (word ^ np.uint64(byte)) * np.uint64(0x100000001B3)


@numba.njit(inline="always")
def _wide_length(text: Bytes, at: int, size: int) -> int:
    """What the character at a `_WIDE` byte is: minus its length for punctuation, its length for a word of its own,
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
def _hash_byte_words(text: Bytes, out: Hashes, kinds: Bytes, fold: Bytes) -> int:
    """Write the hash of each word of UTF-8 bytes and return how many there are."""
    count = 0
    size = len(text)
    at = 0
    while at < size:
        kind = kinds[text[at]]
        if kind == _BETWEEN:
            at += 1
            continue
        length = _wide_length(text, at, size) if kind == _WIDE else 0
        if length < 0:
            at -= length
            continue
        word = _EMPTY_WORD
        if length > 0:
            for byte in text[at : at + length]:
                word = _hash_byte(word, byte)
            at += length
        else:
            while at < size:
                byte = text[at]
                kind = kinds[byte]
                if kind == _BETWEEN or (kind == _WIDE and _wide_length(text, at, size) != 0):
                    break
                word = _hash_byte(word, fold[byte])
                at += 1
        out[count] = _mix(word)
        count += 1
    return count


@numba.njit(cache=True, nogil=True)
def _hash_ngrams(words: Hashes, count: int, n: int, out: Hashes) -> int:
    """Polynomial rolling hash over n word hashes, finished by the mixer; returns how many n-grams there are."""
    if count == 0:
        return 0
    base = np.uint64(0x9E3779B97F4A7C15)
    width = min(n, count)
    leaving = np.uint64(1)
    for _ in range(width):
        leaving *= base
    rolling = np.uint64(0)
    ngrams = 0
    for at in range(count):
        rolling = rolling * base + words[at]
        if at >= width:
            rolling -= leaving * words[at - width]
        if at >= width - 1:
            out[ngrams] = _mix(rolling + np.uint64(width))
            ngrams += 1
    return ngrams


@numba.njit(inline="always")
def _decode_character(data: Bytes, at: int) -> tuple[np.int64, int]:
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
def _hash_character_words(text: Bytes, out: Hashes, kinds: Bytes) -> int:
    """Write the hash of each word of lower-case text and return how many there are."""
    count, at = 0, 0
    inside = False
    word = _EMPTY_WORD
    while at < len(text):
        point, width = _decode_character(text, at)
        kind = kinds[point] if point < len(kinds) else _BETWEEN
        if inside and kind != _LETTER:
            out[count] = _mix(word)
            count += 1
            inside = False
        if kind != _BETWEEN:
            if not inside:
                word = _EMPTY_WORD
            for byte in text[at : at + width]:
                word = _hash_byte(word, byte)
            inside = kind == _LETTER
            if kind == _ALONE:
                out[count] = _mix(word)
                count += 1
        at += width
    if inside:
        out[count] = _mix(word)
        count += 1
    return count
