"""Gates: how much of the prediction a component may take, as a table over a few features with straight lines between.

A gate has nodes along each feature and a weight in [0, 1] at every crossing. Between nodes the weight is interpolated,
beyond them it is that of the nearest node, so that it never jumps. A gate without features is a constant.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """`nodes` per feature, ascending; `weights` has one axis per feature."""

    nodes: tuple[tuple[float, ...], ...]
    weights: Floats
    _lines: tuple[Floats, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lines", tuple(map(np.array, self.nodes)))
        fits = self.weights.shape == tuple(map(len, self.nodes))
        rising = all(a < b for line in self.nodes for a, b in pairwise(line))
        if not (fits and rising and all(self.nodes) and ((self.weights >= 0) & (self.weights <= 1)).all()):
            raise SiloError("settings-invalid", "a gate needs rising nodes and one weight in [0, 1] for each crossing")

    @classmethod
    def constant(cls, weight: float) -> Gate:
        """The same weight everywhere."""
        return cls((), np.array(float(weight)))

    def of(self, *features: NDArray[Any]) -> Floats:
        """The weight at each position; features are arrays of one length, in the order of `nodes`; more are unused."""
        if not self.nodes:
            return np.full(len(features[0]), self.weights)
        where, shares = self.corners(*features)
        weights = np.empty(len(where))
        _sum_corners(self.weights.ravel(), where, shares, weights)
        return weights

    def corners(self, *features: NDArray[Any]) -> tuple[NDArray[np.int64], Floats]:
        """Per position the crossings around it (numbers in the flat table) and their shares, which sum to 1."""
        shape = (len(features[0]), 1 << len(self.nodes))
        where, shares = np.zeros(shape, dtype=np.int64), np.ones(shape)
        for axis, (line, feature) in enumerate(zip(self._lines, features, strict=False)):
            _corners(np.asarray(feature, dtype=np.float64), line, axis, where, shares)
        return where, shares

    def as_json(self) -> dict[str, Any]:
        """Plain lists."""
        return {"nodes": [list(line) for line in self.nodes], "weights": self.weights.tolist()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Gate:
        """The inverse of `as_json`."""
        return cls(tuple(map(tuple, content["nodes"])), np.array(content["weights"], dtype=np.float64))


@numba.njit(cache=True, nogil=True)
def _corners(feature: Any, line: Any, axis: int, where: Any, shares: Any) -> None:
    """Extend the crossings by one axis: bit `axis` of a corner's number says whether it is the upper node."""
    last = len(line) - 1
    for row in range(len(feature)):
        value = min(max(feature[row], line[0]), line[last])
        low = max(0, min(np.searchsorted(line, value, side="right") - 1, last - 1))
        high = min(low + 1, last)
        part = (value - line[low]) / (line[high] - line[low]) if high > low else 0.0
        for corner in range(where.shape[1]):
            upper = (corner >> axis) & 1
            where[row, corner] = where[row, corner] * len(line) + (high if upper else low)
            shares[row, corner] *= part if upper else 1.0 - part


@numba.njit(cache=True, nogil=True)
def _sum_corners(table: Any, where: Any, shares: Any, weights: Any) -> None:
    for row in range(len(where)):
        weights[row] = 0.0
        for corner in range(where.shape[1]):
            weights[row] += table[where[row, corner]] * shares[row, corner]


def log_nodes(values: Sequence[int]) -> tuple[float, ...]:
    """Nodes for counts, which are compared by their logarithm: give `log_counts` of a feature to such a gate."""
    return tuple(log_counts(np.array(values)).tolist())


def log_counts(counts: NDArray[Any]) -> Floats:
    """log2(1 + count)."""
    logs: Floats = np.log2(1.0 + counts)
    return logs
