"""One thing changed at a time: what each change does to perplexity, against a base on the same text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from silo.errors import SiloError
from silo.evaluation.figures import DomainFigures
from silo.experiments.harness.lab import Lab, LabStore
from silo.experiments.harness.measure import (
    NEIGHBOURS,
    WINDOW,
    Sample,
    Setup,
    as_json,
    known_domains,
    mean_ratio,
    measure,
    ratio,
)
from silo.experiments.harness.result import ACCENTS, Result, Table, draw_estimates, figure_png, show_estimate
from silo.store.view import PROBES

_NAMED = 4
"""Changes that the answer names; the others are in the table."""


@dataclass(frozen=True, slots=True)
class Change:
    """What differs from the base; "" and 0 do not. In the base 0 is what is usual, and all text for `store_tokens`.

    `encoder` made the stores' keys. `stores` are the domain's own, those of all others, all of them together, or one
    store of all domains. `neighbours` is the most that tuning may choose.
    """

    name: str
    model: str = ""
    encoder: str = ""
    stores: str = ""
    store_tokens: int = 0
    neighbours: int = 0
    probes: int = 0
    window: int = 0


@dataclass(frozen=True, slots=True)
class Recipe:
    """Every change is measured on every domain, with the settings that validation text chooses for it."""

    question: str
    paper: str
    differences: str
    domains: tuple[str, ...]
    methods: tuple[str, ...]
    base: Change
    changes: tuple[Change, ...]
    sample: Sample = field(default_factory=Sample)


Figures = dict[str, list[DomainFigures]]
"""Of the base and of every change, domain by domain."""


def run(lab: Lab, name: str) -> Result:
    """The base and every change on every domain."""
    recipe = lab.recipe(name, Recipe)
    domains = known_domains(lab, recipe.domains)
    figures = {
        change.name: [
            DomainFigures(measure(lab, domain, _setup(lab, recipe, change, domain, domains)), seed=seed)
            for seed, domain in enumerate(domains)
        ]
        for change in (recipe.base, *recipe.changes)
    }
    ratios = _ratios(figures, recipe.base.name)
    return Result(
        name,
        recipe.question,
        _answer(recipe, ratios),
        recipe.paper,
        recipe.differences,
        (change_table(recipe.base.name, recipe.methods, ratios), _domain_table(domains, figures)),
        {
            "recipe": asdict(recipe),
            "ratios": ratios,
            "domains": {
                change: {item.sums.domain: item.as_json() for item in items} for change, items in figures.items()
            },
        },
        plot_changes(recipe.base.name, recipe.methods, ratios),
    )


def _setup(lab: Lab, recipe: Recipe, change: Change, domain: str, domains: Sequence[str]) -> Setup:
    base = recipe.base
    model = change.model or base.model
    encoder = change.encoder or base.encoder or model
    tokens = change.store_tokens or base.store_tokens
    return Setup(
        model,
        _stores(lab, encoder, change.stores or base.stores, tokens, domain, domains),
        recipe.methods,
        recipe.sample,
        neighbours=change.neighbours or base.neighbours or NEIGHBOURS,
        probes=change.probes or base.probes or PROBES,
        window=change.window or base.window or WINDOW,
    )


def _stores(
    lab: Lab, encoder: str, which: str, tokens: int, domain: str, domains: Sequence[str]
) -> tuple[LabStore, ...]:
    match which:
        case "" | "own":
            return (lab.store(encoder, domain, tokens),)
        case "others":
            return tuple(lab.store(encoder, other, tokens) for other in domains if other != domain)
        case "together":
            return tuple(lab.store(encoder, one, tokens) for one in domains)
        case "merged":
            return (lab.store(encoder, domains, tokens),)
    raise SiloError("recipe-value", f"stores is '{which}', not own, others, together or merged")


Ratios = dict[str, dict[str, dict[str, Any]]]
"""Of every change, by row: perplexity as a multiple of the base's, by domain and as a mean."""


def _ratios(figures: Figures, base: str) -> Ratios:
    return {
        change: {row: _compare(items, figures[base], row) for row in items[0].rows}
        for change, items in figures.items()
        if change != base
    }


def _compare(items: Sequence[DomainFigures], base: Sequence[DomainFigures], row: str) -> dict[str, Any]:
    found = [ratio(item, row, other, row) for item, other in zip(items, base, strict=True)]
    domains = {item.sums.domain: as_json(figure) for item, figure in zip(items, found, strict=True)}
    return {"mean": as_json(mean_ratio(found)), "domains": domains}


def _answer(recipe: Recipe, ratios: Ratios) -> str:
    """What matters most to the last method, and how little the rest does."""
    row = recipe.methods[-1]
    means = {change: rows[row]["mean"] for change, rows in ratios.items()}
    effects = {change: abs(math.log(mean["value"])) for change, mean in means.items()}
    order = sorted(effects, key=lambda change: -effects[change])
    parts = [f"{show_estimate(means[change], 3)} times with {change}" for change in order[:_NAMED]]
    answer = f"Perplexity of {row} against that of {recipe.base.name}: {', '.join(parts)}"
    if rest := order[_NAMED:]:
        answer += f"; no other change makes it differ by more than {100 * math.expm1(effects[rest[0]]):.1f} %"
    return answer + "."


def change_table(base: str, methods: Sequence[str], ratios: Ratios) -> Table:
    """The mean ratios of all changes, a column for each method that any of them concerns."""
    shown = list(dict.fromkeys(row for rows in ratios.values() for row in rows))
    columns = [*(method for method in methods if method in shown), *(row for row in shown if row not in methods)]
    lines = [
        (change, *(show_estimate(rows.get(row, {}).get("mean"), 3) for row in columns))
        for change, rows in ratios.items()
    ]
    title = f"Perplexity as a multiple of that with {base}, geometric mean of the domains (95 % interval)"
    return Table(title, ("changed", *columns), tuple(lines))


def _domain_table(domains: Sequence[str], figures: Figures) -> Table:
    rows = next(iter(figures.values()))[0].rows
    lines = [
        (
            domain,
            str(len(items[at].sums.labels)),
            change,
            *(show_estimate(as_json(items[at].perplexity(row))) for row in rows),
        )
        for at, domain in enumerate(domains)
        for change, items in figures.items()
    ]
    title = "Perplexity on test text (95 % interval over documents)"
    return Table(title, ("domain", "documents", "", *rows), tuple(lines))


def plot_changes(base: str, wanted: Sequence[str], ratios: Ratios) -> bytes:
    """The change on one axis, the ratio to the base on the other; small marks are single domains."""
    from matplotlib.figure import Figure

    methods = [method for method in wanted if any(method in rows for rows in ratios.values())]
    figure = Figure(figsize=(9, 1.6 + 0.5 * len(ratios)), layout="constrained")
    axes = figure.subplots()
    for at, row in enumerate(methods):
        places = [place + 0.7 * (at + 0.5 - len(methods) / 2) / len(methods) for place in range(len(ratios))]
        colour = ACCENTS[at % len(ACCENTS)]
        means = [rows.get(row, {}).get("mean") for rows in ratios.values()]
        draw_estimates(axes, places, means, across=True, label=row, color=colour)
        for place, rows in zip(places, ratios.values(), strict=True):
            values = [item["value"] for item in rows.get(row, {"domains": {}})["domains"].values()]
            axes.plot(values, [place] * len(values), "|", color=colour, alpha=0.5, markersize=5)
    axes.axvline(1.0, color="#999999", linewidth=0.8)
    axes.set_yticks(range(len(ratios)), list(ratios))
    axes.invert_yaxis()
    axes.set_xlabel(f"perplexity / that with {base}\nmean of the domains with its 95 % interval, | each domain")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    return figure_png(figure)
