"""Texts over HTTP: waits for whole ones, streams growing ones, and stops the engine where nobody listens."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from silo.inference.answer import Answer
from silo.inference.asking.choose import TokenScore
from silo.inference.generate import Step
from silo.server.answers.attribution import KeptAttribution
from silo.server.answers.generation import Batch, Text
from silo.server.answers.replies import DONE, Envelope, event, usage_of
from silo.server.problems import Problem, problem_of
from silo.server.service import caller_of, client_of, service_of

_LOOK_SECONDS = 0.25
_PAUSE_SECONDS = 0.04
"""Tokens of a stream that come within this time are sent together, each as an event of its own."""
_LOG = logging.getLogger(__name__)

Item = TokenScore | Step
Come = list[tuple[Text, Item | None]]
"""Tokens that have come, and None at the end of a text."""
Choice = Callable[[Text, Answer, dict[str, Any], list[Item]], dict[str, Any]]
"""A whole choice: the text, its answer, what is owed for it, and every token."""
Delta = Callable[[Text, Item], dict[str, Any] | None]
"""A growing choice after one more token; None where there is nothing to show yet."""
Last = Callable[[Text, Answer, dict[str, Any]], dict[str, Any]]
"""The end of a growing choice."""


class Writer:
    """The texts of one request on their way to one client."""

    def __init__(self, request: Request, envelope: Envelope, texts: Sequence[Text]) -> None:
        self._request, self._envelope, self._texts = request, envelope, texts
        self._service = service_of(request)
        self._kept: dict[int, KeptAttribution] = {}

    def _begin(self, pause: float) -> Batch:
        """Give the texts to the engine."""
        caller, client = caller_of(self._request), client_of(self._request)
        return Batch(self._service.engine, self._texts, caller, client, self._service.metrics, pause=pause)

    async def whole(self, make: Choice) -> Response:
        """All texts when the last one is finished."""
        items: dict[Text, list[Item]] = {text: [] for text in self._texts}
        batch = self._begin(math.inf)
        watch = asyncio.ensure_future(self._watch(batch))
        try:
            async for come in batch.events():
                for text, item in come:
                    if item is not None:
                        items[text].append(item)
                        batch.note(text, item)
            choices = []
            for text in self._texts:
                answer, owed = await self._finish(text)
                choices.append(make(text, answer, owed, items[text]))
        finally:
            watch.cancel()
            batch.cancel()
        return JSONResponse(self._envelope.wrap(choices, usage=usage_of(self._texts)))

    async def stream(self, delta: Delta, last: Last, *, usage: bool, first: dict[str, Any] | None = None) -> Response:
        """Chunk by chunk; what goes wrong before the first token is an error of its own."""
        batch = self._begin(_PAUSE_SECONDS)
        events = batch.events()
        try:
            begun = await anext(events)
        except BaseException:
            batch.cancel()
            raise
        chunks = self._chunks(batch, _chain(begun, events), delta, last, usage, first)
        return StreamingResponse(chunks, media_type="text/event-stream")

    async def _chunks(
        self,
        batch: Batch,
        events: AsyncIterator[Come],
        delta: Delta,
        last: Last,
        usage: bool,
        first: dict[str, Any] | None,
    ) -> AsyncIterator[bytes]:
        more: dict[str, Any] = {"usage": None} if usage else {}

        def chunk(text: Text, shown: dict[str, Any]) -> bytes:
            return event(self._envelope.wrap([{"index": text.index, **shown}], **more))

        try:
            if first is not None:
                yield b"".join(chunk(text, first) for text in self._texts)
            async for come in events:
                parts = []
                for text, item in come:
                    if item is not None:
                        batch.note(text, item)
                        shown = delta(text, item)
                        parts += [chunk(text, shown)] if shown is not None else []
                        continue
                    if parts:
                        yield b"".join(parts)
                    parts = [chunk(text, last(text, *await self._finish(text)))]
                if parts:
                    yield b"".join(parts)
            if usage:
                yield event(self._envelope.wrap([], usage=usage_of(self._texts)))
        except Exception as error:  # the status is sent already: the client reads it in the stream
            problem = problem_of(error)
            if problem.status >= 500:
                _LOG.exception("a stream ended with an error")
            yield event(problem.as_json())
        finally:
            batch.cancel()
            self._note_unfinished()
        yield DONE

    async def _finish(self, text: Text) -> tuple[Answer, dict[str, Any]]:
        answer, owed, kept = await run_in_threadpool(text.finish)
        self._kept[text.index] = kept
        if len(self._kept) == len(self._texts):
            choices = [self._kept[index] for index in sorted(self._kept)]
            await self._service.keep(self._envelope.id, caller_of(self._request).id, choices)
        return answer, owed

    def _note_unfinished(self) -> None:
        """What a client read before it left counts too."""
        for text in self._texts:
            if text.index not in self._kept and text.ledger and text.steps:
                asyncio.get_running_loop().run_in_executor(None, text.finish)

    async def _watch(self, batch: Batch) -> None:
        """Cancel the texts when the client is gone."""
        while not await self._request.is_disconnected():
            await asyncio.sleep(_LOOK_SECONDS)
        batch.cancel()
        batch.abandon(Problem(499, "client-gone", "the client left"))


async def _chain(begun: Come, events: AsyncIterator[Come]) -> AsyncIterator[Come]:
    yield begun
    async for come in events:
        yield come
