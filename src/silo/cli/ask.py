"""`silo ask` and `silo chat`: a question to a store, the answer, and the sentences it rests on."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from silo.cli import show
from silo.errors import ExitStatus, SiloError

if TYPE_CHECKING:
    from silo.inference.ask.asker import Asker
    from silo.inference.ask.reply import Reply

_PROMPT = "> "
_HELP = "ask a question, or type /sources for all of the last answer's sources, /quit to leave"


def add_commands(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add both commands."""
    ask = nouns.add_parser("ask", parents=[common], help="answer a question from stores, and say where it stands")
    _add_shared(ask)
    ask.add_argument("question", metavar="QUESTION", help="- for standard input")
    show.add_html(ask)
    ask.set_defaults(run=_ask)
    chat = nouns.add_parser("chat", parents=[common], help="ask one question after another")
    _add_shared(chat)
    chat.set_defaults(run=_chat)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="STORE", help="where to look")
    parser.add_argument("--store", action="append", default=[], metavar="PATH", help="another store; may be repeated")
    parser.add_argument("--model", metavar="DIR", help="the model that answers; the store's own without it")
    parser.add_argument("--policy", default="", metavar="EXPR", help="""for example 'tier <= "by" and owner != "x"'""")
    parser.add_argument(
        "--excerpts", type=int, metavar="N", help="that the model reads; 1 without it, best if it is small"
    )
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="of the answer; 64 without it")
    guard = "repeat at most N tokens in a row of a document, and fewer where its quote right is smaller"
    parser.add_argument("--guard", type=int, metavar="N", help=guard)
    parser.add_argument("--ledger", action="store_true", help="note the documents' shares in the stores' ledgers")
    show.add_device(parser)


def _open(arguments: argparse.Namespace) -> Asker:
    from silo.inference.ask.asker import Asker

    if arguments.max_tokens < 1:
        raise SiloError("usage", "--max-tokens is at least 1")
    more = {"excerpts": arguments.excerpts} if arguments.excerpts is not None else {}
    stores = [arguments.path, *arguments.store]
    return Asker.open(stores, arguments.model, policy=arguments.policy, threads=arguments.threads, **more)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in ("max_tokens", "guard", "ledger")}


def _ask(arguments: argparse.Namespace) -> int:
    question, page = show.read_words(arguments.question), show.page_path(arguments)
    reply = _answer(_open(arguments), question, as_json=arguments.json, **_options(arguments))
    if arguments.json:
        show.print_json(reply.as_json())
    if page:
        from silo.journeys.pages import write_reply_page

        write_reply_page(reply, page)
    return int(ExitStatus.OK if reply.found else ExitStatus.NOT_FOUND)


def _answer(asker: Asker, question: str, *, as_json: bool = False, **options: Any) -> Reply:
    """Ask, and show the answer as it comes."""
    if as_json:
        return asker.ask(question, **options)
    from silo.cli.painter import Painter

    painter = Painter()
    reply = asker.ask(question, show=painter.step, **options)
    painter.reply(reply)
    return reply


def _chat(arguments: argparse.Namespace) -> int:
    """Read questions until the end of the input; the model and the stores stay open."""
    from silo.inference.ask.prompt import Turn

    asker = _open(arguments)
    turns: list[Turn] = []
    last: Reply | None = None
    if sys.stdin.isatty():
        _prepare(asker)
        show.say(_HELP, quiet=arguments.quiet)
    while (line := _read_line()) is not None:
        if line in ("/quit", "/exit"):
            break
        if line == "/sources":
            _show_sources(last)
        elif line.startswith("/"):
            show.say(_HELP)
        elif line:
            last = _answer(asker, line, as_json=arguments.json, turns=turns, **_options(arguments))
            if arguments.json:
                show.print_json(last.as_json())
            if last.found:
                turns.append(Turn(line, last.text, frozenset(item.id for item in last.citations)))
    return 0


def _prepare(asker: Asker) -> None:
    """Let lines be edited and remembered, and the model load while the first one is typed."""
    from threading import Thread

    with suppress(ImportError):
        import readline  # noqa: F401  # input() uses it
    Thread(target=_load_quietly, args=[asker], daemon=True).start()


def _load_quietly(asker: Asker) -> None:
    with suppress(SiloError):  # the first question meets it again, and says so
        asker.load_model()


def _read_line() -> str | None:
    """A line without white space around it; None at the end of the input."""
    try:
        return input(_PROMPT if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except UnicodeDecodeError:
        raise SiloError("utf8-invalid", "the question is not UTF-8") from None


def _show_sources(reply: Reply | None) -> None:
    """Everything that is known of where the last answer stands."""
    if reply is None or not reply.found:
        show.say("no answer yet")
        return
    columns = ("document", "place", "owner", "licence", "characters", "quote")
    rows = [
        [item.document, item.place, item.owner, item.licence, f"{item.start}-{item.end}", " ".join(item.quote.split())]
        for item in reply.citations
    ]
    show.table("sources", columns, rows)
