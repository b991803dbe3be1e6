"""The paper's main result: a permitted model with a store, beside everything that could explain the gain away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from silo.evaluation.figures import DomainFigures, average_gap_closed, average_ratio
from silo.evaluation.scoring import PLAIN, REFERENCE
from silo.experiments.harness.lab import Lab
from silo.experiments.harness.measure import Sample, Setup, known_domains, measure
from silo.experiments.harness.result import (
    ACCENTS,
    Result,
    Table,
    draw_estimates,
    figure_png,
    show_estimate,
    use_log_scale,
)

PAPER = {"knn": 91, "ric": 27}
"""Per cent of the gap that the paper's methods close."""


DIFFERENCES = """Models of 3M parameters instead of 1.3B and stores of about a million tokens (`smollm2`: 300,000)
instead of a billion; the reference has our own architecture and read the text of each store about once, among 18
domains, while a store serves the one domain it is made of. One training each: intervals are over test documents, not
over trainings.
Settings come from validation text, the test was scored once, and documents that share 13-grams with it are in no store.
RIC's passages take half of the input (the paper adds them to it); fine-tuning is two epochs at one rate that was not
tuned. The gap is that between the domains' mean perplexities, so domains of high perplexity weigh more. The paper has
none of the rows without a language model, fine-tuned, or reference with store. `smollm2` is the model brought along
under that name (of the committed report SmolLM2-135M-Instruct in four bits, reading 1,024 of its 8,192 tokens), which
was not trained on permitted text only."""


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
        (*_averages(figures), *(table for model, items in figures.items() for table in _tables(model, items))),
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
            ratio, clean = (average_ratio(items, row, clean=only).as_json() for only in (False, True))
            parts.append(
                f"{model} with {row} has {show_estimate(ratio, 2)} times the perplexity of {model} alone, "
                f"{show_estimate(clean, 2)} times on tokens without a long match"
            )
    return "; ".join(parts) + "."


_RATIOS = "Times the perplexity of the model alone, geometric mean of the domains (95 % interval)"


def _averages(figures: dict[str, list[DomainFigures]]) -> list[Table]:
    """What the methods gain in the mean of the domains, and how much of the gap that is where there is a reference."""
    ratios, gaps = [], []
    for model, items in figures.items():
        for row in items[0].rows:
            if row == PLAIN or any(row not in item.rows for item in items):
                continue
            found = (average_ratio(items, row, clean=only).as_json() for only in (False, True))
            ratios.append((model, row, *(show_estimate(item, 2) for item in found)))
            if row != REFERENCE and REFERENCE in items[0].rows:
                found = (average_gap_closed(items, row, clean=only).as_json() for only in (False, True))
                gaps.append((model, row, *(show_estimate(item, 0, 100) for item in found), str(PAPER.get(row, ""))))
    columns = ("model", "row", "all tokens", "longest match at most 12 tokens")
    tables = [
        Table(
            "Gap between the domains' mean perplexities closed, per cent (95 % interval)",
            (*columns, "paper"),
            tuple(gaps),
        ),
        Table(_RATIOS, columns, tuple(ratios)),
    ]
    return [table for table in tables if table.rows]


def _tables(model: str, items: Sequence[DomainFigures]) -> list[Table]:
    rows = list(dict.fromkeys(row for item in items for row in item.rows))
    found = {item.sums.domain: item.as_json() for item in items}
    lines = [
        (
            domain,
            facts["mark"],
            str(facts["documents"]),
            *(show_estimate(facts["rows"].get(row, {}).get("perplexity")) for row in rows),
        )
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
        Table(title, ("domain", "for the LM", "documents", *rows), tuple(lines)),
        Table(
            f"The same, {model}, by the longest match that the store holds",
            ("domain", "match", "tokens", *rows),
            tuple(splits),
        ),
    ]


def _facts(items: Sequence[DomainFigures]) -> dict[str, Any]:
    return {item.sums.domain: item.as_json() for item in items}


_PLOTTED = 1.5
"""Rows that are worse than so many times the model alone in every domain would leave no room for the others."""


def _plot(figures: dict[str, list[DomainFigures]]) -> bytes:
    """Perplexity of every row as a multiple of the language model's, by domain."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5 * len(figures)), layout="constrained")
    for axes, (model, items) in zip(figure.subplots(len(figures), squeeze=False)[:, 0], figures.items(), strict=True):
        drawn = _drawn_ratios(items)
        for at, (row, found) in enumerate(drawn.items()):
            places = [place + 0.8 * (at - (len(drawn) - 1) / 2) / len(drawn) for place in range(len(found))]
            color, mark = ACCENTS[at % len(ACCENTS)], "o" if at < len(ACCENTS) else "s"
            draw_estimates(axes, places, found, label=row, color=color, fmt=mark)
        axes.axhline(1.0, color="#999999", linewidth=0.8)
        axes.set_xticks(range(len(items)), [item.sums.domain for item in items], rotation=20, ha="right")
        axes.set_ylabel("perplexity / that of the model alone")
        use_log_scale(axes)
        axes.set_title(f"{model}: test text, 95 % intervals over documents", loc="left")
        axes.legend(frameon=False, ncols=4, fontsize=8, title=_left_out(items, drawn), title_fontsize=8)
        axes.grid(alpha=0.3)
    return figure_png(figure)


def _drawn_ratios(items: Sequence[DomainFigures]) -> dict[str, list[dict[str, Any] | None]]:
    """The rows that are drawn, each with its ratio to the model alone in every domain."""
    found = [item.as_json()["rows"] for item in items]
    rows = [row for row in items[0].rows if row != PLAIN and "context of" not in row]
    ratios = {row: [domain.get(row, {}).get("ratio_to_lm") for domain in found] for row in rows}
    return {row: some for row, some in ratios.items() if any(item and item["value"] < _PLOTTED for item in some)}


def _left_out(items: Sequence[DomainFigures], drawn: Mapping[str, object]) -> str:
    missing = [row for row in items[0].rows if row != PLAIN and "context of" not in row and row not in drawn]
    return f"in the table alone, more than {_PLOTTED} everywhere: {', '.join(missing)}" if missing else ""
