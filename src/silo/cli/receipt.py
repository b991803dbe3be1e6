"""`silo receipt verify`: checks a receipt on any machine, without the store, the network or a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from silo.cli import show
from silo.errors import SiloError


def add_commands(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo receipt` and its verb."""
    noun = nouns.add_parser("receipt", help="check the signed answer to an erasure")
    verbs = noun.add_subparsers(dest="verb", metavar="VERB", required=True)
    _add_verify(verbs.add_parser("verify", parents=[common], help="is it genuine, and what does it show?"))


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("receipts", nargs="+", metavar="FILE", help="the receipt, or several")
    parser.add_argument(
        "--key", metavar="FILE", help="the public key you trust; without it nobody vouches for the receipt"
    )
    parser.add_argument("--log", metavar="FILE", help="a copy of the store's log.jsonl, which must hold the erasure")
    parser.add_argument("--document", metavar="ID", help="the document the receipt should speak of; needs --salt")
    parser.add_argument("--salt", metavar="HEX", help="the salt that came with the receipt for that document")
    parser.set_defaults(run=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    from silo.store.erasure.receipt import check_receipt, proves, read_receipt

    if (arguments.document is None) != (arguments.salt is None):
        raise SiloError("usage", "--document and --salt belong together")
    key = show.read_bytes(arguments.key) if arguments.key else None
    statuses = []
    for file in map(Path, arguments.receipts):
        receipt = read_receipt(file)
        findings = check_receipt(receipt, key=key, log=Path(arguments.log) if arguments.log else None)
        if arguments.document is not None:
            if not proves(receipt, arguments.document, arguments.salt):
                raise SiloError("receipt-invalid", "it does not speak of this document under this salt", _OTHER)
            findings["document_proven"] = True
        if arguments.json:
            show.print_json(findings)
        elif not arguments.quiet:
            _show(file, findings)
        statuses.append(_status(file, findings))
    return max(statuses)


def _status(file: Path, findings: dict[str, Any]) -> int:
    """Say what keeps a receipt from being a proof; 0 if nothing does."""
    status = 0
    if not findings["key_checked"]:
        message = f"{file.name}: self-consistent, but anybody could have signed it: no --key was given"
        status = show.complain(SiloError("key-not-given", message))
    return max(status, show.complain_of_checks(file.name, findings["failed_checks"], findings["not_checked"]))


_OTHER = "check the id and the salt, or ask for the receipt of this document"


def _show(file: Path, findings: dict[str, Any]) -> None:
    lists = ("checks", "failed_checks", "not_checked", "models_that_list_it", "exclusions")
    rows = {name: value for name, value in findings.items() if name not in lists}
    rows["models_that_list_it"] = ", ".join(findings["models_that_list_it"]) or "none"
    show.facts(f"{file.name}: the receipt is {findings['verdict']}", rows, as_json=False)
    marks = {
        **dict.fromkeys(findings["not_checked"], "not checked"),
        **dict.fromkeys(findings["failed_checks"], "failed"),
    }
    results = [[name, str(value), marks.get(name, "")] for name, value in findings["checks"].items()]
    show.table("checks", ("check", "result", ""), results)
    show.table("not covered", ("what",), [[words] for words in findings["exclusions"]])
