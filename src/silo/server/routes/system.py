"""What is served, how it does, and whom the last answers were owed to."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from silo.server.access import Permission
from silo.server.models import ServedModel
from silo.server.problems import missing
from silo.server.service import caller_of, service_of


def list_models(request: Request) -> dict[str, Any]:
    """The models that may be named in requests."""
    models = service_of(request).catalogue.models.values()
    return {"object": "list", "data": [_shown(model) for model in models]}


def show_model(request: Request, name: str) -> dict[str, Any]:
    """One model."""
    return _shown(service_of(request).model(name))


def _shown(model: ServedModel) -> dict[str, Any]:
    """As OpenAI shows models; `silo` says how it is asked unless a request says otherwise."""
    silo = {
        "stores": [store.root.absolute().name for store in model.stores],
        "searches": sorted({search for store in model.stores for search in store.config.searches}),
        "method": "+".join(sorted(model.method)) or "lm",
        "settings": model.known_settings(),
        "policy": model.language_model.policy.describe(),
        "guard": model.guard,
        "validation_tokens": sum(map(len, model.validation)),
        "chats": model.chat is not None,
    }
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": "silo", "silo": silo}


def show_caller(request: Request) -> dict[str, Any]:
    """Who this key is for, what it may, and how much one request may ask for here."""
    service, caller = service_of(request), caller_of(request)
    bounds = {name: getattr(service.limits, name) for name in ("max_tokens", "neighbours", "body_bytes")}
    may = [str(permission) for permission in Permission if caller.may(permission)]
    return {**caller.as_json(), "permissions": may, "limits": bounds}


def show_attribution(request: Request, answer: str) -> dict[str, Any]:
    """Document ids and shares of an answer of the last minutes, for whoever asked for it; erased ones have no id."""
    service = service_of(request)
    kept = service.attributions.find(answer, caller_of(request).id)
    if kept is None:
        raise missing("answer")
    return {"id": answer, "choices": [item.as_json(service.catalogue.stores) for item in kept]}


def health() -> dict[str, str]:
    """Is the process alive?"""
    return {"status": "ok"}


def ready(request: Request) -> Response:
    """Are requests taken?"""
    is_ready = service_of(request).engine.is_ready
    return JSONResponse({"status": "ready" if is_ready else "stopping"}, status_code=200 if is_ready else 503)


def show_metrics(request: Request) -> Response:
    """Numbers for Prometheus."""
    service = service_of(request)
    text = service.metrics.text(silo_running=service.engine.running, silo_waiting=service.engine.waiting)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def show_schema(request: Request) -> dict[str, Any]:
    """This API as OpenAPI."""
    schema: dict[str, Any] = request.app.openapi()
    return schema
