"""Fitted weights: what a grid finds, and what was planted."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from silo.evaluation.fitting import Use, fit_gates, solve_lambda
from silo.inference.gates import Gate
from silo.inference.mix import component_weights

Floats = NDArray[np.float64]
WORDS = 8


def drawn(gates: Floats, seed: int = 0) -> Floats:
    """Tokens drawn from a row of components with these gates: their probabilities under each [tokens, components]."""
    rng = np.random.default_rng(seed)
    tokens, components = len(gates), gates.shape[1] + 1
    tables = rng.dirichlet(np.full(WORDS, 0.3), size=(tokens, components)) * 0.99 + 0.01 / WORDS
    mixture = np.einsum("tc,tcw->tw", component_weights(gates), tables)
    chosen = (mixture.cumsum(axis=1) < rng.random((tokens, 1)) * mixture.sum(axis=1, keepdims=True)).sum(axis=1)
    return np.take_along_axis(tables, chosen[:, None, None], axis=2)[:, :, 0]


def use(gate: int, shape: Gate, feature: Floats, active: NDArray[np.bool_] | None = None) -> Use:
    where, shares = shape.corners(feature)
    return Use(gate, where, shares, np.ones(len(feature), dtype=np.bool_) if active is None else active)


def likelihood(components: Floats, gates: Floats) -> float:
    return float(np.log((component_weights(gates) * components).sum(axis=1)).mean())


def test_lambda_is_that_of_a_fine_grid() -> None:
    columns = [drawn(np.full((400, 1), weight), seed) for seed, weight in enumerate((0.0, 0.1, 0.5, 0.9, 1.0))]
    base, grid = columns[0][:, 0], np.linspace(0, 1, 2001)
    other = np.stack([column[:, 1] for column in columns], axis=1)
    weights, means = solve_lambda(base, other)
    for column in range(other.shape[1]):
        tried = np.log(base[:, None] + (other[:, column] - base)[:, None] * grid).mean(axis=0)
        assert weights[column] == pytest.approx(grid[tried.argmax()], abs=1e-3)
        assert means[column] == pytest.approx(tried.max(), abs=1e-6)


def test_lambda_is_at_an_end_where_one_side_is_always_better() -> None:
    base = np.full(50, 0.2)
    weights, means = solve_lambda(base, np.stack([base / 2, base * 2, np.zeros(50)], axis=1))
    assert weights == pytest.approx([0.0, 1.0, 0.0], abs=1e-9)
    assert means == pytest.approx(np.log([0.2, 0.4, 0.2]))


@pytest.mark.parametrize("planted", [0.1, 0.5, 0.8])
def test_a_planted_constant_is_found(planted: float) -> None:
    components = drawn(np.full((20_000, 1), planted))
    shape = Gate.constant(0.0)
    (fitted,) = fit_gates(components, [use(0, shape, np.zeros(20_000))], [shape])
    solved, _ = solve_lambda(components[:, 0], components[:, 1:])
    assert float(fitted.weights) == pytest.approx(planted, abs=0.03)
    assert float(fitted.weights) == pytest.approx(solved[0], abs=0.01)


def test_a_planted_gate_of_two_bins_is_found() -> None:
    feature = np.random.default_rng(1).integers(0, 2, 20_000).astype(np.float64)
    components = drawn(np.where(feature == 0, 0.15, 0.75)[:, None])
    shape = Gate(((0.0, 1.0),), np.zeros(2))
    (fitted,) = fit_gates(components, [use(0, shape, feature)], [shape])
    assert fitted.nodes == shape.nodes
    assert fitted.weights == pytest.approx([0.15, 0.75], abs=0.03)


def test_gates_in_a_row_are_found_together() -> None:
    """The second component is shared by two uses of one gate, and found nothing at every third token."""
    active = np.arange(30_000) % 3 > 0
    planted = np.stack([np.full(30_000, 0.4), np.where(active, 0.6, 0.0), np.full(30_000, 0.6)], axis=1)
    shapes = [Gate.constant(0.0), Gate.constant(0.0)]
    nothing = np.zeros(30_000)
    uses = [use(0, shapes[0], nothing), use(1, shapes[1], nothing, active), use(1, shapes[1], nothing)]
    first, second = fit_gates(drawn(planted), uses, shapes)
    assert float(first.weights) == pytest.approx(0.4, abs=0.04)
    assert float(second.weights) == pytest.approx(0.6, abs=0.02)


def test_fitting_makes_the_tokens_likelier() -> None:
    feature = np.random.default_rng(2).random(3000)
    components = drawn((0.1 + 0.8 * feature)[:, None], seed=3)
    shape = Gate(((0.0, 0.5, 1.0),), np.zeros(3))
    (fitted,) = fit_gates(components, [use(0, shape, feature)], [shape])
    reached = likelihood(components, fitted.of(feature)[:, None])
    _, best_constant = solve_lambda(components[:, 0], components[:, 1:])
    assert reached > best_constant[0] > likelihood(components, np.full((3000, 1), 0.3))
    assert (np.diff(fitted.weights) > 0).all()


def test_a_crossing_that_was_never_seen_has_the_mean() -> None:
    components = drawn(np.full((2000, 1), 0.7))
    shape = Gate(((0.0, 1.0, 2.0),), np.zeros(3))
    (fitted,) = fit_gates(components, [use(0, shape, np.zeros(2000))], [shape])
    assert fitted.weights[1] == fitted.weights[2] == pytest.approx(fitted.weights[0], abs=1e-2)
