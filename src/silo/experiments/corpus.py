"""What the corpus is made of, how much of the evaluation text it covers, and whether that tells where a model is weak.

Counts of a corpus are exact and have no interval. Correlations have one over domains: there are few of them, and each
is one point.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from silo.corpus.report.overlap import overlap_matrix
from silo.corpus.report.plots import plot_distribution
from silo.corpus.report.stats import CorpusStats, corpus_stats, load_reference
from silo.evaluation import intervals
from silo.evaluation.texts import TextLimits
from silo.experiments.harness.lab import Lab
from silo.experiments.harness.result import ACCENTS, Result, Table, figure_png, show_estimate
from silo.experiments.parametric import Comparison, compare_models, estimate
from silo.records import TRAINING_SETS, Tier

STATS_DIFFERENCES = """The paper's corpus has 228 billion tokens; this one is counted in bytes. Restricted domains are
in it too, because stores and the reference read them. Which domains form a group is said in data.toml; not all groups
are the paper's. These are shares of the corpus: the models of the experiments read as many tokens of every domain."""

OVERLAP_DIFFERENCES = """The paper does not say how it divides the n-grams that two domains share; coverage divides by
those of the evaluation domain, Jaccard by those of both. The paper's own rows give the coefficient that we compute
from its two tables, which have 12 domains in common. With so few domains the interval is wide."""


@dataclass(frozen=True, slots=True)
class StatsRecipe:
    """`published` has the paper's tokens in billions of every domain, for pd, pdsw and pdswby."""

    question: str
    paper: str
    reference: str = "pile"
    published: dict[str, tuple[float, ...]] = field(default_factory=dict)


class PublishedDomain(NamedTuple):
    """One domain of the paper: the largest overlap with a training domain, and two perplexities."""

    overlap: float
    model: float
    reference: float


@dataclass(frozen=True, slots=True)
class OverlapRecipe:
    """`published` has of every domain of the paper the overlap, and the perplexities of pdsw and of Pythia."""

    question: str
    paper: str
    model: str
    reference: str
    tiers: tuple[str, ...] = ("pd", "sw")
    sample_tokens: int = 10_000_000
    min_documents: int = 3
    validation_tokens: int = 40_000
    document_tokens: int = 2_000
    published: dict[str, tuple[float, ...]] = field(default_factory=dict)


class Point(NamedTuple):
    """An evaluation domain: how much of it training text covers, and how much better the reference is."""

    domain: str
    mark: str
    coverage: float
    jaccard: float
    gap: intervals.Floats


def run(lab: Lab, name: str) -> Result:
    """One of the two experiments."""
    return _run_stats(lab, name) if name == "corpus-stats" else _run_overlap(lab, name)


def _run_stats(lab: Lab, name: str) -> Result:
    recipe = lab.recipe(name, StatsRecipe)
    stats = corpus_stats(lab.corpus(), reference=load_reference(recipe.reference))
    return Result(
        name,
        recipe.question,
        _stats_answer(stats, recipe),
        recipe.paper,
        STATS_DIFFERENCES,
        (_overview(stats), _distribution(stats, recipe)),
        {"recipe": asdict(recipe), **stats.as_json()},
        _distribution_plot(stats),
    )


def _overview(stats: CorpusStats) -> Table:
    rows = [
        (
            row.group,
            str(row.tier),
            ", ".join(row.sources),
            ", ".join(row.licenses),
            f"{row.documents:,}",
            f"{row.tokens:,}",
        )
        for row in stats.overview
    ]
    columns = ("domain", "tier", "sources", "licences", "documents", "bytes")
    return Table("What each domain is made of", columns, tuple(rows))


def _distribution(stats: CorpusStats, recipe: StatsRecipe) -> Table:
    sets = [*TRAINING_SETS, "all"]
    totals = [sum(tokens[at] for tokens in recipe.published.values()) for at in range(len(TRAINING_SETS))]
    rows = []
    for row in stats.distribution:
        ours = [f"{100 * row.sets[name].share:.1f}" for name in sets]
        other = f"{100 * row.reference.share:.1f}" if row.reference else ""
        theirs = recipe.published.get(row.group, ())
        shares = [f"{100 * count / total:.1f}" for count, total in zip(theirs, totals, strict=False)]
        rows.append((row.group, *ours, other, *(shares or [""] * len(TRAINING_SETS))))
    columns = ("domain", *sets, recipe.reference, *(f"paper: {name}" for name in TRAINING_SETS))
    return Table("How the domains share out each training set, per cent", columns, tuple(rows))


def _stats_answer(stats: CorpusStats, recipe: StatsRecipe) -> str:
    parts = [f"{stats.totals.documents:,} documents, {stats.totals.bytes / 1e6:.1f} MB"]
    for name in TRAINING_SETS:
        largest = max(stats.distribution, key=lambda row: row.sets[name].share)
        if share := largest.sets[name].share:
            parts.append(f"the largest domain of {name} is {largest.group} ({100 * share:.0f} %)")
    if recipe.published:
        at = list(TRAINING_SETS).index("pdsw")
        tokens = {group: counts[at] for group, counts in recipe.published.items()}
        group = max(tokens, key=tokens.__getitem__)
        share = tokens[group] / sum(tokens.values())
        parts.append(f"in the paper that of pdsw is {group} ({100 * share:.0f} %)")
    return "; ".join(parts) + "."


def _distribution_plot(stats: CorpusStats) -> bytes:
    with tempfile.TemporaryDirectory(prefix="silo-plot-") as folder:
        path = Path(folder, "plot.png")
        plot_distribution(stats, path)
        return path.read_bytes()


def _run_overlap(lab: Lab, name: str) -> Result:
    recipe = lab.recipe(name, OverlapRecipe)
    overlap = _overlap(lab, recipe)
    points = _points(lab, recipe, overlap)
    published = {domain: PublishedDomain(*values) for domain, values in recipe.published.items()}
    found = _correlations(points, published)
    coverage = resample_mean([point.coverage for point in points])
    return Result(
        name,
        recipe.question,
        _overlap_answer(found, coverage),
        recipe.paper,
        OVERLAP_DIFFERENCES,
        (_correlation_table(found, points, published), _point_table(points), _matrix(overlap)),
        {
            "recipe": asdict(recipe),
            "overlap": overlap,
            "gaps": {point.domain: estimate(point.gap) for point in points},
            "correlations": {row: estimate(figure) for row, figure in found.items()},
            "mean_coverage": estimate(coverage),
        },
        _scatter(points, published, recipe),
    )


def _overlap(lab: Lab, recipe: OverlapRecipe) -> dict[str, Any]:
    """The matrix of training domains and validation domains."""
    corpus = lab.corpus()
    key = {
        "corpus": corpus.fingerprint,
        "text": {domain: splits["validation"] for domain, splits in lab.sizes.items()},
        "tiers": list(recipe.tiers),
        "sampling": [recipe.sample_tokens, recipe.min_documents],
    }
    files = [lab.text_file(domain, "validation") for domain in lab.sizes]

    def measure() -> dict[str, Any]:
        return overlap_matrix(
            corpus,
            files,
            sample_tokens=recipe.sample_tokens,
            min_documents=recipe.min_documents,
            tiers=[Tier(tier) for tier in recipe.tiers],
            advance=lab.advance,
        ).as_json()

    return lab.cell("overlap", key, measure)


def _points(lab: Lab, recipe: OverlapRecipe, overlap: Mapping[str, Any]) -> list[Point]:
    """Every validation domain that has n-grams."""
    models = {name: lab.find_model(name) for name in (recipe.model, recipe.reference)}
    limits = TextLimits(recipe.validation_tokens, recipe.document_tokens)
    best = {name: np.max(overlap[name], axis=0) for name in ("coverage", "jaccard")}
    points = []
    for at, domain in enumerate(overlap["columns"]):
        if overlap["ngrams"]["columns"][domain] and domain in lab.sizes:
            item = compare_models(lab, models, domain, "validation", limits, seed=at)
            coverage, jaccard = (float(best[name][at]) for name in ("coverage", "jaccard"))
            points.append(Point(domain, item.marks[recipe.model], coverage, jaccard, _gap(item, recipe)))
    return points


def _gap(item: Comparison, recipe: OverlapRecipe) -> intervals.Floats:
    """The difference to the reference as a share of the model's perplexity, as in the paper."""
    figure: intervals.Floats = 1 - item.ratio(recipe.reference, recipe.model)
    return figure


def correlate(left: Sequence[float], right: Sequence[float], *, seed: int = 0) -> intervals.Floats:
    """Pearson's coefficient of the pairs, and of pairs drawn with replacement."""
    if len(left) < 3:
        return np.array([np.nan])
    draws = intervals.Resamples(len(left), seed=seed)
    x, y = (np.asarray(values) - np.mean(values) for values in (left, right))
    count, sum_x, sum_y = (draws.total(values) for values in (np.ones(len(x)), x, y))
    covariance = count * draws.total(x * y) - sum_x * sum_y
    spread = (count * draws.total(x * x) - sum_x**2) * (count * draws.total(y * y) - sum_y**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        figure: intervals.Floats = np.where(spread > 1e-18, covariance / np.sqrt(np.abs(spread)), np.nan)
    return figure


def resample_mean(values: Sequence[float]) -> intervals.Floats:
    """The mean of some domains, and of domains drawn with replacement."""
    draws = intervals.Resamples(len(values))
    figure: intervals.Floats = draws.total(np.asarray(values, dtype=np.float64)) / max(len(values), 1)
    return figure


def _correlations(points: Sequence[Point], published: Mapping[str, PublishedDomain]) -> dict[str, intervals.Floats]:
    """Of overlap with gap: by coverage, by Jaccard, without the domains that the model learned, and in the paper."""
    others = [point for point in points if point.mark != "in"]

    def of(some: Sequence[Point], measure: str) -> intervals.Floats:
        return correlate([getattr(point, measure) for point in some], [float(point.gap[0]) for point in some])

    theirs = [(row.overlap, (row.model - row.reference) / row.model) for row in published.values()]
    return {
        "coverage": of(points, "coverage"),
        "Jaccard": of(points, "jaccard"),
        "coverage, domains not learned": of(others, "coverage"),
        "Jaccard, domains not learned": of(others, "jaccard"),
        **({"the paper's rows": correlate(*zip(*theirs, strict=True))} if theirs else {}),
    }


def _correlation_table(
    found: Mapping[str, intervals.Floats], points: Sequence[Point], published: Mapping[str, PublishedDomain]
) -> Table:
    others = sum(point.mark != "in" for point in points)
    rows = []
    for name, figure in found.items():
        count = len(published) if "paper" in name else others if "not learned" in name else len(points)
        rows.append((name, str(count), show_estimate(estimate(figure), 2)))
    rows.append(("as the paper states it", "", "-0.72"))
    title = "Pearson's r of overlap with the perplexity gap (95 % interval, bootstrap over domains)"
    return Table(title, ("overlap by", "domains", "r"), tuple(rows))


def _point_table(points: Sequence[Point]) -> Table:
    rows = [
        (
            point.domain,
            point.mark,
            f"{point.coverage:.3f}",
            f"{point.jaccard:.3f}",
            show_estimate(estimate(point.gap), 1, 100),
        )
        for point in points
    ]
    title = "The largest overlap with a training domain, and the gap (95 % interval over documents)"
    return Table(title, ("domain", "for the model", "coverage", "Jaccard", "gap, % of perplexity"), tuple(rows))


def _matrix(overlap: Mapping[str, Any]) -> Table:
    rows = [
        (row, *(f"{value:.2f}" for value in values))
        for row, values in zip(overlap["rows"], overlap["coverage"], strict=True)
    ]
    title = "Share of a validation domain's unigrams and bigrams (columns) that a training domain (rows) has too"
    return Table(title, ("", *overlap["columns"]), tuple(rows))


def _overlap_answer(found: Mapping[str, intervals.Floats], coverage: intervals.Floats) -> str:
    figures = {name: show_estimate(estimate(figure), 2) or "not defined" for name, figure in found.items()}
    theirs = f"; the paper states -0.72, its rows give {row}" if (row := figures.get("the paper's rows")) else ""
    covered = show_estimate(estimate(coverage), 0, 100)
    return (
        f"r is {figures['coverage']} by coverage and {figures['Jaccard']} by Jaccard{theirs}; the best training domain "
        f"covers {covered} % of a domain's n-grams in the mean (paper: 17)."
    )


def _scatter(points: Sequence[Point], published: Mapping[str, PublishedDomain], recipe: OverlapRecipe) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5), layout="constrained")
    axes = figure.subplots(1, 3)
    for place, measure in zip(axes, ("coverage", "jaccard"), strict=False):
        for point in points:
            found = intervals.Estimate.of(100 * point.gap)
            error = [[found.value - found.low], [found.high - found.value]]
            colour = ACCENTS[0 if point.mark == "in" else 1]
            place.errorbar(getattr(point, measure), found.value, error, fmt="o", markersize=4, color=colour)
            place.annotate(point.domain, (getattr(point, measure), found.value), fontsize=7)
        place.set_xlabel(f"largest {measure} by a training domain (blue: learned)")
        place.set_ylabel(f"{recipe.reference} is better by, % of the perplexity of {recipe.model}")
    for domain, row in published.items():
        gap = 100 * (row.model - row.reference) / row.model
        axes[2].plot(row.overlap, gap, "o", markersize=4, color=ACCENTS[2])
        axes[2].annotate(domain, (row.overlap, gap), fontsize=7, xytext=(4, 3), textcoords="offset points")
    axes[2].set_xlabel("largest overlap in the paper's rows")
    axes[2].set_ylabel("Pythia is better by, % of the perplexity of pdsw")
    for place in axes:
        place.margins(x=0.2)  # names stand to the right of their points
        place.grid(alpha=0.3)
    return figure_png(figure)
