"""Accuracies with their intervals: percentiles of a bootstrap over examples (Efron, 1979).

A difference to the language model alone is paired: both are resampled together. An average over tasks weighs them
equally, and its interval is about their examples, not about which tasks there are.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.evaluation.tasks.evaluate import Row, TaskResult

RESAMPLES = 2000
LEVEL = 0.95

Floats = NDArray[np.float64]


def bootstrap_weights(examples: int, seed: Sequence[int]) -> Floats:
    """Per resample the share of every example [resamples, examples]."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(examples, np.full(examples, 1 / examples), size=RESAMPLES)
    shares: Floats = drawn / examples
    return shares


def interval(resampled: Floats) -> list[float]:
    """Where the middle of resampled figures lies."""
    tail = (1 - LEVEL) / 2
    return [float(value) for value in np.quantile(resampled, [tail, 1 - tail])]


def report(results: Sequence[TaskResult], *, seed: int = 0) -> dict[str, Any]:
    """All figures: task, then method, then variant; and the averages of the headline rows."""
    weights = {result.name: _weights(result, seed) for result in results}
    tasks = {result.name: _task(result, weights[result.name]) for result in results}
    return {
        "bootstrap": {"resamples": RESAMPLES, "level": LEVEL, "seed": seed},
        "tasks": tasks,
        "average": _averages(results, weights),
    }


def _weights(result: TaskResult, seed: int) -> Floats:
    rows = next(iter(result.rows.values()))
    return bootstrap_weights(len(rows[result.headline].right), [seed, zlib.crc32(result.name.encode())])


def _task(result: TaskResult, weights: Floats) -> dict[str, Any]:
    methods = {}
    for method, rows in result.rows.items():
        alone = result.rows.get("lm", {}) if method != "lm" else {}
        figures = {name: _figures(row, alone.get(name), weights) for name, row in rows.items()}
        methods[method] = {**figures[result.headline], "headline": result.headline, "rows": figures}
    facts = {"split": result.split, "n": weights.shape[1], "majority": result.majority, "marks": list(result.marks)}
    return {**facts, "methods": methods}


def _figures(row: Row, alone: Row | None, weights: Floats) -> dict[str, Any]:
    """Of one row; `alone` is the language model's row of the same variant."""
    right = row.right.astype(np.float64)
    facts = [choice.facts for choice in row.choices]
    return {
        "accuracy": float(right.mean()),
        "interval": interval(weights @ right),
        "n": len(right),
        "difference_to_lm": _difference(right - alone.right, weights) if alone is not None else None,
        "settings": facts[0] if len(facts) == 1 else facts,
        "settings_from": row.settings_from,
    }


def _difference(gains: Floats, weights: Floats) -> dict[str, Any]:
    return {"value": float(gains.mean()), "interval": interval(weights @ gains)}


def _averages(results: Sequence[TaskResult], weights: dict[str, Floats]) -> dict[str, Any]:
    """Per method the mean over tasks of its headline rows."""
    averages = {}
    for method in results[0].rows:
        right = {result.name: result.rows[method][result.headline].right.astype(np.float64) for result in results}
        resampled = np.mean([weights[name] @ values for name, values in right.items()], axis=0)
        accuracy = float(np.mean([values.mean() for values in right.values()]))
        averages[method] = {"accuracy": accuracy, "interval": interval(resampled), "tasks": len(right)}
    return averages
