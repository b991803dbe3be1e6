"""Means over domains: of ratios the geometric one, with an interval over documents."""

from __future__ import annotations

import math

import numpy as np
import pytest

from silo.evaluation.figures import CLEAN, DomainFigures, DomainSums, average_ratio


def _domain(name: str, plain: list[float], row: list[float]) -> DomainFigures:
    """Ten tokens of each document without a long match and ten with one, where the row is twice as sure of them."""
    tokens = np.full((2, len(plain)), 10.0)
    logs = {
        "lm": -np.array([plain, plain]),
        "knn": -np.array([row, [value / 2 for value in row]]),
    }
    labels = tuple(str(at) for at in range(len(plain)))
    sizes = np.full(len(plain), 100.0)
    return DomainFigures(DomainSums(name, "unknown", labels, ("1-4", "13+"), tokens, sizes, logs, {}, {}))


def test_the_mean_ratio_is_the_geometric_one_of_the_domains() -> None:
    one, other = _domain("one", [20.0] * 4, [10.0] * 4), _domain("other", [30.0] * 4, [40.0] * 4)
    clean = average_ratio([one, other], "knn", clean=True)
    assert clean.value == pytest.approx(math.sqrt(math.exp(-1.0) * math.exp(1.0)))
    whole = average_ratio([one, other], "knn")
    assert whole.value == pytest.approx(math.exp(((7.5 - 20) + (30 - 30)) / 2 / 10))
    assert math.isnan(whole.low) and math.isnan(whole.high), "documents are alike: nothing is known of their spread"


def test_documents_that_differ_widen_the_interval() -> None:
    mixed = _domain("mixed", [20.0, 20.0, 20.0, 20.0], [5.0, 20.0, 10.0, 40.0])
    found = average_ratio([mixed], "knn", clean=True)
    assert found.low is not None and found.high is not None
    assert found.low < found.value < found.high
    ratio = mixed.ratio("knn", CLEAN)
    assert ratio[0] == pytest.approx(found.value)
