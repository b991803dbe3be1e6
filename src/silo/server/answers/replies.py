"""Steps in the shapes of OpenAI's answers: choices, log-probabilities and chunks, with silo's shares beside them."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from silo.files import fingerprint
from silo.inference.asking.choose import TokenScore
from silo.inference.generate import Step
from silo.server.answers.generation import Text
from silo.store.erasure.log import Entry
from silo.store.store import Store

DONE = b"data: [DONE]\n\n"
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all parts of one answer have in common."""

    kind: str
    model: str
    digest: str | None
    id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, kind: str, prefix: str, model: str, stores: Sequence[Store]) -> Envelope:
        """For an answer that begins now; the digest names what its stores hold, of one store it is the store's own."""
        digests = [store.digest() for store in stores]
        digest = fingerprint(digests) if len(digests) > 1 else next(iter(digests), None)
        return cls(kind, model, digest, id=prefix + secrets.token_urlsafe(18))

    def wrap(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """An answer, or a chunk of one."""
        head = {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": self.digest, "choices": choices, **more}


def log_page(entries: Sequence[Entry], before: int | None, limit: int) -> dict[str, Any]:
    """Entries of a log, the newest first: those before the entry `before`."""
    end = len(entries) if before is None else min(len(entries), before - 1)
    shown = reversed(entries[max(0, end - limit) : end])
    rows = [{"n": item.n, "kind": item.kind, "hash": item.hash, "content": dict(item.content)} for item in shown]
    return {"data": rows, "has_more": end > limit}


def event(content: dict[str, Any]) -> bytes:
    """One line of a stream."""
    return b"data: " + _JSON.encode(content).encode() + b"\n\n"


def usage_of(texts: Iterable[Text]) -> dict[str, int]:
    """Tokens that were read and written; a prompt counts once, however many answers it gets."""
    prompts = {id(text.prompt): len(text.prompt) for text in texts}
    written = sum(step.token >= 0 for text in texts for step in text.steps)
    read = sum(prompts.values())
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def token_text(text: Text, token: int, end: str) -> str:
    """A token alone; one that is no whole character is named by its number."""
    tokenizer = text.predictor.tokenizer
    if token in (-1, tokenizer.begin):
        return end
    shown = tokenizer.decode(np.array([token], dtype=np.uint32))
    return shown if "\N{REPLACEMENT CHARACTER}" not in shown else f"token_id:{token}"


class CompletionLogprobs:
    """The four lists of a completion's log-probabilities, and silo's shares as a fifth, as a text grows."""

    def __init__(self, text: Text, end: str) -> None:
        self._text, self._end = text, end
        self._offset = self._written = 0

    def add(self, items: Iterable[TokenScore | Step]) -> dict[str, Any]:
        """The lists for some more tokens."""
        lists: dict[str, Any] = {
            name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset", "silo")
        }
        for item in items:
            filtered = isinstance(item, Step) and item.finish == "content_filter"
            shown = "" if filtered else token_text(self._text, item.token, self._end)
            log = None if filtered else item.log_probability
            lists["tokens"].append(shown)
            lists["token_logprobs"].append(log)
            lists["top_logprobs"].append(self._tops(item, shown, log))
            lists["text_offset"].append(self._offset)
            lists["silo"].append(self._shares() if isinstance(item, Step) else None)
            self._offset += len(item.text if isinstance(item, Step) else "" if shown == self._end else shown)
        return lists

    def _shares(self) -> dict[str, Any]:
        self._written += 1
        return self._text.shares[self._written - 1]

    def _tops(self, item: TokenScore | Step, shown: str, log: float | None) -> dict[str, float] | None:
        """The likeliest tokens and the chosen one, by their texts; None where nothing was predicted."""
        if log is None:
            return None
        tops = {token_text(self._text, token, self._end): value for token, value in reversed(item.alternatives)}
        return {**tops, shown: log} if self._text.wanted.logprobs else {}


def chat_logprob(text: Text, number: int, end: str) -> dict[str, Any]:
    """One step of a chat: its log-probability, the likeliest ones, and whose it is."""
    step = text.steps[number]
    return {
        **_chat_token(text, step.token, step.log_probability, end),
        "top_logprobs": [_chat_token(text, token, log, end) for token, log in step.alternatives],
        "silo": text.shares[number],
    }


def _chat_token(text: Text, token: int, log: float, end: str) -> dict[str, Any]:
    shown = token_text(text, token, end)
    whole = not shown.startswith("token_id:")
    return {"token": shown, "logprob": log, "bytes": list(shown.encode()) if whole else None}
