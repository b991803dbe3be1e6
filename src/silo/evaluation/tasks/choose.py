"""Settings for a task: those that label its validation examples best, by a method and a way of scoring.

k and tau are tried with every lambda; then, with these, the n-gram gates at several strengths, a factor on all of them.
Of settings that are right equally often the one counts that gives the right labels the higher probability.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
        return self.label_scores(self.observed.probabilities(method, settings), variant)

    def label_scores(self, probabilities: Floats, variant: Variant) -> Floats:
        """The same from a mixture."""
        return label_scores(probabilities, self.layout, variant, premise=self.premise)

    def predicted(self, method: Method, settings: Settings, variant: Variant) -> NDArray[np.int64]:
        """The label that each example gets; the first label wins a tie."""
        labels: NDArray[np.int64] = self.scores(method, settings, variant).argmax(axis=1)
        return labels

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
    return Choice(replace(base, tau=tau), {"k": base.k, "tau": tau, "lambda": float(base.knn.weights.mean())})


def choose(
    data: Labelled, rows: Sequence[NDArray[np.bool_]], method: Method, variants: Sequence[Variant], base: Settings
) -> dict[Variant, list[Choice]]:
    """The best settings for each way of scoring, for each choice of examples in `rows`."""
    search = _Search(data, rows, variants)
    if "knn" in method:
        search.try_out(method - {"ngram"}, _neighbour_choices(base, data.middle_distance))
    if "ngram" in method:
        search.refine(method, base)
    return search.best


@dataclass(slots=True, eq=False)
class _Search:
    """Looks for the best of many settings; each mixture is made once for all ways of scoring."""

    data: Labelled
    rows: Sequence[NDArray[np.bool_]]
    variants: Sequence[Variant]
    best: dict[Variant, list[Choice]] = field(default_factory=dict)

    def try_out(self, method: Method, choices: Iterable[Choice]) -> None:
        """Keep the first of the best."""
        qualities = {variant: [(-1.0, 0.0)] * len(self.rows) for variant in self.variants}
        self.best = {variant: [Choice(Settings())] * len(self.rows) for variant in self.variants}
        for choice in choices:
            probabilities = self.data.observed.probabilities(method, choice.settings)
            for variant in self.variants:
                scores = self.data.label_scores(probabilities, variant)
                for at, rows in enumerate(self.rows):
                    quality = _quality(scores[rows], self.data.labels[rows])
                    if quality > qualities[variant][at]:
                        qualities[variant][at], self.best[variant][at] = quality, choice

    def refine(self, method: Method, base: Settings) -> None:
        """Choose the strength of the n-gram gates on top of what is chosen already."""
        found: dict[Variant, list[Choice]] = {}
        for variant in self.variants:
            before = self.best.get(variant, [Choice(base)] * len(self.rows))
            found[variant] = []
            for rows, choice in zip(self.rows, before, strict=True):
                alone = _Search(self.data, [rows], [variant])
                alone.try_out(method, _strength_choices(choice))
                found[variant] += alone.best[variant]
        self.best = found


def _quality(scores: Floats, labels: NDArray[np.int64]) -> tuple[float, float]:
    """The share of right labels, and their mean log-probability among the labels."""
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
    gate = chosen.settings.ngram
    for strength in STRENGTHS:
        settings = replace(chosen.settings, ngram=Gate(gate.nodes, gate.weights * strength))
        yield Choice(settings, {**chosen.facts, "ngram_strength": strength})
