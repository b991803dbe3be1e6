"""The passages of one bucket: how documents are cut into them, and which words each holds how often.

A passage is a run of tokens of one document. The arrays are sections of the bucket on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.search.dtypes import UInt32s, UInt64s, Unsigned


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Where passages lie: the row of the document in its bucket, the first token and the token after the last."""

    documents: UInt32s
    firsts: UInt32s
    ends: UInt32s

    def __len__(self) -> int:
        return len(self.documents)


@dataclass(frozen=True, slots=True, eq=False)
class PassageArrays:
    """The passages of one bucket; equal documents give equal bytes.

    `terms` uint64 ascending; the postings of term i are `passages` and `counts` from `starts[i]` to `starts[i + 1]`
    (uint32), passages ascending. `lengths` (words), `documents`, `firsts` and `ends` (see `Spans`) are uint32, one per
    passage.
    """

    terms: UInt64s
    starts: UInt32s
    passages: Unsigned
    counts: Unsigned
    lengths: UInt32s
    documents: UInt32s
    firsts: UInt32s
    ends: UInt32s

    def __post_init__(self) -> None:
        wide = all(len(array) == len(self) for array in (self.documents, self.firsts, self.ends))
        listed = len(self.starts) == len(self.terms) + 1 and len(self.passages) == len(self.counts)
        if not (wide and listed and _are_postings(self.terms, self.starts, self.passages, self.counts, len(self))):
            raise SiloError("store-damaged", "the passages of a bucket do not fit together", "fill the bucket again")

    def __len__(self) -> int:
        return len(self.lengths)


def cut(tokens: Sequence[int], *, length: int, stride: int) -> Spans:
    """Passages of `length` tokens, one every `stride` tokens, for documents of so many tokens each.

    None crosses documents, the last of a document may be shorter, and none lies wholly within the one before it.
    """
    if not 1 <= stride <= length:
        raise ValueError(f"stride is {stride}, not 1 to the passage length {length}")
    sizes = np.asarray(tokens, dtype=np.int64)
    each = np.where(sizes > 0, 1 + np.maximum(0, -((length - sizes) // stride)), 0)
    documents = np.repeat(np.arange(len(sizes)), each)
    firsts = (np.arange(len(documents)) - np.repeat(np.cumsum(each) - each, each)) * stride
    ends = np.minimum(firsts + length, sizes[documents])
    return Spans(*(array.astype(np.uint32) for array in (documents, firsts, ends)))


def build(words: Sequence[UInt64s], spans: Spans) -> PassageArrays:
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


def _narrow(values: NDArray[Any]) -> Unsigned:
    """The values in the narrowest unsigned integers that hold them all."""
    narrow: Unsigned = values.astype(np.min_scalar_type(int(values.max(initial=0))))
    return narrow


def _are_postings(terms: UInt64s, starts: UInt32s, passages: Unsigned, counts: Unsigned, size: int) -> bool:
    """Nothing points outside its array, and terms ascend."""
    ordered = bool((terms[1:] > terms[:-1]).all() and (starts[1:] > starts[:-1]).all())
    whole = starts[0] == 0 and starts[-1] == len(passages)
    return bool(ordered and whole and int(passages.max(initial=0)) < max(1, size) and counts.all())
