"""What model and stores say after prompts: one pass per prompt, one more where passages stand before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.inference.context import InContext
from silo.inference.mix import Floats
from silo.inference.predict import Predictor
from silo.inference.prompts.mixture import LanguageModelPart, NeighbourPart, NgramPart, PromptObservations
from silo.inference.retrieval import Retriever
from silo.inference.settings import ORDERS, level_column
from silo.lm.reading import ReadingNetwork
from silo.lm.windows import Window, Windows, padded_length
from silo.pairing import KeyEncoder
from silo.progress import Advance

Tokens = NDArray[np.int64]

_BATCH_TOKENS = 1024
_SEARCHED_AT_ONCE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A text without the token that begins it, and a continuation of it.

    The beginning of a text that is too long is left out; all texts have room for the longest continuation, so that
    the continuations of one text follow the same input. `wanted`: after each of the last positions, the tokens whose
    probability is asked for. `query`: the tokens whose words find passages; without some, nothing is put before.
    """

    tokens: Tokens
    wanted: tuple[Tokens, ...]
    continuation: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    query: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def observe_prompts(
    predictor: Predictor, prompts: Sequence[Prompt], *, passages: bool = True, advance: Advance = lambda *_: None
) -> PromptObservations:
    """Read all prompts with every search that the predictor's method has; with `passages`, also after passages.

    Entries lie in the order of `wanted`.
    """
    with predictor.reading() as retriever:
        return _Observer(predictor, retriever, prompts, advance).observe(passages=passages)


@dataclass(frozen=True, slots=True, eq=False)
class _Input:
    """What the network reads of a prompt, and the weight of what it says."""

    prompt: int
    tokens: Tokens
    weight: float = 1.0

    @property
    def padded(self) -> int:
        return padded_length(len(self.tokens))


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """What is kept of an input: the probability of every entry, of the likeliest token per place, and keys."""

    entries: Floats
    peaks: Floats
    keys: NDArray[np.float32]


class _Observer:
    """The passes over all prompts."""

    def __init__(self, predictor: Predictor, retriever: Retriever, prompts: Sequence[Prompt], advance: Advance) -> None:
        self._predictor, self._retriever, self._prompts, self._advance = predictor, retriever, prompts, advance
        wanted = [tokens for prompt in prompts for tokens in prompt.wanted]
        self._wanted = wanted
        self._spare = max((len(prompt.continuation) for prompt in prompts), default=0)
        self._orders = [np.argsort(tokens) for tokens in wanted]
        self._starts = np.cumsum([0, *map(len, wanted)])
        self._first_places = np.cumsum([0, *(len(prompt.wanted) for prompt in prompts)])

    def observe(self, *, passages: bool) -> PromptObservations:
        predictor, encoder = self._predictor, self._predictor.encoder
        shared = encoder is not None and encoder.opened.is_same(predictor.opened)
        lm, keys = self._pass(predictor.network, self._plain(predictor.windows), encoder if shared else None, "lm")
        ric = None
        if predictor.context is not None and passages:
            ric, _ = self._pass(predictor.network, self._with_passages(), None, "ric")
        if encoder is not None and not shared:
            _, keys = self._pass(encoder.opened.network, self._plain(encoder.windows), encoder, "keys")
        return PromptObservations(
            np.repeat(np.arange(len(self._wanted)), np.diff(self._starts)),
            lm,
            ric,
            self._search(keys) if encoder is not None else None,
            self._count() if "ngram" in predictor.method else self._no_counts(),
        )

    def _plain(self, windows: Windows) -> list[_Input]:
        """A window has room for the token that is predicted, too: `Reader.predict` sees the same."""
        return [_Input(at, self._cut(prompt, windows.length - 1)) for at, prompt in enumerate(self._prompts)]

    def _cut(self, prompt: Prompt, room: int) -> Tokens:
        """The token that begins a text, the end of the text, and its continuation."""
        begin = np.array([self._predictor.tokenizer.begin], dtype=np.int64)
        first = max(0, len(prompt.tokens) - (room - 1 - self._spare))
        return np.concatenate([begin, prompt.tokens[first:], prompt.continuation])

    def _with_passages(self) -> list[_Input]:
        inputs = []
        for at, prompt in enumerate(self._prompts):
            for item in self._find_passages(prompt):
                room = min(self._predictor.windows.length - 1, self._predictor.opened.context - len(item.tokens))
                inputs.append(_Input(at, np.concatenate([item.tokens, self._cut(prompt, room)]), item.weight))
        return inputs

    def _find_passages(self, prompt: Prompt) -> list[InContext]:
        provider = self._predictor.context
        if provider is None or not len(prompt.query):
            return [InContext()]
        return provider.find(prompt.query, Window(0, len(prompt.query), len(prompt.query) + 1), self._retriever)

    def _pass(
        self, network: ReadingNetwork, inputs: Sequence[_Input], encoder: KeyEncoder | None, stage: str
    ) -> tuple[LanguageModelPart, NDArray[np.float32]]:
        """The probabilities of all entries, and the keys of all places if an encoder wants some."""
        key = encoder.key if encoder is not None else None
        entries, peaks = np.zeros(self._starts[-1]), np.zeros(len(self._wanted))
        keys = np.zeros((len(self._wanted), network.hidden_size if key else 0), dtype=np.float32)

        def work(batch: list[_Input]) -> list[_Read]:
            rows = [(item.tokens, len(self._prompts[item.prompt].wanted)) for item in batch]
            ends = network.predict_ends(rows, padded_length(len(batch[0].tokens), network.context), key)
            return [self._keep(item, *end) for item, end in zip(batch, ends, strict=True)]

        batches, done = list(_batches(inputs)), 0
        for at in range(0, len(batches), network.cores):
            group = batches[at : at + network.cores]
            for batch, reads in zip(group, network.map_on_cores(work, group), strict=True):
                for item, read in zip(batch, reads, strict=True):
                    first, last = self._first_places[item.prompt : item.prompt + 2]
                    entries[self._starts[first] : self._starts[last]] += item.weight * read.entries
                    peaks[first:last] += item.weight * read.peaks
                    keys[first:last] = read.keys if key else 0
                done += len(batch)
            self._advance(stage, done, len(inputs))
        return LanguageModelPart(entries, peaks), keys

    def _keep(self, item: _Input, logs: Floats, keys: NDArray[np.float32]) -> _Read:
        """What is wanted of a whole distribution per place."""
        wanted = self._prompts[item.prompt].wanted
        entries = [row[tokens] for row, tokens in zip(logs, wanted, strict=True)]
        return _Read(np.exp(np.concatenate(entries)), np.exp(logs.max(axis=1)), keys)

    def _search(self, keys: NDArray[np.float32]) -> NeighbourPart:
        settings = self._predictor.settings
        entries = np.full((len(keys), settings.k), -1, dtype=np.int32)
        distances = np.full((len(keys), settings.k), np.inf, dtype=np.float32)
        kinds = np.zeros(len(keys), dtype=np.int64)
        for at in range(0, len(keys), _SEARCHED_AT_ONCE):
            part = slice(at, min(at + _SEARCHED_AT_ONCE, len(keys)))
            near = self._retriever.neighbours(keys[part], settings.k, settings.probes)
            found = near.distances.shape[1]
            distances[part, :found] = near.distances
            kinds[part] = near.kinds
            for place in range(part.start, part.stop):
                values = np.where(near.rows[place - at] >= 0, near.values[place - at], -1)
                entries[place, :found] = self._entries_of(place, values)
            self._advance("knn", part.stop, len(keys))
        return NeighbourPart(entries, distances, kinds)

    def _count(self) -> NgramPart:
        part = self._no_counts()
        for place, prefix in enumerate(self._prefixes()):
            for level in self._retriever.next_tokens([prefix])[0]:
                column = level_column(level.length)
                part.lengths[place], part.totals[place, column] = level.length, level.total
                part.kinds[place, column] = len(level.tokens)
                entries = self._entries_of(place, level.tokens)
                part.shares[entries[entries >= 0], column] = (level.counts / level.total)[entries >= 0]
            self._advance("ngram", place + 1, len(self._wanted))
        return part

    def _no_counts(self) -> NgramPart:
        places, levels = len(self._wanted), len(ORDERS) + 1
        return NgramPart(
            np.zeros(places, dtype=np.int64),
            np.zeros((places, levels), dtype=np.int64),
            np.zeros((places, levels), dtype=np.int64),
            np.zeros((self._starts[-1] if "ngram" in self._predictor.method else 0, levels), dtype=np.float32),
        )

    def _prefixes(self) -> Iterator[Tokens]:
        """The text before every place."""
        for prompt in self._prompts:
            whole = self._cut(prompt, len(prompt.tokens) + 1 + self._spare)
            for at in range(len(prompt.wanted)):
                yield whole[: len(whole) - len(prompt.wanted) + at + 1]

    def _entries_of(self, place: int, tokens: NDArray[Any]) -> NDArray[np.int64]:
        """Which entries of a place tokens are; -1 for those that are not wanted there."""
        order = self._orders[place]
        wanted = self._wanted[place][order]
        at = np.minimum(np.searchsorted(wanted, tokens), len(wanted) - 1)
        return np.where(wanted[at] == tokens, self._starts[place] + order[at], -1)


def _batches(inputs: Sequence[_Input]) -> Iterator[list[_Input]]:
    """Inputs of one padded length at a time, up to a number of tokens; long ones first."""
    by_length = sorted(inputs, key=lambda item: -item.padded)
    for padded, same in groupby(by_length, key=lambda item: item.padded):
        while group := list(islice(same, max(1, _BATCH_TOKENS // padded))):
            yield group
