"""The words of passages as integers: how documents are cut, how text becomes words, and what a bucket keeps of it.

A passage is a run of tokens of one document. A word is a run of letters, digits and combining marks, in lower case by
Unicode; everything else parts words and is dropped. An ideograph or kana is a word of its own, so that text without
spaces has words too. A word's number, its term, is a hash of its UTF-8 bytes (FNV-1a and a mixer) and the same in every
process; two words that clash, one pair in 2^64, count as one.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError

Terms = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Rows = NDArray[np.uint32]
Small = NDArray[np.unsignedinteger[Any]]
"""uint8, uint16 or uint32: the narrowest that holds the largest value."""

ANALYSIS = f"words-1 unicode-{unicodedata.unidata_version}"
"""Names how `terms` works: a store filled under another name must be filled again."""

_APART, _PART, _ALONE = 0, 1, 2
_CODE_POINTS = 0x40000
"""Beyond these lie only tags, variation selectors and private use."""
_KANA = ((0x3041, 0x3100), (0x31F0, 0x3200))
_IDEOGRAPHS = ((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x40000))


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Where passages lie: the row of the document in its bucket, the first token and the token after the last."""

    documents: Rows
    firsts: Rows
    ends: Rows

    def __len__(self) -> int:
        return len(self.documents)


@dataclass(frozen=True, slots=True, eq=False)
class PassageArrays:
    """The passages of one bucket; equal documents give equal bytes.

    `terms` uint64 ascending; the postings of term i are `passages` and `counts` from `starts[i]` to `starts[i + 1]`
    (uint32), passages ascending. `lengths` (words), `documents`, `firsts` and `ends` (see `Spans`) are uint32, one per
    passage.
    """

    terms: Terms
    starts: Rows
    passages: Small
    counts: Small
    lengths: Rows
    documents: Rows
    firsts: Rows
    ends: Rows

    def __post_init__(self) -> None:
        wide = all(len(array) == len(self) for array in (self.documents, self.firsts, self.ends))
        listed = len(self.starts) == len(self.terms) + 1 and len(self.passages) == len(self.counts)
        if not (wide and listed and _are_postings(self.terms, self.starts, self.passages, self.counts, len(self))):
            raise SiloError("corpus-damaged", "the passages of a bucket do not fit together", "fill the bucket again")

    def __len__(self) -> int:
        return len(self.lengths)


def cut(tokens: Sequence[int], *, length: int, stride: int) -> Spans:
    """Passages of `length` tokens, one every `stride` tokens, for documents of so many tokens each.

    None crosses documents, the last of a document may be shorter, and none lies wholly within the one before it.
    """
    if not 1 <= stride <= length:
        raise SiloError("recipe-value", f"stride is {stride}, not 1 to the passage length {length}")
    sizes = np.asarray(tokens, dtype=np.int64)
    each = np.where(sizes > 0, 1 + np.maximum(0, -((length - sizes) // stride)), 0)
    documents = np.repeat(np.arange(len(sizes)), each)
    firsts = (np.arange(len(documents)) - np.repeat(np.cumsum(each) - each, each)) * stride
    ends = np.minimum(firsts + length, sizes[documents])
    return Spans(*(array.astype(np.uint32) for array in (documents, firsts, ends)))


def build(words: Sequence[Terms], spans: Spans) -> PassageArrays:
    """The arrays of one bucket from the words of each of its passages (see `terms`)."""
    if len(words) != len(spans):
        raise ValueError(f"words of {len(words)} passages for {len(spans)} spans")
    lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
    terms, numbers = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *words]), return_inverse=True)
    pairs = numbers * len(words) + np.repeat(np.arange(len(words)), lengths)
    pairs, counts = np.unique(pairs, return_counts=True)
    owners, passages = np.divmod(pairs, max(1, len(words)))
    return PassageArrays(
        terms=terms,
        starts=np.searchsorted(owners, np.arange(len(terms) + 1)).astype(np.uint32),
        passages=_narrow(passages),
        counts=_narrow(counts),
        lengths=lengths.astype(np.uint32),
        documents=spans.documents,
        firsts=spans.firsts,
        ends=spans.ends,
    )


def terms(text: str) -> Terms:
    """The term of each word, in order, repeats included."""
    data = np.frombuffer(text.lower().encode("utf-8", "surrogatepass"), dtype=np.uint8)
    numbers = np.empty(len(data) // 2 + 1, dtype=np.uint64)
    return numbers[: _hash_words(data, _classes(), numbers)].copy()


def _narrow(values: NDArray[Any]) -> Small:
    """The values in the narrowest unsigned integers that hold them all."""
    narrow: Small = values.astype(np.min_scalar_type(int(values.max(initial=0))))
    return narrow


def _are_postings(terms: Terms, starts: Rows, passages: Small, counts: Small, size: int) -> bool:
    """Nothing points outside its array, and terms ascend."""
    ordered = bool((terms[1:] > terms[:-1]).all() and (starts[1:] > starts[:-1]).all())
    whole = starts[0] == 0 and starts[-1] == len(passages)
    return bool(ordered and whole and int(passages.max(initial=0)) < max(1, size) and counts.all())


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
