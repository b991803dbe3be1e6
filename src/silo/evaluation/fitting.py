"""Mixture weights from data: lambda is solved, gates are fitted by expectation-maximisation with a little smoothing."""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from silo.inference.gates import Gate

Floats = NDArray[np.float64]

_HALVINGS = 40
_ROUNDS = 150
_ENOUGH = 1e-5
_PRIOR_TOKENS = 10.0
_START = 0.3


def solve_lambda(base: Floats, other: NDArray[Any]) -> tuple[Floats, Floats]:
    """For each column of `other`: the weight that makes (1 - w) base + w other likeliest, and the mean log-likelihood.

    The likelihood is concave in the weight, so its slope is halved in on.
    """
    columns = other.shape[1]
    weights, means = np.zeros(columns), np.zeros(columns)
    _solve(base, np.ascontiguousarray(other), weights, means)
    return weights, means


@numba.njit(cache=True, nogil=True, parallel=True)
def _solve(base: Any, other: Any, weights: Any, means: Any) -> None:
    for column in numba.prange(other.shape[1]):
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            weight = 0.5 * (low + high)
            slope = 0.0
            for row in range(len(base)):
                gain = other[row, column] - base[row]
                slope += gain / (base[row] + weight * gain)
            if slope > 0:
                low = weight
            else:
                high = weight
        total = 0.0
        for row in range(len(base)):
            total += np.log(base[row] + low * (other[row, column] - base[row]))
        weights[column], means[column] = low, total / max(1, len(base))


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One component's use of a gate: which gate, the features' corners per token, and where it found something."""

    gate: int
    corners: NDArray[np.int64]
    shares: Floats
    active: NDArray[np.bool_]


def fit_gates(components: Floats, uses: Sequence[Use], shapes: Sequence[Gate]) -> list[Gate]:
    """Gates that make the tokens likely. `components` [tokens, 1 + uses] are the tokens' probabilities.

    All gates are fitted together; each crossing is drawn towards the gate's mean as if it had been seen a few times.
    """
    tables = [np.full(gate.weights.size, _START) for gate in shapes]
    before = -np.inf
    for _ in range(_ROUNDS):
        hits = [np.zeros_like(table) for table in tables]
        misses = [np.zeros_like(table) for table in tables]
        mean = _expect(components, uses, tables, hits, misses)
        for table, hit, miss in zip(tables, hits, misses, strict=True):
            middle = (hit.sum() + 0.5) / (hit.sum() + miss.sum() + 1.0)
            table[:] = (hit + _PRIOR_TOKENS * middle) / (hit + miss + _PRIOR_TOKENS)
        if mean - before < _ENOUGH:
            break
        before = mean
    return [Gate(gate.nodes, table.reshape(gate.weights.shape)) for gate, table in zip(shapes, tables, strict=True)]


def _expect(
    components: Floats, uses: Sequence[Use], tables: list[Floats], hits: list[Floats], misses: list[Floats]
) -> float:
    """One round: how often each crossing was taken and passed by; the mean log-likelihood."""
    gates = np.stack([_gate(use, tables[use.gate]) for use in uses], axis=1)
    taken, passed, mean = _responsibilities(components, gates)
    for column, use in enumerate(uses):
        _collect(
            (use.corners, use.shares, use.active),
            tables[use.gate],
            column,
            (gates, taken, passed),
            hits[use.gate],
            misses[use.gate],
        )
    return float(mean)


def _gate(use: Use, table: Floats) -> Floats:
    gates = np.zeros(len(use.active))
    _sum_active(use.corners, use.shares, use.active, table, gates)
    return gates


@numba.njit(cache=True, nogil=True)
def _sum_active(corners: Any, shares: Any, active: Any, table: Any, gates: Any) -> None:
    for row in range(len(gates)):
        if active[row]:
            for at in range(corners.shape[1]):
                gates[row] += table[corners[row, at]] * shares[row, at]


@numba.njit(cache=True, nogil=True)
def _responsibilities(components: Any, gates: Any) -> Any:
    """Per token and gate how much of the token the component explains, and how much those before it do."""
    count = gates.shape[1]
    taken, passed = np.zeros_like(gates), np.zeros_like(gates)
    total_log = 0.0
    for row in range(len(gates)):
        left = 1.0
        for at in range(count - 1, -1, -1):
            taken[row, at] = left * gates[row, at] * components[row, at + 1]
            left *= 1.0 - gates[row, at]
        below = left * components[row, 0]
        for at in range(count):
            passed[row, at] = below
            below += taken[row, at]
        below = max(below, 1e-300)
        total_log += np.log(below)
        for at in range(count):
            taken[row, at] /= below
            passed[row, at] /= below
    return taken, passed, total_log / max(1, len(gates))


@numba.njit(cache=True, nogil=True)
def _collect(use: Any, table: Any, column: int, explained: Any, hits: Any, misses: Any) -> None:
    (corners, shares, active), (gates, taken, passed) = use, explained
    for row in range(len(corners)):
        gate = gates[row, column]
        for at in range(corners.shape[1] if active[row] else 0):
            where, share = corners[row, at], shares[row, at]
            if share > 0:
                weight = table[where]
                hits[where] += taken[row, column] * share * weight / max(gate, 1e-12)
                misses[where] += passed[row, column] * share * (1.0 - weight) / max(1.0 - gate, 1e-12)
