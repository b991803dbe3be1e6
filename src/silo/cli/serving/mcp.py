"""`silo mcp`: stores as tools for a model elsewhere, over standard input and output."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from silo.cli import show
from silo.errors import SiloError


def add_command(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo mcp`."""
    parser = nouns.add_parser("mcp", parents=[common], help="stores as read-only tools of the Model Context Protocol")
    parser.add_argument(
        "--store", action="append", default=[], metavar="PATH", help="a store to be asked; may be repeated"
    )
    parser.add_argument("--policy", default="", metavar="EXPR", help="only documents that this allows")
    parser.add_argument("--guard", type=int, metavar="N", help="quote at most N tokens in a row")
    parser.set_defaults(run=_mcp)


def _mcp(arguments: argparse.Namespace) -> int:
    from silo.pairing import open_store
    from silo.server.mcp.tools import Shelf, StoreTools
    from silo.store.policy import Policy

    policy = Policy.parse(arguments.policy)
    if not arguments.store:
        raise SiloError("usage", "there is nothing to ask", "name a store with --store")
    if arguments.guard is not None and arguments.guard < 1:
        raise SiloError("usage", "the guard lets at least one token be repeated")
    try:
        from silo.server.mcp.protocol import make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "starlette"):
            raise
        hint = "install it with: pip install 'silo-lm[mcp]'"
        raise SiloError("extra-missing", f"the tools need {error.name}", hint) from None
    paths = [Path(path) for path in arguments.store]
    shelves = [Shelf(path.absolute().name, open_store(path), policy, arguments.guard or 0) for path in paths]
    tools = StoreTools(shelves, shows_text=True)
    show.say(f"tools for {', '.join(shelf.name for shelf in shelves)} on standard input", quiet=arguments.quiet)
    make_server(lambda _: tools).run("stdio")
    return 0
