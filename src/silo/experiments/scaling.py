"""Perplexity against the size of the store: is it a straight line over log size, and where does it lead?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from silo.evaluation.figures import DomainFigures
from silo.evaluation.intervals import Estimate
from silo.evaluation.scoring import PLAIN
from silo.experiments.harness.lab import Lab, LabStore
from silo.experiments.harness.measure import Floats, Sample, Setup, as_json, known_domains, measure
from silo.experiments.harness.result import (
    ACCENTS,
    INK,
    Result,
    Table,
    draw_estimates,
    figure_png,
    show_estimate,
    use_log_scale,
)

FINE_TUNED = "fine-tuned"
STRAIGHT = 0.98
"""R^2 from which on a line is called straight, even if its bend is more than chance."""
_FARTHEST = 1e15
_FEWEST_TO_BEND = 4

DIFFERENCES = """Stores of ten thousand to a million tokens instead of ten million to a billion, nested: each is the
beginning of the next. At every size the settings come from validation text again. The paper fits no line; here its
slope, its bend and where it meets the model fine-tuned on the largest store's text have intervals over documents.
Such a meeting point is an extrapolation."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`store_tokens` are sizes by model, small to large, 0 for all there is; the model is fine-tuned on the last."""

    question: str
    paper: str
    models: tuple[str, ...]
    domains: tuple[str, ...]
    methods: tuple[str, ...]
    store_tokens: dict[str, tuple[int, ...]]
    neighbours: int = 1024
    sample: Sample = field(default_factory=Sample)
    fine_tuning_epochs: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """A store of so many tokens, and what was measured with it."""

    tokens: int
    figures: DomainFigures


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Perplexity over log2 of the store's tokens, draw by draw. `bend` is the quadratic term, 0 with too few points."""

    slope: Floats
    start: Floats
    r_squared: float
    bend: Floats

    @property
    def shape(self) -> str:
        """In a word."""
        low, high = Estimate.of(self.bend).low, Estimate.of(self.bend).high
        if self.r_squared >= STRAIGHT or low <= 0 <= high:
            return "log-linear"
        return "flattens" if low > 0 else "steepens"

    def tokens_to(self, target: Floats) -> Floats:
        """The tokens at which the line comes down to a perplexity; infinite where it does not fall."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            tokens: Floats = np.where(self.slope < 0, np.exp2((target - self.start) / self.slope), np.inf)
        return tokens


def run(lab: Lab, name: str) -> Result:
    """Every model on every domain with stores of every size."""
    recipe = lab.recipe(name, Recipe)
    domains = known_domains(lab, recipe.domains)
    series = {
        (model, domain): _measure_sizes(lab, recipe, model, domain, seed)
        for model in recipe.models
        for seed, domain in enumerate(domains)
    }
    lines = {(*place, row): fit_line(points, row) for place, points in series.items() for row in _rows(points)}
    return Result(
        name,
        recipe.question,
        _answer(recipe, series, lines),
        recipe.paper,
        DIFFERENCES,
        (_line_table(series, lines), *(_size_table(model, domains, series) for model in recipe.models)),
        {"recipe": asdict(recipe), "points": _facts(series), "lines": _line_facts(series, lines)},
        _plot(recipe.models, domains, series),
    )


Place = tuple[str, str]
Series = dict[Place, list[Point]]
Lines = dict[tuple[str, str, str], Line]


def _measure_sizes(lab: Lab, recipe: Recipe, model: str, domain: str, seed: int) -> list[Point]:
    """A point for each size; sizes beyond the domain's text are one."""
    stores: dict[int, LabStore] = {}
    store = None
    for size in recipe.store_tokens[model]:
        store = lab.store(model, domain, size, grown_from=store)
        stores.setdefault(store.tokens, store)
    points = []
    for tokens, store in stores.items():
        epochs = recipe.fine_tuning_epochs.get(model, 0.0) if tokens == max(stores) else 0.0
        setup = Setup(
            model,
            (store,),
            recipe.methods,
            recipe.sample,
            neighbours=recipe.neighbours,
            fine_tuning_epochs=epochs,
        )
        points.append(Point(tokens, DomainFigures(measure(lab, domain, setup), seed=seed)))
    return points


def _rows(points: Sequence[Point]) -> list[str]:
    """Rows that a larger store changes."""
    return [row for row in points[0].figures.rows if row not in (PLAIN, FINE_TUNED) and "context of" not in row]


def fit_line(points: Sequence[Point], row: str) -> Line:
    """Least squares, on the documents as they are and on every draw of them."""
    sizes = np.log2([point.tokens for point in points])
    perplexities = np.stack([point.figures.perplexity(row) for point in points])
    if len(points) < 2:
        none = np.full(perplexities.shape[1], np.nan)
        return Line(none, none, np.nan, none)
    slope, start = np.polyfit(sizes, perplexities, 1)
    values = perplexities[:, 0]
    rest = values - (start[0] + slope[0] * sizes)
    spread = float(((values - values.mean()) ** 2).sum())
    bent = len(points) >= _FEWEST_TO_BEND
    bend = np.polyfit(sizes, perplexities, 2)[0] if bent else np.zeros(perplexities.shape[1])
    return Line(slope, start, 1 - float((rest**2).sum()) / spread if spread else 1.0, bend)


def _meeting(points: Sequence[Point], line: Line) -> Estimate | None:
    """Where a line meets the fine-tuned model, if there is one."""
    last = points[-1].figures
    if FINE_TUNED not in last.rows:
        return None
    tokens = np.minimum(line.tokens_to(last.perplexity(FINE_TUNED)), _FARTHEST)
    return Estimate.of(tokens)


def _show_tokens(tokens: float, smallest: float = 0.0) -> str:
    """A number of tokens; those below the smallest store are not told apart."""
    if tokens < smallest:
        return f"less than {_show_tokens(smallest)}"
    if tokens >= _FARTHEST:
        return "never"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}"
    return f"{tokens:.0f}"


def _show_meeting(points: Sequence[Point], line: Line) -> str:
    found = _meeting(points, line)
    if found is None:
        return ""
    value, low, high = (_show_tokens(tokens, points[0].tokens) for tokens in (found.value, found.low, found.high))
    return value if not np.isfinite(found.low) or value == low == high else f"{value} ({low} to {high})"


def _line_table(series: Series, lines: Lines) -> Table:
    rows = []
    for (model, domain, row), line in lines.items():
        meeting = _show_meeting(series[model, domain], line)
        slope = show_estimate(as_json(line.slope), 2)
        bend = show_estimate(as_json(line.bend), 2)
        rows.append((model, domain, row, slope, f"{line.r_squared:.3f}", bend, line.shape, meeting))
    columns = (
        "model",
        "domain",
        "row",
        "perplexity per doubling",
        "R^2",
        "bend",
        "shape",
        "tokens to the fine-tuned model",
    )
    return Table("A line over log2(tokens of the store), 95 % intervals over documents", columns, tuple(rows))


def _size_table(model: str, domains: Sequence[str], series: Series) -> Table:
    rows = list(
        dict.fromkeys(row for domain in domains for point in series[model, domain] for row in point.figures.rows)
    )
    lines = [
        (
            domain,
            str(len(point.figures.sums.labels)),
            f"{point.tokens:,}",
            *(_show_perplexity(point.figures, row) for row in rows),
        )
        for domain in domains
        for point in series[model, domain]
    ]
    title = f"Perplexity on test text by tokens of the store, {model} (95 % interval over documents)"
    return Table(title, ("domain", "documents", "tokens", *rows), tuple(lines))


def _show_perplexity(figures: DomainFigures, row: str) -> str:
    return show_estimate(as_json(figures.perplexity(row))) if row in figures.rows else ""


def _answer(recipe: Recipe, series: Series, lines: Lines) -> str:
    methods = [method for method in recipe.methods if method != PLAIN]
    places = {model: [place for place in series if place[0] == model] for model in recipe.models}
    return "; ".join(_answer_of(mine, methods, series, lines) for mine in places.values()) + "."


def _answer_of(places: Sequence[Place], methods: Sequence[str], series: Series, lines: Lines) -> str:
    """What a doubling brings one model with the method that is best with the largest stores, and where that leads."""
    last = {place: series[place][-1].figures for place in places}
    row = min(methods, key=lambda name: sum(_log(last[place], name) for place in places))
    found = {place: lines[*place, row] for place in places}
    falls = np.mean([-line.slope / last[place].perplexity(PLAIN) for place, line in found.items()], axis=0)
    straight = sum(line.shape == "log-linear" for line in found.values())
    answer = (
        f"{places[0][0]} with {row}: every doubling of the store takes off "
        f"{show_estimate(as_json(falls), 1, 100)} % of the perplexity that the model has alone, "
        f"in a straight line in {straight} of {len(found)} domains"
    )
    meetings = [meeting.value for place, line in found.items() if (meeting := _meeting(series[place], line))]
    if meetings:
        smallest = float(np.median([series[place][0].tokens for place in places]))
        middle = _show_tokens(float(np.median(meetings)), smallest)
        answer += f"; the line meets the fine-tuned model at {middle} tokens (median of the domains)"
    return answer


def _log(figures: DomainFigures, row: str) -> float:
    return float(np.log(figures.perplexity(row)[0]))


def _facts(series: Series) -> list[dict[str, Any]]:
    return [
        {"model": model, "domain": domain, "tokens": point.tokens, **point.figures.as_json()}
        for (model, domain), points in series.items()
        for point in points
    ]


def _line_facts(series: Series, lines: Lines) -> list[dict[str, Any]]:
    facts = []
    for (model, domain, row), line in lines.items():
        meeting = _meeting(series[model, domain], line)
        facts.append(
            {
                "model": model,
                "domain": domain,
                "row": row,
                "per_doubling": as_json(line.slope),
                "bend": as_json(line.bend),
                "r_squared": line.r_squared if np.isfinite(line.r_squared) else None,
                "shape": line.shape,
                "tokens_to_fine_tuned": meeting.as_json() if meeting else None,
            }
        )
    return facts


def _plot(models: Sequence[str], domains: Sequence[str], series: Series) -> bytes:
    """Perplexity over the tokens of the store, a panel for each model and domain."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(8, 3.6 * len(domains)), 3.4 * len(models) + 0.8), layout="constrained")
    panels = figure.subplots(len(models), len(domains), squeeze=False)
    for down, model in enumerate(models):
        for across, domain in enumerate(domains):
            axes, points = panels[down][across], series[model, domain]
            _draw_series(axes, points)
            axes.set_title(f"{model}, {domain}", loc="left", fontsize=10)
            if across == 0:
                axes.set_ylabel("perplexity")
            if down == len(models) - 1:
                axes.set_xlabel("tokens of the store")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure_png(figure)


def _draw_series(axes: Any, points: Sequence[Point]) -> None:
    sizes = [point.tokens for point in points]
    for at, row in enumerate(_rows(points)):
        found = [as_json(point.figures.perplexity(row)) for point in points]
        moved = [size * 1.03 ** (at - len(_rows(points)) / 2) for size in sizes]
        draw_estimates(axes, moved, found, fmt="o-", label=row, color=ACCENTS[at % len(ACCENTS)])
    last = points[-1].figures
    axes.axhline(last.perplexity(PLAIN)[0], color=INK, linewidth=1, label="the model alone")
    if FINE_TUNED in last.rows:
        axes.axhline(last.perplexity(FINE_TUNED)[0], color=INK, linewidth=1, linestyle="--", label="fine-tuned")
    axes.set_xscale("log")
    axes.set_xticks(sizes, [_show_tokens(size) for size in sizes])
    axes.xaxis.minorticks_off()
    use_log_scale(axes)
    axes.grid(alpha=0.3)
