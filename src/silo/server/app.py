"""The application: every route with who may call it, and what holds for all of them.

A route without roles is for everybody, which is said of it too; what is not in `ENDPOINTS` does not exist. Who is
asking is found out from the headers, before a body is read. `serve` runs the application until it is told to stop.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from silo import __version__
from silo.cluster.http import Tell
from silo.cluster.search import placing
from silo.errors import SiloError
from silo.lm.engine.engine import core_count
from silo.server.access import Key, KeyRing, Role
from silo.server.answers.attribution import Attributions
from silo.server.config import ServerRecipe, is_loopback, require_servable
from silo.server.engine import Engine
from silo.server.jobs import FOLDER, Jobs, taking_up_jobs
from silo.server.metrics import Metrics
from silo.server.models import Catalogue, PlaceSearchers
from silo.server.problems import Problem, answer_http, answer_invalid, answer_problem
from silo.server.routes import (
    chat,
    completions,
    corpora,
    documents,
    jobs,
    keys,
    ledgers,
    page,
    price,
    system,
    tokens,
    tools,
)
from silo.server.service import Service, service_of
from silo.text.strict_json import parse_object

_LOG = logging.getLogger("silo.server")
_DEPTH = 64
_CACHED_BYTES = 24 << 20
"""Weights at most that are taken to stay in the caches which the cores share: those have 32 MB on many servers."""
_MOST_LOOPS = 4
"""A fourth of what a token of a small network takes is Python, at which threads take turns."""
_SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter from the others: the engine gives it up in every search and pass."""
_LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")

EVERYBODY: tuple[Role, ...] = ()
READER = (Role.reader, Role.operator)
OWNER = (Role.owner, Role.operator)
OPERATOR = (Role.operator,)
ANY_KEY = tuple(Role)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route, and the roles of which a caller needs one; none means everybody."""

    method: str
    path: str
    run: Callable[..., Any]
    roles: tuple[Role, ...]


ENDPOINTS = (
    Endpoint("GET", "/", page.show_page, EVERYBODY),
    Endpoint("GET", "/page/{name}", page.show_page_file, EVERYBODY),
    Endpoint("GET", "/healthz", system.health, EVERYBODY),
    Endpoint("GET", "/readyz", system.ready, EVERYBODY),
    Endpoint("GET", "/metrics", system.show_metrics, OPERATOR),
    Endpoint("GET", "/openapi.json", system.show_schema, ANY_KEY),
    Endpoint("GET", "/v1/models", system.list_models, ANY_KEY),
    Endpoint("GET", "/v1/models/{name}", system.show_model, ANY_KEY),
    Endpoint("POST", "/v1/completions", completions.create_completion, READER),
    Endpoint("POST", "/v1/chat/completions", chat.create_chat, READER),
    Endpoint("POST", "/tokenize", tokens.tokenize, READER),
    Endpoint("POST", "/detokenize", tokens.detokenize, READER),
    Endpoint("GET", "/tokenizer_info", tokens.tokenizer_info, READER),
    Endpoint("GET", "/v1/silo/attributions/{answer}", system.show_attribution, READER),
    Endpoint("GET", "/v1/silo/me", system.show_caller, ANY_KEY),
    Endpoint("GET", "/v1/silo/keys", keys.list_keys, OPERATOR),
    Endpoint("POST", "/v1/silo/keys", keys.make_key, OPERATOR),
    Endpoint("GET", "/v1/silo/keys/log", keys.show_key_log, OPERATOR),
    Endpoint("DELETE", "/v1/silo/keys/{key}", keys.remove_key, OPERATOR),
    Endpoint("GET", "/v1/silo/stores", documents.list_stores, ANY_KEY),
    Endpoint("GET", "/v1/silo/stats", documents.show_stats, OPERATOR),
    Endpoint("GET", "/v1/silo/contents", documents.show_contents, OWNER),
    Endpoint("GET", "/v1/silo/same-texts", documents.list_same_texts, OPERATOR),
    Endpoint("GET", "/v1/silo/log", documents.show_log, OPERATOR),
    Endpoint("GET", "/v1/silo/corpora", corpora.list_corpora, OPERATOR),
    Endpoint("GET", "/v1/silo/corpora/{corpus}", corpora.show_corpus, OPERATOR),
    Endpoint("GET", "/v1/silo/digest", documents.show_digest, ANY_KEY),
    Endpoint("GET", "/v1/silo/documents", documents.list_documents, OWNER),
    Endpoint("POST", "/v1/silo/documents", documents.add_documents, OWNER),
    Endpoint("POST", "/v1/silo/documents/find", documents.find_text, OWNER),
    Endpoint("GET", "/v1/silo/documents/{document}", documents.show_document, OWNER),
    Endpoint("GET", "/v1/silo/documents/{document}/uses", ledgers.show_document_uses, OWNER),
    Endpoint("POST", "/v1/silo/erase", documents.erase_documents, OWNER),
    Endpoint("GET", "/v1/silo/receipts/{receipt}", documents.show_receipt, OWNER),
    Endpoint("POST", "/v1/silo/receipts/verify", documents.verify_receipt, ANY_KEY),
    Endpoint("GET", "/v1/silo/credits", ledgers.show_credits, OWNER),
    Endpoint("POST", "/v1/silo/opt-out-price", price.price_opt_out, OWNER),
    Endpoint("GET", "/v1/silo/jobs", jobs.list_jobs, OWNER),
    Endpoint("GET", "/v1/silo/jobs/{job}", jobs.show_job, OWNER),
    Endpoint("POST", "/mcp", tools.call_tools, READER),
)


class _StrictRequest(Request):
    """A request whose body is one JSON object that means one thing only."""

    async def json(self) -> Any:
        return parse_object(await self.body(), _DEPTH)


class _Route(APIRoute):
    """Lets a caller pass who has one of the route's roles, before the body is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        roles = frozenset((self.openapi_extra or {})["x-silo-roles"])

        async def checked(request: Request) -> Response:
            if roles:
                caller = _caller(request)
                if caller is None:
                    raise Problem(401, "key-invalid", "this needs a key", hint="send Authorization: Bearer KEY")
                if roles.isdisjoint(caller.roles):
                    raise Problem(403, "not-permitted", f"this needs a key with the role {' or '.join(sorted(roles))}")
                request.state.caller = caller
            return await handle(_StrictRequest(request.scope, request.receive))

        return checked


def _caller(request: Request) -> Key | None:
    """Who is asking; where the keys cannot be read, that is for the log and not for whoever came without one."""
    try:
        return service_of(request).keys.find(request.headers.get("authorization"))
    except SiloError as error:
        _LOG.error("%s", error)
        raise Problem(503, "keys-invalid", "keys cannot be checked now; the server's log says more") from None


def build_app(recipe: ServerRecipe, place: PlaceSearchers | None = None, tell: Tell | None = None) -> FastAPI:
    """Open everything that a recipe names and put it behind the routes; the engine runs while the application does.

    `place` says who searches the stores, where this process does not; `tell` is of one that only writes texts.
    """
    require_servable(recipe)
    ring = KeyRing(Path(recipe.keys) if recipe.keys else None)
    catalogue, metrics = Catalogue.open(recipe, place), Metrics()
    worker = documents.Worker(catalogue)
    service = Service(
        catalogue,
        _make_engine(recipe, catalogue, metrics),
        ring,
        Attributions(recipe.limits.attribution_seconds),
        Jobs(Path(recipe.home) / FOLDER, worker.run, worker.holds),
        metrics,
        recipe.limits,
        tell,
    )
    app = make_app()
    app.state.service = service
    hosts = (*map(str.lower, recipe.hosts), *(_LOCAL_NAMES if is_loopback(recipe.host) else ()))
    app.add_middleware(_Gate, service=service, hosts=frozenset(hosts))
    return app


def _make_engine(recipe: ServerRecipe, catalogue: Catalogue, metrics: Metrics) -> Engine:
    """One loop for all cores, or one for each where the networks are small."""
    is_cached = catalogue.weight_bytes <= _CACHED_BYTES
    loops = min(recipe.threads or core_count(), _MOST_LOOPS) if is_cached else 1
    return Engine(recipe.limits.slots, recipe.limits.queue, metrics.time, loops=loops)


def make_app() -> FastAPI:
    """The routes and what they answer to errors, with nothing behind them yet."""
    app = FastAPI(title="silo", version=__version__, lifespan=_lifespan, openapi_url=None)
    app.router.route_class = _Route
    for item in ENDPOINTS:
        app.add_api_route(
            item.path,
            item.run,
            methods=[item.method],
            operation_id=item.run.__name__,
            response_model=None,
            openapi_extra={"x-silo-roles": [str(role) for role in item.roles]},
        )
    app.add_exception_handler(Problem, answer_problem)
    app.add_exception_handler(SiloError, answer_problem)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(HTTPException, answer_http)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    service.engine.start()
    if service.tell is None:
        service.jobs.start()
    try:
        yield
    finally:
        service.engine.close(service.limits.drain_seconds)
        service.jobs.close()
        service.catalogue.close()


class _Gate:
    """Stands before all routes: names of hosts, sizes of bodies, a log line and numbers for each request, no text."""

    def __init__(self, app: ASGIApp, *, service: Service, hosts: frozenset[str]) -> None:
        self._app, self._service, self._hosts = app, service, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500

        async def noted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] += [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal.response()(scope, receive, noted_send)
            else:
                await self._app(scope, self._bounded(receive), noted_send)
        except Exception:
            _LOG.exception("a request failed")
            if status == 500:
                problem = Problem(500, "internal", "something went wrong in the server; its log says more")
                await problem.response()(scope, receive, noted_send)
        finally:
            self._note(scope, status, time.perf_counter() - begun)

    def _refusal(self, scope: Scope) -> Problem | None:
        """Why a request is not even looked at. A page of somebody else's must not reach a local server by its name."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self._hosts and name not in self._hosts:
            return Problem(421, "host-unknown", "this server has another name", hint="see `hosts` in docs/serve.md")
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > self._service.limits.header_bytes:
            return Problem(431, "too-much", "the headers are too long")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._service.limits.body_bytes:
            return self._too_large()
        return None

    def _too_large(self) -> Problem:
        return Problem(413, "too-much", f"a body has at most {self._service.limits.body_bytes:,} bytes here")

    def _bounded(self, receive: Receive) -> Receive:
        """The body as far as it may be long, also where nobody said how long it is."""
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._service.limits.body_bytes:
                raise self._too_large()
            return message

        return bounded

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = getattr(scope.get("route"), "path", "unknown")
        caller = scope.get("state", {}).get("caller")
        self._service.metrics.count("silo_requests_total", route=path, status=str(status))
        self._service.metrics.time("silo_request_seconds", seconds)
        line = {"route": path, "method": scope["method"], "status": status, "ms": round(1000 * seconds, 1)}
        _LOG.info("%s", json.dumps({**line, "key": caller.id if caller else None}))


def serve(recipe: ServerRecipe, announce: Callable[[str], None] = lambda _: None) -> None:
    """Serve until SIGINT or SIGTERM; what is under way is finished first. `announce` gets the address."""
    with (
        taking_up_jobs(Path(recipe.home)),
        placing(recipe.ray, parts=recipe.parts) if recipe.ray else nullcontext() as place,
    ):
        _run(build_app(recipe, place), recipe, announce)


def _run(app: FastAPI, recipe: ServerRecipe, announce: Callable[[str], None]) -> None:
    prepare_process()
    config = uvicorn.Config(
        app,
        host=recipe.host,
        port=recipe.port,
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=2 * recipe.limits.header_bytes,
        timeout_graceful_shutdown=recipe.limits.drain_seconds,
    )
    server = _AnnouncedServer(config, announce)
    server.run()


class _AnnouncedServer(uvicorn.Server):
    """Says where it listens once it does."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[str], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # models and stores stay: to look through them for garbage would hold up every text
        for listener in self.servers:
            host, port = listener.sockets[0].getsockname()[:2]
            self._announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")


def prepare_process() -> None:
    """Let threads take turns as the engine needs it, and write one JSON object per request to stderr."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False
