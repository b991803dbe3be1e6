"""`silo corpus build|stats|overlap|opt-out`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo.cli import show
from silo.errors import SiloError, did_you_mean

if TYPE_CHECKING:
    from silo.corpus.corpus import Corpus
    from silo.corpus.opt_out import Choice
    from silo.corpus.workers import RunTasks

_LISTED = 15
"""Rows of a long table that are shown to people; --json has all of them."""
_OVERVIEW = ("domain", "tier", "sources", "licences", "documents", "tokens")


def add_commands(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo corpus` and its verbs."""
    noun = nouns.add_parser("corpus", help="build a licensed corpus and look at it")
    verbs = noun.add_subparsers(dest="verb", metavar="VERB", required=True)
    _add_build(verbs.add_parser("build", parents=[common], help="sources -> audited token shards"))
    _add_stats(verbs.add_parser("stats", parents=[common], help="the paper's corpus tables"))
    _add_overlap(verbs.add_parser("overlap", parents=[common], help="n-gram overlap with evaluation text"))
    _add_opt_out(verbs.add_parser("opt-out", parents=[common], help="leave documents out of every later use"))


def _add_build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RECIPE.toml", help="what to build; or use --jsonl")
    parser.add_argument("--jsonl", nargs="+", action="extend", default=[], metavar="FILE", help="JSON lines or Parquet")
    parser.add_argument("--out", metavar="DIR", help="where the corpus goes; <home>/corpora/<recipe> without it")
    parser.add_argument("--home", metavar="DIR", help="the home folder; $SILO_HOME or ./silo-home without it")
    parser.add_argument(
        "--decontaminate", nargs="+", action="extend", default=[], metavar="FILE", help="evaluation text to keep out"
    )
    parser.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json; raw bytes without it")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; all cores without it")
    parser.add_argument("--force", action="store_true", help="replace a corpus that is already there")
    show.add_ray(parser)
    parser.set_defaults(run=_build)


def _build(arguments: argparse.Namespace) -> int:
    from silo.corpus.build import build, carry_opt_outs
    from silo.corpus.corpus import OPT_OUTS
    from silo.remote.folder import made_at

    recipe, base = _recipe(arguments)
    carry = {OPT_OUTS: carry_opt_outs}
    place = made_at(show.home_path(arguments, "corpora"), force=arguments.force, carry=carry)
    with _runner(arguments) as run_tasks, show.progress(quiet=arguments.quiet) as advance, place as out:
        summary = build(recipe, out, base=base, advance=advance, force=arguments.force, run_tasks=run_tasks)
    if arguments.json:
        show.print_json(summary)
    elif not arguments.quiet:
        _show_summary(summary)
    return 0


@contextmanager
def _runner(arguments: argparse.Namespace) -> Iterator[RunTasks | None]:
    """Who does the tasks of a build: the cluster of --ray, None for this machine."""
    if not arguments.ray:
        yield None
        return
    if arguments.workers is not None:
        raise SiloError("usage", "--workers is for one machine", "a cluster takes all the CPUs that it offers")
    from silo.cluster.build import run_on_cluster
    from silo.cluster.connect import connect

    with connect(arguments.ray):
        yield run_on_cluster


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
    show.reading(summary)
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
    show.add_csv(parser)
    show.add_html(parser)
    parser.set_defaults(run=_stats)


def _stats(arguments: argparse.Namespace) -> int:
    from silo.corpus.corpus import Corpus
    from silo.corpus.report.stats import corpus_stats, load_reference

    show.require_output(arguments.csv)
    page = show.page_path(arguments)
    reference = load_reference(arguments.reference) if arguments.reference else None
    corpus = Corpus.open(Path(arguments.corpus))
    stats = corpus_stats(corpus, reference=reference)
    if arguments.plot:
        from silo.corpus.report.plots import plot_distribution

        plot_distribution(stats, Path(arguments.plot))
    if arguments.csv:
        show.write_csv(arguments.csv, _OVERVIEW, _overview(stats.as_json()))
    elif arguments.json:
        show.print_json({**stats.as_json(), "opted_out": len(corpus.opted_out())})
    else:
        for title, columns, rows in _stats_tables(stats.as_json()):
            show.table(title, columns, rows)
        if corpus.opted_out():
            show.say(f"{len(corpus.opted_out()):,} documents have opted out since; they are still counted here")
    if page:
        from silo.journeys.pages import write_tables_page

        tiers = {item.name: float(item.tokens) for item in stats.by["tier"]}
        write_tables_page(f"corpus {arguments.corpus}: tokens by tier", _stats_tables(stats.as_json()), page, tiers)
    return 0


def _stats_tables(stats: dict[str, Any]) -> Iterator[tuple[str, Sequence[str], list[list[Any]]]]:
    """Title, columns and rows of everything that is known of a corpus."""
    totals = stats["totals"]
    yield f"{totals['documents']:,} documents, {totals['tokens']:,} tokens", _OVERVIEW, _overview(stats)
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


def _overview(stats: dict[str, Any]) -> list[list[Any]]:
    return [
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


def _amounts(row: dict[str, Any], sets: list[str]) -> list[dict[str, Any]]:
    return [*(row["sets"][name] for name in sets), *([row["reference"]] if row["reference"] else [])]


def _add_overlap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", metavar="DIR", help="a corpus")
    parser.add_argument("--against", nargs="+", action="extend", required=True, metavar="FILE", help="evaluation text")
    parser.add_argument("--tiers", default="pd,sw,by,restricted", metavar="LIST", help="tiers of the training side")
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

    chosen = [name.strip() for name in names.split(",")]
    if unknown := [name for name in chosen if name not in set(Tier)]:
        raise SiloError("usage", f"--tiers takes {','.join(Tier)}, not {names}", did_you_mean(unknown[0], Tier))
    return [Tier(name) for name in chosen]


def _show_overlap(overlap: dict[str, Any]) -> None:
    cells = zip(overlap["rows"], overlap["coverage"], strict=True)
    rows = [[name, *(f"{value:.2f}" for value in values)] for name, values in cells]
    title = "share of the evaluation domain's n-grams (columns) that the training domain (rows) has"
    show.table(title, ("", *overlap["columns"]), rows)
    best = [[column, row["row"], row["coverage"]] for column, row in overlap["maximum"].items()]
    show.table("nearest training domain", ("evaluation", "training", "coverage"), best)


def _add_opt_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", metavar="DIR", help="a corpus")
    show.add_selectors(parser)
    parser.add_argument("--dry-run", action="store_true", help="only list what would be left out")
    parser.add_argument(
        "--models", nargs="+", action="extend", default=[], metavar="DIR", help="more folders of models to ask"
    )
    parser.add_argument("--home", metavar="DIR", help="the home folder; $SILO_HOME or ./silo-home without it")
    parser.set_defaults(run=_opt_out)


def _opt_out(arguments: argparse.Namespace) -> int:
    from silo.corpus.corpus import Corpus
    from silo.corpus.opt_out import Selection, choose_documents

    corpus = Corpus.open(Path(arguments.corpus))
    choice = choose_documents(corpus, Selection(**{name: getattr(arguments, name) for name in show.SELECTORS}))
    if not arguments.dry_run and choice.documents:
        corpus.opt_out(item.id for item in choice.documents)
    models = _models_that_saw(corpus, arguments, choice)
    rows = [item.as_json() for item in choice.documents]
    found = {"documents": rows, "already_out": choice.already_out, "dry_run": arguments.dry_run, "models": models}
    if arguments.json:
        show.print_json({**found, "not_covered": _NOT_COVERED})
    else:
        _show_opt_out(arguments, rows, found)
    return 0


_NOT_COVERED = (
    "the text in the shards: views leave it out, files keep it until the corpus is built anew from sources without it",
    "models that are trained already: those named saw one of the documents, others may hold a copy of the text",
    "stores: `silo store erase` takes documents out of one",
    "the sources: a new build at this place keeps the list of who opted out, one at another place does not know it",
)


def _models_that_saw(corpus: Corpus, arguments: argparse.Namespace, choice: Choice) -> list[dict[str, str]]:
    """Models beside the corpus, of the home and of `--models` that list one of the documents or their texts."""
    from silo.lm.audit import ask_models

    folders = [corpus.root.absolute().parent, show.home(arguments) / "models", *map(Path, arguments.models)]
    names, marks = [item.id for item in choice.documents], [item.mark for item in choice.documents]
    asked = (
        {"model": str(folder / name), "fingerprint": fingerprint}
        for folder in dict.fromkeys(folder.resolve() for folder in folders)
        for name, fingerprint, listed in ask_models(folder, names, marks)
        if listed
    )
    return list(asked)


def _show_opt_out(arguments: argparse.Namespace, rows: list[dict[str, Any]], found: dict[str, Any]) -> None:
    title = f"{len(rows):,} documents {'would opt' if arguments.dry_run else 'have opted'} out of {arguments.corpus}"
    columns = ("id", "external_id", "source", "owner", "domain", "license", "tier", "characters")
    show.table(title, columns, [[row[name] for name in columns] for row in rows[:_LISTED]])
    if len(rows) > _LISTED:
        show.say(f"and {len(rows) - _LISTED:,} more; --json lists all of them")
    if found["already_out"]:
        show.say(f"{found['already_out']:,} more had opted out before")
    if found["models"]:
        show.table(
            "models that saw one of them", ("model", "fingerprint"), [list(item.values()) for item in found["models"]]
        )
    show.table("not covered", ("what",), [[words] for words in _NOT_COVERED])
