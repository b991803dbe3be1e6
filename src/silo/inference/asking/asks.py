"""Asks: a text says what it wants to know and waits, alone or among others that are answered together."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from silo.inference.asking.choose import Choice, Chosen, Score, TokenScore, choose_together
from silo.inference.predict import NoteTime, Place, Predictions, Reader, predict_together
from silo.inference.retrieval import Ints, Retriever


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Asks for what is wanted of the prediction after a text; `drawn` is from [0, 1), for a choice by chance.

    `ahead` is what the text goes on with, where that is known.
    """

    reader: Reader
    ids: Ints
    wanted: Choice | Score
    drawn: float = 0.0
    ahead: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def needs_stores(self) -> bool:
        """Have stores a say in it, or a guard that looks into them?"""
        return bool(self.reader.predictor.method) or self.wanted.guard is not None


Made = TypeVar("Made")
Asking = Generator[Ask | Made, Any, None]
"""Gives what it makes, and between that what it asks: it is sent the answer, or None to ask again."""


def answer_together(
    asks: Sequence[Ask], *, spare: int | None = None, threads: int = 0, note_time: NoteTime = lambda *_: None
) -> list[Chosen | TokenScore | None]:
    """The answers to some asks, which are those that each would get alone, from the stores as they are now.

    `spare`, `threads` and `note_time` are as for `predict_together`. None is the answer where a text was read in part.
    """
    with ExitStack() as held:
        retrievers = _read_stores(asks, held)
        places = [Place(ask.reader, ask.ids, at, ask.ahead) for ask, at in zip(asks, retrievers, strict=True)]
        answers: list[Chosen | TokenScore | None] = [None] * len(asks)
        groups: dict[int, tuple[Predictions, list[int]]] = {}
        predictions = predict_together(places, spare=spare, threads=threads, note_time=note_time)
        for at, found in enumerate(predictions):
            if found is not None:
                groups.setdefault(id(found.every), (found.every, []))[1].append(at)
        for every, group in groups.values():
            wanted = [(asks[at].wanted, asks[at].drawn) for at in group]
            tokenizer = asks[group[0]].reader.predictor.tokenizer
            for at, made in zip(group, choose_together(wanted, every, retrievers[group[0]], tokenizer), strict=True):
                answers[at] = made
        return answers


def _read_stores(asks: Sequence[Ask], held: ExitStack) -> list[Retriever | None]:
    """The stores of each ask under its policy, one for all that ask the same; held for as long as `held` is."""
    known: dict[Any, Retriever] = {}
    found: list[Retriever | None] = []
    for ask in asks:
        predictor = ask.reader.predictor
        kind = (predictor.stores, predictor.policy)
        if ask.needs_stores and kind not in known:
            known[kind] = held.enter_context(predictor.reading())
        found.append(known[kind] if ask.needs_stores else None)
    return found


def wait_for(ask: Ask) -> Generator[Ask, Any, Any]:
    """The answer to an ask, which is repeated until there is one."""
    answer = None
    while answer is None:
        answer = yield ask
    return answer


def alone(asking: Asking[Made]) -> Iterator[Made]:
    """What one text makes; its asks are answered as they come."""
    answer: Any = None
    try:
        while True:
            item = asking.send(answer)
            answer = answer_together([item])[0] if isinstance(item, Ask) else None
            if not isinstance(item, Ask):
                yield item
    except StopIteration:
        return
    finally:
        asking.close()
