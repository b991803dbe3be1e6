"""`POST /v1/chat/completions`: conversations in the form the model was taught; whatever a message spells is text.

Where stores offer passages, those that are found for the last message of the user stand before it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Request
from fastapi.responses import Response
from pydantic import ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from silo.inference.answer import Answer
from silo.inference.ask.conversation import Conversation
from silo.inference.generate import Step
from silo.server.answers.generation import Text, Wanted, plan_texts, refuse_long
from silo.server.answers.replies import Envelope, chat_logprob
from silo.server.answers.writing import Item, Writer
from silo.server.models import ServedModel
from silo.server.options import Body, GenerateRequest, header_options, unkept
from silo.server.problems import Problem
from silo.server.service import caller_of, service_of
from silo.text.chat import Message

_MAX_TOKENS = 512
_CITED = 0.1
"""Share of a sentence from which a document is cited for it."""
_UNKEPT = (
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "audio",
    "prediction",
    "web_search_options",
    "modalities",
)


class ContentPart(Body):
    """A part of a message: text is all that is read."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One turn. The role developer is another word for system."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[ContentPart], Field(max_length=1000)]

    @property
    def text(self) -> str:
        """All parts as one text."""
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class ChatRequest(GenerateRequest):
    """`POST /v1/chat/completions`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    messages: list[ChatMessage] = Field(min_length=1, max_length=1000)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: dict[str, Any] | None = None

    def refuse_unkept(self) -> None:
        """Refuse also what only chats have."""
        super().refuse_unkept()
        given = self.model_extra or {}
        for name in _UNKEPT:
            if given.get(name) not in (None, [], "none", ["text"]):
                raise unkept(name)
        if self.response_format and self.response_format.get("type") != "text":
            raise unkept("response_format")
        if self.top_logprobs is not None and not self.logprobs:
            raise Problem(400, "usage", "top_logprobs needs logprobs", param="top_logprobs")

    def wanted(self, stops: tuple[str, ...]) -> Wanted:
        """What is asked of every answer."""
        return Wanted(
            max_tokens=self.max_completion_tokens or self.max_tokens or _MAX_TOKENS,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            seed=self.seed,
            n=self.n or 1,
            stop=(*self.stops, *stops),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )


async def create_chat(request: Request, body: ChatRequest) -> Response:
    """Answer a conversation from passages: OpenAI's chat, with annotations and `silo` beside every choice."""
    body.refuse_unkept()
    service = service_of(request)
    model = service.model(body.model)
    chat = model.chat
    if chat is None:
        raise Problem(400, "no-chat", f"{model.name} was not taught to chat", param="model", hint="use /v1/completions")
    given = [header_options(request.headers), *([body.silo] if body.silo else [])]
    refuse_long((item.text for item in body.messages), service.limits, "messages")

    def plan() -> list[Text]:
        roles = {"developer": "system"}
        turns = [Message(roles.get(item.role, item.role), item.text) for item in body.messages]
        conversation = Conversation(chat, turns)
        return plan_texts(
            model,
            [conversation.encode().tolist()],
            body.wanted(chat.stops),
            given,
            caller=caller_of(request),
            limits=service.limits,
            conversation=conversation,
        )

    texts = await run_in_threadpool(plan)
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    writer = Writer(request, Envelope.of(kind, "chatcmpl-", model.name, texts[0].predictor.stores), texts)
    shape = _Shape(model, logprobs=bool(body.logprobs))
    if body.stream:
        first = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return await writer.stream(shape.delta, shape.last, usage=body.includes_usage, first=first)
    return await writer.whole(shape.choice)


class _Shape:
    """Chats as OpenAI writes them."""

    def __init__(self, model: ServedModel, *, logprobs: bool) -> None:
        self._end, self._logprobs = model.end, logprobs

    def choice(self, text: Text, answer: Answer, owed: dict[str, Any], _: list[Item]) -> dict[str, Any]:
        message = {"role": "assistant", "content": answer.text, "refusal": None, "annotations": _citations(owed)}
        logprobs = self._content(text, range(len(text.steps))) if self._logprobs else None
        end = {"finish_reason": answer.finish_reason, "silo": owed}
        return {"index": text.index, "message": message, "logprobs": logprobs, **end}

    def delta(self, text: Text, item: Item) -> dict[str, Any] | None:
        if not isinstance(item, Step):
            return None
        logprobs = self._content(text, range(len(text.steps) - 1, len(text.steps))) if self._logprobs else None
        if not item.text and logprobs is None:
            return None
        return {"delta": {"content": item.text}, "logprobs": logprobs, "finish_reason": None}

    def last(self, _: Text, answer: Answer, owed: dict[str, Any]) -> dict[str, Any]:
        citations = _citations(owed)
        delta = {"annotations": citations} if citations else {}
        return {"delta": delta, "logprobs": None, "finish_reason": answer.finish_reason, "silo": owed}

    def _content(self, text: Text, numbers: range) -> dict[str, Any]:
        written = [number for number in numbers if text.steps[number].finish != "content_filter"]
        return {"content": [chat_logprob(text, number, self._end) for number in written], "refusal": None}


def _citations(owed: dict[str, Any]) -> list[dict[str, Any]]:
    """For every sentence what it rests on and the documents that carried it, in the form that chat pages show."""
    documents = owed.get("documents", [])
    passages = owed.get("citations", [])
    cited = [
        {
            **_url_citation(item["span"][0], item["span"][1], item["document"], item["id"]),
            "silo": {name: item[name] for name in ("place", "quote", "licence")},
        }
        for item in passages
    ]
    for span in owed.get("spans", []):
        rested_on = {
            item["id"] for item in passages if span["start"] < item["span"][1] and item["span"][0] < span["end"]
        }
        for number, share in span["docs"]:
            facts = documents[number]
            if share >= _CITED and facts["document"] and facts["document"] not in rested_on:
                cited.append(_url_citation(span["start"], span["end"], facts["external_id"], facts["document"]))
    return cited


def _url_citation(start: int, end: int, title: str, document: str) -> dict[str, Any]:
    place = {"start_index": start, "end_index": end, "title": title, "url": f"urn:silo:{document}"}
    return {"type": "url_citation", "url_citation": place}
