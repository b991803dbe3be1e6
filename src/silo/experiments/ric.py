"""Passages in the context, in several ways, against the model alone that reads as many tokens at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from silo.evaluation.figures import DomainFigures, DomainSums, sum_rows
from silo.experiments.harness.lab import Lab, LabStore
from silo.experiments.harness.measure import (
    WINDOW,
    Floats,
    Sample,
    as_json,
    join_rows,
    known_domains,
    mean_ratio,
    ratio,
    read_text,
)
from silo.experiments.harness.result import ACCENTS, Result, Table, draw_estimates, figure_png, show_estimate
from silo.inference.context import RicContext
from silo.inference.observe import observe
from silo.inference.predict import Predictor
from silo.inference.settings import Ric, Settings
from silo.lm.engine.decoder import DecodingModel
from silo.lm.windows import Windows
from silo.pairing import open_store
from silo.store.policy import EVERYTHING

INPUT, TEXT = "the same input", "the same text"
"""What the model alone is given: as many tokens at once, all of them text, or the text that RIC leaves room for."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to put passages before the text, see `Ric`; `name` is for the table."""

    name: str
    variant: str = "basic"
    passages: int = 1
    weighting: str = "uniform"
    passage_tokens: int = 0
    query_tokens: int = 0
    stride: int = 0

    @property
    def ric(self) -> Ric:
        return Ric(**{name: value for name, value in asdict(self).items() if name != "name"})

    @property
    def inputs(self) -> int:
        """How many inputs the model reads for one prediction."""
        return self.passages if self.variant == "ensemble" else 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """`context` is what the model reads at once, passages included; `store_tokens` are by model, 0 for all."""

    question: str
    paper: str
    differences: str
    models: tuple[str, ...]
    domains: tuple[str, ...]
    variants: tuple[Variant, ...]
    context: int = WINDOW
    sample: Sample = field(default_factory=Sample)
    store_tokens: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """A variant with the windows of the text that it reads, and of the model alone that it is compared with."""

    variant: Variant
    context: int
    windows: dict[str, Windows]

    @property
    def read_per_token(self) -> float:
        """Tokens that go through the network for one that is scored."""
        return self.variant.inputs * self.context / self.windows[TEXT].stride


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One model with one domain."""

    lab: Lab
    name: str
    model: DecodingModel
    store: LabStore
    domain: str
    sample: Sample

    def score_passages(self, plan: Plan) -> DomainSums:
        """The row of a variant."""
        key = {"store": self.store.digest, "ric": asdict(plan.variant.ric), "context": plan.context}
        provider = RicContext(plan.context, plan.variant.ric, self.model.tokenizer)
        return self._row(plan.variant.name, key, plan.windows[TEXT], provider)

    def score_alone(self, windows: Windows) -> DomainSums:
        """The row of the model without passages."""
        return self._row(alone(windows), {"windows": asdict(windows)}, windows, None)

    def _row(self, row: str, key: Mapping[str, Any], windows: Windows, provider: RicContext | None) -> DomainSums:
        facts = {"model": self.lab.fingerprint(self.name), "domain": self.domain, "sample": asdict(self.sample)}

        def score() -> dict[str, Any]:
            predictor = Predictor(
                self.model,
                [open_store(self.store.fill())] if provider else (),
                method=frozenset({"ric"}) if provider else frozenset(),
                settings=Settings(),
                policy=EVERYTHING,
                encoder=None,
                context=provider,
            )
            predictor.windows = windows
            text = read_text(self.lab, self.domain, "test", self.model, self.sample)
            observed = observe(predictor, text.stream.ids, advance=self.lab.advance)
            return sum_rows(text, {row: observed.lm}).as_json()

        return DomainSums.from_json(self.lab.cell("ric", {**facts, "row": row, **key}, score))


def alone(windows: Windows) -> str:
    """The name of the row of the model alone."""
    return f"lm, {windows.length} tokens, stride {windows.stride}"


def plan(variant: Variant, context: int, model: DecodingModel) -> Plan:
    """How a variant reads, and what the model alone reads in its place."""
    most = min(context, model.context)
    text = RicContext(most, variant.ric, model.tokenizer).windows
    return Plan(variant, most, {INPUT: Windows(most, text.stride), TEXT: text})


def run(lab: Lab, name: str) -> Result:
    """Every variant and what it is compared with, for every model on every domain."""
    recipe = lab.recipe(name, Recipe)
    domains = known_domains(lab, recipe.domains)
    plans: dict[str, list[Plan]] = {}
    figures: dict[str, list[DomainFigures]] = {}
    for model in recipe.models:
        opened = lab.open_model(model)
        plans[model] = [plan(variant, recipe.context, opened) for variant in recipe.variants]
        figures[model] = []
        for seed, domain in enumerate(domains):
            store = lab.store(model, domain, recipe.store_tokens.get(model, 0))
            case = Case(lab, model, opened, store, domain, recipe.sample)
            figures[model].append(DomainFigures(_measure(case, plans[model]), seed=seed))
    ratios = {(model, one.variant.name): _ratios(one, figures[model]) for model in plans for one in plans[model]}
    return Result(
        name,
        recipe.question,
        _answer(plans, ratios),
        recipe.paper,
        recipe.differences,
        (_ratio_table(plans, ratios), *(_perplexity_table(model, items) for model, items in figures.items())),
        {
            "recipe": asdict(recipe),
            "ratios": [{"model": model, "variant": one, **found} for (model, one), found in ratios.items()],
            "domains": {model: _facts(items) for model, items in figures.items()},
        },
        _plot(plans, ratios),
    )


def _measure(case: Case, plans: Sequence[Plan]) -> DomainSums:
    rows = [case.score_passages(one) for one in plans]
    every = dict.fromkeys(windows for one in plans for windows in one.windows.values())
    return join_rows(rows + [case.score_alone(windows) for windows in every])


Ratios = dict[tuple[str, str], dict[str, dict[str, float | None]]]
"""By model and variant: perplexity as a multiple of that of the model alone with the same input and the same text."""


def _ratios(one: Plan, items: Sequence[DomainFigures]) -> dict[str, dict[str, float | None]]:
    def mean(windows: Windows) -> Floats:
        return mean_ratio([ratio(item, one.variant.name, item, alone(windows)) for item in items])

    return {given: as_json(mean(windows)) for given, windows in one.windows.items()}


def _answer(plans: Mapping[str, Sequence[Plan]], ratios: Ratios) -> str:
    """The best variant of every model, beside what the first one does."""
    parts = []
    for model, mine in plans.items():
        names = [one.variant.name for one in mine]
        best = min(names, key=lambda name: ratios[model, name][INPUT]["value"] or float("inf"))
        shown = [
            f"{name} has {show_estimate(ratios[model, name][INPUT], 3)}" for name in dict.fromkeys([names[0], best])
        ]
        parts.append(f"{model}: {' and '.join(shown)} times the perplexity of the model alone with {INPUT}")
    return "; ".join(parts) + "."


def _ratio_table(plans: Mapping[str, Sequence[Plan]], ratios: Ratios) -> Table:
    lines = []
    for model, mine in plans.items():
        for one in mine:
            found = ratios[model, one.variant.name]
            shown = [show_estimate(found[given], 3) for given in (INPUT, TEXT)]
            lines.append((model, one.variant.name, *shown, f"{one.read_per_token:.1f}"))
    title = "Perplexity as a multiple of that of the model alone, geometric mean of the domains (95 % interval)"
    columns = ("model", "variant", f"with {INPUT}", f"with {TEXT}", "tokens read for one scored")
    return Table(title, columns, tuple(lines))


def _perplexity_table(model: str, items: Sequence[DomainFigures]) -> Table:
    lines = [(row, *(show_estimate(as_json(item.perplexity(row))) for item in items)) for row in items[0].rows]
    title = f"Perplexity on test text, {model} (95 % interval over documents)"
    columns = (f"{item.sums.domain}, {len(item.sums.labels)} documents" for item in items)
    return Table(title, ("row", *columns), tuple(lines))


def _facts(items: Sequence[DomainFigures]) -> dict[str, Any]:
    return {
        item.sums.domain: {
            "documents": len(item.sums.labels),
            "tokens": int(item.sums.tokens.sum()),
            "perplexity": {row: as_json(item.perplexity(row)) for row in item.rows},
        }
        for item in items
    }


def _plot(plans: Mapping[str, Sequence[Plan]], ratios: Ratios) -> bytes:
    """Every variant against both forms of the model alone, a panel for each model."""
    from matplotlib.figure import Figure

    height = 1.3 + 0.35 * max(map(len, plans.values()))
    figure = Figure(figsize=(9, height * len(plans)), layout="constrained")
    for axes, (model, mine) in zip(figure.subplots(len(plans), squeeze=False)[:, 0], plans.items(), strict=True):
        for at, given in enumerate((INPUT, TEXT)):
            found = [ratios[model, one.variant.name][given] for one in mine]
            places = [place + 0.15 * (2 * at - 1) for place in range(len(mine))]
            draw_estimates(axes, places, found, across=True, label=f"the model alone with {given}", color=ACCENTS[at])
        axes.axvline(1.0, color="#999999", linewidth=0.8)
        axes.set_yticks(range(len(mine)), [one.variant.name for one in mine])
        axes.invert_yaxis()
        axes.set_xlabel("perplexity / that of the model alone; mean of the domains with its 95 % interval")
        axes.set_title(model, loc="left", fontsize=10)
        axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.3)
    return figure_png(figure)
