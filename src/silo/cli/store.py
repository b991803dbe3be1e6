"""`silo store create|add|list|stats|erase|allow|backup|restore|replay|verify|anchor|digest|compact|tune`."""

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
from silo.errors import SiloError

if TYPE_CHECKING:
    from silo.recipe import CorpusRecipe
    from silo.records import Document, Quarantined
    from silo.store.add import Refusal
    from silo.store.erasure.erase import Erased
    from silo.store.selector import Selector
    from silo.store.store import Store

_LISTED = 20
_COLUMNS = ("id", "external_id", "source", "owner", "domain", "license", "tier", "characters")
_STDIN = "-"
_SELECTORS = {
    "document": "one document: id:<silo's id>, external:<the record's own>, or plain where that is clear",
    "owner": "everything of an owner",
    "source": "everything from a source",
    "license": "everything under a licence",
    "domain": "everything of a domain",
    "query": "documents that contain this text (case and white space aside)",
}


def add_commands(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo store` and its verbs."""
    noun = nouns.add_parser("store", help="a datastore that can forget")
    verbs = noun.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, add, text in (
        ("create", _add_create, "an empty store for a model"),
        ("add", _add_add, "put documents in"),
        ("list", _add_list, "documents, all or some"),
        ("stats", _add_stats, "sizes, searches, self-test"),
        ("erase", _add_erase, "take documents out, exactly, with a receipt"),
        ("allow", _add_allow, "let an erased document be added again"),
        ("backup", _add_backup, "a complete copy, also while others write"),
        ("restore", _add_restore, "put a backup back, without what was erased since"),
        ("replay", _add_replay, "erase again what a restored backup brought back"),
        ("verify", _add_verify, "check every byte, bucket and digest"),
        ("anchor", _add_anchor, "one line to keep elsewhere, which tells an older copy of the store"),
        ("digest", _add_digest, "one value for the whole content"),
        ("compact", _add_compact, "tidy up after an interrupted add"),
        ("tune", _add_tune, "k, tau and weights from validation text, saved by name"),
    ):
        parser = verbs.add_parser(name, parents=[common], help=text)
        if name == "restore":
            parser.add_argument("backup", metavar="BACKUP", help="a directory made by `silo store backup`")
        parser.add_argument("path", metavar="PATH", help="the store")
        add(parser)


def _add_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="DIR", help="the model that encodes its documents")
    parser.add_argument("--search", default="knn,ngram,bm25", metavar="LIST", help="searches it offers")
    parser.add_argument("--passage-tokens", type=int, default=0, metavar="N", help="length of a passage")
    show.add_verify(parser)
    parser.set_defaults(run=_create)


def _create(arguments: argparse.Namespace) -> int:
    from silo.pairing import create_store

    store = create_store(
        Path(arguments.path),
        Path(arguments.model),
        searches=[name.strip() for name in arguments.search.split(",") if name.strip()],
        passage_tokens=arguments.passage_tokens,
        verify=arguments.verify,
    )
    facts = {"store": arguments.path, "searches": ", ".join(store.config.searches), "digest": store.digest()}
    show.facts("created", facts, as_json=arguments.json)
    return 0


def _add_add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RECIPE.toml", help="sources as for `silo corpus build`")
    parser.add_argument(
        "--jsonl", nargs="+", action="extend", default=[], metavar="FILE", help="JSON lines; - for standard input"
    )
    parser.add_argument("--folder", metavar="DIR", help="a folder of text files")
    parser.add_argument("--license", default="", help="licence of a folder's files; unknown without it")
    parser.add_argument("--owner", default="", help="owner of a folder's files")
    parser.add_argument(
        "--decontaminate", nargs="+", action="extend", default=[], metavar="FILE", help="evaluation text to keep out"
    )
    parser.add_argument(
        "--decontaminate-rule",
        choices=("default", "strict"),
        default="default",
        help="default: as `silo corpus build`; strict: one shared n-gram is enough",
    )
    parser.add_argument("--rejected", metavar="FILE", help="write every document that is not taken here, with why")
    parser.add_argument("--model", metavar="DIR", help="where the store's model is now")
    show.add_verify(parser)
    parser.set_defaults(run=_add)


def _add(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from silo.corpus.decontaminate import EvaluationText, apply_rule, evaluation_files
    from silo.pairing import open_store

    recipe, base = _recipe(arguments)
    files = evaluation_files(recipe.decontaminate, base)
    model = Path(arguments.model) if arguments.model else None
    store = open_store(Path(arguments.path), model, encoding=True, verify=arguments.verify)
    quarantined: list[Quarantined] = []
    with show.progress(quiet=arguments.quiet) as advance, _rejected_file(arguments.rejected) as note:
        rule = apply_rule(recipe.decontaminate, arguments.decontaminate_rule)
        evaluation = EvaluationText.read(rule, files, limits=recipe.limits, advance=advance) if files else None
        documents = _documents(recipe, base, store.paths.adding, quarantined)
        done = store.add(documents, decontaminate=evaluation, note=note, advance=advance)
    facts: dict[str, Any] = {
        "read": done.read + len(quarantined),
        "added": done.added,
        "unchanged": done.unchanged,
        "rejected": done.refused,
        "decontaminated": done.decontaminated,
        "masked": done.masked,
        "quarantined": len(quarantined),
        "reasons": dict(done.reasons),
        "written_bytes": done.written_bytes,
        "digest": store.digest(),
    }
    if arguments.json:
        rejected = [asdict(item) for item in done.refusals]
        unread = [item.as_json() for item in quarantined]
        show.print_json({**facts, "rejected_documents": rejected, "quarantined_records": unread})
    else:
        show.facts(f"added to {arguments.path}", facts, as_json=False)
        left_out = [f"{item.where} ({item.code})" for item in quarantined]
        left_out += [f"{item.external_id or item.id} ({item.reason}: {item.detail})" for item in done.refusals]
        show.some("not added: ", left_out, quiet=arguments.quiet)
    return 0


@contextmanager
def _rejected_file(name: str | None) -> Iterator[Callable[[Refusal], None]]:
    """Writes refusals to a file as JSON lines, if one is named."""
    from dataclasses import asdict

    from silo.files import disk_errors

    if name is None:
        yield lambda _: None
        return
    path = Path(name)
    if not path.absolute().parent.is_dir():
        raise SiloError("input-missing", f"there is no folder for {path}")
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
        raise SiloError("usage", "give one of RECIPE.toml, --jsonl and --folder")
    if arguments.recipe:
        path = Path(arguments.recipe)
        return load_recipe(path, CorpusRecipe), path.absolute().parent
    if arguments.jsonl:
        files = (path if path == _STDIN else show.literal_paths([path])[0] for path in arguments.jsonl)
        source = SourceRecipe("jsonl", tuple(files))
    else:
        paths = tuple(show.literal_paths([arguments.folder]))
        source = SourceRecipe("folder", paths, license=arguments.license, owner=arguments.owner)
    return CorpusRecipe(source=(source,)), Path.cwd()


def _documents(recipe: CorpusRecipe, base: Path, adding: Path, quarantined: list[Quarantined]) -> Iterator[Document]:
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
        yield from read_documents(source, base, quarantined, limits=recipe.limits, pii=recipe.pii)


def _add_list(parser: argparse.ArgumentParser) -> None:
    _add_selectors(parser)
    show.add_csv(parser)
    parser.set_defaults(run=_list)


def _add_selectors(parser: argparse.ArgumentParser) -> None:
    for name, text in _SELECTORS.items():
        parser.add_argument(f"--{name}", default="", metavar="X", help=text)


def _selector(arguments: argparse.Namespace) -> Selector:
    from silo.store.selector import Selector

    return Selector(**{name: getattr(arguments, name) for name in _SELECTORS})


def _list(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store

    selector = _selector(arguments)
    store = open_store(Path(arguments.path))
    documents = list(store.documents(selector if selector else None))
    if selector and not documents:
        missing = _nothing_selected(store, selector)
        show.say(f"{missing.message}: {missing.hint}" if missing.hint else missing.message, quiet=arguments.quiet)
    if arguments.csv:
        show.print_csv(_COLUMNS, [[_row(document)[name] for name in _COLUMNS] for document in documents])
    else:
        _show_documents(documents, as_json=arguments.json)
    return 0


def _nothing_selected(store: Store, selector: Selector) -> SiloError:
    """No document is meant: say by what, and offer names that are near."""
    given = {name: getattr(selector, name) for name in _SELECTORS if getattr(selector, name)}
    with store.reading() as view:
        near = selector.nearest_names(view.buckets)
    conditions = ", ".join(f"{name} '{value}'" for name, value in given.items())
    hint = f"did you mean {' or '.join(near)}?" if near else ""
    return SiloError("nothing-selected", f"no document of {store.root} has {conditions}", hint)


def _show_documents(documents: Iterator[Document] | list[Document], *, as_json: bool) -> None:
    rows = [_row(document) for document in documents]
    if as_json:
        show.print_json(rows)
        return
    show.table(f"{len(rows):,} documents", _COLUMNS, [[row[name] for name in _COLUMNS] for row in rows[:_LISTED]])
    if len(rows) > _LISTED:
        show.say(f"and {len(rows) - _LISTED:,} more; --json lists all of them")


def _row(document: Document) -> dict[str, Any]:
    names = ("id", "external_id", "source", "owner", "domain", "license")
    return {
        **{name: getattr(document, name) for name in names},
        "tier": str(document.tier),
        "characters": len(document.text),
    }


def _add_stats(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_stats)


def _stats(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store

    store = open_store(Path(arguments.path))
    show.facts(arguments.path, store.stats(), as_json=arguments.json)
    return 0


def _add_erase(parser: argparse.ArgumentParser) -> None:
    _add_selectors(parser)
    parser.add_argument("--dry-run", action="store_true", help="only list what would go")
    parser.add_argument("--copies", action="store_true", help="also find copies: the owner's go too, others are listed")
    parser.add_argument("--may-return", action="store_true", help="do not keep the documents from being added again")
    parser.add_argument("--salts", metavar="FILE", help="write the owner's salts here")
    parser.set_defaults(run=_erase)


def _erase(arguments: argparse.Namespace) -> int:
    from silo.files import write_json
    from silo.pairing import open_store

    selector = _selector(arguments)
    if not selector:
        raise SiloError("usage", f"say what to erase: {', '.join('--' + name for name in _SELECTORS)}")
    store = open_store(Path(arguments.path))
    if arguments.dry_run:
        going = list(store.documents(selector))
        if not going:
            raise _nothing_selected(store, selector)
        if arguments.json:
            show.print_json({"dry_run": True, "documents": [_row(document) for document in going]})
        else:
            _show_documents(going, as_json=False)
        return 0
    done = store.erase(selector, suppress=not arguments.may_return, copies=arguments.copies)
    if not done.documents:
        raise _nothing_selected(store, selector)
    if arguments.salts and done.salts:
        write_json(Path(arguments.salts), done.salts)
    facts: dict[str, Any] = {
        "documents": list(done.documents),
        "accepted_ms": done.accepted_ms,
        "done_ms": done.done_ms,
        "receipt": str(done.receipt) if done.receipt else None,
        **_checks([done]),
        "copies": [copy.as_json() for copy in done.copies],
        "digest": store.digest(),
    }
    if arguments.json:
        show.print_json({**facts, "salts": done.salts})
    else:
        show.facts(f"erased from {arguments.path}", {**facts, "documents": len(done.documents)}, as_json=False)
        _remind_of_salts(done.salts, arguments.salts)
    return _status(facts)


def _checks(erasures: Sequence[Erased]) -> dict[str, list[str]]:
    """The checks that failed or were not made, in any of some erasures."""
    return {
        "failed_checks": sorted({name for item in erasures for name in item.failed_checks}),
        "not_checked": sorted({name for item in erasures for name in item.unmade_checks}),
    }


def _status(facts: Mapping[str, Any]) -> int:
    return show.complain_of_checks("the documents are out, but", facts["failed_checks"], facts["not_checked"])


def _remind_of_salts(salts: Mapping[str, str], file: str | None) -> None:
    if salts and not file:
        show.say("the owner's salts were not written: use --salts FILE or --json to hand them out")


def _add_allow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--document", required=True, metavar="ID", help="silo's id, or that of the record")
    parser.add_argument("--source", default="", metavar="X", help="of a record's id, if the store has none of it")
    parser.set_defaults(run=_allow)


def _allow(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store

    if not open_store(Path(arguments.path)).allow(arguments.document, source=arguments.source):
        message = f"{arguments.document} is not kept out of {arguments.path}"
        hint = "a record's own id needs its --source if no other document of that source is in the store"
        raise SiloError("nothing-selected", message, hint)
    show.facts(arguments.path, {"document": arguments.document, "was_kept_out": True}, as_json=arguments.json)
    return 0


def _add_backup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="DIR", help="where the backup goes: a folder that is not there or empty")
    parser.set_defaults(run=_backup)


def _backup(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from silo.pairing import open_store
    from silo.store.backup import back_up

    store = open_store(Path(arguments.path))
    with show.progress(quiet=arguments.quiet) as advance:
        done = back_up(store, Path(arguments.out), advance=advance)
    show.facts(f"backup of {arguments.path}", {"backup": arguments.out, **asdict(done)}, as_json=arguments.json)
    if not done.noted:
        show.say("the log could not be written: later receipts will not name this backup", quiet=arguments.quiet)
    return 0


def _add_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evidence", metavar="DIR", help="newer copies of the log, the list and the receipts")
    parser.add_argument("--force", action="store_true", help="replace a store that is not damaged")
    parser.add_argument("--salts", metavar="FILE", help="write the owners' salts here")
    parser.add_argument("--accept-loss", action="store_true", help="go on without evidence that is lost for good")
    parser.set_defaults(run=_restore)


def _restore(arguments: argparse.Namespace) -> int:
    from silo.pairing import restore_store

    backup, evidence = Path(arguments.backup), Path(arguments.evidence) if arguments.evidence else None
    with show.progress(quiet=arguments.quiet) as advance:
        done = restore_store(
            backup,
            Path(arguments.path),
            evidence=evidence,
            force=arguments.force,
            accept_loss=arguments.accept_loss,
            advance=advance,
        )
    if done.evidence == "backup":
        show.say("no newer log or list was found: what was erased after the backup is not known here, and is back")
    facts = {"store": arguments.path, "digest": done.digest, "held": done.documents, "evidence": done.evidence}
    return _show_replayed(arguments, facts, done.erased)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--salts", metavar="FILE", help="write the owners' salts here")
    parser.add_argument("--accept-loss", action="store_true", help="go on without evidence that is lost for good")
    parser.set_defaults(run=_replay)


def _replay(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store

    done = open_store(Path(arguments.path), restored=True).replay(accept_loss=arguments.accept_loss)
    return _show_replayed(arguments, {}, done)


def _show_replayed(arguments: argparse.Namespace, before: Mapping[str, Any], done: Sequence[Erased]) -> int:
    """Facts, and what was erased again, with the owners' salts; gives the exit status."""
    from silo.files import write_json

    names = [name for item in done for name in item.documents]
    salts = {name: salt for item in done for name, salt in item.salts.items()}
    if arguments.salts and salts:
        write_json(Path(arguments.salts), salts)
    facts: dict[str, Any] = {**before, "receipts": [str(item.receipt) for item in done], **_checks(done)}
    if arguments.json:
        show.print_json({**facts, "documents": names, "salts": salts})
    else:
        show.facts(arguments.path, {**facts, "documents": len(names)}, as_json=False)
        _remind_of_salts(salts, arguments.salts)
    return _status(facts)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", action="store_true", help="encode every document again, with the store's model")
    parser.add_argument("--model", metavar="DIR", help="where the store's model is now")
    parser.add_argument("--anchor", default="", metavar="X", help="a line of `silo store anchor`, or a file of them")
    parser.set_defaults(run=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store

    model = Path(arguments.model) if arguments.model else None
    store = open_store(Path(arguments.path), model, encoding=arguments.keys)
    with show.progress(quiet=arguments.quiet) as advance:
        verified = store.verify(keys=arguments.keys, anchors=_anchors(arguments.anchor), advance=advance)
    show.facts(arguments.path, verified.as_json(), as_json=arguments.json)
    return 4 if verified.problems else 0


def _anchors(given: str) -> list[str]:
    """The line itself, or every line of a file."""
    if " " not in given and given and not Path(given).is_file():
        raise SiloError("input-missing", f"there is no file {given} of anchors")
    lines = Path(given).read_text("utf-8", "replace").splitlines() if given and Path(given).is_file() else [given]
    return [line for line in lines if line.strip()]


def _add_anchor(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_anchor)


def _anchor(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store

    line = open_store(Path(arguments.path)).anchor()
    if arguments.json:
        show.print_json({"anchor": line})
    else:
        print(line)
    return 0


def _add_digest(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_digest)


def _digest(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store

    digest = open_store(Path(arguments.path)).digest()
    if arguments.json:
        show.print_json({"digest": digest})
    else:
        print(digest)
    return 0


def _add_compact(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_compact)


def _compact(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store

    freed = open_store(Path(arguments.path)).compact()
    show.facts(arguments.path, {"freed_bytes": freed}, as_json=arguments.json)
    return 0


def _add_tune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="DIR", help="the language model")
    parser.add_argument("--encoder", metavar="DIR", help="the model of the store's keys, if it has moved")
    parser.add_argument("--jsonl", nargs="+", action="extend", required=True, metavar="FILE", help="validation text")
    parser.add_argument("--save", required=True, metavar="NAME", help="name of the settings")
    parser.add_argument("--tokens", type=int, default=100_000, metavar="N", help="of the text; the first ones")
    parser.add_argument("--k", type=int, default=1024, help="the most neighbours to try")
    parser.add_argument("--home", metavar="DIR", help="the home folder; $SILO_HOME or ./silo-home without it")
    parser.set_defaults(run=_tune)


def _tune(arguments: argparse.Namespace) -> int:
    from silo.evaluation.tune import tune, validation_text
    from silo.files import file_sha256
    from silo.inference.predict import open_predictor
    from silo.inference.settings import Settings, save_settings

    files = [Path(name) for name in arguments.jsonl]
    predictor = open_predictor(
        arguments.model, [arguments.path], settings=Settings(k=arguments.k), encoder=arguments.encoder
    )
    text = validation_text(files, predictor.tokenizer, arguments.tokens)
    with show.progress(quiet=arguments.quiet) as advance:
        tuned = tune(predictor, text, advance=advance)
    origin = {
        "model": predictor.model.fingerprint,
        "store": predictor.stores[0].digest(),
        "files": {file.name: file_sha256(file) for file in files},
        "figures": tuned.figures,
    }
    place = save_settings(show.home(arguments), arguments.save, tuned.settings, origin)
    facts = {"settings": str(place), **tuned.figures}
    if arguments.json:
        show.print_json(facts)
        return 0
    rows = [["lm", None, None, tuned.figures["lm"], None]]
    for name in tuned.settings:
        report = tuned.figures[name]
        rows.append([name, report.get("k"), report.get("tau"), report["all"], report.get("lambda")])
    show.table(f"{place}", ("method", "k", "tau", "perplexity", "mean lambda"), rows)
    return 0
