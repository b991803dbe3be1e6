"""From predictions to what was wanted of them: a chosen token and whom it is owed to, or the score of a given one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from silo.errors import SiloError
from silo.inference.credit import Credits, credit
from silo.inference.guard import Guard
from silo.inference.mix import Floats
from silo.inference.neighbours import Neighbour, top_neighbours
from silo.inference.predict import Prediction, Predictions
from silo.inference.retrieval import Ints, Retriever
from silo.text.tokenizer import Tokenizer

Alternatives = tuple[tuple[int, float], ...]
"""The likeliest tokens and their log-probabilities."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature 0 takes the likeliest token. `top_k` 0 and `top_p` 1 leave all tokens in."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.temperature <= 100 and self.top_k >= 0 and 0 < self.top_p <= 1):
            raise SiloError("usage", "temperature is 0 to 100, top-k at least 0 and top-p above 0 and at most 1")
        if self.seed is not None and self.seed < 0:
            raise SiloError("usage", "a seed is not negative")

    def rng(self) -> np.random.Generator:
        """A generator for one text."""
        return np.random.default_rng(self.seed)

    def choose(self, probabilities: Floats, drawn: float) -> int:
        """A token, by a number drawn from [0, 1); ties of the greedy choice go to the lower number."""
        if self.temperature == 0:
            return int(probabilities.argmax())
        order = np.argsort(-probabilities, kind="stable")
        order = order[: self.top_k] if self.top_k else order
        weights = _tempered(probabilities[order], self.temperature)
        kept = int(np.searchsorted(np.cumsum(weights), self.top_p * weights.sum())) + 1
        bounds = np.cumsum(weights[:kept])
        chosen = min(int(np.searchsorted(bounds, drawn * bounds[-1], side="right")), len(bounds) - 1)
        return int(order[chosen])


def _tempered(probabilities: Floats, temperature: float) -> Floats:
    with np.errstate(divide="ignore"):
        logs = np.log(probabilities)
    weights: Floats = np.exp((logs - logs.max()) / temperature)
    return weights


@dataclass(frozen=True, slots=True)
class Choice:
    """Wants the next token of a text to be chosen, with so many neighbours and alternatives."""

    sampling: Sampling = field(default_factory=Sampling)
    guard: Guard | None = None
    neighbours: int = 0
    credit: bool = True
    alternatives: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """Wants to know how likely a token is, and the likeliest ones at its place."""

    token: int
    alternatives: int = 0
    guard: None = None


class Chosen(NamedTuple):
    """A token, -1 where `finish` says why the text ends instead."""

    token: int
    log_probability: float
    credits: Credits
    neighbours: tuple[Neighbour, ...]
    alternatives: Alternatives
    finish: str = ""


class TokenScore(NamedTuple):
    """A token of a text that is there already, its log-probability, and the likeliest tokens at its place.

    The first token of all has nothing before it, and neither.
    """

    token: int
    log_probability: float | None
    alternatives: Alternatives = ()


Wish = tuple[Choice | Score, float]
"""What is wanted, and the number that was drawn for a choice."""


def choose_together(
    wishes: Sequence[Wish], every: Predictions, retriever: Retriever | None, tokenizer: Tokenizer
) -> list[Chosen | TokenScore]:
    """What is wanted of each prediction."""
    allowed = every.probabilities[:, : tokenizer.vocabulary]  # without ids that stand for nothing
    tokens = list(_choose_tokens(wishes, allowed, every.prefixes, retriever))
    owed = [
        token if isinstance(wish, Choice) and wish.credit and token != tokenizer.begin else -1
        for (wish, _), token in zip(wishes, tokens, strict=True)
    ]
    made: list[Chosen | TokenScore] = []
    for text, owing in enumerate(credit(every, owed, retriever)):
        wish, token = wishes[text][0], tokens[text]
        log, tops = _log(every.probabilities[text, token]), _likeliest(allowed[text], wish.alternatives)
        if isinstance(wish, Score):
            made.append(TokenScore(token, log, tops))
        elif token < 0:
            made.append(Chosen(-1, 0.0, owing, (), (), "content_filter"))
        elif token == tokenizer.begin:
            made.append(Chosen(-1, log, owing, (), tops, "stop"))
        else:
            one, with_text = Prediction(every, text), wish.guard is None
            near = top_neighbours(one, retriever, tokenizer, wish.neighbours, with_text=with_text)
            made.append(Chosen(token, log, owing, near, tops))
    return made


def _choose_tokens(
    wishes: Sequence[Wish], allowed: Floats, prefixes: Sequence[Ints], retriever: Retriever | None
) -> Iterator[int]:
    """The token of each text; -1 where no continuation is left."""
    likeliest = allowed.argmax(axis=1).tolist()
    for text, (wish, drawn) in enumerate(wishes):
        if isinstance(wish, Score):
            yield wish.token
        elif wish.guard is not None and retriever is not None:
            left = wish.guard.apply(allowed[text], prefixes[text], retriever.views)
            yield wish.sampling.choose(left, drawn) if left.sum() > 0 else -1
        elif not allowed[text, likeliest[text]] > 0:
            yield -1
        else:
            yield wish.sampling.choose(allowed[text], drawn) if wish.sampling.temperature > 0 else likeliest[text]


def _likeliest(probabilities: Floats, count: int) -> Alternatives:
    """The likeliest tokens and their log-probabilities; of equal ones, the lower number first."""
    if not count:
        return ()
    least = np.partition(probabilities, len(probabilities) - min(count, len(probabilities)))[-count:].min()
    among = np.flatnonzero(probabilities >= least)
    best = among[np.argsort(-probabilities[among], kind="stable")][:count]
    return tuple((token, _log(probabilities[token])) for token in best.tolist())


def _log(probability: float) -> float:
    """A logarithm that is a number also where nothing is left of a probability."""
    return math.log(max(float(probability), 5e-324))
