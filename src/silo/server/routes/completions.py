"""`POST /v1/completions`: text after text, with the prompt's own log-probabilities where they are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from silo.inference.answer import Answer
from silo.inference.generate import Step
from silo.server.answers.generation import Text, Wanted, plan_texts
from silo.server.answers.replies import CompletionLogprobs, Envelope
from silo.server.answers.writing import Item, Writer
from silo.server.options import CompletionRequest, header_options
from silo.server.service import caller_of, service_of

_MAX_TOKENS = 16


async def create_completion(request: Request, body: CompletionRequest) -> Response:
    """Continue prompts, or score them: OpenAI's completions, with `silo` beside every choice."""
    body.refuse_unkept()
    service = service_of(request)
    model = service.model(body.model)
    wanted = Wanted(
        max_tokens=_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        seed=body.seed,
        n=body.n or 1,
        stop=body.stops,
        logprobs=body.logprobs,
        echo=bool(body.echo),
    )
    given = [header_options(request.headers), *([body.silo] if body.silo else [])]
    texts = await run_in_threadpool(
        plan_texts, model, body.prompts, wanted, given, caller=caller_of(request), limits=service.limits
    )
    writer = Writer(request, Envelope.of("text_completion", "cmpl-", model.name, texts[0].predictor.stores), texts)
    shape = _Shape(model.end, echo=wanted.echo, logprobs=wanted.logprobs is not None)
    if body.stream:
        return await writer.stream(shape.delta, shape.last, usage=body.includes_usage)
    return await writer.whole(shape.choice)


class _Shape:
    """Completions as OpenAI writes them."""

    def __init__(self, end: str, *, echo: bool, logprobs: bool) -> None:
        self._end, self._echo, self._logprobs = end, echo, logprobs
        self._growing: dict[Text, CompletionLogprobs] = {}
        self._shown: set[Text] = set()

    def choice(self, text: Text, answer: Answer, owed: dict[str, Any], items: list[Item]) -> dict[str, Any]:
        written = (_prompt(text) if self._echo else "") + answer.text
        logprobs = CompletionLogprobs(text, self._end).add(items) if self._logprobs else None
        return {"index": text.index, "text": written, "logprobs": logprobs, **_end(text, answer), "silo": owed}

    def delta(self, text: Text, item: Item) -> dict[str, Any] | None:
        written = item.text if isinstance(item, Step) else ""
        if self._echo and text not in self._shown:
            self._shown.add(text)
            written = _prompt(text) + written
        logprobs = None
        if self._logprobs:
            growing = self._growing.setdefault(text, CompletionLogprobs(text, self._end))
            logprobs = growing.add([item])
        return {"text": written, "logprobs": logprobs, "finish_reason": None} if written or logprobs else None

    def last(self, text: Text, answer: Answer, owed: dict[str, Any]) -> dict[str, Any]:
        rest = _prompt(text) if self._echo and text not in self._shown else ""
        return {"text": rest, "logprobs": None, **_end(text, answer), "silo": owed}


def _prompt(text: Text) -> str:
    return text.predictor.tokenizer.decode(text.prompt.astype(np.uint32))


def _end(text: Text, answer: Answer) -> dict[str, str]:
    return {"finish_reason": answer.finish_reason if text.steps else "length"}
