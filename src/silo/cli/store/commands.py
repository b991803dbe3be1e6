"""`silo store` and its verbs; those that bring documents in and show them have modules of their own."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo.cli import show
from silo.cli.store.change import add_add, add_sync
from silo.cli.store.look import add_get, add_search
from silo.cli.store.shared import checks_of, nothing_selected, remind_of_salts, selector_of, status_of
from silo.errors import SiloError

if TYPE_CHECKING:
    from silo.records import Document
    from silo.store.erasure.erase import Erased

_LISTED = 20
_COLUMNS = ("id", "external_id", "source", "owner", "domain", "license", "tier", "characters")


def add_commands(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo store` and its verbs."""
    noun = nouns.add_parser("store", help="a datastore that can forget")
    verbs = noun.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, add, text in (
        ("create", _add_create, "an empty store for a model"),
        ("add", add_add, "put documents in, or newer versions of them"),
        ("sync", add_sync, "hold what a folder or file holds now"),
        ("list", _add_list, "documents, all or some"),
        ("search", add_search, "passages with some words, and where they are"),
        ("get", add_get, "one document whole, with its licence and evidence"),
        ("stats", _add_stats, "sizes, searches, self-test"),
        ("erase", _add_erase, "take documents out, exactly, with a receipt"),
        ("allow", _add_allow, "let an erased document be added again"),
        ("backup", _add_backup, "a complete copy, also while others write"),
        ("restore", _add_restore, "put a backup back, without what was erased since"),
        ("publish", _add_publish, "put a store of this machine on an object store"),
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
    parser.add_argument(
        "--passage-tokens",
        type=int,
        default=0,
        metavar="N",
        help="length of a passage; half of the model's context, at most 1024, for 0",
    )
    show.add_verify(parser)
    show.add_device(parser)
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
    show.facts("created", facts | _key_place(arguments.path), as_json=arguments.json)
    return 0


def _key_place(path: str) -> dict[str, str]:
    """Where the signing key of a store at a URL is: on this machine alone."""
    from silo.remote.place import keys_folder, remote_url

    return {"signing_key_in": str(keys_folder())} if remote_url(path) else {}


def _add_list(parser: argparse.ArgumentParser) -> None:
    show.add_selectors(parser)
    show.add_csv(parser)
    parser.set_defaults(run=_list)


def _list(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store

    selector = selector_of(arguments)
    show.require_output(arguments.csv)
    store = open_store(Path(arguments.path))
    documents = list(store.documents(selector if selector else None))
    if arguments.csv:
        rows = [_row(document) for document in documents]
        show.write_csv(arguments.csv, _COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])
    elif documents or not selector or arguments.json:
        _show_documents(documents, as_json=arguments.json)
    return show.complain(nothing_selected(store, selector)) if selector and not documents else 0


def _show_documents(documents: Iterator[Document] | list[Document], *, as_json: bool) -> None:
    rows = [_row(document) for document in documents]
    if as_json:
        show.print_json(rows)
        return
    show.table(f"{len(rows):,} documents", _COLUMNS, [[row[name] for name in _COLUMNS] for row in rows[:_LISTED]])
    if len(rows) > _LISTED:
        show.say(f"and {len(rows) - _LISTED:,} more; --json and --csv list all of them")


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
    show.add_selectors(parser)
    parser.add_argument("--dry-run", action="store_true", help="only list what would go")
    parser.add_argument("--copies", action="store_true", help="also find copies: the owner's go too, others are listed")
    parser.add_argument("--may-return", action="store_true", help="do not keep the documents from being added again")
    parser.add_argument("--salts", metavar="FILE", help="write the owner's salts here")
    parser.set_defaults(run=_erase)


def _erase(arguments: argparse.Namespace) -> int:
    from silo.files import write_json
    from silo.pairing import open_store

    selector = selector_of(arguments)
    if not selector:
        raise SiloError("usage", f"say what to erase: {', '.join('--' + name for name in show.SELECTORS)}")
    salts = show.output_file(arguments.salts)
    store = open_store(Path(arguments.path))
    if arguments.dry_run:
        going = list(store.documents(selector))
        if not going:
            raise nothing_selected(store, selector)
        if arguments.json:
            show.print_json({"dry_run": True, "documents": [_row(document) for document in going]})
        else:
            _show_documents(going, as_json=False)
        return 0
    done = store.erase(selector, suppress=not arguments.may_return, copies=arguments.copies)
    if not done.documents:
        raise nothing_selected(store, selector)
    if salts and done.salts:
        write_json(salts, done.salts)
    facts: dict[str, Any] = {
        "documents": list(done.documents),
        "accepted_ms": done.accepted_ms,
        "done_ms": done.done_ms,
        "receipt": str(done.receipt) if done.receipt else None,
        **checks_of([done]),
        "copies": [copy.as_json() for copy in done.copies],
        "digest": store.digest(),
    }
    if arguments.json:
        show.print_json({**facts, "salts": done.salts})
    else:
        show.facts(f"erased from {arguments.path}", {**facts, "documents": len(done.documents)}, as_json=False)
        remind_of_salts(done.salts, arguments.salts)
    return status_of(facts)


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


def _add_publish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="where it goes, such as s3://bucket/store; nothing may be there yet")
    parser.set_defaults(run=_publish)


def _publish(arguments: argparse.Namespace) -> int:
    from silo.pairing import publish

    store = publish(Path(arguments.path), arguments.url)
    facts = {"store": arguments.url, "digest": store.digest(), "held": len(list(store.documents()))}
    show.facts(f"published {arguments.path}", facts | _key_place(arguments.url), as_json=arguments.json)
    return 0


def _add_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evidence", metavar="DIR", help="newer copies of the log, the list and the receipts")
    parser.add_argument("--force", action="store_true", help="replace a store that is not damaged")
    parser.add_argument("--salts", metavar="FILE", help="write the owners' salts here")
    parser.add_argument("--accept-loss", action="store_true", help="go on without evidence that is lost for good")
    parser.set_defaults(run=_restore)


def _restore(arguments: argparse.Namespace) -> int:
    from silo.pairing import restore_store

    show.output_file(arguments.salts)
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

    show.output_file(arguments.salts)
    done = open_store(Path(arguments.path), restored=True).replay(accept_loss=arguments.accept_loss)
    return _show_replayed(arguments, {}, done)


def _show_replayed(arguments: argparse.Namespace, before: Mapping[str, Any], done: Sequence[Erased]) -> int:
    """Facts, and what was erased again, with the owners' salts; gives the exit status."""
    from silo.files import write_json

    names = [name for item in done for name in item.documents]
    salts = {name: salt for item in done for name, salt in item.salts.items()}
    if arguments.salts and salts:
        write_json(Path(arguments.salts), salts)
    facts: dict[str, Any] = {**before, "receipts": [str(item.receipt) for item in done], **checks_of(done)}
    if arguments.json:
        show.print_json({**facts, "documents": names, "salts": salts})
    else:
        show.facts(arguments.path, {**facts, "documents": len(names)}, as_json=False)
        remind_of_salts(salts, arguments.salts)
    return status_of(facts)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", action="store_true", help="encode every document again, with the store's model")
    parser.add_argument("--model", metavar="DIR", help="where the store's model is now")
    parser.add_argument("--anchor", default="", metavar="X", help="a line of `silo store anchor`, or a file of them")
    show.add_device(parser)
    parser.set_defaults(run=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store

    model, anchors = Path(arguments.model) if arguments.model else None, _anchors(arguments.anchor)
    store = open_store(Path(arguments.path), model, encoding=arguments.keys)
    with show.progress(quiet=arguments.quiet) as advance:
        verified = store.verify(keys=arguments.keys, anchors=anchors, advance=advance)
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
    parser.add_argument("--k", type=int, default=1024, metavar="N", help="the most neighbours to try")
    parser.add_argument("--home", metavar="DIR", help="the home folder; $SILO_HOME or ./silo-home without it")
    show.add_device(parser)
    parser.set_defaults(run=_tune)


def _tune(arguments: argparse.Namespace) -> int:
    from silo.evaluation.tune import tune, validation_text
    from silo.files import file_sha256
    from silo.inference.predict import open_predictor
    from silo.inference.settings import Settings, save_settings
    from silo.lm.manifest import open_tokenizer

    files = [Path(name) for name in arguments.jsonl]
    Settings.path(show.home(arguments), arguments.save)
    text = validation_text(files, open_tokenizer(Path(arguments.model)), arguments.tokens)
    predictor = open_predictor(
        arguments.model, [arguments.path], settings=Settings(k=arguments.k), encoder=arguments.encoder
    )
    show.note_compiling(quiet=arguments.quiet)
    with show.progress(quiet=arguments.quiet) as advance:
        tuned = tune(predictor, text, advance=advance)
    origin = {
        "model": predictor.opened.fingerprint,
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
