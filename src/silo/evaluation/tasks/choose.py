"""Settings for a task: those that label its validation examples best, by a method and a way of scoring.

k and tau are tried with every lambda, and the n-gram gates at several strengths, a factor on all of them. Of settings
that are right equally often the one counts that gives the right labels the higher probability.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.evaluation.tasks.classify import Floats, Layout, Variant, label_scores
from silo.inference.gates import Gate
from silo.inference.prompts.mixture import PromptObservations
from silo.inference.settings import Settings

NEIGHBOURS = (64, 256, 1024, 4096)
LAMBDAS = tuple(step / 10 for step in range(10))
STRENGTHS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
_TAUS = 8

Method = frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Settings, and what of them was chosen."""

    settings: Settings
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """What was observed of the examples of a split, and their labels."""

    observed: PromptObservations
    labels: NDArray[np.int64]
    layout: Layout
    premise: bool

    def scores(self, method: Method, settings: Settings, variant: Variant) -> Floats:
        """Of every label of every example."""
        probabilities = self.observed.probabilities(method, settings)
        return label_scores(probabilities, self.layout, variant, premise=self.premise)

    def correct(self, method: Method, settings: Settings, variant: Variant) -> NDArray[np.bool_]:
        """Which examples get their label; the first label wins a tie."""
        right: NDArray[np.bool_] = self.scores(method, settings, variant).argmax(axis=1) == self.labels
        return right

    @property
    def middle_distance(self) -> float:
        """The median distance of neighbours: what a temperature is measured by. No label is looked at."""
        near = self.observed.neighbours
        known = near.distances[np.isfinite(near.distances)] if near is not None else np.empty(0)
        return float(np.median(known)) if len(known) else 1.0


def default_choice(data: Labelled, method: Method, base: Settings) -> Choice:
    """Without validation examples: a tau that suits the distances, and all else as it is."""
    if "knn" not in method:
        return Choice(base)
    tau = float(f"{data.middle_distance / 8:.2g}")
    return Choice(replace(base, tau=tau), {"k": base.k, "tau": tau, "lambda": float(base.knn.weights)})


def choose(data: Labelled, rows: NDArray[np.bool_], method: Method, variant: Variant, base: Settings) -> Choice:
    """The best settings for the examples in `rows`."""
    search = _Search(data, rows, variant)
    chosen = Choice(base)
    if "knn" in method:
        chosen = search.best(method - {"ngram"}, _neighbour_choices(base, data.middle_distance))
    if "ngram" in method:
        chosen = search.best(method, _strength_choices(chosen))
    return chosen


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    data: Labelled
    rows: NDArray[np.bool_]
    variant: Variant

    def best(self, method: Method, choices: Iterator[Choice]) -> Choice:
        """The first of the best."""
        return max(choices, key=lambda choice: self._quality(method, choice.settings))

    def _quality(self, method: Method, settings: Settings) -> tuple[float, float]:
        """The share of right labels, and their mean log-probability among the labels."""
        scores = self.data.scores(method, settings, self.variant)[self.rows]
        labels = self.data.labels[self.rows]
        logs = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        return float((scores.argmax(axis=1) == labels).mean()), float(logs[np.arange(len(labels)), labels].mean())


def _neighbour_choices(base: Settings, middle: float) -> Iterator[Choice]:
    for k in (*(k for k in NEIGHBOURS if k < base.k), base.k):
        for halvings in range(_TAUS):
            tau = float(f"{2 * middle * 0.5**halvings:.2g}")
            for weight in LAMBDAS:
                settings = replace(base, k=k, tau=tau, knn=Gate.constant(weight))
                yield Choice(settings, {"k": k, "tau": tau, "lambda": weight})


def _strength_choices(chosen: Choice) -> Iterator[Choice]:
    """Every strength of the n-gram gates; with neighbours before them every lambda anew."""
    gate = chosen.settings.ngram
    for weight in LAMBDAS if "k" in chosen.facts else (None,):
        for strength in STRENGTHS:
            settings = replace(chosen.settings, ngram=Gate(gate.nodes, gate.weights * strength))
            facts = {"ngram_strength": strength} | ({} if weight is None else {"lambda": weight})
            yield Choice(settings.with_values(lam=weight), {**chosen.facts, **facts})
