"""`silo store search|get`: what a store holds on some words, and one document whole."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo.cli import show
from silo.errors import SiloError

if TYPE_CHECKING:
    from silo.records import Document
    from silo.store.excerpt import Excerpt

_MOST = 1000


def add_search(parser: argparse.ArgumentParser) -> None:
    """The options of `silo store search`."""
    parser.add_argument("words", metavar="WORDS", help="what to look for")
    parser.add_argument("--limit", type=int, default=5, metavar="N", help=f"passages to show, 5; at most {_MOST:,}")
    parser.add_argument("--policy", default="", metavar="EXPR", help="""for example 'tier <= "by" and owner != "x"'""")
    parser.set_defaults(run=_search)


def _search(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store
    from silo.store.policy import Policy

    if not 1 <= arguments.limit <= _MOST:
        raise SiloError("usage", f"--limit is from 1 to {_MOST:,}, not {arguments.limit}")
    policy = Policy.parse(arguments.policy)
    found = open_store(Path(arguments.path)).excerpts(arguments.words, arguments.limit, policy)
    if arguments.json:
        show.print_json([item.as_json() for item in found])
    else:
        for number, item in enumerate(found, start=1):
            _show_excerpt(number, item)
    return 0 if found else show.complain(_nothing_found(arguments))


def _nothing_found(arguments: argparse.Namespace) -> SiloError:
    allowed = " that the policy allows" if arguments.policy else ""
    what = f"no passage of {arguments.path}{allowed} holds any of these words"
    return SiloError("nothing-selected", what, "try other words; `silo store list` shows what is there")


def _show_excerpt(number: int, item: Excerpt) -> None:
    """Where it is, its best sentence, and all of it."""
    from rich.console import Console
    from rich.text import Text

    document, console = item.document, Console(highlight=False, soft_wrap=True)
    place = item.place or f"characters {item.start:,} to {item.end:,}"
    about = [document.external_id, place, document.license, document.owner or "owner unknown", f"{item.score:.2f}"]
    quoted = " ".join(item.sentence.split())
    console.print(Text(show.visible(f"{number}. {', '.join(about)}"), style="bold cyan"))
    console.print(Text(show.visible(f'   "{quoted}"'), style="bold"))
    console.print(Text(show.visible(item.text.strip(), keep="\n\t")), end="\n\n")


def add_get(parser: argparse.ArgumentParser) -> None:
    """The options of `silo store get`."""
    parser.add_argument("document", metavar="ID", help="id:<silo's id>, external:<the record's own>, or plain")
    parser.add_argument("--source", default="", metavar="X", help="of a record's own id that several sources use")
    parser.add_argument("--text", action="store_true", help="the text alone")
    parser.set_defaults(run=_get)


def _get(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store

    document = open_store(Path(arguments.path)).get(arguments.document, source=arguments.source)
    if arguments.json:
        show.print_json({"text": document.text} if arguments.text else document.as_json())
    elif arguments.text:
        print(show.visible(document.text, keep="\n\t"))
    else:
        show.facts(document.external_id or document.id, _about(document), as_json=False)
        rows = [[item.where, item.method, item.asserted, item.spdx, item.confidence] for item in document.evidence]
        show.table("evidence", ("where", "method", "asserted", "licence", "confidence"), rows)
        print(show.visible(document.text, keep="\n\t"))
    return 0


def _about(document: Document) -> dict[str, Any]:
    """Everything but the text and the evidence."""
    record = document.as_json()
    lists = {name: ", ".join(record.pop(name)) or "none" for name in ("duties", "conflicts")}
    rights = ", ".join(f"{name} {value}" for name, value in record.pop("rights").items())
    plain = {name: value for name, value in record.items() if name not in ("text", "evidence")}
    return {**plain, "rights": rights, **lists, "characters": len(document.text)}
