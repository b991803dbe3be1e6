"""The four models without a store, on all domains: what a model loses that learns from permitted text alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from silo.errors import SiloError
from silo.evaluation import intervals
from silo.evaluation.figures import DomainFigures, DomainSums
from silo.evaluation.scoring import PLAIN, Contestants, score_domain
from silo.evaluation.texts import TextLimits, read_domains
from silo.experiments.harness.lab import Lab, LabModel
from silo.experiments.harness.result import ACCENTS, Result, Table, figure_png, show_estimate
from silo.lm.audit import verify_model
from silo.lm.engine.decoder import DecodingModel
from silo.lm.training.curve import smooth

MARKS = {"in": "●", "near": "◐", "out": "○", "unknown": ""}
"""How near a model's training text is to a domain: the domain itself, one of its group, neither."""

DIFFERENCES = """Models of 3M parameters and 20M tokens instead of 1.3B and 60 to 350B: read the differences, not the
level. The reference, which plays Pythia's part, is of the same size and read as many tokens, spread over more domains;
so a permitted model that is better where both may learn does not show that leaving text out improves a model."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Without `domains` all of the data are scored. `published` has the paper's mean ratios by model and mark."""

    question: str
    paper: str
    models: tuple[str, ...]
    reference: str
    domains: tuple[str, ...] = ()
    validation_tokens: int = 40_000
    test_tokens: int = 40_000
    document_tokens: int = 2_000
    published: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Several models on the same text of one domain: their figures share the draws of documents."""

    figures: DomainFigures
    marks: dict[str, str]

    @property
    def domain(self) -> str:
        return self.figures.sums.domain

    def ratio(self, model: str, reference: str) -> intervals.Floats:
        """Perplexity as a multiple of another model's, paired."""
        figure: intervals.Floats = self.figures.perplexity(model) / self.figures.perplexity(reference)
        return figure

    def as_json(self, reference: str) -> dict[str, Any]:
        """The figures of every model with their intervals."""
        return {
            model: {
                "mark": self.marks[model],
                "perplexity": estimate(self.figures.perplexity(model)),
                "bits_per_byte": estimate(self.figures.bits_per_byte(model)),
                "ratio": estimate(self.ratio(model, reference)),
            }
            for model in self.figures.rows
        }


def run(lab: Lab, name: str) -> Result:
    """Every model on validation and test text of every domain."""
    recipe = lab.recipe(name, Recipe)
    models = {model: lab.find_model(model) for model in (*recipe.models, recipe.reference)}
    domains = [domain for domain in recipe.domains if domain in lab.sizes] or list(lab.sizes)
    splits = {"test": recipe.test_tokens, "validation": recipe.validation_tokens}
    found = {
        split: [
            compare_models(lab, models, domain, split, TextLimits(tokens, recipe.document_tokens), seed=at)
            for at, domain in enumerate(domains)
        ]
        for split, tokens in splits.items()
    }
    audits = {name: _audit(lab, model) for name, model in models.items()}
    tables = [
        ratios_by_mark(found["test"], recipe.reference, recipe.published),
        _steps_table(found["test"]),
        _audit_table(audits),
    ]
    for split, items in found.items():
        tables += score_tables(items, recipe.reference, f"{split} text")
    facts = {split: {item.domain: item.as_json(recipe.reference) for item in items} for split, items in found.items()}
    return Result(
        name,
        recipe.question,
        _answer(found["test"], recipe.reference, audits),
        recipe.paper,
        DIFFERENCES,
        tuple(tables),
        {"recipe": asdict(recipe), "audits": audits, **facts},
        _plot({name: model.curve for name, model in models.items()}, found["test"], recipe.reference),
    )


def compare_models(
    lab: Lab, models: Mapping[str, LabModel], domain: str, split: str, limits: TextLimits, *, seed: int
) -> Comparison:
    """Models that share a tokenizer on about so many tokens of a domain."""
    found = {name: _score(lab, model, domain, split, limits) for name, model in models.items()}
    first = next(iter(found.values()))
    if not all(np.array_equal(item.tokens, first.tokens) for item in found.values()):
        names = ", ".join(models)
        raise SiloError("store-mismatch", f"{names} have different tokenizers: perplexities per token do not compare")
    together = replace(first, logs={name: item.logs[PLAIN] for name, item in found.items()})
    return Comparison(DomainFigures(together, seed=seed), {name: item.mark for name, item in found.items()})


def _score(lab: Lab, model: LabModel, domain: str, split: str, limits: TextLimits) -> DomainSums:
    key = {
        "model": model.fingerprint,
        "domain": domain,
        "split": split,
        "text": lab.sizes[domain][split],
        "limits": [limits.tokens, limits.document_tokens],
    }

    def score() -> dict[str, Any]:
        opened = DecodingModel.open(model.train())
        text = read_domains([lab.text_file(domain, split)], opened.tokenizer, limits)[domain]
        alone = Contestants(opened, [], None, [PLAIN], {})
        return DomainSums.of(score_domain(alone, text, None, advance=lab.advance)).as_json()

    return DomainSums.from_json(lab.cell("model", key, score))


def _audit(lab: Lab, model: LabModel) -> dict[str, Any]:
    """What the model's list of documents says beside the corpus."""

    def verify() -> dict[str, Any]:
        found = verify_model(model.train(), corpus=str(lab.folder / "corpus"))
        kept = ("tiers", "permitted", "documents", "document_tiers", "violations")
        return {**{name: found[name] for name in kept}, "training": model.training["summary"]}

    return lab.cell("audit", {"model": model.fingerprint, "corpus": lab.corpus().fingerprint}, verify)


def estimate(figure: intervals.Floats) -> dict[str, float | None]:
    """A figure's vector as a value with its interval."""
    return intervals.Estimate.of(figure).as_json()


def mean_ratio(items: Sequence[Comparison], model: str, reference: str) -> intervals.Floats:
    """The geometric mean over domains; their draws are independent of each other."""
    logs = [np.log(item.ratio(model, reference)) for item in items]
    figure: intervals.Floats = np.exp(np.mean(logs, axis=0))
    return figure


def score_tables(items: Sequence[Comparison], reference: str, what: str) -> list[Table]:
    """Perplexity, bits per byte and the ratio to the reference of all models, a row for every domain."""
    models = items[0].figures.rows
    others = [model for model in models if model != reference]
    means = [np.mean([item.figures.perplexity(model) for item in items], axis=0) for model in models]
    perplexities = [
        (
            item.domain,
            str(len(item.figures.sums.labels)),
            *(f"{_show(item.figures.perplexity(model))} {MARKS[item.marks[model]]}" for model in models),
        )
        for item in items
    ]
    bits = [(item.domain, *(_show(item.figures.bits_per_byte(model), 3) for model in models)) for item in items]
    ratios = [(item.domain, *(_show(item.ratio(model, reference), 2) for model in others)) for item in items]
    title = f"Perplexity on {what} (95 % interval over documents; ● learned, ◐ near, ○ neither)"
    average = ("average", "", *(_show(mean) for mean in means))
    return [
        Table(title, ("domain", "documents", *models), (*perplexities, average)),
        Table(f"Bits per byte on {what}", ("domain", *models), tuple(bits)),
        Table(f"Perplexity as a multiple of that of {reference} on {what}, paired", ("domain", *others), tuple(ratios)),
    ]


def ratios_by_mark(items: Sequence[Comparison], reference: str, published: Mapping[str, Mapping[str, float]]) -> Table:
    """The mean ratio over the domains that a model learned, those near them, and the others."""
    rows = []
    for model in items[0].figures.rows:
        for mark, sign in MARKS.items():
            some = [item for item in items if item.marks[model] == mark]
            if some and model != reference:
                ratio = _show(mean_ratio(some, model, reference), 2)
                paper = str(published.get(model, {}).get(mark, ""))
                rows.append((model, f"{sign} {mark}".strip(), str(len(some)), ratio, paper))
    title = f"Perplexity as a multiple of that of {reference}, geometric mean over domains (95 % interval)"
    return Table(title, ("model", "for the model", "domains", "ratio", "paper"), tuple(rows))


def _steps_table(items: Sequence[Comparison]) -> Table:
    """What each model gains and loses by one tier more, on the same domains: ratios by mark are of different ones."""
    models, rows = items[0].figures.rows, []
    for less, more in pairwise(models):
        learned = [tuple(item.marks[model] == "in" for model in (less, more)) for item in items]
        kinds = {
            (True, True): "both learned",
            (False, True): f"{more} alone learned",
            (True, False): f"{less} alone learned",
            (False, False): "neither learned",
        }
        for mark, kind in kinds.items():
            if some := [item for item, found in zip(items, learned, strict=True) if found == mark]:
                names = ", ".join(item.domain for item in some)
                rows.append((more, less, kind, names, _show(mean_ratio(some, more, less), 2)))
    title = "Each model against the one before it, geometric mean over the same domains (95 % interval)"
    return Table(title, ("model", "beside", "domains that", "which are", "ratio of perplexities"), tuple(rows))


def _show(figure: intervals.Floats, digits: int = 1) -> str:
    return show_estimate(estimate(figure), digits)


def _audit_table(audits: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        (
            model,
            ", ".join(found["tiers"]),
            "yes" if found["permitted"] else "no",
            f"{found['training']['tokens']:,}",
            ", ".join(f"{count:,} {tier}" for tier, count in found["document_tiers"].items()),
            str(len(found["violations"])),
        )
        for model, found in audits.items()
    ]
    columns = ("model", "trained on", "permitted", "tokens", "documents that shaped it", "violations")
    return Table("What `silo lm verify` says of each model", columns, tuple(rows))


def _answer(items: Sequence[Comparison], reference: str, audits: Mapping[str, Mapping[str, Any]]) -> str:
    parts = []
    for model in items[0].figures.rows:
        places = {"in": "where it learned", "near": "near that", "out": "elsewhere"}
        by_mark = {mark: [item for item in items if item.marks[model] == mark] for mark in places}
        shown = [
            f"{_show(mean_ratio(some, model, reference), 2)} {places[mark]}" for mark, some in by_mark.items() if some
        ]
        if model != reference and shown:
            parts.append(f"the perplexity of {model}, as a multiple of that of {reference}, is {', '.join(shown)}")
    violations = sum(len(found["violations"]) for found in audits.values())
    return "; ".join([*parts, f"the audits found {violations} documents that a model may not have seen"]) + "."


def plot_curves(axes: Any, curves: Mapping[str, Mapping[str, Any]]) -> None:
    """Training losses, smoothed, and validation losses of several runs against tokens."""
    for at, (name, curve) in enumerate(curves.items()):
        colour = ACCENTS[at % len(ACCENTS)]
        if curve["training"]:
            tokens, losses = zip(*curve["training"], strict=True)
            axes.plot([count / 1e6 for count in tokens], smooth(list(losses)), color=colour, linewidth=0.8, alpha=0.5)
        if curve["validation"]:
            points = [(item["tokens"] / 1e6, item["loss"]) for item in curve["validation"]]
            axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3, label=name)
    axes.set_xlabel("million tokens")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title("training (thin) and validation text of the domains learned", loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


def plot_ratios(axes: Any, items: Sequence[Comparison], reference: str) -> None:
    """The ratio of every model to the reference, by domain."""
    models = [model for model in items[0].figures.rows if model != reference]
    for at, model in enumerate(models):
        found = [intervals.Estimate.of(item.ratio(model, reference)) for item in items]
        places = [place + 0.7 * (at + 0.5 - len(models) / 2) / len(models) for place in range(len(items))]
        errors = [[one.value - one.low for one in found], [one.high - one.value for one in found]]
        values = [one.value for one in found]
        axes.errorbar(places, values, errors, fmt="o", markersize=4, label=model, color=ACCENTS[at % len(ACCENTS)])
    axes.axhline(1.0, color="#999999", linewidth=0.8)
    axes.set_xticks(range(len(items)), [item.domain for item in items], rotation=30, ha="right")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_ylabel(f"perplexity / that of {reference}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def _plot(curves: Mapping[str, Mapping[str, Any]], items: Sequence[Comparison], reference: str) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_curves(left, curves)
    plot_ratios(right, items, reference)
    right.set_title("test text, 95 % intervals over documents", loc="left", fontsize=10)
    return figure_png(figure)
