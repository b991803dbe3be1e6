"""Gates: straight lines between nodes, nothing beyond them, and no jump anywhere."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.errors import SiloError
from silo.inference.gates import Gate, log_counts, log_nodes

LINE = Gate(((0.0, 1.0, 4.0),), np.array([0.2, 0.8, 0.5]))
PLANE = Gate(((0.0, 2.0), (-1.0, 0.0, 3.0)), np.array([[0.0, 0.3, 0.6], [1.0, 0.5, 0.9]]))
CUBE = Gate(((0.0, 1.0), (0.0, 1.0, 2.0), (5.0,)), np.linspace(0, 1, 6).reshape(2, 3, 1))

values = st.floats(-10, 10)


def at(gate: Gate, *point: float) -> float:
    (found,) = gate.of(*(np.array([value]) for value in point))
    return float(found)


def test_between_nodes_runs_a_straight_line() -> None:
    places = np.array([0.0, 0.25, 1.0, 2.5, 4.0])
    assert LINE.of(places) == pytest.approx(np.interp(places, LINE.nodes[0], LINE.weights))
    assert at(PLANE, 1.0, 1.5) == pytest.approx((0.3 + 0.6 + 0.5 + 0.9) / 4)


def test_a_node_has_its_own_weight() -> None:
    for i, x in enumerate(PLANE.nodes[0]):
        for j, y in enumerate(PLANE.nodes[1]):
            assert at(PLANE, x, y) == pytest.approx(PLANE.weights[i, j])


def test_beyond_the_nodes_the_nearest_counts() -> None:
    assert LINE.of(np.array([-5.0, 99.0, np.inf, -np.inf])) == pytest.approx([0.2, 0.5, 0.5, 0.2])
    assert at(PLANE, 99.0, -99.0) == pytest.approx(1.0)
    assert at(CUBE, 0.5, 1.0, -3.0) == pytest.approx(at(CUBE, 0.5, 1.0, 7.0))


def test_a_constant_needs_no_feature_and_ignores_those_it_gets() -> None:
    assert Gate.constant(0.25).of(np.arange(3), np.full(3, np.inf)).tolist() == [0.25] * 3
    assert LINE.of(np.zeros(2), np.array([1.0, 9.0])).tolist() == [0.2, 0.2]


@given(x=values, y=values, z=values)
def test_the_shares_of_the_corners_sum_to_one(x: float, y: float, z: float) -> None:
    for gate in (Gate.constant(0.5), LINE, PLANE, CUBE):
        where, shares = gate.corners(*(np.array([value]) for value in (x, y, z)))
        assert where.shape == shares.shape == (1, 2 ** len(gate.nodes))
        assert shares.sum() == pytest.approx(1.0) and (shares >= 0).all()
        assert (where < gate.weights.size).all()


@given(x=values, y=values, step=st.floats(-1e-6, 1e-6))
def test_a_gate_never_jumps(x: float, y: float, step: float) -> None:
    assert at(PLANE, x + step, y) == pytest.approx(at(PLANE, x, y), abs=2e-6)
    assert at(PLANE, x, y + step) == pytest.approx(at(PLANE, x, y), abs=2e-6)


def test_json_gives_the_gate_back() -> None:
    for gate in (Gate.constant(0.5), LINE, PLANE):
        again = Gate.from_json(json.loads(json.dumps(gate.as_json())))
        assert again.nodes == gate.nodes and (again.weights == gate.weights).all()


@pytest.mark.parametrize(
    ("nodes", "weights"),
    [
        (((0.0, 0.0),), [0.1, 0.2]),
        (((1.0, 0.0),), [0.1, 0.2]),
        (((0.0, 1.0),), [0.1]),
        (((),), []),
        ((), -0.1),
        ((), 1.1),
        ((), np.nan),
    ],
)
def test_a_table_that_is_no_gate_is_refused(nodes: tuple[tuple[float, ...], ...], weights: object) -> None:
    with pytest.raises(SiloError, match="settings-invalid"):
        Gate(nodes, np.array(weights, dtype=np.float64))


def test_counts_are_compared_by_their_logarithm() -> None:
    assert log_nodes((0, 1, 3)) == (0.0, 1.0, 2.0)
    assert log_counts(np.array([7])).tolist() == [3.0]
