"""Whom an answer is owed to, as JSON: per token, per sentence and for the whole, with documents named once.

A token owes a little to thousands of documents at times: the largest are named, the rest is one number, and all add up
to 1. Kept for some minutes are ids and shares, for clients that drop what they do not know; what was erased meanwhile
has no id any more.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Any, TypeVar

from silo.inference.answer import Answer
from silo.inference.ask.conversation import Conversation
from silo.inference.generate import Step
from silo.inference.predict import Predictor
from silo.store.store import Store

StoreName = TypeVar("StoreName", str, int)
_PER_TOKEN, _PER_SPAN = 8, 8
_LISTED = 256
_KEPT = 4096
"""Documents named per token, per sentence and in all; choices that are kept, of which a request may have many."""
_NAMED_SHARE = 0.01
"""Of a whole answer, for a document to be named there."""
_LEAST_SHARE = 0.001
"""Of a sentence, for a document to be named there."""


class Attribution:
    """Numbers the documents of one answer in the order in which they first have a share."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = stores
        self._numbers: dict[tuple[int, str], int] = {}
        self._documents: list[dict[str, Any]] = []

    def token(self, step: Step) -> dict[str, Any]:
        """`lm` and `docs` as [number, share]; `other` is the share of documents that are not named."""
        named = []
        for item in step.credits.first(_PER_TOKEN):
            number = self._number(item)
            if number is not None and item.share > 0:
                named.append([number, item.share])
        shown: dict[str, Any] = {"lm": step.lm_share, "docs": named}
        other = max(0.0, 1.0 - step.lm_share - sum(share for _, share in named)) if step.token >= 0 else 0.0
        if other > 0:
            shown["other"] = other
        if step.neighbours:
            shown["neighbours"] = [item.as_json() for item in step.neighbours]
        return shown

    def _number(self, item: Any) -> int | None:
        place = item.store, item.document
        if place not in self._numbers:
            if len(self._documents) >= _LISTED:
                return None
            self._numbers[place] = len(self._documents)
            self._documents.append(item.as_json())
        return self._numbers[place]

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The answer's own object; documents that were erased since they had a share are not named."""
        tokens = max(1, len(answer.tokens))
        for item in (*answer.totals.documents(_NAMED_SHARE * tokens), *answer.context):
            self._number(item)
        documents = []
        held, shares = held_of(dict(enumerate(self._stores)), self._numbers), answer.totals.shares_of(self._numbers)
        for (store, name), number in self._numbers.items():
            share = shares[store, name] / tokens
            if (store, name) in held:
                documents.append({**self._documents[number], "share": share})
            else:
                documents.append({"document": None, "erased": True, "share": share})
        return {
            "lm_share": answer.lm_share,
            "documents": documents,
            "other_share": max(0.0, 1.0 - answer.lm_share - sum(item["share"] for item in documents)),
            "spans": self._spans(answer),
            "notices": list(answer.notices),
            "policy": answer.policy,
        }

    def _spans(self, answer: Answer) -> list[dict[str, Any]]:
        """Every sentence: where it begins and ends in the text, the model's share, and the largest documents."""
        spans, at = [], 0
        numbers = {name: number for (_, name), number in self._numbers.items()}
        for sentence in answer.sentences(_LEAST_SHARE):
            end = at + len(sentence["text"])
            named = ((numbers[name], share) for name, share in sentence["documents"].items() if name in numbers)
            docs = [[number, share] for number, share in islice(named, _PER_SPAN)]
            spans.append({"start": at, "end": end, "lm": sentence["lm_share"], "docs": docs})
            at = end
        return spans


def held_of(stores: Mapping[StoreName, Store], places: Iterable[tuple[StoreName, str]]) -> set[tuple[StoreName, str]]:
    """Those of some documents, each with the name or number of its store, that are there now and not being erased."""
    names: dict[StoreName, list[str]] = defaultdict(list)
    for store, name in places:
        names[store].append(name)
    return {(store, name) for store, listed in names.items() for name in stores[store].held(listed)}


def cite_passages(
    conversation: Conversation, answer: Answer, predictor: Predictor, most: int | None
) -> list[dict[str, Any]]:
    """The sentences of an answer (`span`) that rest on passages it was given, as `silo ask` cites them.

    A quote has at most so many tokens.
    """
    read = {item.document for item in answer.context}
    with predictor.reading() as retriever:
        found = list(conversation.citations(answer.text, read, retriever, most=most))
    return [{"span": [sentence.start, sentence.end], **citation.as_json()} for sentence, citation in found]


@dataclass(frozen=True, slots=True)
class KeptAttribution:
    """Of one choice: the model's share, and each document's with the name of the store it is in."""

    lm_share: float
    documents: tuple[tuple[str, str, float], ...]

    @classmethod
    def of(cls, answer: Answer, stores: Sequence[Store]) -> KeptAttribution:
        """Ids and shares, and nothing else."""
        tokens = max(1, len(answer.tokens))
        listed = (*answer.totals.documents(most=_LISTED), *answer.context)[:_LISTED]
        names = [store.root.absolute().name for store in stores]
        return cls(answer.lm_share, tuple((names[item.store], item.document, item.share / tokens) for item in listed))

    def as_json(self, stores: Mapping[str, Store]) -> dict[str, Any]:
        """What is left of it now: shares of documents that were erased are added up without their ids."""
        held = held_of(stores, ((store, name) for store, name, _ in self.documents))
        here = [{"document": name, "share": share} for store, name, share in self.documents if (store, name) in held]
        erased = sum(share for store, name, share in self.documents if (store, name) not in held)
        return {"lm_share": self.lm_share, "documents": here, "erased_share": erased}


class Attributions:
    """Those of the last minutes, each for whoever asked."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._kept: OrderedDict[str, tuple[float, str, list[KeptAttribution]]] = OrderedDict()
        self._count = 0
        self._guard = Lock()

    def keep(self, name: str, caller: str, choices: Iterable[KeptAttribution]) -> None:
        """Remember those of an answer for a while."""
        with self._guard:
            self._kept[name] = kept = (self._clock() + self._seconds, caller, list(choices))
            self._count += len(kept[2])
            self._forget()

    def find(self, name: str, caller: str) -> list[KeptAttribution] | None:
        """Those of an answer, if this caller asked for it and it is not too long ago."""
        with self._guard:
            self._forget()
            _, owner, choices = self._kept.get(name, (0.0, "", []))
            return choices if owner == caller else None

    def _forget(self) -> None:
        now = self._clock()
        while self._kept and (next(iter(self._kept.values()))[0] < now or self._count > _KEPT):
            _, (_, _, choices) = self._kept.popitem(last=False)
            self._count -= len(choices)
