"""Choices in training, each as small runs that differ in one thing: the optimiser, the shape, the weights of domains.

All variants of a recipe have one seed, one tokenizer and one number of tokens; those that read the same domains by the
same weights read the same sequences in the same order. A run is kept under a fingerprint of its recipe, so that
experiments share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from silo.evaluation import intervals
from silo.evaluation.figures import DomainFigures
from silo.evaluation.scoring import PLAIN
from silo.evaluation.texts import TextLimits
from silo.experiments.harness.lab import Lab, LabModel
from silo.experiments.harness.measure import Setup, known_domains, measure
from silo.experiments.harness.result import Result, Table, figure_png, show_estimate
from silo.experiments.parametric import (
    Comparison,
    compare_models,
    estimate,
    mean_ratio,
    plot_curves,
    plot_ratios,
    ratios_by_mark,
    score_tables,
)
from silo.files import fingerprint
from silo.recipe import TrainRecipe

DIFFERENCES = """Models of 3M parameters and a few million tokens, one seed: small differences may turn around at
another size. Only validation text is scored."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The keys of a training recipe that are different in a variant."""

    tiers: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None
    preset: str | None = None
    optimiser: str | None = None
    learning_rate: float | None = None
    reweigh: bool | None = None
    balance: float | None = None

    def apply(self, recipe: TrainRecipe) -> TrainRecipe:
        """The recipe of the variant."""
        changes = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(recipe, **changes)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Variants of `lm-BASE.toml`, compared with the one named `reference`.

    With `learned_only`, only domains that the reference learned are scored, and its curve says after how many tokens it
    had the loss that others end with. `language_models` are scored with stores of `store_domains` by `methods`.
    """

    question: str
    paper: str
    base: str
    reference: str
    variants: dict[str, Variant]
    max_tokens: int
    evaluate_every: int
    learned_only: bool = False
    validation_tokens: int = 40_000
    document_tokens: int = 2_000
    language_models: tuple[str, ...] = ()
    store_domains: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    published: dict[str, dict[str, float]] = field(default_factory=dict)


def run(lab: Lab, name: str) -> Result:
    """Train the variants and compare them on validation text."""
    recipe = lab.recipe(name, Recipe)
    models = {variant: _find_variant(lab, recipe, variant) for variant in recipe.variants}
    limits = TextLimits(recipe.validation_tokens, recipe.document_tokens)
    learned = models[recipe.reference].training["domains"]
    domains = [domain for domain in lab.sizes if domain in learned or not recipe.learned_only]
    items = [compare_models(lab, models, domain, "validation", limits, seed=at) for at, domain in enumerate(domains)]
    curves = {variant: model.curve for variant, model in models.items()}
    reached = _tokens_to_equal(items, curves[recipe.reference], recipe) if recipe.learned_only else {}
    methods = _methods(lab, recipe)
    tables = [
        _variant_table(models, items, reached, recipe.reference),
        *([] if recipe.learned_only else [ratios_by_mark(items, recipe.reference, recipe.published)]),
        *score_tables(items, recipe.reference, "validation text"),
        *_method_tables(methods),
    ]
    return Result(
        name,
        recipe.question,
        _answer(items, reached, recipe, methods),
        recipe.paper,
        DIFFERENCES,
        tuple(tables),
        {
            "recipe": asdict(recipe),
            "domains": {item.domain: item.as_json(recipe.reference) for item in items},
            "tokens_to_equal_loss": {variant: estimate(figure) for variant, figure in reached.items()},
            "curves": curves,
            "methods": {
                model: {item.sums.domain: item.as_json() for item in found} for model, found in methods.items()
            },
        },
        _plot(curves, items, recipe.reference),
    )


def _find_variant(lab: Lab, recipe: Recipe, variant: str) -> LabModel:
    """The model of a variant, trained where it is not known."""
    base = replace(
        lab.recipe(f"lm-{recipe.base}", TrainRecipe),
        max_tokens=recipe.max_tokens,
        evaluate_every=recipe.evaluate_every,
    )
    changed = recipe.variants[variant].apply(base)
    mark = fingerprint([asdict(changed), lab.corpus().fingerprint])
    return lab.trained(lab.folder / "variants" / f"{recipe.base}-{mark[:16]}", changed)


def tokens_to_reach(curve: Mapping[str, Any], losses: intervals.Floats) -> intervals.Floats:
    """After how many tokens a run had these validation losses, between its points by a line; not defined below them."""
    tokens = np.array([item["tokens"] for item in curve["validation"]], dtype=np.float64)
    best = np.minimum.accumulate([item["loss"] for item in curve["validation"]])
    figure: intervals.Floats = np.interp(losses, best[::-1], tokens[::-1], left=np.nan)
    return figure


def _tokens_to_equal(
    items: Sequence[Comparison], curve: Mapping[str, Any], recipe: Recipe
) -> dict[str, intervals.Floats]:
    """For each other variant the share of the tokens after which the reference had the loss that it ends with.

    How far apart the two end is resampled over documents; how fast the reference came there is its curve. Its learning
    rate was made for the whole run, so that a run of just so many tokens would need fewer.
    """
    end = min(item["loss"] for item in curve["validation"])
    others = [variant for variant in recipe.variants if variant != recipe.reference]
    gaps = {variant: np.log(mean_ratio(items, variant, recipe.reference)) for variant in others}
    last = curve["validation"][-1]["tokens"]
    return {variant: tokens_to_reach(curve, end + gap) / last for variant, gap in gaps.items()}


def multiply_adds(config: Mapping[str, Any], parameters: int) -> int:
    """For one token with half a context before it on average: every weight once, and attention to what is there."""
    width = config["hidden_size"]
    looked_up = 0 if config["tie_word_embeddings"] else config["vocab_size"] * width
    attention = config["num_hidden_layers"] * width * config["max_position_embeddings"]
    return int(parameters - looked_up + attention)


def _variant_table(
    models: Mapping[str, LabModel],
    items: Sequence[Comparison],
    reached: Mapping[str, intervals.Floats],
    reference: str,
) -> Table:
    rows = []
    for variant, model in models.items():
        summary = model.training["summary"]
        rows.append(
            (
                variant,
                f"{summary['parameters'] / 1e6:.1f}",
                f"{multiply_adds(model.config, summary['parameters']) / 1e6:.1f}",
                f"{summary['tokens']:,}",
                show_estimate(estimate(mean_ratio(items, variant, reference)), 3),
                show_estimate(estimate(reached[variant]), 0, 100) if variant in reached else "",
            )
        )
    columns = (
        "variant",
        "million parameters",
        "million multiply-adds a token",
        "tokens",
        f"perplexity / that of {reference}",
        f"{reference} had its loss after, % of the tokens",
    )
    return Table("Variants on validation text, geometric mean over domains (95 % interval)", columns, tuple(rows))


def _methods(lab: Lab, recipe: Recipe) -> dict[str, list[DomainFigures]]:
    """Every language model with stores of some domains, as the main experiment measures them."""
    if not recipe.store_domains:
        return {}
    domains = known_domains(lab, recipe.store_domains)
    return {
        model: [
            DomainFigures(measure(lab, domain, Setup(model, (lab.store(model, domain),), recipe.methods)))
            for domain in domains
        ]
        for model in recipe.language_models
    }


def _method_tables(methods: Mapping[str, Sequence[DomainFigures]]) -> list[Table]:
    rows = []
    for model, items in methods.items():
        for item in items:
            figures = [estimate(item.perplexity(row)) for row in item.rows]
            rows.append((model, item.sums.domain, item.sums.mark, *(show_estimate(figure) for figure in figures)))
    if not rows:
        return []
    names = next(iter(methods.values()))[0].rows
    columns = ("model", "domain", "for the model", *names)
    return [Table("Perplexity on test text with a store of the domain (95 % interval)", columns, tuple(rows))]


def _answer(
    items: Sequence[Comparison],
    reached: Mapping[str, intervals.Floats],
    recipe: Recipe,
    methods: Mapping[str, Sequence[DomainFigures]],
) -> str:
    parts = []
    for variant in recipe.variants:
        if variant != recipe.reference:
            ratio = show_estimate(estimate(mean_ratio(items, variant, recipe.reference)), 3)
            part = f"{variant} has {ratio} times the perplexity of {recipe.reference}"
            if variant in reached and np.isfinite(reached[variant][0]):
                part += f", which had it after {show_estimate(estimate(reached[variant]), 0, 100)} % of the tokens"
            parts.append(part)
    if methods:
        best = [
            row
            for found in methods.values()
            for item in found
            for row in [min(item.rows, key=lambda name: float(item.perplexity(name)[0]))]
        ]
        parts.append(f"a store helps in {sum(row != PLAIN for row in best)} of {len(best)} pairs of model and domain")
    return "; ".join(parts) + "."


def _plot(curves: Mapping[str, Mapping[str, Any]], items: Sequence[Comparison], reference: str) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_curves(left, curves)
    plot_ratios(right, items, reference)
    right.set_title("validation text, 95 % intervals over documents", loc="left", fontsize=10)
    return figure_png(figure)
