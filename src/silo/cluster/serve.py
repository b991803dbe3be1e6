"""One ASGI application in several processes of a Ray cluster, behind one address: Ray Serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from silo.cluster.connect import import_ray

_NAME = "silo"


@contextmanager
def serving_replicas(
    build: Callable[[], Any], *, count: int, host: str, port: int, requests: int, cpus: float = 1.0
) -> Iterator[None]:
    """Serve what `build` makes in each of `count` processes at one address, for as long as this lasts.

    Each is given up to so many requests at a time: more than it takes, so that it is the application that refuses them
    and says when to come back. A process that dies is started again.
    """
    import_ray()
    from ray import serve

    serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port})
    try:
        deployment = serve.deployment(
            serve.ingress(build)(),
            name=_NAME,
            num_replicas=count,
            max_ongoing_requests=requests,
            ray_actor_options={"num_cpus": cpus},
        )
        serve.run(deployment.bind(), name=_NAME, route_prefix="/")
        yield
    finally:
        serve.shutdown()
