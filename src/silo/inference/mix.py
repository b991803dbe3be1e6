"""The formula: one distribution from a language model, token neighbours and exact matches of several lengths.

Components stand in a row: the LM first, then kNN, then contexts of the n-gram model from short to long. Each but the
first has a gate in [0, 1]: the share it takes of all that stands before it. With kNN alone this is the paper's
`P = (1 - lambda) P_LM + lambda P_kNN` (Section 4.2), lambda being the kNN weight. A component that found nothing has
gate 0, so that the mixture always sums to 1. Scoring and generation both come here.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def component_weights(gates: Floats) -> Floats:
    """Gates [positions, components - 1] to weights [positions, components], which sum to 1 in every row."""
    weights = np.empty((len(gates), gates.shape[1] + 1))
    _weigh_components(gates, weights)
    return weights


@numba.njit(cache=True, nogil=True)
def _weigh_components(gates: Any, weights: Any) -> None:
    for row in range(len(gates)):
        left = 1.0
        for at in range(gates.shape[1] - 1, -1, -1):
            weights[row, at + 1] = gates[row, at] * left
            left *= 1.0 - gates[row, at]
        weights[row, 0] = left


def mixed(weights: Floats, probabilities: Floats) -> Floats:
    """P of each position's token from its probability under every component."""
    total: Floats = np.einsum("pc,pc->p", weights, probabilities)
    return total


def neighbour_weights(distances: NDArray[np.float32], tau: float) -> Floats:
    """softmax(-d / tau) over each row of squared distances; rows without neighbours (all inf) are all 0."""
    weights = np.empty(distances.shape)
    _softmax(np.ascontiguousarray(distances), tau, weights)
    return weights


@numba.njit(cache=True, nogil=True)
def _softmax(distances: Any, tau: float, weights: Any) -> None:
    for row in range(len(distances)):
        nearest = distances[row].min() if distances.shape[1] else np.inf
        total = 0.0
        for at in range(distances.shape[1]):
            here = distances[row, at]
            weights[row, at] = np.exp((nearest - here) / tau) if here < np.inf else 0.0
            total += weights[row, at]
        for at in range(distances.shape[1]):
            weights[row, at] /= max(total, 1e-300)


def token_mass(
    values: NDArray[np.int64], distances: NDArray[np.float32], tau: float, tokens: NDArray[np.int64]
) -> Floats:
    """P_kNN of one token per position: the weight of the neighbours that were followed by it."""
    mass = np.empty(len(tokens))
    _mass(values, np.ascontiguousarray(distances), tau, tokens, mass)
    return mass


@numba.njit(cache=True, nogil=True)
def _mass(values: Any, distances: Any, tau: float, tokens: Any, mass: Any) -> None:
    weights = np.empty((1, distances.shape[1]))
    for row in range(len(tokens)):
        _softmax(distances[row : row + 1], tau, weights)
        total = 0.0
        for at in range(distances.shape[1]):
            if values[row, at] == tokens[row]:
                total += weights[0, at]
        mass[row] = total


@numba.njit(cache=True, nogil=True)
def add_neighbours(into: Any, texts: Any, values: Any, rows: Any, shares: Any, weights: Any) -> None:
    """Add what was found near to dense distributions [texts, vocabulary]: shares of tokens, which may repeat.

    `texts` says whose each row of what was found is, `weights` what it weighs; row -1 is none.
    """
    for found in range(len(texts)):
        for at in range(values.shape[1]):
            if rows[found, at] >= 0:
                if not 0 <= values[found, at] < into.shape[1]:
                    raise IndexError("a neighbour is outside of the vocabulary")
                into[texts[found], values[found, at]] += shares[found, at] * weights[found]


@numba.njit(cache=True, nogil=True)
def add_counts(into: Any, texts: Any, ends: Any, tokens: Any, counts: Any, totals: Any, weights: Any) -> None:
    """Add levels to dense distributions [texts, vocabulary]: tokens, each by its part of all that were counted.

    `texts` says whose each level is, `weights` what it weighs; its tokens end at `ends`.
    """
    at = 0
    for level in range(len(texts)):
        while at < ends[level]:
            if tokens[at] >= into.shape[1]:
                raise IndexError("a token is outside of the vocabulary")
            into[texts[level], tokens[at]] += counts[at] / totals[level] * weights[level]
            at += 1
