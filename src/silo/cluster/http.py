"""An ASGI application on Ray Serve: writers share the paths which take long, one desk answers all others.

A front stands before them. It reads a request whole, gives it to the desk or to a writer, and passes the answer on as
it comes. A writer that dies before it has said anything loses nothing: the request goes to another one. The desk
changes things, so only what merely looks is asked of it twice. A request that finds the queue of the writers full gets
the answer for that, and at once; one that nobody takes for some time gets the answer that nobody is there.

Writers wait for the desk before they open anything. Later they tell it what others may ask about, and do not wait long:
a text is not held up by a desk that is being started again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from silo.cluster.connect import import_ray
from silo.errors import SiloError

APPLICATION = "silo"
"""Its name on the cluster."""
_ATTEMPTS = 3
"""So many replicas a request may outlive: one that ends them all should not end more."""
_PAUSE_SECONDS = 0.2
_DESK_SECONDS, _WRITER_SECONDS = 5.0, 60.0
"""So long a request waits to be taken: writers have a queue, the desk has none."""
_TELL_SECONDS = 1.0
_TAKEN = "silo.taken"
"""The first message of every answer: somebody has begun with it."""
_LOG = logging.getLogger(__name__)
_ONGOING = 1000
"""Requests that a front or the desk has under way: the writers' limits are those that count."""
_FRONTS = 2

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
Tell = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Hosted:
    """An application, what it runs within, and what it does with what writers tell."""

    app: App
    running: AbstractAsyncContextManager[None]
    hear: Callable[[Any], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was read to its end."""

    scope: dict[str, Any]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What a front answers by itself."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to deploy: `desk` and `writer` build their applications on the nodes, the writer's with a way to tell.

    `shared` are the paths that writers answer, each at most `ongoing` requests at a time, while `queued` more wait at
    every front. `busy` is the answer beyond that, `away` the one where nobody is there to answer, `lost` that where
    whoever had begun has ended. Replicas have `cpus` each, writers `gpus` besides.
    """

    desk: Callable[[], Hosted]
    writer: Callable[[Tell], Hosted]
    writers: int
    shared: frozenset[str]
    ongoing: int
    queued: int
    body_bytes: int
    busy: Reply
    away: Reply
    lost: Reply
    cpus: float = 1.0
    gpus: int = 0
    drain_seconds: float = 20.0


class Host:
    """A replica of desk or writer: runs an application, and is asked by fronts instead of by clients."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, build: Callable[..., Hosted], desk: Any = None
    ) -> None:
        if desk is None:
            self._hosted = await asyncio.to_thread(build)
        else:
            await desk.hear.remote(None)  # it is there, and has placed the searchers
            self._hosted = await asyncio.to_thread(build, _teller(desk))
        await self._hosted.running.__aenter__()

    async def __del__(self) -> None:
        if hasattr(self, "_hosted"):
            await self._hosted.running.__aexit__(None, None, None)

    async def hear(self, told: Any) -> None:
        """Take what a writer tells."""
        if told is not None:
            self._hosted.hear(told)

    async def answer(self, call: Call) -> AsyncIterator[Message]:
        """A note that it was taken, and the messages with which the application answers."""
        yield {"type": _TAKEN}
        async for message in run_app(self._hosted.app, call):
            yield message


def _teller(desk: Any) -> Tell:
    """The way to the desk, for what is worth a moment and not a text."""
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    async def hear(told: Any) -> None:
        await desk.hear.remote(told)

    async def tell(told: Any) -> None:
        try:
            await asyncio.wait_for(hear(told), _TELL_SECONDS)
        except (TimeoutError, RayError, RayServeException) as error:
            _LOG.warning("the desk was not told of an answer: %s", type(error).__name__)

    return tell


async def run_app(app: App, call: Call) -> AsyncIterator[Message]:
    """Ask an application in this process; it learns that the client has left when nobody reads on."""
    answers: asyncio.Queue[Message | None] = asyncio.Queue()
    gone, unread = asyncio.Event(), [call.body]

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if gone.is_set():
            raise OSError("nobody reads on")
        answers.put_nowait(message)

    task = asyncio.ensure_future(app(dict(call.scope), receive, send))
    task.add_done_callback(lambda _: answers.put_nowait(None))
    try:
        while (message := await answers.get()) is not None:
            yield message
        task.result()
    finally:
        gone.set()


class Front:
    """What clients reach: an ASGI application that passes requests on."""

    def __init__(self, plan: Plan, desk: Any, writers: Any) -> None:
        self._plan = plan
        self._desk, self._writers = desk.options(stream=True), writers.options(stream=True)

    def __serve_build_asgi_app__(self) -> App:
        """Ray Serve's way to an application that knows the replica it is of."""

        async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:  # a function: uvicorn looks at that
            await self._answer(scope, receive, send)

        return app

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
        elif scope["type"] == "http":
            body = await _read_body(scope, receive, self._plan.body_bytes)
            if body is not None:
                await self._pass_on(Call(_plain(scope), body), send)

    async def _pass_on(self, call: Call, send: Send) -> None:
        from ray.exceptions import RayActorError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        shared = call.scope["path"] in self._plan.shared
        handle, patience = (self._writers, _WRITER_SECONDS) if shared else (self._desk, _DESK_SECONDS)
        may_repeat = shared or call.scope["method"] in ("GET", "HEAD")
        for attempt in range(_ATTEMPTS):
            begun = False
            answer = handle.answer.remote(call)
            try:
                await asyncio.wait_for(anext(answer), patience)
                async for message in answer:
                    begun = True
                    await send(message)
                return
            except BackPressureError:
                await _send_reply(self._plan.busy, send)
                return
            except TimeoutError:
                answer.cancel()
                break
            except (RayActorError, DeploymentUnavailableError):
                if begun:
                    raise  # the client sees a broken connection: half an answer is none
                if not may_repeat:
                    await _send_reply(self._plan.lost, send)
                    return
                await asyncio.sleep(_PAUSE_SECONDS * attempt)
        await _send_reply(self._plan.away, send)


def _plain(scope: Mapping[str, Any]) -> dict[str, Any]:
    """What of a scope another process can read."""
    names = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "client", "server")
    return {
        **{name: scope[name] for name in names if name in scope},
        "headers": list(scope["headers"]),
        "root_path": "",
    }


async def _read_body(scope: Mapping[str, Any], receive: Receive, most: int) -> bytes | None:
    """The body, or so much of one that is too long that the application sees that it is; None if the client left."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if length.isdigit() and int(length) > most:
        return b""  # its headers say enough
    body = bytearray()
    while len(body) <= most:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return bytes(body)


async def _send_reply(reply: Reply, send: Send) -> None:
    await send({"type": "http.response.start", "status": reply.status, "headers": list(reply.headers)})
    await send({"type": "http.response.body", "body": reply.body})


def make_application(plan: Plan) -> Any:
    """The application as Ray Serve deploys it."""
    import_ray()
    from ray import serve

    quiet = {"enable_access_log": False}
    drain = {"graceful_shutdown_timeout_s": plan.drain_seconds, "logging_config": quiet}
    desk = serve.deployment(
        Host,
        name="desk",
        num_replicas=1,
        max_ongoing_requests=_ONGOING,
        ray_actor_options={"num_cpus": plan.cpus},
        **drain,
    ).bind(plan.desk)
    writers = serve.deployment(
        Host,
        name="writers",
        num_replicas=plan.writers,
        max_ongoing_requests=plan.ongoing,
        max_queued_requests=plan.queued,
        ray_actor_options={"num_cpus": plan.cpus, "num_gpus": plan.gpus},
        **drain,
    ).bind(plan.writer, desk)
    front = serve.deployment(
        serve.ingress()(Front),
        name="front",
        num_replicas=_FRONTS,
        max_ongoing_requests=_ONGOING,
        ray_actor_options={"num_cpus": 0},
        **drain,
    )
    return front.bind(plan, desk, writers)


@contextmanager
def deployed(plan: Plan, *, host: str, port: int) -> Iterator[None]:
    """The application on the cluster that this process belongs to, listening on its head node while this lasts.

    What is under way in the end is finished, for as long as `drain_seconds` allow.
    """
    import_ray()
    from ray import serve
    from ray.util import list_named_actors

    if any(actor["namespace"] == "serve" for actor in list_named_actors(all_namespaces=True)):
        raise SiloError("busy", "Ray Serve runs on this cluster already", "see what with `serve status`")
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    listen = {"host": host, "port": port}
    try:
        serve.start(proxy_location="HeadOnly", http_options=listen, logging_config={"enable_access_log": False})
        serve.run(make_application(plan), name=APPLICATION, route_prefix="/")
        yield
        serve.delete(APPLICATION)  # replicas finish what they have; `shutdown` alone would end the proxy first
    finally:
        serve.shutdown()
