"""Intervals by bootstrap over documents: a figure is computed again on documents drawn with replacement.

Every figure is a vector: its value on the documents as they are, then on each resample. Figures of several methods on
the same documents share the draws, so the vector of their difference or ratio is paired, and so is its interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 1000
_LEVEL = 95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval; none (nan) where all draws agree, as those of a single document do."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, figure: Floats) -> Estimate:
        """From a figure's vector; resamples in which it is not defined are left out."""
        known = figure[1:][np.isfinite(figure[1:])]
        varies = len(known) > 0 and float(np.ptp(known)) > 0
        low, high = np.percentile(known, [50 - _LEVEL / 2, 50 + _LEVEL / 2]) if varies else (np.nan, np.nan)
        return cls(float(figure[0]), float(low), float(high))

    def as_json(self) -> dict[str, float | None]:
        """Plain values; what is not defined is null."""
        plain = {"value": self.value, "low": self.low, "high": self.high}
        return {name: value if np.isfinite(value) else None for name, value in plain.items()}


class Resamples:
    """Draws of some documents: how often each is in each draw, the first draw being the documents themselves."""

    def __init__(self, documents: int, *, seed: int = 0, resamples: int = RESAMPLES) -> None:
        self.documents = documents
        rng = np.random.default_rng([seed, documents])
        drawn = rng.multinomial(documents, np.full(documents, 1 / max(1, documents)), size=resamples)
        self._counts = np.concatenate([np.ones((1, documents)), drawn.astype(np.float64)])

    def total(self, per_document: NDArray[np.float64]) -> Floats:
        """The sum over the documents of every draw."""
        totals: Floats = self._counts @ per_document
        return totals

    def mean(self, per_document: NDArray[np.float64]) -> Floats:
        """The mean over the documents of every draw."""
        means: Floats = self.total(per_document) / self.documents
        return means

    def quantile(self, per_document: NDArray[np.float64], share: float) -> Floats:
        """The smallest value that this share of the documents of a draw does not exceed."""
        order = np.argsort(per_document, kind="stable")
        reached = np.cumsum(self._counts[:, order], axis=1) >= share * len(order) - 1e-9
        values: Floats = per_document[order][reached.argmax(axis=1)]
        return values

    def auc(self, mine: NDArray[np.float64], others: NDArray[np.float64], other_draws: Resamples) -> Floats:
        """How often a value of mine is above one of the others, ties counting half; both sides are drawn."""
        above = (mine[:, None] > others) + 0.5 * (mine[:, None] == others)
        wins: Floats = (self.total(above) * other_draws._counts).sum(axis=1) / above.size
        return wins


def perplexity(logs: Floats, tokens: Floats) -> Floats:
    """exp of the mean negative log-probability, draw by draw; not defined without tokens."""
    with np.errstate(divide="ignore", invalid="ignore"):
        figure: Floats = np.exp(np.minimum(-logs / tokens, 700.0))
    return figure


def gap_closed(plain: Floats, method: Floats, reference: Floats) -> Floats:
    """How much of the way from the plain model to the reference a method goes: (Prm - X) / (Prm - reference)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        figure: Floats = (plain - method) / (plain - reference)
    return figure
