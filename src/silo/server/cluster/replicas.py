"""`silo serve --ray`: stores that a cluster searches, and processes there that answer beside the server.

A replica has the model, asks the searchers that the server has placed, and offers `ANSWERS`. Whatever changes something
or is remembered between two requests is the server's alone: jobs, keys, documents, attributions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from fastapi import FastAPI

from silo.cluster.search import ClusterSearch, Placement, placing
from silo.cluster.serve import serving_replicas
from silo.server.app import ENDPOINTS, build_app, run
from silo.server.config import ServerRecipe, resolve_paths

ANSWERS = frozenset(
    {
        "/healthz",
        "/readyz",
        "/v1/models",
        "/v1/models/{name}",
        "/v1/completions",
        "/v1/chat/completions",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
    }
)
"""The routes of a replica."""
_SPARE_REQUESTS = 1000
"""Requests that a replica is given beyond those it takes: it refuses them itself, with 429 and `Retry-After`."""


def serve_on_cluster(recipe: ServerRecipe, announce: Callable[[str], None] = lambda _: None) -> None:
    """Serve until SIGINT or SIGTERM, with stores that a cluster searches and replicas that answer at the next port."""
    recipe = resolve_paths(recipe, Path.cwd())
    with ExitStack() as stack:
        place = stack.enter_context(placing(recipe.ray, parts=recipe.parts))
        placements: dict[str, Placement] = {}

        def place_and_note(root: Path) -> ClusterSearch:
            search = place(root)
            placements[str(root.absolute())] = search.placement
            return search

        app = build_app(recipe, place_and_note)
        if recipe.replicas:
            replicas = serving_replicas(
                partial(build_replica, recipe, placements),
                count=recipe.replicas,
                host=recipe.host,
                port=recipe.port + 1,
                requests=recipe.limits.slots + recipe.limits.queue + _SPARE_REQUESTS,
            )
            stack.enter_context(replicas)
        run(app, recipe, announce)


def build_replica(recipe: ServerRecipe, placements: Mapping[str, Placement]) -> FastAPI:
    """What one replica serves; the stores' searchers are found by where they were placed."""
    found = {root: ClusterSearch.find(placement) for root, placement in placements.items()}

    def place(root: Path) -> ClusterSearch:
        return found[str(root.absolute())]

    return build_app(recipe, place, [item for item in ENDPOINTS if item.path in ANSWERS])
