"""`POST /mcp`: the read-only tools of the Model Context Protocol, behind the same keys as everything else."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from silo.server.access import Key, Permission
from silo.server.mcp.tools import Shelf, StoreTools
from silo.server.problems import Problem
from silo.server.service import Service, caller_of, service_of
from silo.store.policy import Policy

if TYPE_CHECKING:
    from mcp.server import MCPServer


async def call_tools(request: Request) -> Response:
    """Search, fetch, check_verbatim, document_status and notices by the Model Context Protocol (stateless HTTP)."""
    try:
        server = _server()
    except ModuleNotFoundError as error:
        hint = "install it with: pip install 'silo-lm[mcp]'"
        raise Problem(501, "extra-missing", f"the tools need {error.name}", hint=hint) from None
    return _Delegated(server, service_of(request), await request.body())


@cache
def _server() -> MCPServer[Any]:
    """One for all applications of this process: who is asked, and who asks, comes with each request."""
    from silo.server.mcp.protocol import make_server

    return make_server(_tools_of)


def _tools_of(request: Request) -> StoreTools:
    caller = caller_of(request)
    shelves = [_shelf(request.state.service, name, caller) for name in request.state.service.catalogue.stores]
    return StoreTools(shelves, shows_text=caller.may(Permission.text))


def _shelf(service: Service, name: str, caller: Key) -> Shelf:
    """A store under the limits of the key and of all models that it is served with."""
    store, policy, guards = service.catalogue.stores[name], Policy.parse(caller.policy), [caller.guard]
    for model in service.catalogue.models.values():
        if any(other.root == store.root for other in model.stores):
            policy = policy.narrowed(model.language_model.policy)
            guards.append(model.guard)
    return Shelf(name, store, policy, min(filter(None, guards), default=0))


class _Delegated(Response):
    """An answer that the protocol's own application writes."""

    def __init__(self, server: MCPServer[Any], service: Service, body: bytes) -> None:
        super().__init__()
        self._server, self._service, self._body = server, service, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from silo.server.mcp.protocol import answer_request

        state = {**scope["state"], "service": self._service}
        await answer_request(self._server, self._body, {**scope, "state": state}, receive, send)
