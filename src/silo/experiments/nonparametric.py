"""The paper's main result: a permitted model with a store, beside everything that could explain the gain away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from silo.evaluation.figures import DomainFigures, average_gap_closed
from silo.evaluation.scoring import PLAIN, REFERENCE
from silo.experiments.harness.lab import Lab
from silo.experiments.harness.measure import Sample, Setup, known_domains, measure
from silo.experiments.harness.result import ACCENTS, Result, Table, draw_estimates, figure_png, show_estimate

PAPER = {"knn": 91, "ric": 27}
"""Per cent of the gap that the paper's methods close."""


DIFFERENCES = """Models of 3M parameters instead of 1.3B and stores of a million tokens instead of a billion; the
reference has our own architecture and read all that the stores hold. Settings come from validation text, the test was
scored once, and documents that share 13-grams with it are in no store. The paper has none of the rows without a
language model, fine-tuned, or reference with store. `smollm2` is SmolLM2-135M, which was not trained on permitted text
only."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """By model: `references` with its tokenizer, `store_tokens` (0: all there are), `fine_tuning_epochs` (0: none)."""

    question: str
    paper: str
    models: tuple[str, ...]
    domains: tuple[str, ...]
    methods: tuple[str, ...]
    neighbours: int = 1024
    sample: Sample = field(default_factory=Sample)
    references: dict[str, str] = field(default_factory=dict)
    store_tokens: dict[str, int] = field(default_factory=dict)
    fine_tuning_epochs: dict[str, float] = field(default_factory=dict)


def run(lab: Lab, name: str) -> Result:
    """Every model on every domain of the data that the recipe names."""
    recipe = lab.recipe(name, Recipe)
    domains = known_domains(lab, recipe.domains)
    figures = {
        model: [
            DomainFigures(measure(lab, domain, _setup(lab, recipe, model, domain)), seed=at)
            for at, domain in enumerate(domains)
        ]
        for model in recipe.models
    }
    return Result(
        name,
        recipe.question,
        _answer(figures),
        recipe.paper,
        DIFFERENCES,
        (_averages(figures), *(table for model, items in figures.items() for table in _tables(model, items))),
        {"recipe": asdict(recipe), "domains": {model: _facts(items) for model, items in figures.items()}},
        _plot(figures),
    )


def _setup(lab: Lab, recipe: Recipe, model: str, domain: str) -> Setup:
    """A model with a store of the domain's train text."""
    return Setup(
        model,
        (lab.store(model, domain, recipe.store_tokens.get(model, 0)),),
        recipe.methods,
        recipe.sample,
        recipe.references.get(model, ""),
        recipe.neighbours,
        fine_tuning_epochs=recipe.fine_tuning_epochs.get(model, 0.0),
    )


def _answer(figures: dict[str, list[DomainFigures]]) -> str:
    """What each model gained, in one sentence."""
    parts = []
    for model, items in figures.items():
        row = "knn+ngram" if "knn+ngram" in items[0].rows else items[0].rows[-1]
        if REFERENCE in items[0].rows:
            closed, clean = (average_gap_closed(items, row, clean=only).as_json() for only in (False, True))
            parts.append(
                f"{model} with {row} closes {show_estimate(closed, 0, 100)} % of the gap, "
                f"{show_estimate(clean, 0, 100)} % on tokens without a long match"
            )
        else:
            ratios = [float(item.perplexity(row)[0] / item.perplexity(PLAIN)[0]) for item in items]
            mean = sum(ratios) / len(ratios)
            parts.append(f"{model} with {row} has {mean:.2f} times its own perplexity in the mean of the domains")
    return "; ".join(parts) + "."


def _averages(figures: dict[str, list[DomainFigures]]) -> Table:
    rows = []
    for model, items in figures.items():
        for row in items[0].rows:
            if (
                row in (PLAIN, REFERENCE)
                or REFERENCE not in items[0].rows
                or any(row not in item.rows for item in items)
            ):
                continue
            whole, clean = (average_gap_closed(items, row, clean=only).as_json() for only in (False, True))
            paper = str(PAPER.get(row, ""))
            rows.append((model, row, show_estimate(whole, 0, 100), show_estimate(clean, 0, 100), paper))
    columns = ("model", "row", "all tokens", "longest match at most 12 tokens", "paper")
    return Table("Gap closed, per cent, mean of the domains (95 % interval)", columns, tuple(rows))


def _tables(model: str, items: Sequence[DomainFigures]) -> list[Table]:
    rows = list(dict.fromkeys(row for item in items for row in item.rows))
    found = {item.sums.domain: item.as_json() for item in items}
    lines = [
        (domain, facts["mark"], *(show_estimate(facts["rows"].get(row, {}).get("perplexity")) for row in rows))
        for domain, facts in found.items()
    ]
    title = f"Perplexity on test text, {model} (95 % interval over documents)"
    splits = [
        (
            domain,
            match,
            f"{facts['matches'][match]:,}",
            *(show_estimate(facts["rows"].get(row, {}).get("by_match", {}).get(match)) for row in rows),
        )
        for domain, facts in found.items()
        for match in facts["matches"]
    ]
    return [
        Table(title, ("domain", "for the LM", *rows), tuple(lines)),
        Table(
            f"The same, {model}, by the longest match that the store holds",
            ("domain", "match", "tokens", *rows),
            tuple(splits),
        ),
    ]


def _facts(items: Sequence[DomainFigures]) -> dict[str, Any]:
    return {item.sums.domain: item.as_json() for item in items}


def _plot(figures: dict[str, list[DomainFigures]]) -> bytes:
    """Perplexity of every row as a multiple of the language model's, by domain."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5 * len(figures)), layout="constrained")
    for axes, (model, items) in zip(figure.subplots(len(figures), squeeze=False)[:, 0], figures.items(), strict=True):
        rows = [row for row in items[0].rows if row != PLAIN and "context of" not in row]
        for at, row in enumerate(rows):
            found = [item.as_json()["rows"].get(row, {}).get("ratio_to_lm") for item in items]
            places = [place + 0.8 * (at - len(rows) / 2) / len(rows) for place in range(len(found))]
            draw_estimates(axes, places, found, label=row, color=ACCENTS[at % len(ACCENTS)])
        axes.axhline(1.0, color="#999999", linewidth=0.8)
        axes.set_xticks(range(len(items)), [item.sums.domain for item in items], rotation=20, ha="right")
        axes.set_ylabel("perplexity / that of the model alone")
        axes.set_yscale("log")
        axes.set_title(f"{model}: test text, 95 % intervals over documents", loc="left")
        axes.legend(frameon=False, ncols=4, fontsize=8)
        axes.grid(alpha=0.3)
    return figure_png(figure)
