"""Accuracies with their intervals by bootstrap over examples.

A difference to the language model alone is paired: both are resampled together. An average over tasks weighs them
equally, and its interval is about their examples, not about which tasks there are.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from silo.evaluation.intervals import RESAMPLES, Estimate, Floats, Resamples
from silo.evaluation.tasks.evaluate import Row, TaskResult


def report(results: Sequence[TaskResult], *, seed: int = 0) -> dict[str, Any]:
    """All figures: task, then method, then variant; and the averages of the headline rows."""
    draws = {result.name: _draws(result, seed) for result in results}
    tasks = {result.name: _task(result, draws[result.name]) for result in results}
    return {"bootstrap": {"resamples": RESAMPLES, "seed": seed}, "tasks": tasks, "average": _averages(results, draws)}


def describe_examples(results: Sequence[TaskResult]) -> Iterator[dict[str, Any]]:
    """Every example: its label and those that it got, by method and row."""
    for result in results:
        names = result.task.label_names
        for at, example in enumerate(result.examples):
            got = {
                method: {name: names[row.predicted[at]] for name, row in rows.items()}
                for method, rows in result.rows.items()
            }
            place = {"task": result.name, "split": result.split, "line": example.line}
            yield {**place, "label": names[example.label], "predicted": got}


def _draws(result: TaskResult, seed: int) -> Resamples:
    rows = next(iter(result.rows.values()))
    return Resamples(len(rows[result.headline].right), seed=seed ^ zlib.crc32(result.name.encode()))


def _task(result: TaskResult, draws: Resamples) -> dict[str, Any]:
    methods = {}
    for method, rows in result.rows.items():
        alone = result.rows.get("lm", {}) if method != "lm" else {}
        figures = {name: _figures(row, alone.get(name), draws) for name, row in rows.items()}
        methods[method] = {**figures[result.headline], "headline": result.headline, "rows": figures}
    facts = {"split": result.split, "n": draws.documents, "majority": result.majority, "marks": list(result.marks)}
    return {**facts, "methods": methods}


def _figures(row: Row, alone: Row | None, draws: Resamples) -> dict[str, Any]:
    """Of one row; `alone` is the language model's row of the same variant."""
    right = row.right.astype(np.float64)
    facts = [choice.facts for choice in row.choices]
    return {
        **_estimate("accuracy", draws.mean(right)),
        "n": len(right),
        "difference_to_lm": _estimate("value", draws.mean(right - alone.right)) if alone is not None else None,
        "settings": facts[0] if len(facts) == 1 else facts,
        "settings_from": row.settings_from,
    }


def _estimate(name: str, figure: Floats) -> dict[str, Any]:
    found = Estimate.of(figure).as_json()
    return {name: found["value"], "interval": [found["low"], found["high"]]}


def _averages(results: Sequence[TaskResult], draws: dict[str, Resamples]) -> dict[str, Any]:
    """Per method the mean over tasks of its headline rows."""
    averages = {}
    for method in results[0].rows:
        right = {result.name: result.rows[method][result.headline].right.astype(np.float64) for result in results}
        figure = np.mean([draws[name].mean(values) for name, values in right.items()], axis=0)
        averages[method] = {**_estimate("accuracy", figure), "tasks": len(right)}
    return averages
