"""From a checked request to texts that the engine writes, and from their steps to what is known of a finished one."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.inference.answer import Answer
from silo.inference.ask.conversation import Conversation
from silo.inference.asking.asks import Asking
from silo.inference.asking.choose import TokenScore
from silo.inference.generate import GenerateOptions, Step
from silo.inference.predict import Predictor, offered_methods
from silo.inference.session import Session
from silo.inference.settings import parse_method
from silo.server.access import Key, Permission
from silo.server.answers.attribution import Attribution, KeptAttribution, cite_passages
from silo.server.config import Limits
from silo.server.engine import END, Engine, Request
from silo.server.metrics import Metrics
from silo.server.models import ServedModel
from silo.server.options import SiloOptions
from silo.server.problems import Problem, naming
from silo.store.policy import Policy
from silo.store.store import Store

_POLICY_PARAM = "silo.policy"
_TOKEN_CHARACTERS = 64
"""Characters of a token at most, more or less."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks of every text, apart from how stores are read."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    echo: bool = False


@dataclass(eq=False)
class Text:
    """One text to be written: a prompt, how it is continued, and whether the prompt itself is scored first."""

    index: int
    predictor: Predictor
    prompt: NDArray[np.int64]
    options: GenerateOptions | None
    wanted: Wanted
    ledger: bool
    conversation: Conversation | None = None
    """What is answered from passages."""
    may_quote: bool = False
    steps: list[Step] = field(default_factory=list)
    _shares: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.attribution = Attribution(self.predictor.stores)

    @property
    def shares(self) -> list[dict[str, Any]]:
        """Whose each step is; looked up when somebody wants to know."""
        self._shares += map(self.attribution.token, self.steps[len(self._shares) :])
        return self._shares

    def run(self) -> Asking[TokenScore | Step]:
        """Every token of the prompt, where it is to be scored, and then those that are written."""
        if self.wanted.echo and self.wanted.logprobs is not None:
            scores = Session(self.predictor).scoring(self.prompt, self.wanted.logprobs)
            if not (len(self.prompt) and self.prompt[0] == self.predictor.tokenizer.begin):
                next(scores)  # the beginning, which the prompt left out
            yield from scores
        if self.options is not None:
            yield from Session(self.predictor).writing(self.prompt, self.options)

    def finish(self) -> tuple[Answer, dict[str, Any], KeptAttribution]:
        """The answer that the steps make, what is owed for it, and what is kept of that; the ledger notes it."""
        answer = Session(self.predictor).collect("", self.steps, ledger=self.ledger and bool(self.steps))
        self.shares  # noqa: B018  # documents have their numbers in the order of the tokens
        owed = self.attribution.whole(answer) if self.steps else {}
        if self.conversation is not None and self.steps:
            owed["citations"] = self._citations(self.conversation, answer)
        return answer, owed, KeptAttribution.of(answer, self.predictor.stores)

    def _citations(self, conversation: Conversation, answer: Answer) -> list[dict[str, Any]]:
        """What the sentences of an answer rest on, quoted as far as rights, guard and key allow."""
        guard = self.options.guard if self.options else None
        most = (guard.tokens if guard else None) if self.may_quote else 0
        return cite_passages(conversation, answer, self.predictor, most)


def plan_texts(
    model: ServedModel,
    prompts: Sequence[str | Sequence[int]],
    wanted: Wanted,
    given: Sequence[SiloOptions],
    *,
    caller: Key,
    limits: Limits,
    conversation: Conversation | None = None,
) -> list[Text]:
    """Check what is asked against what the caller may, and tokenise; `given` are options of headers and body.

    A conversation, whose ids are the only prompt, is answered from passages where the method has them.
    """
    _check_limits(wanted, len(prompts), caller, limits)
    options = _merge(given)
    default = model.method if conversation is None else model.chat_method
    predictor = _predictor(model, options, given, caller, limits, default)
    guard = _guard(model, options, caller)
    if options.neighbours and not caller.may(Permission.text):
        raise Problem(403, "not-permitted", "this key may not see text of the stores", param="silo.neighbours")
    if options.neighbours > limits.neighbours:
        raise _too_much("silo.neighbours", limits.neighbours)
    texts = []
    for at, prompt in enumerate(prompts):
        ids = encode_prompt(model, prompt, limits)
        if conversation is not None:
            predictor, conversation = _read_passages(predictor, conversation, ids, asked_for=bool(options.method))
        for choice in range(wanted.n):
            settings = _generate_options(wanted, choice, guard, options.neighbours) if wanted.max_tokens else None
            if settings is not None and settings.guard is not None:
                with naming("silo.guard"):
                    settings.guard.check(predictor.stores)
            text = Text(at * wanted.n + choice, predictor, ids, settings, wanted, options.ledger)
            text.conversation, text.may_quote = conversation, caller.may(Permission.text)
            texts.append(text)
    return texts


def _read_passages(
    predictor: Predictor, conversation: Conversation, ids: NDArray[np.int64], *, asked_for: bool
) -> tuple[Predictor, Conversation | None]:
    """A predictor that reads what is found for a conversation; one that finds no room for it does without."""
    if "ric" not in predictor.method:
        return predictor, None
    begins = len(ids) > 0 and ids[0] == predictor.tokenizer.begin
    reading = conversation.read_by(predictor, len(ids) if begins else len(ids) + 1)
    if reading is not None:
        return reading, conversation
    if asked_for:
        message = "the conversation asks nothing, or leaves no room for passages in the model's context"
        raise Problem(400, "usage", message, param="silo.method", hint="leave ric out of the method")
    method = predictor.method - {"ric"}
    return predictor.with_options(method, predictor.settings, predictor.policy), None


def _generate_options(wanted: Wanted, choice: int, guard: int | None, neighbours: int) -> GenerateOptions:
    options = GenerateOptions.of(
        max_tokens=wanted.max_tokens,
        temperature=wanted.temperature,
        top_k=wanted.top_k,
        top_p=wanted.top_p,
        seed=None if wanted.seed is None else wanted.seed + choice,
        stop=wanted.stop,
        guard=guard,
        neighbours=neighbours,
    )
    return replace(options, alternatives=wanted.logprobs or 0)


def _check_limits(wanted: Wanted, prompts: int, caller: Key, limits: Limits) -> None:
    if wanted.logprobs is not None and not caller.may(Permission.logprobs):
        raise Problem(403, "not-permitted", "this key may not see log-probabilities", param="logprobs")
    most = min(limits.max_tokens, caller.max_tokens or limits.max_tokens)
    if wanted.max_tokens > most:
        raise _too_much("max_tokens", most)
    if not prompts:
        raise Problem(400, "usage", "the list of prompts is empty", param="prompt")
    if prompts * wanted.n > limits.texts:
        raise _too_much("n" if wanted.n > 1 else "prompt", limits.texts)
    if len(wanted.stop) > limits.stop or any(len(text) > 1000 for text in wanted.stop):
        raise _too_much("stop", limits.stop)


def _too_much(param: str, most: int) -> Problem:
    return Problem(400, "too-much", f"{param} is at most {most:,} here", param=param)


def _merge(given: Sequence[SiloOptions]) -> SiloOptions:
    """Later options win, but the stricter guard does. Policies are narrowed elsewhere."""
    values = {name: value for item in given for name, value in item.model_dump(exclude_unset=True).items()}
    guards = [item.guard for item in given if item.guard is not None]
    return SiloOptions(**{**values, "guard": min(guards, default=None)})


def _predictor(
    model: ServedModel,
    options: SiloOptions,
    given: Sequence[SiloOptions],
    caller: Key,
    limits: Limits,
    default: frozenset[str],
) -> Predictor:
    policy = Policy.parse(caller.policy)
    with naming(_POLICY_PARAM):
        for text in filter(None, (item.policy for item in given)):
            policy = policy.narrowed(Policy.parse(text))
    stores = _stores(model, given)
    with naming("silo.method"):
        method = parse_method(options.method) if options.method else default & offered_methods(stores) or default
    if options.k is not None and options.k > limits.k:
        raise _too_much("silo.k", limits.k)
    with naming("silo.settings"):
        settings = model.settings(method, options.settings or "")
        settings = settings.with_values(lam=options.lam, k=options.k, tau=options.tau, probes=options.probes)
    with naming("silo.method"):
        return model.predictor(method, settings, policy, stores)


def _stores(model: ServedModel, given: Sequence[SiloOptions]) -> tuple[Store, ...]:
    """The stores that headers and body both name; all of the model's where neither names any."""
    named = [model.choose_stores(item.stores) for item in given if item.stores is not None]
    chosen = tuple(store for store in model.stores if all(store in stores for stores in named))
    if named and not chosen:
        raise Problem(400, "usage", "headers and body name no store in common", param="silo.stores")
    return chosen


def _guard(model: ServedModel, options: SiloOptions, caller: Key) -> int | None:
    """The strictest of the server's, the key's and the request's."""
    return min((tokens for tokens in (model.guard, caller.guard, options.guard) if tokens), default=None)


def encode_prompt(
    model: ServedModel, prompt: str | Sequence[int], limits: Limits, param: str = "prompt"
) -> NDArray[np.int64]:
    """The ids of a text, which is refused where it is too long."""
    tokenizer = model.language_model.tokenizer
    if isinstance(prompt, str):
        refuse_long([prompt], limits, param)
        ids = tokenizer.encode([prompt])[0].astype(np.int64)
    else:
        ids = np.array(prompt, dtype=np.int64)
        if len(ids) and ids.max() >= tokenizer.vocabulary:
            raise Problem(400, "usage", f"token ids are below {tokenizer.vocabulary}", param=param)
    if len(ids) > limits.prompt_tokens:
        raise _too_long(limits, param)
    return ids


def refuse_long(texts: Iterable[str], limits: Limits, param: str) -> None:
    """Refuse what has too many characters to be few enough tokens, before anybody cuts it into them."""
    if sum(map(len, texts)) > _TOKEN_CHARACTERS * limits.prompt_tokens:
        raise _too_long(limits, param)


def _too_long(limits: Limits, param: str) -> Problem:
    return Problem(400, "too-much", f"a {param} has at most {limits.prompt_tokens:,} tokens here", param=param)


class Batch:
    """The texts of one HTTP request in the engine, seen from the event loop.

    To wake the event loop takes as long as much of what a small model does for a token. So the engine does it for first
    tokens, for ends, and where nothing came for `pause` seconds; what comes sooner the loop finds when it looks.
    """

    def __init__(
        self, engine: Engine, texts: Sequence[Text], caller: Key, client: str, metrics: Metrics, *, pause: float
    ) -> None:
        self._engine, self._metrics, self._texts = engine, metrics, texts
        self._pause = pause
        self._arrived: deque[tuple[Text, Any]] = deque()
        self._first: dict[int, float] = {}
        self._will_look = pause == math.inf  # nobody waits for anything but the end
        self._awake = asyncio.Event()
        self._look: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._requests = [Request(client, text.run, partial(self._deliver, text)) for text in texts]
        engine.submit(self._requests, most=caller.texts or None)

    def _deliver(self, text: Text, event: Any) -> None:
        """Take an event of the engine, in its thread."""
        is_urgent = event is END or isinstance(event, Exception)
        if isinstance(event, Step) and text.index not in self._first:
            self._first[text.index] = time.monotonic()
            is_urgent = self._pause < math.inf
        self._arrived.append((text, event))
        if is_urgent or not self._will_look:
            self._will_look = True
            with suppress(RuntimeError):  # the loop is gone, and with it whoever waited
                self._loop.call_soon_threadsafe(self._awake.set)

    def _look_again(self) -> None:
        """Have what arrived meanwhile taken; where nothing did, be woken for what comes next."""
        self._will_look = False  # before looking: whoever appends after the look sees it
        if self._arrived:
            self._will_look = True
            self._awake.set()

    async def events(self) -> AsyncIterator[list[tuple[Text, TokenScore | Step | None]]]:
        """The steps of all texts as they come, some at a time, and None after the last one of each.

        An error ends them all.
        """
        left = len(self._requests)
        while left:
            await self._awake.wait()
            self._awake.clear()
            self._stop_looking()
            come: list[tuple[Text, TokenScore | Step | None]] = []
            while self._arrived:
                text, event = self._arrived.popleft()
                if isinstance(event, Exception):
                    if come:
                        yield come
                    raise event
                come.append((text, None if event is END else event))
                left -= event is END
            if left and self._pause < math.inf:
                self._look = self._loop.call_later(self._pause, self._look_again)
            if come:
                yield come

    def note(self, text: Text, item: TokenScore | Step) -> None:
        """Add what was written to its text, and to what is counted."""
        if isinstance(item, TokenScore):
            return
        if not text.steps:
            waited = self._first[text.index] - self._requests[text.index].begun
            self._metrics.time("silo_first_token_seconds", waited)
        self._metrics.note_step(item)
        text.steps.append(item)

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()

    def cancel(self) -> None:
        """Nobody waits for the texts any more."""
        self._stop_looking()
        for request in self._requests:
            self._engine.cancel(request)

    def abandon(self, error: Exception) -> None:
        """End the events with an error."""
        self._deliver(self._texts[0], error)
