"""What each thing is worth that the weights of neighbours and matches look at: weights fitted without it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from silo.evaluation.figures import DomainFigures, DomainSums, sum_rows
from silo.evaluation.tune import fit_weights, neighbour_gate, tune
from silo.experiments.ablations.changes import Ratios, change_table, plot_changes
from silo.experiments.harness.lab import Lab
from silo.experiments.harness.measure import (
    NEIGHBOURS,
    WINDOW,
    Sample,
    as_json,
    key_encoder,
    known_domains,
    mean_ratio,
    ratio,
    read_text,
)
from silo.experiments.harness.result import Result, show_estimate
from silo.inference.gates import Gate
from silo.inference.observe import Observations, observe
from silo.inference.predict import Predictor
from silo.inference.settings import Settings, ngram_gate, parse_method
from silo.lm.windows import Windows
from silo.pairing import open_store
from silo.store.policy import EVERYTHING

NEIGHBOUR_FEATURES = ("distance", "peak", "kinds")
MATCH_FEATURES = ("length", "count", "variety", "peak")
_BASE = "all of them"
_NAMED = 3
"""Variants of each model that the answer names."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What the weights of neighbours and of exact matches look at; nothing: one weight. `untuned`: not fitted."""

    name: str
    neighbours: tuple[str, ...] = NEIGHBOUR_FEATURES
    matches: tuple[str, ...] = MATCH_FEATURES
    untuned: bool = False

    def concerns(self, method: str) -> bool:
        """Does it change anything about a method?"""
        searched = parse_method(method)
        other_neighbours = "knn" in searched and self.neighbours != NEIGHBOUR_FEATURES
        return self.untuned or other_neighbours or ("ngram" in searched and self.matches != MATCH_FEATURES)


@dataclass(frozen=True, slots=True)
class Recipe:
    """`store_tokens` are by model."""

    question: str
    paper: str
    differences: str
    models: tuple[str, ...]
    domains: tuple[str, ...]
    methods: tuple[str, ...]
    variants: tuple[Variant, ...]
    neighbours: int = NEIGHBOURS
    sample: Sample = field(default_factory=Sample)
    store_tokens: dict[str, int] = field(default_factory=dict)


def run(lab: Lab, name: str) -> Result:
    """Every variant of every method, model and domain."""
    recipe = lab.recipe(name, Recipe)
    domains = known_domains(lab, recipe.domains)
    figures = {
        model: [DomainFigures(_measure(lab, recipe, model, domain), seed=at) for at, domain in enumerate(domains)]
        for model in recipe.models
    }
    ratios = {
        f"{model}, {variant.name}": _compare(items, variant, recipe.methods)
        for model, items in figures.items()
        for variant in recipe.variants
    }
    return Result(
        name,
        recipe.question,
        _answer(recipe, ratios),
        recipe.paper,
        recipe.differences,
        (change_table(_BASE, recipe.methods, ratios),),
        {"recipe": asdict(recipe), "ratios": ratios},
        plot_changes(_BASE, recipe.methods, ratios),
    )


def _measure(lab: Lab, recipe: Recipe, model: str, domain: str) -> DomainSums:
    """The rows of a domain: every method with all features, and with those of each variant that concerns it."""
    store = lab.store(model, domain, recipe.store_tokens.get(model, 0))
    key = {
        "model": lab.fingerprint(model),
        "store": store.digest,
        "domain": domain,
        "methods": list(recipe.methods),
        "variants": [asdict(variant) for variant in recipe.variants],
        "neighbours": recipe.neighbours,
        "sample": asdict(recipe.sample),
    }

    def score() -> dict[str, Any]:
        opened, stores = lab.open_model(model), [open_store(store.fill())]
        windows = Windows(WINDOW, WINDOW // 2)
        predictor = Predictor(
            opened,
            stores,
            method=frozenset({"knn", "ngram"}),
            settings=Settings(k=recipe.neighbours),
            policy=EVERYTHING,
            encoder=key_encoder(opened, stores, recipe.methods, windows),
            context=None,
        )
        predictor.windows = windows.within(opened.context)
        test, validation = (read_text(lab, domain, split, opened, recipe.sample) for split in ("test", "validation"))
        usual = observe(predictor, test.stream.ids, advance=lab.advance)
        rows = {_row(method, _BASE): usual.lm for method in recipe.methods}
        for method in recipe.methods:
            for variant in recipe.variants:
                if variant.untuned:
                    rows[_row(method, variant.name)] = usual.probabilities(parse_method(method), predictor.settings)
        predictor.settings = tune(predictor, validation.stream, advance=lab.advance).settings["knn+ngram"]
        seen, here = (observe(predictor, text.stream.ids, advance=lab.advance) for text in (validation, test))
        for method, name, settings in _fitted(recipe, seen, validation.counted, predictor.settings):
            rows[_row(method, name)] = here.probabilities(parse_method(method), settings)
        return sum_rows(test, rows).as_json()

    return DomainSums.from_json(lab.cell("gates", key, score))


def _row(method: str, variant: str) -> str:
    return f"{method}, {variant}"


def _fitted(recipe: Recipe, seen: Observations, counted: Any, base: Settings) -> Iterator[tuple[str, str, Settings]]:
    """The settings of every method and variant, fitted on the text that was seen."""
    for method in recipe.methods:
        wanted = [variant for variant in recipe.variants if variant.concerns(method) and not variant.untuned]
        for variant in (Variant(_BASE), *wanted):
            near = _without(neighbour_gate(seen, counted), NEIGHBOUR_FEATURES, variant.neighbours)
            matches = _without(ngram_gate(np.zeros(1)), MATCH_FEATURES, variant.matches)
            yield method, variant.name, fit_weights(seen, parse_method(method), base, counted, near, matches)


def _without(gate: Gate, features: Sequence[str], kept: Sequence[str]) -> Gate:
    """A gate with one node for each feature that is not kept, which it thus does not look at."""
    nodes = tuple(line if name in kept else line[:1] for name, line in zip(features, gate.nodes, strict=True))
    return Gate(nodes, np.zeros(tuple(map(len, nodes))))


def _compare(items: Sequence[DomainFigures], variant: Variant, methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Perplexity as a multiple of that with all features, by method."""
    ratios = {}
    for method in filter(variant.concerns, methods):
        found = [ratio(item, _row(method, variant.name), item, _row(method, _BASE)) for item in items]
        domains = {item.sums.domain: as_json(figure) for item, figure in zip(items, found, strict=True)}
        ratios[method] = {"mean": as_json(mean_ratio(found)), "domains": domains}
    return ratios


def _answer(recipe: Recipe, ratios: Ratios) -> str:
    """What is worth most to the last method that a variant concerns, of each model."""
    parts = []
    for model in recipe.models:
        compared = {variant.name: ratios[f"{model}, {variant.name}"] for variant in recipe.variants}
        found = {name: list(rows.items())[-1] for name, rows in compared.items() if rows}
        order = sorted(found, key=lambda name: -abs(math.log(found[name][1]["mean"]["value"])))
        shown = (f"{name}: {found[name][0]} {show_estimate(found[name][1]['mean'], 3)}" for name in order[:_NAMED])
        parts.append(f"{model}, {'; '.join(shown)}")
    return f"Perplexity as a multiple of that with {_BASE}: {'. '.join(parts)}."
