"""`silo store add|sync`: documents come in, change, and leave with their source."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo.cli import show
from silo.cli.store.shared import checks_of, status_of
from silo.errors import CODES, SiloError

if TYPE_CHECKING:
    from silo.progress import Advance
    from silo.recipe import CorpusRecipe
    from silo.records import Document, Quarantined
    from silo.sources import Tally
    from silo.store.adding.add import Added
    from silo.store.adding.admission import Refusal
    from silo.store.adding.sync import Item
    from silo.store.store import Store

_STDIN = "-"
_LISTED = 20


def add_add(parser: argparse.ArgumentParser) -> None:
    """The options of `silo store add`."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE.toml", help="sources as for `silo corpus build`")
    _add_source(parser, "JSON lines, Parquet; - for standard input")
    parser.add_argument("--update", action="store_true", help="replace documents that have changed, with a receipt")
    parser.add_argument(
        "--decontaminate", nargs="+", action="extend", default=[], metavar="FILE", help="evaluation text to keep out"
    )
    parser.add_argument(
        "--decontaminate-rule",
        choices=("default", "strict"),
        default="default",
        help="default: as `silo corpus build`; strict: one shared n-gram is enough",
    )
    _add_results(parser)
    parser.set_defaults(run=_add)


def _add_source(parser: argparse.ArgumentParser, lines: str) -> None:
    """Where documents come from."""
    parser.add_argument("--jsonl", nargs="+", action="extend", default=[], metavar="FILE", help=lines)
    parser.add_argument("--folder", metavar="DIR", help="a folder of documents: text, PDF, Office, HTML, e-books, mail")
    parser.add_argument("--source", default="", metavar="X", help="name of the source; that of the folder or file else")
    parser.add_argument("--license", default="", help="licence of a folder's files; unknown without it")
    parser.add_argument("--owner", default="", help="owner of a folder's files")


def _add_results(parser: argparse.ArgumentParser) -> None:
    """What is written besides, and the model."""
    parser.add_argument("--rejected", metavar="FILE", help="write every document that is not taken here, with why")
    parser.add_argument("--salts", metavar="FILE", help="write the salts of a receipt here")
    parser.add_argument("--model", metavar="DIR", help="where the store's model is now")
    show.add_verify(parser)
    show.add_device(parser)
    show.add_ray(parser)


def _add(arguments: argparse.Namespace) -> int:
    from silo.corpus.decontaminate import EvaluationText, apply_rule, evaluation_files
    from silo.sources import Tally, plan

    recipe, base = _recipe(arguments)
    for source in recipe.source:
        if _STDIN not in source.paths:
            plan(source, base)
    for file in (arguments.rejected, arguments.salts):
        show.output_file(file)
    files = evaluation_files(recipe.decontaminate, base)
    store = _open(arguments, encoding=True)
    quarantined: list[Quarantined] = []
    tally = Tally()
    with _changing(store, arguments) as (advance, note):
        rule = apply_rule(recipe.decontaminate, arguments.decontaminate_rule)
        evaluation = EvaluationText.read(rule, files, limits=recipe.limits, advance=advance) if files else None
        documents = _documents(recipe, base, store.paths.adding, quarantined, tally, advance)
        done = store.add(documents, update=arguments.update, decontaminate=evaluation, note=note, advance=advance)
    done.quarantined, done.tally = quarantined, tally
    facts: dict[str, Any] = {
        "read": done.read + len(done.quarantined),
        "added": done.added,
        "replaced": done.replaced,
        "unchanged": done.unchanged,
        "rejected": done.refused,
        "decontaminated": done.decontaminated,
        "masked": done.masked,
        "quarantined": len(done.quarantined),
        "skipped": tally.as_json()["skipped"],
        "derived_ids": tally.derived_ids,
        "reasons": dict(done.reasons),
        "written_bytes": done.written_bytes,
        "digest": store.digest(),
    }
    changed = done.reasons["other-record"] + done.reasons["other-evidence"]
    if changed and not arguments.update:
        show.say(f"changed and left as it was: {changed:,}; --update replaces", quiet=arguments.quiet)
    status = _show_changes(f"added to {arguments.path}", facts, done, {}, arguments)
    if quarantined and not done.read:
        first = quarantined[0]
        what = f"nothing of {facts['read']:,} records can be read; {first.where}: {first.message}"
        return show.complain(SiloError("input-empty", what[:600], CODES[first.code].hint))
    if not facts["read"] and not facts["skipped"]:
        return show.complain(SiloError("input-empty", "the sources hold no record at all"))
    return status


def _open(arguments: argparse.Namespace, *, encoding: bool) -> Store:
    from silo.pairing import open_store

    model = Path(arguments.model) if arguments.model else None
    return open_store(Path(arguments.path), model, encoding=encoding, verify=arguments.verify)


@contextmanager
def _changing(store: Store, arguments: argparse.Namespace) -> Iterator[tuple[Advance, Callable[[Refusal], None]]]:
    """What is told of progress and of refusals; meanwhile the cluster of --ray, if any, makes the store's buckets."""
    if "knn" in store.config.searches:
        show.note_compiling(quiet=arguments.quiet)
    with (
        _helped(store, arguments.ray),
        show.progress(quiet=arguments.quiet) as advance,
        _rejected_file(arguments.rejected) as note,
    ):
        yield advance, note


@contextmanager
def _helped(store: Store, address: str | None) -> Iterator[None]:
    if not address or store.load_encoder is None:
        yield
        return
    from silo.cluster.build import build_elsewhere
    from silo.cluster.connect import connect

    with connect(address):
        build_elsewhere(store)
        yield


def _show_changes(
    title: str, facts: dict[str, Any], done: Added, lists: Mapping[str, Sequence[Item]], arguments: argparse.Namespace
) -> int:
    """Counts, the receipt of what left, and lists of documents: the first of each, all of them with --json."""
    from dataclasses import asdict

    from silo.files import write_json

    erased = done.erased
    if erased is not None:
        facts |= {"receipt": str(erased.receipt), **checks_of([erased])}
        if arguments.salts:
            write_json(Path(arguments.salts), erased.salts)
    if arguments.json:
        rejected = [asdict(item) for item in done.refusals]
        unread = [item.as_json() for item in done.quarantined]
        listed = {f"{name}_documents": [item._asdict() for item in items] for name, items in lists.items()}
        salts = {"salts": erased.salts} if erased is not None else {}
        read = {**done.tally.as_json(), "rejected_documents": rejected, "quarantined_records": unread}
        show.print_json({**facts, **listed, **read, **salts})
    else:
        show.facts(title, facts, as_json=False)
        rows = [[name, item.external_id, item.reason] for name, items in lists.items() for item in items[:_LISTED]]
        if rows:
            show.table("documents", ("what", "document", "why"), rows)
        if sum(map(len, lists.values())) > len(rows):
            show.say("the first of each; --json lists all of them", quiet=arguments.quiet)
        left_out = [f"{item.where} ({item.code}: {item.message})" for item in done.quarantined]
        left_out += [f"{item.external_id or item.id} ({item.reason}: {item.detail})" for item in done.refusals]
        show.some("not added: ", left_out, quiet=arguments.quiet)
        show.reading(done.tally.as_json(), quiet=arguments.quiet)
    return status_of(facts) if erased is not None else 0


def add_sync(parser: argparse.ArgumentParser) -> None:
    """The options of `silo store sync`."""
    _add_source(parser, "JSON lines, Parquet: all files of a source")
    parser.add_argument("--dry-run", action="store_true", help="only list what would come, change and go")
    parser.add_argument("--yes", action="store_true", help="also if no document of the source would be left")
    _add_results(parser)
    parser.set_defaults(run=_sync, recipe=None, decontaminate=[])


def _sync(arguments: argparse.Namespace) -> int:
    if _STDIN in arguments.jsonl:
        raise SiloError("usage", "a store cannot follow standard input", "give the files with --jsonl")
    recipe, base = _source_recipe(arguments)
    for file in (arguments.rejected, arguments.salts):
        show.output_file(file)
    (source,) = recipe.source
    store = _open(arguments, encoding=not arguments.dry_run)
    with _changing(store, arguments) as (advance, note):
        done = store.sync(
            source, base=base, dry_run=arguments.dry_run, allow_empty=arguments.yes, note=note, advance=advance
        )
    lists = {"added": done.added_items, "changed": done.changed_items, "gone": done.gone, "kept": done.kept}
    facts: dict[str, Any] = {
        "dry_run": arguments.dry_run,
        "read": done.read + len(done.quarantined),
        **{name: len(items) for name, items in lists.items()},
        "unchanged": done.unchanged,
        "rejected": done.refused,
        "quarantined": len(done.quarantined),
        "skipped": done.tally.as_json()["skipped"],
        "reasons": dict(done.reasons),
        "written_bytes": done.written_bytes,
        "digest": store.digest(),
    }
    title = f"{arguments.path} would change" if arguments.dry_run else f"{arguments.path} follows its source"
    if arguments.dry_run and done.would_empty:
        show.say("no document of the source would be left: that needs --yes", quiet=arguments.quiet)
    return _show_changes(title, facts, done, lists, arguments)


@contextmanager
def _rejected_file(name: str | None) -> Iterator[Callable[[Refusal], None]]:
    """Writes refusals to a file as JSON lines, if one is named."""
    from dataclasses import asdict

    from silo.files import disk_errors

    if name is None:
        yield lambda _: None
        return
    path = Path(name)
    with disk_errors(path):
        path.write_bytes(b"")
    with path.open("w", encoding="utf-8") as file:
        yield lambda refusal: print(json.dumps(asdict(refusal), ensure_ascii=False), file=file)


def _recipe(arguments: argparse.Namespace) -> tuple[CorpusRecipe, Path]:
    """The recipe that is given or made of options, and what its paths are relative to."""
    from dataclasses import replace

    recipe, base = _source_recipe(arguments)
    files = (*recipe.decontaminate.files, *show.literal_paths(arguments.decontaminate))
    return replace(recipe, decontaminate=replace(recipe.decontaminate, files=files)), base


def _source_recipe(arguments: argparse.Namespace) -> tuple[CorpusRecipe, Path]:
    from silo.recipe import CorpusRecipe, SourceRecipe, load_recipe

    given = [name for name in ("recipe", "jsonl", "folder") if getattr(arguments, name)]
    if len(given) != 1:
        raise SiloError("usage", "give one of RECIPE.toml (`add` only), --jsonl and --folder")
    if arguments.recipe:
        path = Path(arguments.recipe)
        return load_recipe(path, CorpusRecipe), path.absolute().parent
    if arguments.jsonl:
        files = (path if path == _STDIN else show.literal_paths([path])[0] for path in arguments.jsonl)
        source = SourceRecipe("jsonl", tuple(files), name=arguments.source)
    else:
        paths = tuple(show.literal_paths([arguments.folder]))
        stated = {"name": arguments.source, "license": arguments.license, "owner": arguments.owner}
        source = SourceRecipe("folder", paths, **stated)
    return CorpusRecipe(source=(source,)), Path.cwd()


def _documents(
    recipe: CorpusRecipe,
    base: Path,
    adding: Path,
    quarantined: list[Quarantined],
    tally: Tally,
    advance: Advance,
) -> Iterator[Document]:
    """Every readable record with its verdict; unreadable ones are noted and left out.

    Standard input is kept in `adding` meanwhile, which the store empties whatever happens.
    """
    from dataclasses import replace

    from silo.sources import read_documents

    for source in recipe.source:
        if source.kind == "jsonl" and _STDIN in source.paths:
            place = adding / "stdin.jsonl"
            adding.mkdir(exist_ok=True)
            with place.open("wb") as stream:
                shutil.copyfileobj(sys.stdin.buffer, stream)
            source = replace(source, paths=tuple(str(place) if path == _STDIN else path for path in source.paths))
        yield from read_documents(
            source, base, quarantined, limits=recipe.limits, pii=recipe.pii, tally=tally, advance=advance
        )
