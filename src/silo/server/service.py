"""What every route needs: the models, the engine, the keys, and who is asking."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from silo.cluster.http import Tell
from silo.server.access import Key, KeyRing
from silo.server.answers.attribution import Attributions, KeptAttribution
from silo.server.config import Limits
from silo.server.engine import Engine
from silo.server.jobs import Jobs
from silo.server.metrics import Metrics
from silo.server.models import Catalogue, ServedModel
from silo.server.problems import Problem
from silo.store.store import Store


@dataclass(frozen=True, slots=True)
class Service:
    """Everything a server has open."""

    catalogue: Catalogue
    engine: Engine
    keys: KeyRing
    attributions: Attributions
    jobs: Jobs
    metrics: Metrics
    limits: Limits
    tell: Tell | None = None
    """The way to the process that shows attributions and takes up jobs, where this one only writes texts."""

    async def keep(self, answer: str, caller: str, choices: list[KeptAttribution]) -> None:
        """Let a caller ask for the attribution of an answer for a while."""
        if self.tell is not None:
            await self.tell((answer, caller, choices))
        else:
            self.attributions.keep(answer, caller, choices)

    def model(self, name: str) -> ServedModel:
        """The model of a name."""
        known = self.catalogue.models
        if name not in known:
            hint = f"known are {', '.join(known)}"
            raise Problem(404, "model-not-found", f"there is no model '{name[:80]}'", param="model", hint=hint)
        return known[name]

    def store(self, name: str | None) -> tuple[str, Store]:
        """The store of a name, or the only one there is."""
        known = self.catalogue.stores
        chosen = next(iter(known)) if name is None and len(known) == 1 else name
        if chosen is None or chosen not in known:
            what = "say which store" if name is None else f"there is no store '{name[:80]}'"
            raise Problem(404, "store-not-found", what, param="store", hint=f"known are {', '.join(known)}")
        return chosen, known[chosen]


def service_of(request: Request) -> Service:
    """What the application of a request has open."""
    service: Service = request.app.state.service
    return service


def caller_of(request: Request) -> Key:
    """Who is asking; the route let them pass."""
    caller: Key = request.state.caller
    return caller


def client_of(request: Request) -> str:
    """Whose turn it is in the engine: a key's, or without keys an address's."""
    caller = caller_of(request)
    return caller.id if caller.sha256 or request.client is None else request.client.host
