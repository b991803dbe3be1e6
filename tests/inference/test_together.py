"""Kernels that work on many texts at once do for each of them what is done for it alone, to the last bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from silo.inference.credit import _share_out
from silo.inference.mix import add_counts, add_neighbours

VOCABULARY, K = 12, 9


class Found:
    """What was found for some texts, drawn at random; a text may have no neighbours, and any number of levels."""

    def __init__(self, seed: int, texts: int) -> None:
        rng = np.random.default_rng(seed)
        self.texts = np.flatnonzero(rng.random(texts) < 0.8)
        self.places = np.full(texts, -1)
        self.places[self.texts] = np.arange(len(self.texts))
        shape = (len(self.texts), K)
        self.values, self.rows = rng.integers(0, VOCABULARY, shape), rng.integers(-1, 6, shape)
        self.stores, self.shares, self.weights = rng.integers(0, 2, shape), rng.random(shape), rng.random(shape[0])
        self.whose = np.repeat(np.arange(texts), rng.integers(0, 4, texts))
        sizes = rng.integers(0, 5, len(self.whose))
        self.ends = np.cumsum(sizes)
        self.tokens = np.concatenate(
            [np.empty(0, np.int64), *(rng.permutation(VOCABULARY)[:size] for size in sizes)]
        ).astype(np.uint32)
        self.counts = rng.integers(1, 50, len(self.tokens))
        self.totals, self.level_weights = rng.integers(100, 200, len(sizes)), rng.random(len(sizes))
        self.chosen, self.probabilities = rng.integers(-1, VOCABULARY, texts), 0.01 + rng.random(texts)
        held = rng.integers(0, 7, texts)
        self.held = rng.integers(0, 300, held.sum()), rng.random(held.sum()), np.cumsum(held)
        self.start = rng.random((texts, VOCABULARY))

    def mix(self) -> NDArray[np.float64]:
        into = self.start.copy()
        add_neighbours(into, self.texts, self.values, self.rows, self.shares, self.weights)
        add_counts(into, self.whose, self.ends, self.tokens, self.counts, self.totals, self.level_weights)
        return into

    def mix_plainly(self, text: int) -> list[float]:
        into = self.start[text].tolist()
        for found in np.flatnonzero(self.texts == text):
            for at in range(K):
                if self.rows[found, at] >= 0:
                    into[self.values[found, at]] += float(self.shares[found, at]) * float(self.weights[found])
        for level in np.flatnonzero(self.whose == text):
            total, weight = int(self.totals[level]), float(self.level_weights[level])
            for at in range(self.ends[level - 1] if level else 0, self.ends[level]):
                into[self.tokens[at]] += int(self.counts[at]) / total * weight
        return [float(value) for value in into]

    def share_out(self, store: int) -> list[dict[int, float]]:
        near: tuple[Any, ...] = (self.values, self.stores, self.rows, self.shares, self.weights)
        rows, shares, ends = _share_out(self.chosen, self.probabilities, store, self.places, near, self.held)
        spans = zip([0, *ends[:-1]], ends, strict=True)
        return [dict(zip(rows[low:high].tolist(), shares[low:high].tolist(), strict=True)) for low, high in spans]

    def share_out_plainly(self, store: int, text: int) -> dict[int, float]:
        sums: dict[int, float] = {}
        for found in np.flatnonzero(self.texts == text):
            for at in range(K):
                here = self.values[found, at] == self.chosen[text] and self.stores[found, at] == store
                if self.chosen[text] >= 0 and here and self.rows[found, at] >= 0:
                    part = float(self.shares[found, at]) * float(self.weights[found])
                    sums[int(self.rows[found, at])] = sums.get(int(self.rows[found, at]), 0.0) + part
        rows, parts, ends = self.held
        for at in range(ends[text - 1] if text else 0, ends[text]):
            sums[int(rows[at])] = sums.get(int(rows[at]), 0.0) + float(parts[at])
        units = {row: math.floor(part / self.probabilities[text] / 2**-40) * 2**-40 for row, part in sums.items()}
        return {row: share for row, share in units.items() if share > 0}


@given(st.integers(0, 2**32), st.integers(1, 6))
@settings(deadline=None, max_examples=100)
def test_texts_are_mixed_and_credited_together_as_each_alone(seed: int, texts: int) -> None:
    found = Found(seed, texts)
    assert found.mix().tolist() == [found.mix_plainly(text) for text in range(texts)]
    for store in (0, 1):
        assert found.share_out(store) == [found.share_out_plainly(store, text) for text in range(texts)]
