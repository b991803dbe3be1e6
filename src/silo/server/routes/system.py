"""What is served, how it does, and whom the last answers were owed to."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from silo.server.problems import missing
from silo.server.service import caller_of, service_of


def list_models(request: Request) -> dict[str, Any]:
    """The models that may be named in requests."""
    models = service_of(request).catalogue.models.values()
    return {"object": "list", "data": [_shown(model.name, model.created) for model in models]}


def show_model(request: Request, name: str) -> dict[str, Any]:
    """One model."""
    model = service_of(request).model(name)
    return _shown(model.name, model.created)


def _shown(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "silo"}


def show_attribution(request: Request, answer: str) -> dict[str, Any]:
    """Document ids and shares of an answer of the last minutes, for whoever asked for it; erased ones have no id."""
    kept = service_of(request).attributions.find(answer, caller_of(request).id)
    if kept is None:
        raise missing("answer")
    return {"id": answer, "choices": [item.as_json() for item in kept]}


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
