"""`silo credits`: who had which part of the requests of a period, from the usage ledger of a store."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo.cli import show
from silo.errors import SiloError

if TYPE_CHECKING:
    from silo.store.paths import StorePaths
    from silo.store.usage import Statement, Statements


def add_command(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo credits`."""
    parser = nouns.add_parser("credits", parents=[common], help="statements of a store's owners for a period")
    parser.add_argument("path", metavar="PATH", help="the store")
    parser.add_argument("--from", dest="begin", metavar="DATE", help="requests since then: 2026-01-01, UTC, or a time")
    parser.add_argument("--to", dest="end", metavar="DATE", help="requests before then, that day or time not included")
    parser.add_argument("--owner", metavar="X", help="the statement of this owner alone")
    show.add_csv(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from silo.store.paths import StorePaths
    from silo.store.usage import statements

    begin, end = _time("--from", arguments.begin), _time("--to", arguments.end)
    if begin and end and begin >= end:
        raise SiloError("usage", "the period is empty: --to is not included and must be later than --from")
    path = Path(arguments.path)
    _settle(StorePaths(path))
    totals = statements(StorePaths(path), begin, end)
    if arguments.owner is not None:
        totals = replace(totals, owners=tuple(item for item in totals.owners if item.owner == arguments.owner))
    if arguments.json:
        period = {"from": begin and begin.isoformat(), "to": end and end.isoformat()}
        show.print_json({**period, **_as_json(totals)})
        return 0
    columns, rows = ("owner", "requests", "documents", "tokens", "share"), _rows(totals, whole=arguments.owner is None)
    if arguments.csv:
        show.print_csv(columns, rows)
    else:
        shown = [[*row[:-1], f"{row[-1]:.2%}"] for row in rows]
        show.table(_title(path, totals, begin, end), columns, shown)
    return 0


def _settle(paths: StorePaths) -> None:
    """Make sure it is a store, and finish an erasure that was cut off before anybody is named."""
    from silo.store.manifest import read_generation

    read_generation(paths)
    if paths.pending.exists():
        from silo.pairing import open_store

        store = open_store(paths.root)
        store.close()
        if store.unfinished:  # the ledger still names the documents
            raise store.unfinished


def _time(option: str, given: str | None) -> datetime | None:
    """A date or a time; without a zone it is UTC."""
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise SiloError("usage", f"{option} {given!r} is not a date", "write 2026-01-31 or 2026-01-31T18:00") from None
    return moment if moment.utcoffset() is not None else moment.replace(tzinfo=UTC)


def _as_json(totals: Statements) -> dict[str, Any]:
    nobody = {"erased": asdict(totals.erased), "language_model": asdict(totals.language_model)}
    rest = {name: {key: row[key] for key in ("requests", "tokens", "share")} for name, row in nobody.items()}
    owners = [asdict(item) for item in totals.owners]
    return {"requests": totals.requests, "tokens": totals.tokens, "owners": owners, **rest}


def _title(path: Path, totals: Statements, begin: datetime | None, end: datetime | None) -> str:
    since = f" from {begin:%Y-%m-%d %H:%M %Z}" if begin else ""
    until = f" to {end:%Y-%m-%d %H:%M %Z}" if end else ""
    return f"{path}{since}{until}: {totals.requests:,} requests, {totals.tokens:,} tokens"


def _rows(totals: Statements, *, whole: bool) -> list[list[Any]]:
    rows = [_row(item.owner or "(no owner named)", item) for item in totals.owners]
    if whole:
        rows.append(_row("(erased documents)", totals.erased))
        rows.append(_row("(language model and other stores)", totals.language_model))
    return rows


def _row(name: str, item: Statement) -> list[Any]:
    return [name, item.requests, item.documents, item.tokens, item.share]
