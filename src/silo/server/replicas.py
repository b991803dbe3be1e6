"""The server on Ray Serve: writers of texts, and a desk that changes stores and keeps what clients ask about later.

Desk and writers are the same application over the same recipe. A writer takes up no jobs and tells the desk what its
answers are owed to. Both have the stores searched by searchers that outlive them.
"""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from silo.cluster.connect import connect
from silo.cluster.http import APPLICATION, Hosted, Plan, Reply, Tell, deployed, make_application
from silo.cluster.search import ClusterSearch, end_lasting, place_lasting
from silo.errors import SiloError
from silo.placement import Placement, ask_for, asked
from silo.server.app import build_app, prepare_process
from silo.server.config import ServerRecipe, read_config, require_servable, with_absolute_paths
from silo.server.jobs import taking_up_jobs
from silo.server.problems import Problem

SHARED = frozenset({"/v1/completions", "/v1/chat/completions", "/mcp", "/tokenize", "/detokenize"})
"""What writers answer: it takes long or comes often, and changes no document."""
_BUSY = Problem(429, "overloaded", "too many requests are waiting", hint="try again later")
_AWAY = Problem(503, "cluster-unavailable", "no replica answers now", hint="try again later")
_LOST = Problem(
    502, "cluster-unavailable", "whoever did this has ended before it answered", hint="look whether it was done"
)


def serve_replicas(recipe: ServerRecipe, announce: Callable[[str], None] = lambda _: None) -> None:
    """Serve through the cluster until SIGINT or SIGTERM; what is under way is finished first."""
    recipe = with_absolute_paths(recipe, Path.cwd())
    plan = make_plan(recipe)
    with connect(recipe.ray):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with deployed(plan, host=recipe.host, port=recipe.port):
                announce(f"http://{f'[{recipe.host}]' if ':' in recipe.host else recipe.host}:{recipe.port}")
                with suppress(KeyboardInterrupt):
                    threading.Event().wait()
        finally:
            end_lasting(APPLICATION, {Path(store) for model in recipe.models.values() for store in model.stores})


def make_plan(recipe: ServerRecipe) -> Plan:
    """What is deployed for a recipe."""
    require_servable(recipe)
    limits, placement = recipe.limits, asked()
    return Plan(
        partial(_build_desk, recipe, placement),
        partial(_build_writer, recipe, placement),
        writers=max(1, recipe.replicas),
        shared=SHARED,
        ongoing=limits.slots,
        queued=limits.queue,
        body_bytes=limits.body_bytes,
        busy=_reply(_BUSY),
        away=_reply(_AWAY),
        lost=_reply(_LOST),
        cpus=max(1, recipe.threads),
        gpus=int(placement.device.startswith("cuda")),
        drain_seconds=limits.drain_seconds,
    )


def application(arguments: dict[str, str]) -> Any:
    """For Ray's own tools, which choose the address themselves, so that there must be keys.

    `serve run silo.server.replicas:application config=FILE` deploys it, a RayService names it and its `args`.
    """
    recipe = read_config(Path(arguments["config"]))
    if not recipe.keys:
        message = "Ray Serve may listen where other machines reach it, and there are no keys"
        raise SiloError("usage", message, "make keys with `silo keys create FILE` and name the file as `keys`")
    return make_application(make_plan(recipe))


def _build_desk(recipe: ServerRecipe, placement: Placement) -> Hosted:
    app = _build(recipe, placement, None)
    attributions = app.state.service.attributions
    return Hosted(app, _run_desk(app, Path(recipe.home)), lambda told: attributions.keep(*told))


@asynccontextmanager
async def _run_desk(app: Any, home: Path) -> AsyncIterator[None]:
    with taking_up_jobs(home):
        async with app.router.lifespan_context(app):
            yield


def _build_writer(recipe: ServerRecipe, placement: Placement, tell: Tell) -> Hosted:
    app = _build(recipe, placement, tell)
    return Hosted(app, app.router.lifespan_context(app))


def _build(recipe: ServerRecipe, placement: Placement, tell: Tell | None) -> Any:
    prepare_process()
    ask_for(placement, threads=max(1, recipe.threads))

    def place(root: Path) -> ClusterSearch:
        return place_lasting(APPLICATION, root, recipe.parts)

    app = build_app(recipe, place, tell)
    gc.collect()
    gc.freeze()
    return app


def _reply(problem: Problem) -> Reply:
    response = problem.response()
    return Reply(response.status_code, bytes(response.body), tuple(response.raw_headers))
