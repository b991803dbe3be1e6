"""Sketches of texts: a sample of the 13-word runs of each, which tells how much of another text is in it.

Of a text's distinct runs, as the numbers of `silo.text.words`, a sketch keeps all below 2^64 / 32, and the 32 smallest
in any case: everything below a bound (bottom-k sketches: Broder, 1997; a bound in proportion: Irber et al., 2022). It
is known exactly which runs of another text below that bound are in this one; their share estimates that of all.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silo.text.words import Hashes, ngram_hashes

RUN = 13
_SMALLEST = 32
_ONE_IN = 32
_BOUND = np.uint64((1 << 64) // _ONE_IN)
_NO_BOUND = np.uint64((1 << 64) - 1)


def sketch(text: str) -> Hashes:
    """The sketch of a text, in ascending order; of a text of fewer runs all of them."""
    runs = ngram_hashes(text, RUN)
    low = np.unique(runs[runs < _BOUND])
    return low if len(low) >= _SMALLEST else np.unique(runs)[:_SMALLEST]


def chance_to_miss(text: str) -> float:
    """How likely no run of a text is in the sketch of a much longer one that holds it whole."""
    runs = len(np.unique(ngram_hashes(text, RUN)))
    return float((1 - 1 / _ONE_IN) ** runs)


@dataclass(frozen=True, slots=True)
class Overlap:
    """How much a text shares with sketched ones, at least as far as the samples tell.

    `share` is the part of its runs that is in one of them, or in all together if that is more; `text` is the one that
    has most of it, `contained` the part of that one's runs that is in the text, and `hits` how many runs showed it.
    """

    share: float
    contained: float
    hits: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Sketches:
    """Sketches by text hash: those of text n are `hashes[ends[n - 1] : ends[n]]`.

    As bytes: an uncompressed npz with `texts` (n x 16 bytes, in order), `ends` and `hashes` (u64).
    """

    texts: NDArray[np.uint8]
    ends: NDArray[np.uint64]
    hashes: Hashes

    @classmethod
    def of(cls, sketched: Iterable[tuple[bytes, Hashes]]) -> Sketches:
        """From (text hash, sketch), in any order, repeats included."""
        by_text = sorted(dict(sketched).items())
        texts = np.frombuffer(b"".join(text for text, _ in by_text), dtype=np.uint8).reshape(-1, 16)
        ends = np.cumsum([len(hashes) for _, hashes in by_text], dtype=np.uint64)
        return cls(texts, ends, np.concatenate([np.empty(0, dtype=np.uint64), *(hashes for _, hashes in by_text)]))

    @classmethod
    def from_bytes(cls, data: bytes) -> Sketches:
        """The inverse of `as_bytes`; a ValueError for anything else."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                found = cls(file["texts"], file["ends"], file["hashes"])
        except Exception as error:  # zip files and arrays that are broken raise errors of many kinds
            raise ValueError(f"not sketches: {error}") from None
        kinds = [array.dtype for array in (found.texts, found.ends, found.hashes)]
        last = int(found.ends[-1]) if found.ends.size else 0
        if kinds != [np.uint8, np.uint64, np.uint64] or found.texts.shape != (found.ends.size, 16):
            raise ValueError("not sketches: other arrays")
        if last != len(found.hashes) or (np.diff(found.ends.astype(np.int64)) < 0).any():
            raise ValueError("not sketches: the ends do not fit")
        return found

    def as_bytes(self) -> bytes:
        buffer = io.BytesIO()
        np.savez(buffer, texts=self.texts, ends=self.ends, hashes=self.hashes)
        return buffer.getvalue()

    def items(self) -> Iterable[tuple[bytes, Hashes]]:
        """(text hash, sketch) of each."""
        starts = [0, *self.ends.tolist()]
        for at, text in enumerate(self.texts):
            yield text.tobytes(), self.hashes[starts[at] : starts[at + 1]]

    def select(self, wanted: Collection[bytes]) -> Sketches:
        """The sketches of some texts, as far as they are here."""
        return Sketches.of((text, hashes) for text, hashes in self.items() if text in wanted)

    def find(self, text: str) -> Overlap:
        """How much of a text is in the sketched ones."""
        runs = np.unique(ngram_hashes(text, RUN))
        ends = self.ends.astype(np.int64)
        counts = ends - np.concatenate([[0], ends[:-1]])
        if not len(runs) or not len(self.hashes):
            return Overlap(0.0, 0.0, 0, b"")
        common = np.isin(self.hashes, runs)
        hits = _sums(common, counts)
        known = runs.searchsorted(self._bounds(counts), side="right")
        shares = hits / np.maximum(known, 1)
        best = int(np.lexsort((hits, shares))[-1])
        low = runs[runs < _BOUND]
        together = float(np.isin(low, self.hashes[common]).mean()) if len(low) >= _SMALLEST else 0.0
        share = max(float(shares[best]), together)
        return Overlap(share, float(hits[best] / max(1, counts[best])), int(hits[best]), self.texts[best].tobytes())

    def _bounds(self, counts: NDArray[np.int64]) -> Hashes:
        """Up to where each sketch has every run of its text."""
        last = self.hashes[np.maximum(self.ends.astype(np.int64) - 1, 0)]
        return np.where(counts < _SMALLEST, _NO_BOUND, np.maximum(last, _BOUND)).astype(np.uint64)


def _sums(values: NDArray[np.bool_], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of values over stretches of these lengths, some of which may be empty."""
    totals = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    ends = np.cumsum(counts)
    sums: NDArray[np.int64] = totals[ends] - totals[ends - counts]
    return sums
