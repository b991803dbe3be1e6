"""What an opt-out would cost: the perplexity of a text with some documents and without them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from silo.inference.asking.asks import Asking
from silo.inference.asking.choose import TokenScore
from silo.inference.predict import Predictor
from silo.inference.session import Session
from silo.server.answers.generation import encode_prompt
from silo.server.config import Limits
from silo.server.engine import END
from silo.server.engine import Request as EngineRequest
from silo.server.models import ServedModel
from silo.server.problems import Problem, naming
from silo.server.routes.documents import SelectorBody, own_part, selector_of
from silo.server.service import caller_of, client_of, service_of
from silo.store.policy import Policy


class PriceRequest(SelectorBody):
    """The documents without which a text is scored again; `store` says of which store they are."""

    model: str = Field(max_length=200)
    store: str | None = Field(None, max_length=4096, description="one of the model's; all of them without it")
    text: str = Field("", description="what is scored; without it the validation text that the operator named")


async def price_opt_out(request: Request, body: PriceRequest) -> dict[str, Any]:
    """What some documents are worth for a text: its perplexity with them and without."""
    caller, service = caller_of(request), service_of(request)
    model = service.model(body.model)
    stores = model.stores if body.store is None else model.choose_stores([body.store], param="store")
    with naming("document"):
        wanted = selector_of(body)
        if not wanted:
            raise Problem(400, "usage", "say which documents: a document, owner, source, licence, domain or query")
        selector = own_part(wanted, caller)
    ids = await run_in_threadpool(lambda: [item.id for store in stores for item in store.documents(selector)])
    if not ids:
        raise Problem(404, "nothing-selected", "no document is meant")
    texts = await run_in_threadpool(_texts, model, body.text, service.limits)
    policy, settings = Policy.parse(caller.policy), model.settings(model.method)
    narrower = policy.narrowed(Policy.of(without=ids))
    with_them, without = (model.predictor(model.method, settings, item) for item in (policy, narrower))
    figures = {
        "with": await _perplexity(request, with_them, texts),
        "without": await _perplexity(request, without, texts),
    }
    return {"documents": len(ids), "tokens": sum(map(len, texts)), "perplexity": figures}


def _texts(model: ServedModel, text: str, limits: Limits) -> Sequence[NDArray[np.int64]]:
    """The tokens of a text, or of the model's validation text."""
    if not text and not model.validation:
        hint = "send a text, or name one in the server's TOML file: validation"
        raise Problem(400, "usage", "this model has no validation text", param="text", hint=hint)
    return [encode_prompt(model, text, limits, "text")] if text else model.validation


async def _perplexity(caller: Request, predictor: Predictor, texts: Sequence[NDArray[np.int64]]) -> float:
    """Scored in the engine, among the texts of others, as one text of the caller's."""
    engine, session = service_of(caller).engine, Session(predictor)
    events: asyncio.Queue[Any] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def run() -> Asking[TokenScore]:
        for text in texts:
            yield from session.scoring(text)

    def deliver(item: Any) -> None:
        loop.call_soon_threadsafe(events.put_nowait, item)

    request = EngineRequest(client_of(caller), run, deliver)
    engine.submit([request], most=caller_of(caller).texts or None)
    logs: list[float] = []
    try:
        while (event := await events.get()) is not END:
            if isinstance(event, Exception):
                raise event
            if event.log_probability is not None:
                logs.append(event.log_probability)
    finally:
        engine.cancel(request)
    return math.exp(min(700.0, -math.fsum(logs) / max(1, len(logs))))
