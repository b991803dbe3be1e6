"""Stores over HTTP: what they hold, documents, erasure with receipts, and the jobs that write.

An owner's key sees and changes the documents of that owner alone; those of others are missing. Text of documents is
shown to keys with that permission. What writes is a job.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from silo.errors import SiloError
from silo.files import remove_file, write_private
from silo.progress import Advance
from silo.recipe import SourceRecipe
from silo.records import Document, Quarantined, Tier
from silo.server.access import Key, Permission
from silo.server.answers.replies import log_page
from silo.server.jobs import WAITING, Job, give_way
from silo.server.models import Catalogue
from silo.server.options import Body
from silo.server.problems import Problem, missing, naming
from silo.server.service import Service, caller_of, service_of
from silo.sources import plan, read_documents
from silo.sources.reader.fields import text_id
from silo.store.erasure.log import AuditLog
from silo.store.erasure.receipt import check_receipt, parse_receipt, proves, read_receipt
from silo.store.policy import Policy
from silo.store.selector import Selector
from silo.store.store import Store

_PAGE = 100
_MOST_LISTED = 1000
_MOST_DOCUMENTS = 10_000
_MOST_WAITING = 16
"""Jobs of one caller that wait, from which on no documents are taken: they lie on the disk. Erasures always are."""
_ACCEPT_SECONDS = 10.0
_BUSY_SECONDS = 120.0
_LOOK_SECONDS = 0.2
_SOURCE = "http"
_FIELDS = ("id", "external_id", "source", "owner", "domain", "license", "url")
_COLUMNS = ("tier", "license", "owner", "domain", "source")

Name = Annotated[str | None, Query(max_length=4096)]


class SelectorBody(Body):
    """Which documents: all conditions that are given must hold."""

    document: str = Field("", max_length=4096)
    owner: str = Field("", max_length=4096)
    source: str = Field("", max_length=4096)
    license: str = Field("", max_length=4096)
    domain: str = Field("", max_length=4096)
    query: str = Field("", max_length=100_000, description="text that the documents contain")


class AddRequest(Body):
    """Documents as records of a JSONL source: `id` and `text`, and what is known of their rights."""

    store: str | None = None
    documents: list[dict[str, Any]] = Field(min_length=1, max_length=_MOST_DOCUMENTS)
    dry_run: bool = Field(False, description="only show what would be held of their rights")


class FindRequest(Body):
    """A text that somebody looks for."""

    store: str | None = None
    text: str = Field(min_length=1)


class EraseRequest(SelectorBody):
    """What to erase; `dry_run` only lists it, `copies` also takes copies of the works by the same owner."""

    store: str | None = None
    dry_run: bool = False
    copies: bool = False
    may_return: bool = False


class VerifyRequest(Body):
    """A receipt; `document` and `salt` ask whether it speaks of a document, `store` says whose key is trusted."""

    receipt: dict[str, Any]
    store: str | None = None
    document: str | None = Field(None, max_length=200)
    salt: str | None = Field(None, max_length=200)


def list_stores(request: Request) -> dict[str, Any]:
    """The stores of this server."""
    stores = service_of(request).catalogue.stores.items()
    return {"data": [{"store": name, "searches": list(store.config.searches)} for name, store in stores]}


def show_stats(request: Request, store: Name = None) -> dict[str, Any]:
    """Sizes and searches of a store."""
    name, chosen = service_of(request).store(store)
    return {"store": name, **chosen.stats()}


def show_digest(request: Request, store: Name = None) -> dict[str, str]:
    """One value for the whole content of a store."""
    name, chosen = service_of(request).store(store)
    return {"store": name, "digest": chosen.digest()}


def show_contents(
    request: Request, store: Name = None, limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = _MOST_LISTED
) -> dict[str, Any]:
    """How many documents and tokens a store holds by tier, licence, owner, domain and source; an owner sees their own.

    Of each kind the largest are listed, `names` says how many there are. No text is read for it.
    """
    caller = caller_of(request)
    name, chosen = service_of(request).store(store)
    policy = Policy() if caller.sees_all_owners else Policy.of(owners=[caller.owner])
    totals = {column: chosen.totals_by(column, policy) for column in _COLUMNS}
    counted = {column: _counted(found, limit) for column, found in totals.items()}
    return {"store": name, "names": {column: len(found) for column, found in totals.items()}, **counted}


def list_same_texts(
    request: Request, store: Name = None, limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = _PAGE
) -> dict[str, Any]:
    """Texts that a store holds under two licences or more: one of the statements may be laundered."""
    _, chosen = service_of(request).store(store)
    with chosen.reading() as view:
        found = view.same_texts(limit + 1)
    rows = [{"documents": [asdict(item) for item in group]} for group in found[:limit]]
    return {"data": rows, "has_more": len(found) > limit}


def _counted(totals: Mapping[str, tuple[int, int]], most: int) -> list[dict[str, Any]]:
    """The largest first."""
    ordered = sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))[:most]
    return [{"name": name, "documents": documents, "tokens": tokens} for name, (documents, tokens) in ordered]


def show_log(
    request: Request,
    store: Name = None,
    before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = _PAGE,
) -> dict[str, Any]:
    """The audit log of a store, the newest entries first: those before the entry `before`."""
    _, chosen = service_of(request).store(store)
    return log_page(AuditLog.open(chosen.paths.log, read_only=True).entries, before, limit)


def list_documents(
    request: Request,
    store: Name = None,
    owner: Name = None,
    source: Name = None,
    license: Name = None,
    domain: Name = None,
    tier: Annotated[Tier | None, Query()] = None,
    query: Annotated[str | None, Query(max_length=1000, description="text that the documents contain")] = None,
    conflicts: Annotated[bool, Query(description="only those whose evidence disagrees")] = False,
    after: Annotated[str, Query(max_length=32)] = "",
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = _PAGE,
) -> dict[str, Any]:
    """Documents in the order of their ids, a page at a time: `after` is the last id of the page before."""
    caller = caller_of(request)
    _, chosen = service_of(request).store(store)
    names = {"owner": owner, "source": source, "license": license, "domain": domain, "query": query}
    selector = own_part(Selector(**{name: value or "" for name, value in names.items()}), caller)
    policy = Policy.of(tiers=[tier]) if tier is not None else Policy()
    found = chosen.documents(selector if selector else None, policy, after=after, disputed=conflicts)
    page = list(islice(found, limit + 1))
    rows = [_row(item) for item in page[:limit]]
    return {"data": rows, "has_more": len(page) > limit, "last_id": rows[-1]["id"] if rows else None}


def show_document(request: Request, document: str, store: Name = None) -> dict[str, Any]:
    """One document by silo's id: its rights and evidence, and its text for keys that may see it."""
    caller = caller_of(request)
    _, chosen = service_of(request).store(store)
    whole = find_document(chosen, document, caller).as_json()
    return whole if caller.may(Permission.text) else {name: whole[name] for name in whole if name != "text"}


def find_document(store: Store, document: str, caller: Key) -> Document:
    """The document of silo's id, if it is there and the caller's; what others have is missing."""
    try:
        selector = own_part(Selector(document=f"id:{document}"), caller)
    except SiloError:
        raise missing("document") from None
    found = next(iter(store.documents(selector)), None)
    if found is None:
        raise missing("document")
    return found


def find_text(request: Request, body: FindRequest) -> dict[str, Any]:
    """Is my text in here? Documents that contain it, white space and case aside."""
    caller = caller_of(request)
    _, chosen = service_of(request).store(body.store)
    found = chosen.documents(own_part(Selector(query=body.text), caller))
    rows = [_row(item) for item in islice(found, _PAGE + 1)]
    return {"data": rows[:_PAGE], "has_more": len(rows) > _PAGE}


async def add_documents(request: Request, body: AddRequest) -> Response:
    """Put documents into a store: a job. Those of an owner's key are that owner's, whatever they say."""
    caller, service = caller_of(request), service_of(request)
    name, _ = service.store(body.store)
    forced = {} if caller.sees_all_owners else {"owner": caller.owner, "source": f"owner:{caller.owner}"}
    lines = b"".join(_line({**item, **forced}) for item in body.documents)
    if body.dry_run:
        return JSONResponse(await run_in_threadpool(_verdicts, service.jobs.folder, lines))
    if service.jobs.waiting(caller.id) >= _MOST_WAITING:
        raise Problem(429, "overloaded", f"{_MOST_WAITING} jobs of this key wait already", hint="wait for the others")
    job = await run_in_threadpool(_create_job, service, "add", name, caller, {}, lines)
    return JSONResponse(job.as_json(), status_code=202)


def _line(record: dict[str, Any]) -> bytes:
    """A record as a line of JSON; one without an id is named by its text: sent again, it is the same."""
    text = record.get("text")
    unnamed = record.get("id") in (None, "") and isinstance(text, str)
    return json.dumps({**record, "id": text_id(str(text))} if unnamed else record).encode() + b"\n"


def _verdicts(folder: Path, lines: bytes) -> dict[str, Any]:
    """What would be held of documents if they were added: read as a job reads them, and forgotten.

    They lie where a server that was killed looks for documents that nobody waits for.
    """
    file, unread = folder / f"{secrets.token_hex(12)}.jsonl", list[Quarantined]()
    try:
        write_private(file, lines)
        judged = list(_read(file, unread))
    finally:
        remove_file(file)
    shown = ({name: value for name, value in item.as_json().items() if name not in ("text", "id")} for item in judged)
    return {"dry_run": True, "documents": list(shown), "quarantined": _unreadable(unread)}


async def erase_documents(request: Request, body: EraseRequest) -> Response:
    """Erase documents exactly: a job, whose answer comes when nobody finds them any more or the erasure has failed."""
    caller, service = caller_of(request), service_of(request)
    name, store = service.store(body.store)
    with naming("document"):
        wanted = selector_of(body)
        if not wanted:
            raise Problem(400, "usage", "say what to erase: a document, owner, source, licence, domain or query")
        selector = own_part(wanted, caller)
    going = await run_in_threadpool(lambda: [_row(item) for item in store.documents(selector)])
    if not going:
        raise Problem(404, "nothing-selected", "no document is meant")
    if body.dry_run:
        return JSONResponse({"dry_run": True, "documents": going})
    given = {"selector": asdict(selector), "copies": body.copies, "suppress": not body.may_return}
    job = await run_in_threadpool(_create_job, service, "erase", name, caller, given)
    end = time.monotonic() + _ACCEPT_SECONDS
    while not job.is_over and job.stage != "accepted" and time.monotonic() < end:
        job = await service.jobs.changed(job, _LOOK_SECONDS) or job
    return JSONResponse(job.as_json(), status_code=202)


def show_receipt(request: Request, receipt: str) -> Response:
    """A receipt by the name that an erasure's job gives; an owner's are those of the owner's own erasures."""
    caller, service = caller_of(request), service_of(request)
    if not (caller.sees_all_owners or service.jobs.has_receipt(receipt, caller.owner)):
        raise missing("receipt")
    for store in service.catalogue.stores.values():
        if receipt in {file.name for file in store.paths.receipts.glob("*.json")}:
            return JSONResponse(read_receipt(store.paths.receipts / receipt))
    raise missing("receipt")


def verify_receipt(request: Request, body: VerifyRequest) -> dict[str, Any]:
    """Is a receipt genuine, and what does it show? The key that is trusted is the store's own."""
    _, store = service_of(request).store(body.store)
    if (body.document is None) != (body.salt is None):
        raise Problem(400, "usage", "document and salt belong together", param="salt")
    with naming("receipt"):
        content = parse_receipt(json.dumps(body.receipt).encode())
        findings = check_receipt(content, key=store.paths.public_key.read_bytes(), log=store.paths.log)
    if body.document is not None and body.salt is not None:
        findings["document_proven"] = proves(content, body.document, body.salt)
    return findings


def _create_job(
    service: Service, kind: str, store: str, caller: Key, given: Mapping[str, Any], lines: bytes = b""
) -> Job:
    return service.jobs.create(kind, store, caller=caller.id, owner=caller.owner, given=given, lines=lines)


def selector_of(body: SelectorBody) -> Selector:
    """What a body means."""
    return Selector(**{name: getattr(body, name) for name in SelectorBody.model_fields})


def own_part(selector: Selector, caller: Key) -> Selector:
    """What is meant of the caller's documents."""
    if caller.sees_all_owners:
        return selector
    if selector.owner not in ("", caller.owner):
        raise Problem(404, "nothing-selected", "no document is meant")
    return replace(selector, owner=caller.owner)


def _row(document: Document) -> dict[str, Any]:
    plain = {name: getattr(document, name) for name in _FIELDS}
    more = {"tier": str(document.tier), "characters": len(document.text)}
    return {**plain, **more, **({"conflicts": list(document.conflicts)} if document.conflicts else {})}


class Worker:
    """Carries out the jobs that write to stores; waits for other processes that are writing there."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def holds(self, store: str, document: str) -> bool:
        """May this document be in a store that is served? It may where the store cannot be asked."""
        try:
            return store in self._catalogue.stores and self._catalogue.stores[store].holds(document)
        except (SiloError, OSError):
            return True

    def run(self, job: Job, documents: Path, advance: Advance) -> dict[str, Any]:
        """The result of a job. Adding waits for some time, an erasure for as long as it takes."""
        store = self._catalogue.stores.get(job.store)
        if store is None:
            raise SiloError("input-missing", f"the store {job.store} is not served any more")
        if job.kind == "add":
            give_way(lambda: self._catalogue.let_add(store))
        end = time.monotonic() + _BUSY_SECONDS if job.kind == "add" else math.inf
        while True:
            try:
                store.begin_again()  # a disk that was full for one job may not be for the next
                if job.kind == "add":
                    return give_way(lambda: _add(store, documents, advance))
                return _erase(store, job, advance)
            except SiloError as error:
                if error.code != "busy" or time.monotonic() > end:
                    raise
            advance(WAITING, 0, 0)
            time.sleep(_LOOK_SECONDS)


def _add(store: Store, documents: Path, advance: Advance) -> dict[str, Any]:
    if not documents.is_file():
        raise SiloError("input-missing", "the documents of this job are lost", "send them again")
    unread: list[Quarantined] = []
    done = store.add(_read(documents, unread), advance=advance)
    return {
        "read": done.read + len(unread),
        "added": done.added,
        "unchanged": done.unchanged,
        "rejected": done.refused,
        "quarantined": _unreadable(unread),
        "rejected_documents": [
            {"id": item.id, "external_id": item.external_id, "reason": item.reason, "detail": item.detail}
            for item in done.refusals
        ],
        "digest": store.digest(),
    }


def _read(file: Path, unread: list[Quarantined]) -> Iterator[Document]:
    """The documents of a request; what is noted of them says nothing of the file that they lie in for a while."""
    source = SourceRecipe("jsonl", (str(file),), name=_SOURCE)
    parts = [replace(part, label=_SOURCE) for part in plan(source, file.parent)]
    return read_documents(source, file.parent, unread, parts=parts)


def _unreadable(unread: list[Quarantined]) -> list[dict[str, Any]]:
    return [{"where": item.where.rpartition(":")[2], "code": item.code} for item in unread]


def _erase(store: Store, job: Job, advance: Advance) -> dict[str, Any]:
    given = job.input
    done = store.erase(
        Selector(**given["selector"]),
        suppress=given["suppress"],
        copies=given["copies"],
        accepted=lambda: advance("accepted", 0, 1),
    )
    if not done.documents and not job.resumed:
        raise SiloError("nothing-selected", "the documents are not there any more")
    others = [copy.as_json() for copy in done.copies] if not job.owner else []
    return {
        "documents": list(done.documents),
        "accepted_ms": done.accepted_ms,
        "done_ms": done.done_ms,
        "receipt": done.receipt.name if done.receipt else None,
        "failed_checks": list(done.failed_checks),
        "not_checked": list(done.unmade_checks),
        "copies": others,
        "salts": done.salts,
        "digest": store.digest(),
    }
