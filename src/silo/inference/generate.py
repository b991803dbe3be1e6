"""`silo generate`: text token by token, greedy or sampled, each with its probability and with who contributed to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.inference.asking.asks import Asking, alone
from silo.inference.credit import Credit, Credits, credit
from silo.inference.guard import Guard
from silo.inference.mix import Floats
from silo.inference.neighbours import Neighbour, top_neighbours
from silo.inference.predict import Prediction, Predictor
from silo.inference.retrieval import Retriever
from silo.text.tokenizer import Tokenizer

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_TAIL = 16


@dataclass(frozen=True, slots=True)
class Step:
    """One generated token. `text` may be empty while a character is unfinished; `finish` is set on the last step.

    `stop`: the model ended the text, or a stop string was met; `length`: `max_tokens`; `content_filter`: the guard
    left no continuation. The last step of a filtered text has token -1, and so has that of one which the model ended:
    `log_probability` is then that of the end. `alternatives` are the likeliest tokens with their log-probabilities.
    """

    token: int
    text: str
    log_probability: float
    credits: Credits
    neighbours: tuple[Neighbour, ...] = ()
    finish: str = ""
    alternatives: tuple[tuple[int, float], ...] = ()

    @property
    def lm_share(self) -> float:
        """The language model's share of the token."""
        return self.credits.lm_share

    @property
    def main_credit(self) -> Credit | None:
        """The document that contributed most, unless the language model contributed more."""
        best = self.credits.largest
        return best if best is not None and best.share >= self.lm_share else None

    def as_json(self) -> dict[str, Any]:
        """What `silo generate --json` prints for a token."""
        shown: dict[str, Any] = {
            "text": self.text,
            "token": self.token,
            "logprob": self.log_probability,
            "lm_share": self.lm_share,
            "credits": [item.as_json() for item in self.credits],
        }
        return {**shown, "neighbours": [item.as_json() for item in self.neighbours]} if self.neighbours else shown


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

    def choose(self, probabilities: Floats, rng: np.random.Generator) -> int:
        """A token; ties of the greedy choice go to the lower number."""
        if self.temperature == 0:
            return int(probabilities.argmax())
        order = np.argsort(-probabilities, kind="stable")
        order = order[: self.top_k] if self.top_k else order
        weights = _tempered(probabilities[order], self.temperature)
        kept = int(np.searchsorted(np.cumsum(weights), self.top_p * weights.sum())) + 1
        bounds = np.cumsum(weights[:kept])
        drawn = min(int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right")), len(bounds) - 1)
        return int(order[drawn])


def _tempered(probabilities: Floats, temperature: float) -> Floats:
    with np.errstate(divide="ignore"):
        logs = np.log(probabilities)
    weights: Floats = np.exp((logs - logs.max()) / temperature)
    return weights


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """What to generate: at most so many tokens, until one of these strings; so many neighbours and alternatives too."""

    max_tokens: int = 64
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    guard: Guard | None = None
    neighbours: int = 0
    credit: bool = True
    alternatives: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise SiloError("usage", "max_tokens is at least 1")

    @classmethod
    def of(
        cls,
        *,
        max_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Iterable[str] = (),
        guard: int | None = None,
        neighbours: int = 0,
    ) -> GenerateOptions:
        """From plain values; wrong ones are refused."""
        sampling = Sampling(temperature, top_k, top_p, seed)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        return cls(max_tokens, sampling, stops, None if guard is None else Guard(guard), neighbours)


def generate(predictor: Predictor, prompt: str | NDArray[Any], options: GenerateOptions) -> Iterator[Step]:
    """Continue a prompt. Every step sees the stores as they are at that moment; what cannot be guarded is refused."""
    return alone(writing(predictor, prompt, options))


def writing(predictor: Predictor, prompt: str | NDArray[Any], options: GenerateOptions) -> Asking[Step]:
    """As `generate`, for a text that is written among others: it asks for what it needs."""
    if options.guard is not None:
        options.guard.check(predictor.stores)
    return _Text(predictor, _prompt_ids(prompt, predictor.tokenizer), options).steps()


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token of a text that is there already, its log-probability, and the likeliest tokens at its place.

    The first token of all has nothing before it, and neither.
    """

    token: int
    log_probability: float | None
    alternatives: tuple[tuple[int, float], ...] = ()


def score_tokens(
    predictor: Predictor, prompt: str | NDArray[Any], alternatives: int = 0, *, given: int = 0
) -> Iterator[TokenScore]:
    """Score a prompt token by token, with the numbers that `generate` would give.

    The first token is the beginning of the text, also where the prompt leaves it out. So many tokens after that
    one are `given`: they are read, and only what follows is scored.
    """
    return alone(scoring(predictor, prompt, alternatives, given=given))


def scoring(
    predictor: Predictor, prompt: str | NDArray[Any], alternatives: int = 0, *, given: int = 0
) -> Asking[TokenScore]:
    """As `score_tokens`, for a text that is scored among others: it asks for what it needs."""
    ids = _prompt_ids(prompt, predictor.tokenizer)
    reader = predictor.reader()
    if not given:
        yield TokenScore(int(ids[0]), None)
    for at in range(1 + given, len(ids)):
        score = partial(_score, int(ids[at]), predictor.tokenizer.vocabulary, alternatives)
        yield (yield from reader.use_next(ids[:at], score, asks_stores=bool(predictor.method)))


def _score(token: int, vocabulary: int, alternatives: int, prediction: Prediction, _: Retriever | None) -> TokenScore:
    tops = _likeliest(prediction.probabilities[:vocabulary], alternatives)
    return TokenScore(token, _log(prediction.probabilities[token]), tops)


def _prompt_ids(prompt: str | NDArray[Any], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """The tokens of a prompt, or those that it is given as; the beginning-of-text token stands before them."""
    ids = np.asarray(tokenizer.encode([prompt])[0] if isinstance(prompt, str) else prompt, dtype=np.int64)
    begins = len(ids) > 0 and ids[0] == tokenizer.begin
    return ids if begins else np.concatenate([np.array([tokenizer.begin], dtype=np.int64), ids])


def _likeliest(probabilities: Floats, count: int) -> tuple[tuple[int, float], ...]:
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


class _Text:
    """A text that is being written."""

    def __init__(self, predictor: Predictor, ids: NDArray[np.int64], options: GenerateOptions) -> None:
        self._predictor, self._options = predictor, options
        self._ids = ids
        self._reader = predictor.reader()
        self._rng = options.sampling.rng()
        self._writer = _Writer(predictor.tokenizer, ids, options.stop)

    def steps(self) -> Asking[Step]:
        asks_stores = bool(self._predictor.method) or self._options.guard is not None
        for count in range(self._options.max_tokens):
            step = yield from self._reader.use_next(self._ids, self._choose, asks_stores=asks_stores)
            if step.token < 0:
                yield step
                return
            piece, stopped = self._writer.write(step.token)
            last = count + 1 == self._options.max_tokens
            piece += self._writer.rest() if last and not stopped else ""
            finish = "stop" if stopped else "length" if last else ""
            yield _shown(step, piece, finish)
            if finish:
                return

    def _choose(self, prediction: Prediction, retriever: Retriever | None) -> Step:
        """The next token; its text comes later."""
        probabilities = self._allowed(prediction, retriever)
        if not probabilities.sum() > 0:
            return self._end("content_filter")
        token = self._options.sampling.choose(probabilities, self._rng)
        tops = _likeliest(prediction.probabilities[: len(probabilities)], self._options.alternatives)
        log = _log(prediction.probabilities[token])
        if token == self._predictor.tokenizer.begin:
            return self._end("stop", log, tops)
        credited = credit(prediction, token, retriever) if self._options.credit else Credits()
        near = self._neighbours(prediction, retriever)
        self._ids = np.append(self._ids, token)
        return Step(token, "", log, credited, near, alternatives=tops)

    def _neighbours(self, prediction: Prediction, retriever: Retriever | None) -> tuple[Neighbour, ...]:
        tokenizer, count, guard = self._predictor.tokenizer, self._options.neighbours, self._options.guard
        return top_neighbours(prediction, retriever, tokenizer, count, with_text=guard is None)

    def _allowed(self, prediction: Prediction, retriever: Retriever | None) -> NDArray[np.float64]:
        """Without ids that stand for nothing and without what the guard forbids."""
        probabilities = prediction.probabilities[: self._predictor.tokenizer.vocabulary]
        if self._options.guard is None or retriever is None:
            return probabilities
        return self._options.guard.apply(probabilities, self._ids, retriever.views)

    def _end(self, finish: str, log: float = 0.0, alternatives: tuple[tuple[int, float], ...] = ()) -> Step:
        return Step(-1, self._writer.rest(), log, Credits(), finish=finish, alternatives=alternatives)


def _shown(step: Step, text: str, finish: str) -> Step:
    return replace(step, text=text, finish=finish)


class _Writer:
    """Tokens to text: an unfinished character is held back, and so is what may be the start of a stop string."""

    def __init__(self, tokenizer: Tokenizer, prompt: NDArray[np.int64], stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = [mark for mark in stop if mark]
        self._begin(prompt)

    def _begin(self, ids: NDArray[np.int64]) -> None:
        """Start after these tokens: the last few are decoded along, because the text of a token may depend on them."""
        self._tail = ids[-_TAIL:]
        self._ids: list[int] = []
        self._before = len(self._decoded())
        self._given = 0

    def _decoded(self) -> str:
        ids = np.concatenate([self._tail, np.array(self._ids, dtype=np.int64)]).astype(np.uint32)
        return self._tokenizer.decode(ids)

    def write(self, token: int) -> tuple[str, bool]:
        """The text that is certain now, and whether a stop string ended it."""
        self._ids.append(token)
        text = self._decoded()[self._before :]
        ends = [text.find(mark) for mark in self._stop if mark in text]
        if ends:
            piece = text[self._given : min(ends)]
            self._given = len(text)
            return piece, True
        certain = text.rstrip(_UNFINISHED)
        held = max((_overlap(certain, mark) for mark in self._stop), default=0)
        piece = certain[self._given : len(certain) - held]
        self._given += len(piece)
        if self._given == len(text) and len(self._ids) > _TAIL:
            self._begin(np.array(self._ids, dtype=np.int64))
        return piece, False

    def rest(self) -> str:
        """What was held back."""
        piece = self._decoded()[self._before + self._given :]
        self._given += len(piece)
        return piece


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of a text begin the mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
