"""The tools as the Model Context Protocol has them: over standard input and output, or as one HTTP request.

Nothing is remembered between requests, and clients are told to keep nothing either: what is erased must not live on in
their caches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, get_args

import mcp_types
from mcp.server import CacheHint, MCPServer
from mcp.server.caching import CacheableMethod
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import Message, Receive, Scope, Send

from silo import __version__
from silo.errors import SiloError
from silo.server.mcp.tools import StoreTools

_CACHE_MS = 1000
_INSTRUCTIONS = (
    "Documents whose rights are known. Search before you answer, cite by id, check what you wrote with check_verbatim, "
    "and pass on what notices says."
)

ToolsOf = Callable[[Any], StoreTools]
"""The tools for whoever makes a request; None is the user of standard input."""


def make_server(tools_of: ToolsOf) -> MCPServer[Any]:
    """The five tools."""
    hint = CacheHint(ttl_ms=_CACHE_MS, scope="private")
    server: MCPServer[Any] = MCPServer(
        "silo",
        version=__version__,
        instructions=_INSTRUCTIONS,
        log_level="WARNING",
        cache_hints=dict.fromkeys(get_args(CacheableMethod), hint),
        subscriptions=False,
    )
    for tool in _tools(tools_of):
        annotations = mcp_types.ToolAnnotations(read_only_hint=True, open_world_hint=False, idempotent_hint=True)
        server.add_tool(_telling(tool), annotations=annotations)
    return server


def _tools(tools_of: ToolsOf) -> list[Callable[..., dict[str, Any]]]:
    """Functions whose names, arguments and first lines are what a model reads."""

    def ask(context: Context[Any, Any]) -> StoreTools:
        return tools_of(context.request_context.request)

    def search(query: str, context: Context[Any, Any]) -> dict[str, Any]:
        """Find passages of documents by words: ids, owners, licences, places and quotes."""
        return ask(context).search(query)

    def fetch(id: str, context: Context[Any, Any]) -> dict[str, Any]:
        """Get one document by its id: its licence and rights, and its text as far as it may be quoted."""
        return ask(context).fetch(id)

    def check_verbatim(text: str, context: Context[Any, Any]) -> dict[str, Any]:
        """Find what a text repeats word for word from documents, and whether they may be quoted at such length."""
        return ask(context).check_verbatim(text)

    def document_status(context: Context[Any, Any], id: str = "", text: str = "") -> dict[str, Any]:
        """Say whether a document is held now, by its id or by text that it contains; erased documents are not."""
        return ask(context).document_status(id, text)

    def notices(ids: list[str], context: Context[Any, Any]) -> dict[str, Any]:
        """Get the notices that the licences of documents ask for, by their ids."""
        return ask(context).notices(ids)

    return [search, fetch, check_verbatim, document_status, notices]


def _telling(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A tool whose expected errors reach the model that called it."""

    @wraps(tool)
    def told(**given: Any) -> dict[str, Any]:
        try:
            return tool(**given)
        except SiloError as error:
            raise ToolError(f"{error.message} [{error.code}]" + (f". {error.hint}" if error.hint else "")) from None

    return told


async def answer_request(server: MCPServer[Any], body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
    """One HTTP request to /mcp, whose body was read; host, caller and size were checked before."""
    app = server.streamable_http_app(
        json_response=True,
        stateless_http=True,
        max_request_body_size=max(1, len(body)),
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    async with app.router.lifespan_context(app):
        await app({**scope, "path": "/mcp", "raw_path": b"/mcp"}, replay, send)
