"""What model and stores say about every token of a text that is there already: a few numbers for each.

One pass of the language model, one of the encoder where that is another model or another input, one over the suffixes.
Everything that scoring and tuning need is derived from these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silo.inference.context import InContext
from silo.inference.mix import Floats, component_weights, mixed, token_mass
from silo.inference.predict import Predictor
from silo.inference.retrieval import Retriever
from silo.inference.settings import ORDERS, Features, Settings
from silo.lm.reading import ReadingNetwork, Row, RowScores
from silo.lm.scoring import score_rows
from silo.lm.windows import Window, cover, padded_length
from silo.pairing import KeyEncoder
from silo.progress import Advance
from silo.search.ngram.index import Levels
from silo.store.view import Neighbours
from silo.text.tokenizer import Ids

Watch = Callable[[NDArray[np.int64], Neighbours], None]
"""Is shown the neighbours of some positions of the text."""


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Per token of a text: its probability under every component, and what was known before it."""

    lm: Floats
    knn: Floats
    levels: Levels
    features: Features

    def components(self, method: frozenset[str]) -> Floats:
        """The token's probability under LM, neighbours and levels, as far as the method has them."""
        columns = [self.lm[:, None]]
        if "knn" in method:
            columns.append(self.knn[:, None])
        if "ngram" in method:
            columns.append(self.levels.hits / np.maximum(self.levels.totals, 1))
        return np.concatenate(columns, axis=1)

    def weights(self, method: frozenset[str], settings: Settings) -> Floats:
        """The weight of every component at every token."""
        return component_weights(settings.gates(method, self.features))

    def probabilities(self, method: frozenset[str], settings: Settings) -> Floats:
        """The probability of every token under the mixture."""
        return mixed(self.weights(method, settings), self.components(method))


def observe(
    predictor: Predictor, ids: Ids, *, watch: Watch | None = None, advance: Advance = lambda *_: None
) -> Observations:
    """Read a text that begins with the beginning-of-text token; the first token has no prediction."""
    with predictor.reading() as retriever:
        text = ids.astype(np.int64)
        passes = _Passes(predictor, retriever, text, watch, advance)
        passes.run()
        levels, kinds = retriever.known_levels(text) if "ngram" in predictor.method else _no_levels(len(ids))
    features = Features(passes.peaks, passes.closest, passes.near_kinds, levels.lengths, levels.totals, kinds)
    return Observations(passes.lm, passes.knn, levels, features)


def _no_levels(tokens: int) -> tuple[Levels, NDArray[np.int64]]:
    zeros = np.zeros((tokens, len(ORDERS) + 1), dtype=np.int64)
    return Levels(np.zeros(tokens, dtype=np.int32), zeros, zeros), zeros


_Input = tuple[Window, InContext]
"""A window of the text, and what stands before it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Searched:
    """What a token search says of some positions; `neighbours` only for those who watch."""

    positions: NDArray[np.int64]
    mass: Floats
    closest: Floats
    kinds: NDArray[np.int64]
    neighbours: Neighbours | None


class _Passes:
    """The language model's pass and the search, which shares it where the model's own states are the keys."""

    def __init__(
        self,
        predictor: Predictor,
        retriever: Retriever,
        text: NDArray[np.int64],
        watch: Watch | None,
        advance: Advance,
    ) -> None:
        self._predictor, self._retriever, self._text = predictor, retriever, text
        self._watch, self._advance = watch, advance
        self.lm, self.peaks = np.zeros(len(text)), np.zeros(len(text))
        self.knn, self.closest = np.zeros(len(text)), np.full(len(text), np.inf)
        self.near_kinds = np.zeros(len(text), dtype=np.int64)

    def run(self) -> None:
        predictor, encoder = self._predictor, self._predictor.encoder
        shared = encoder is not None and encoder.opened.is_same(predictor.opened) and predictor.context is None
        self._read(predictor.network, list(self._inputs()), encoder if shared else None, "score")
        if encoder is not None and not shared:
            plain = [(window, InContext()) for window in encoder.windows.over(len(self._text))]
            self._read(encoder.opened.network, plain, encoder, "search", only_keys=True)

    def _inputs(self) -> Iterator[_Input]:
        provider = self._predictor.context
        if provider is None:
            yield from ((window, InContext()) for window in self._predictor.windows.over(len(self._text)))
            return
        for window in cover(len(self._text), provider.window_at):
            for item in provider.find(self._text, window, self._retriever):
                yield window, item

    def _read(
        self,
        network: ReadingNetwork,
        inputs: list[_Input],
        encoder: KeyEncoder | None,
        stage: str,
        *,
        only_keys: bool = False,
    ) -> None:
        """Read all inputs, one per core at a time, and search where there are keys."""
        key = encoder.key if encoder is not None else None
        longest = max((len(self._row(*item).tokens) for item in inputs), default=0)
        length = padded_length(longest, network.context)

        def work(item: _Input) -> tuple[RowScores, _Searched | None]:
            (read,) = score_rows(network, [self._row(*item)], length, key=key)
            peaks = self.peaks[item[0].targets] if only_keys else read.peaks
            return read, self._search(item[0], read, peaks, network.cores) if key else None

        count = network.cores
        for at in range(0, len(inputs), count):
            batch = inputs[at : at + count]
            for (window, item), (read, searched) in zip(batch, network.map_on_cores(work, batch), strict=True):
                if not only_keys:
                    self._add_language_model(window, item, read)
                if searched is not None:
                    self._add_neighbours(searched)
            self._advance(stage, at + len(batch), len(inputs))

    def _row(self, window: Window, before: InContext) -> Row:
        tokens = np.concatenate([before.tokens, self._text[window.start : window.until]])
        return Row(tokens, len(before.tokens) + window.targets.start - window.start)

    def _add_language_model(self, window: Window, before: InContext, read: RowScores) -> None:
        self.lm[window.targets] += before.weight * np.exp(read.logs)
        self.peaks[window.targets] += before.weight * read.peaks

    def _search(self, window: Window, read: RowScores, peaks: Floats, cores: int) -> _Searched | None:
        """The neighbours of the tokens of a window, as far as they are wanted."""
        settings = self._predictor.settings
        wanted = settings.asks_neighbours(peaks)
        positions = np.arange(len(self._text))[window.targets][wanted]
        if not len(positions):
            return None
        near = self._retriever.neighbours(read.keys[wanted], settings.k, settings.probes, threads=cores)
        mass = token_mass(near.values, near.distances, settings.tau, self._text[positions])
        return _Searched(positions, mass, near.closest, near.kinds, near if self._watch is not None else None)

    def _add_neighbours(self, searched: _Searched) -> None:
        self.knn[searched.positions] = searched.mass
        self.closest[searched.positions] = searched.closest
        self.near_kinds[searched.positions] = searched.kinds
        if self._watch is not None and searched.neighbours is not None:
            self._watch(searched.positions, searched.neighbours)
