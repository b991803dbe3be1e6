"""What the ledgers of the stores say: who had which part of a period, and where one document was used.

An owner's key sees its own part. Ledgers hold no text: an answer is known by when it was written.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Query, Request

from silo.server.routes.documents import Name, find_document
from silo.server.service import caller_of, service_of
from silo.store.usage import Statement, document_uses, statements

_MOST_USES = 1000
_USES = 20


def show_credits(
    request: Request,
    store: Name = None,
    begin: Annotated[datetime | None, Query(alias="from")] = None,
    end: Annotated[datetime | None, Query(alias="to")] = None,
    owner: Name = None,
) -> dict[str, Any]:
    """Who had which part of the requests of a period, from the store's ledger; an owner sees their own part."""
    caller = caller_of(request)
    _, chosen = service_of(request).store(store)
    if chosen.unfinished:
        raise chosen.unfinished
    totals = statements(chosen.paths, _in_utc(begin), _in_utc(end))
    wanted = owner if caller.sees_all_owners else caller.owner
    owners = [asdict(item) for item in totals.owners if wanted is None or item.owner == wanted]
    shown: dict[str, Any] = {"requests": totals.requests, "tokens": totals.tokens, "owners": owners}
    if caller.sees_all_owners:
        shown |= {"erased": _part(totals.erased), "language_model": _part(totals.language_model)}
    return shown


def show_document_uses(
    request: Request,
    document: str,
    store: Name = None,
    limit: Annotated[int, Query(ge=0, le=_MOST_USES)] = _USES,
) -> dict[str, Any]:
    """Where a document was used, from the store's ledger: how often, how much, and the last answers by time."""
    _, chosen = service_of(request).store(store)
    found = find_document(chosen, document, caller_of(request))
    if chosen.unfinished:
        raise chosen.unfinished
    return asdict(document_uses(chosen.paths, found.id, limit))


def _in_utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _part(statement: Statement) -> dict[str, Any]:
    return {name: value for name, value in asdict(statement).items() if name != "owner"}
