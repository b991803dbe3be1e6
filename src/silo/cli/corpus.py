"""`silo corpus build|stats|overlap`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from silo.cli import show
from silo.errors import SiloError

_LISTED = 15
"""Rows of a long table that are shown to people; --json has all of them."""


def add_commands(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo corpus` and its verbs."""
    noun = nouns.add_parser("corpus", help="build a licensed corpus and look at it")
    verbs = noun.add_subparsers(dest="verb", metavar="VERB", required=True)
    _add_build(verbs.add_parser("build", parents=[common], help="sources -> audited token shards"))
    _add_stats(verbs.add_parser("stats", parents=[common], help="the paper's corpus tables"))
    _add_overlap(verbs.add_parser("overlap", parents=[common], help="n-gram overlap with evaluation text"))


def _add_build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RECIPE.toml", help="what to build; or use --jsonl")
    parser.add_argument("--jsonl", nargs="+", action="extend", default=[], metavar="FILE", help="JSON lines to read")
    parser.add_argument("--out", metavar="DIR", help="where the corpus goes; <home>/corpora/<recipe> without it")
    parser.add_argument("--home", metavar="DIR", help="the home folder; $SILO_HOME or ./silo-home without it")
    parser.add_argument(
        "--decontaminate", nargs="+", action="extend", default=[], metavar="FILE", help="evaluation text to keep out"
    )
    parser.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json; raw bytes without it")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; all cores without it")
    parser.add_argument("--force", action="store_true", help="replace a corpus that is already there")
    parser.set_defaults(run=_build)


def _build(arguments: argparse.Namespace) -> int:
    from silo.corpus.build import build

    recipe, base = _recipe(arguments)
    with show.progress(quiet=arguments.quiet) as advance:
        summary = build(recipe, show.home_path(arguments, "corpora"), base=base, advance=advance, force=arguments.force)
    if arguments.json:
        show.print_json(summary)
    elif not arguments.quiet:
        _show_summary(summary)
    return 0


def _recipe(arguments: argparse.Namespace) -> tuple[Any, Path]:
    """The recipe of a file or of --jsonl, changed by the other options; and the folder its paths are relative to."""
    from dataclasses import replace

    from silo.recipe import CorpusRecipe, SourceRecipe, load_recipe

    if bool(arguments.recipe) == bool(arguments.jsonl):
        raise SiloError("usage", "give either a recipe or --jsonl files", "see `silo corpus build --help`")
    if arguments.recipe:
        path = Path(arguments.recipe)
        recipe, base = load_recipe(path, CorpusRecipe), path.absolute().parent
    else:
        recipe, base = (
            CorpusRecipe(source=(SourceRecipe("jsonl", tuple(show.literal_paths(arguments.jsonl))),)),
            Path.cwd(),
        )
    if arguments.decontaminate:
        files = (*recipe.decontaminate.files, *show.literal_paths(arguments.decontaminate))
        recipe = replace(recipe, decontaminate=replace(recipe.decontaminate, files=files))
    if arguments.tokenizer:
        recipe = replace(recipe, tokenizer=str(Path(arguments.tokenizer).absolute()))
    if arguments.workers is not None:
        if arguments.workers < 1:
            raise SiloError("usage", "--workers must be at least 1")
        recipe = replace(recipe, workers=arguments.workers)
    return recipe, base


def _show_summary(summary: dict[str, Any]) -> None:
    counts = [[name, summary[name]] for name in ("read", "accepted", "rejected", "quarantined", "tokens", "bytes")]
    show.table(f"corpus {summary['out']}", ("records", "count"), counts)
    show.table("accepted by tier", ("tier", "documents"), [[tier, n] for tier, n in summary["tiers"].items()])
    dropped = [["rejected", reason, count] for reason, count in summary["reasons"].items()]
    dropped += [["quarantined", code, count] for code, count in summary["quarantine_codes"].items()]
    if dropped:
        show.table("left out", ("how", "why", "documents"), dropped)
    names = ("seconds", "core_seconds", "megabytes", "mb_per_core_second")
    rows = [[stage, *map(row.get, names)] for stage, row in summary["stages"].items() if any(row.values())]
    show.table("stages", ("stage", "seconds", "core seconds", "MB of text", "MB/s per core"), rows)
    rates = [row["false_positive_rate"] for row in summary["bloom"].values() if row]
    if rates:
        show.say(f"near-duplicate filters: false-positive rate at most {max(rates):.1e}")
    if summary["conflicts"] or summary["laundering"]:
        show.say(
            f"rights: {summary['conflicts']:,} documents with conflicting evidence (conflicts/), "
            f"{summary['laundering']:,} texts under two licences (laundering.json)"
        )
    state = "reused, nothing to do" if summary["reused"] else f"built in {summary['seconds']:.1f} s"
    show.say(f"{state}; peak memory {summary['peak_memory_mb']:,.0f} MB; fingerprint {summary['fingerprint'][:16]}")


def _add_stats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", metavar="DIR", help="a corpus")
    parser.add_argument("--reference", metavar="NAME|DIR|FILE", help="pile, another corpus, or {group: tokens}")
    parser.add_argument("--plot", metavar="FILE", help="write the shares as PNG or SVG")
    show.add_html(parser)
    parser.set_defaults(run=_stats)


def _stats(arguments: argparse.Namespace) -> int:
    from silo.corpus.corpus import Corpus
    from silo.corpus.report.stats import corpus_stats, load_reference

    page = show.page_path(arguments)
    reference = load_reference(arguments.reference) if arguments.reference else None
    stats = corpus_stats(Corpus.open(Path(arguments.corpus)), reference=reference)
    if arguments.plot:
        from silo.corpus.report.plots import plot_distribution

        plot_distribution(stats, Path(arguments.plot))
    if arguments.json:
        show.print_json(stats.as_json())
    else:
        for title, columns, rows in _stats_tables(stats.as_json()):
            show.table(title, columns, rows)
    if page:
        from silo.journeys.pages import write_tables_page

        tiers = {item.name: float(item.tokens) for item in stats.by["tier"]}
        write_tables_page(f"corpus {arguments.corpus}: tokens by tier", _stats_tables(stats.as_json()), page, tiers)
    return 0


def _stats_tables(stats: dict[str, Any]) -> Iterator[tuple[str, Sequence[str], list[list[Any]]]]:
    """Title, columns and rows of everything that is known of a corpus."""
    totals = stats["totals"]
    overview = [
        [
            row["group"],
            row["tier"],
            ", ".join(row["sources"]),
            ", ".join(row["licenses"]),
            row["documents"],
            row["tokens"],
        ]
        for row in stats["overview"]
    ]
    columns = ("domain", "tier", "sources", "licences", "documents", "tokens")
    yield f"{totals['documents']:,} documents, {totals['tokens']:,} tokens", columns, overview
    sets = list(stats["weights"])
    names = [*sets, *([stats["reference"]] if stats["reference"] else [])]
    shares = [
        [row["group"], *(f"{amount['share']:.1%}" for amount in _amounts(row, sets))] for row in stats["distribution"]
    ]
    yield "share of the tokens of each training set", ("domain", *names), shares
    for column in ("tier", "license", "source"):
        rows = [[row["name"], row["documents"], row["bytes"], row["tokens"]] for row in stats["by"][column]]
        title = f"by {column}" + (f" (the largest {_LISTED} of {len(rows):,})" if len(rows) > _LISTED else "")
        yield title, (column, "documents", "bytes", "tokens"), rows[:_LISTED]
    raised = {name: [d for d, weight in row.items() if weight != 1] for name, row in stats["weights"].items()}
    yield "domains seen more often", ("training set", "domains"), [[k, ", ".join(v)] for k, v in raised.items()]


def _amounts(row: dict[str, Any], sets: list[str]) -> list[dict[str, Any]]:
    return [*(row["sets"][name] for name in sets), *([row["reference"]] if row["reference"] else [])]


def _add_overlap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", metavar="DIR", help="a corpus")
    parser.add_argument("--against", nargs="+", action="extend", required=True, metavar="FILE", help="evaluation text")
    parser.add_argument("--tiers", default="pd,sw,by,restricted", help="tiers of the training side; all without it")
    parser.add_argument("--plot", metavar="FILE", help="write the heat map as PNG or SVG")
    parser.set_defaults(run=_overlap)


def _overlap(arguments: argparse.Namespace) -> int:
    from silo.corpus.corpus import Corpus
    from silo.corpus.report.overlap import overlap_matrix

    corpus, against = Corpus.open(Path(arguments.corpus)), [Path(path) for path in arguments.against]
    with show.progress(quiet=arguments.quiet) as advance:
        overlap = overlap_matrix(corpus, against, tiers=_tiers(arguments.tiers), advance=advance)
    if arguments.plot:
        from silo.corpus.report.plots import plot_overlap

        plot_overlap(overlap, Path(arguments.plot))
    if arguments.json:
        show.print_json(overlap.as_json())
    else:
        _show_overlap(overlap.as_json())
    return 0


def _tiers(names: str) -> list[Any]:
    from silo.records import Tier

    try:
        return [Tier(name.strip()) for name in names.split(",")]
    except ValueError:
        raise SiloError("usage", f"--tiers takes {','.join(Tier)}, not {names}") from None


def _show_overlap(overlap: dict[str, Any]) -> None:
    cells = zip(overlap["rows"], overlap["coverage"], strict=True)
    rows = [[name, *(f"{value:.2f}" for value in values)] for name, values in cells]
    title = "share of the evaluation domain's n-grams (columns) that the training domain (rows) has"
    show.table(title, ("", *overlap["columns"]), rows)
    best = [[column, row["row"], row["coverage"]] for column, row in overlap["maximum"].items()]
    show.table("nearest training domain", ("evaluation", "training", "coverage"), best)
