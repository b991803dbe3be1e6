"""Who may ask this server for what: keys, made and taken away by the rules of `silo keys`, each of it in a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from silo.server.access import Permission, Role, create_key, read_key_log, revoke_key
from silo.server.answers.replies import log_page
from silo.server.options import Body
from silo.server.problems import Problem, missing
from silo.server.service import caller_of, service_of

_PAGE = 100
_MOST_LISTED = 1000


class KeyRequest(Body):
    """A key to be made, as for `silo keys create`."""

    roles: list[str] = Field(min_length=1, max_length=len(Role), description=", ".join(Role))
    name: str = Field("", max_length=200, description="to tell keys apart by")
    owner: str = Field("", max_length=4096, description="whose documents: with the role owner")
    policy: str = Field("", max_length=2000, description="bounds every answer; requests can only narrow it")
    guard: int = Field(0, ge=0, le=1_000_000, description="repeat at most so many tokens in a row; 0 is no limit")
    permissions: list[str] = Field([], max_length=len(Permission), description=", ".join(Permission))
    max_tokens: int = Field(0, ge=0, le=2**31, description="of one answer; 0 is no limit")
    texts: int = Field(0, ge=0, le=2**31, description="under way at a time; 0 is no limit")


def list_keys(request: Request) -> dict[str, Any]:
    """The keys of this server: what each may, never the key itself."""
    return {"data": [key.as_json() for key in service_of(request).keys.known()]}


def make_key(request: Request, body: KeyRequest) -> Response:
    """Make a key. The answer has it in `key`, and nobody sees it again."""
    key, secret = create_key(_file(request), **body.model_dump(), by=caller_of(request).id)
    return JSONResponse({"key": secret, **key.as_json()}, status_code=201)


def remove_key(request: Request, key: str) -> dict[str, Any]:
    """Take away the key of an id; it opens nothing from the next request on. Nobody takes away their own."""
    file, caller = _file(request), caller_of(request)
    if key == caller.id:
        raise Problem(400, "usage", "this is the key you are using", hint="take it away with another operator's key")
    if key not in {item.id for item in service_of(request).keys.known()}:
        raise missing("key")
    return {"revoked": revoke_key(file, key, by=caller.id).as_json()}


def show_key_log(
    request: Request,
    before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = _PAGE,
) -> dict[str, Any]:
    """Which keys were made and taken away, by whom, the newest first: entries before the entry `before`."""
    file = service_of(request).keys.file
    return log_page(read_key_log(file) if file else (), before, limit)


def _file(request: Request) -> Path:
    file = service_of(request).keys.file
    if file is None:
        hint = "stop it, make a key with `silo keys create FILE`, and serve with --keys FILE"
        raise Problem(400, "usage", "this server was started without keys", hint=hint)
    return file
