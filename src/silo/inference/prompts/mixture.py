"""The mixture after prompts, for the tokens that somebody wants to know about, under any settings.

An entry is the probability of one token after one place; it is that of the full distribution over the vocabulary, of
which the other tokens are not kept. Neighbours are kept by distance, so that every k and tau can be tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from silo.inference.mix import Floats, component_weights, mixed, neighbour_weights
from silo.inference.settings import Features, Settings


@dataclass(frozen=True, slots=True, eq=False)
class LanguageModelPart:
    """The language model's probability of every entry, and of the likeliest token at every place."""

    entries: Floats
    peaks: Floats


@dataclass(frozen=True, slots=True, eq=False)
class NeighbourPart:
    """Per place the nearest keys: the entry of the token that followed (-1: nobody wants it), and the distance.

    `kinds` is how many different tokens followed the very nearest.
    """

    entries: NDArray[np.int32]
    distances: NDArray[np.float32]
    kinds: NDArray[np.int64]

    @property
    def closest(self) -> Floats:
        """The distance of the nearest; inf without one."""
        return self.distances[:, 0].astype(np.float64)

    def shares(self, k: int, tau: float, entries: int) -> Floats:
        """P_kNN of every entry."""
        weights = neighbour_weights(self.distances[:, :k], tau)
        near = self.entries[:, :k]
        wanted = near >= 0
        return np.bincount(near[wanted], weights=weights[wanted], minlength=entries).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class NgramPart:
    """Per place the longest match, and of every level the count and how many different tokens follow; per entry its
    share in each level."""

    lengths: NDArray[np.int64]
    totals: NDArray[np.int64]
    kinds: NDArray[np.int64]
    shares: NDArray[np.float32]


@dataclass(slots=True, eq=False)
class PromptObservations:
    """`places` names the place of each entry. `ric` is what the language model says with passages before the prompt."""

    places: NDArray[np.int64]
    lm: LanguageModelPart
    ric: LanguageModelPart | None
    neighbours: NeighbourPart | None
    ngram: NgramPart
    _latest: tuple[tuple[int, float], Floats] | None = field(default=None)

    def probabilities(self, method: frozenset[str], settings: Settings) -> Floats:
        """The mixture's probability of every entry, as `Reader.predict` mixes it."""
        part = self.ric if "ric" in method else self.lm
        assert part is not None, "the prompts were read without passages"
        ngram = self.ngram
        near_kinds = np.zeros_like(ngram.lengths) if self.neighbours is None else self.neighbours.kinds
        closest = self._closest(part.peaks, settings)
        features = Features(part.peaks, closest, near_kinds, ngram.lengths, ngram.totals, ngram.kinds)
        weights = component_weights(settings.gates(method, features))
        columns = [part.entries[:, None]]
        if "knn" in method:
            columns.append(self._neighbour_shares(settings.k, settings.tau)[:, None])
        if "ngram" in method:
            columns.append(self.ngram.shares.astype(np.float64))
        return mixed(weights[self.places], np.concatenate(columns, axis=1))

    def _closest(self, peaks: Floats, settings: Settings) -> Floats:
        if self.neighbours is None:
            return np.full(len(peaks), np.inf)
        return np.where(settings.asks_neighbours(peaks), self.neighbours.closest, np.inf)

    def _neighbour_shares(self, k: int, tau: float) -> Floats:
        """The latest is kept: a search over weights asks for the same k and tau many times."""
        assert self.neighbours is not None
        if self._latest is None or self._latest[0] != (k, tau):
            self._latest = (k, tau), self.neighbours.shares(k, tau, len(self.places))
        return self._latest[1]
