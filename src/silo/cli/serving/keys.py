"""`silo keys create|list|revoke`: who may ask a server for what."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from silo.cli import show


def add_commands(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo keys` and its verbs."""
    noun = nouns.add_parser("keys", help="who may ask a server for what")
    verbs = noun.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, add, text in (
        ("create", _add_create, "a new key, shown once"),
        ("list", _add_list, "the keys of a file, without the keys themselves"),
        ("revoke", _add_revoke, "take a key away; a server notices at the next request"),
    ):
        parser = verbs.add_parser(name, parents=[common], help=text)
        parser.add_argument("file", metavar="FILE", help="the file of keys")
        add(parser)


def _add_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", action="append", default=[], metavar="R", help="reader, owner, operator; repeatable")
    parser.add_argument("--name", default="", metavar="X", help="a name to tell keys apart by")
    parser.add_argument("--owner", default="", metavar="X", help="whose documents: with the role owner")
    parser.add_argument("--policy", default="", metavar="EXPR", help="bounds every answer; requests can only narrow it")
    parser.add_argument("--guard", type=int, default=0, metavar="N", help="repeat at most N tokens in a row")
    parser.add_argument("--allow", action="append", default=[], metavar="P", help="logprobs or text; may be repeated")
    parser.add_argument("--max-tokens", type=int, default=0, metavar="N", help="tokens of one answer")
    parser.add_argument("--texts", type=int, default=0, metavar="N", help="texts under way at a time")
    parser.set_defaults(run=_create)


def _create(arguments: argparse.Namespace) -> int:
    from silo.server.access import create_key

    key, secret = create_key(
        Path(arguments.file),
        roles=arguments.role or ["reader"],
        name=arguments.name,
        owner=arguments.owner,
        policy=arguments.policy,
        guard=arguments.guard,
        permissions=arguments.allow,
        max_tokens=arguments.max_tokens,
        texts=arguments.texts,
    )
    if arguments.json:
        show.print_json({"key": secret, **key.as_json()})
    else:
        print(secret)
        show.say(f"key {key.id}: it is shown this once and nowhere kept", quiet=arguments.quiet)
    return 0


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_list)


def _list(arguments: argparse.Namespace) -> int:
    from silo.server.access import read_keys

    keys = [key.as_json() for key in read_keys(Path(arguments.file))]
    if arguments.json:
        show.print_json(keys)
        return 0
    columns = ("id", "name", "roles", "owner", "policy", "guard", "permissions", "max_tokens", "texts", "created")
    lists = ("roles", "permissions")
    rows = [[", ".join(key[name]) if name in lists else key[name] for name in columns] for key in keys]
    show.table(arguments.file, columns, rows)
    return 0


def _add_revoke(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="the id or the name of a key")
    parser.set_defaults(run=_revoke)


def _revoke(arguments: argparse.Namespace) -> int:
    from silo.server.access import revoke_key

    key = revoke_key(Path(arguments.file), arguments.key)
    show.facts(arguments.file, {"revoked": key.id, "name": key.name}, as_json=arguments.json)
    return 0
