"""`silo generate`: text token by token, greedy or sampled, each with its probability and with who contributed to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.inference.asking.asks import Ask, Asking, alone, wait_for
from silo.inference.asking.choose import Choice, Chosen, Sampling, Score, TokenScore
from silo.inference.credit import Credit, Credits
from silo.inference.guard import Guard
from silo.inference.neighbours import Neighbour
from silo.inference.predict import Predictor
from silo.text.tokenizer import Tokenizer

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_TAIL = 6
"""Tokens on which the text of the next one may depend, at most."""


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
        yield (yield from wait_for(Ask(reader, ids[:at], Score(int(ids[at]), alternatives), ahead=ids[at:])))


def _prompt_ids(prompt: str | NDArray[Any], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """The tokens of a prompt, or those that it is given as; the beginning-of-text token stands before them."""
    ids = np.asarray(tokenizer.encode([prompt])[0] if isinstance(prompt, str) else prompt, dtype=np.int64)
    begins = len(ids) > 0 and ids[0] == tokenizer.begin
    return ids if begins else np.concatenate([np.array([tokenizer.begin], dtype=np.int64), ids])


class _Text:
    """A text that is being written."""

    def __init__(self, predictor: Predictor, ids: NDArray[np.int64], options: GenerateOptions) -> None:
        self._options = options
        self._ids = np.concatenate([ids, np.empty(options.max_tokens, dtype=np.int64)])
        self._length = len(ids)
        self._reader = predictor.reader()
        self._rng = options.sampling.rng() if options.sampling.temperature > 0 else None
        self._writer = _Writer(predictor.tokenizer, ids, options.stop)

    def steps(self) -> Asking[Step]:
        options = self._options
        wanted = Choice(options.sampling, options.guard, options.neighbours, options.credit, options.alternatives)
        for left in reversed(range(options.max_tokens)):
            drawn = self._rng.random() if self._rng is not None else 0.0
            made: Chosen = yield from wait_for(Ask(self._reader, self._ids[: self._length], wanted, drawn))
            piece, finish = (self._writer.rest(), made.finish) if made.finish else self._write(made.token, left)
            yield Step(
                made.token, piece, made.log_probability, made.credits, made.neighbours, finish, made.alternatives
            )
            if finish:
                return

    def _write(self, token: int, left: int) -> tuple[str, str]:
        """Append a token: the text that is certain now, and why it is the last one if it is."""
        self._ids[self._length] = token
        self._length += 1
        piece, stopped = self._writer.write(token)
        if stopped:
            return piece, "stop"
        return (piece, "") if left else (piece + self._writer.rest(), "length")


class _Writer:
    """Tokens to text: an unfinished character is held back, and so is what may be the start of a stop string."""

    def __init__(self, tokenizer: Tokenizer, prompt: NDArray[np.int64], stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = [mark for mark in stop if mark]
        self._begin(prompt[-_TAIL:].tolist())

    def _begin(self, ids: list[int]) -> None:
        """Start after these tokens: the last few are decoded along, because the text of a token may depend on them."""
        self._tail = ids[-_TAIL:]
        self._ids: list[int] = []
        self._before = len(self._decoded())
        self._given = 0

    def _decoded(self) -> str:
        return self._tokenizer.decode(np.array(self._tail + self._ids, dtype=np.uint32))

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
            self._begin(self._ids)
        return piece, False

    def rest(self) -> str:
        """What was held back."""
        piece = self._decoded()[self._before + self._given :]
        self._given += len(piece)
        return piece


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of a text begin the mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
