"""What model and stores say about every token of a text that is there already: a few numbers for each.

One pass of the language model, one of the encoder where that is another model or another input, one over the suffixes.
Everything that scoring and tuning need is derived from these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silo.inference.context import Lead
from silo.inference.mix import Floats, component_weights, token_mass
from silo.inference.predict import Predictor
from silo.inference.retrieval import Nearest, Sources
from silo.inference.settings import ORDERS, Seen, Settings
from silo.lm.manifest import Key
from silo.lm.model import LanguageModel
from silo.lm.parallel import core_count, map_on_cores
from silo.lm.scoring import Row, RowScores, score_rows
from silo.lm.windows import Window
from silo.progress import Advance
from silo.search.ngram.index import Levels
from silo.text.tokenizer import Ids

_STEP = 64
"""Inputs are padded to a multiple of this, as keys are when a store is filled: the same bits in any batch."""

Watch = Callable[[NDArray[np.int64], Nearest], None]
"""Is shown the neighbours of some positions of the text."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Per token of a text: its probability under every component, and what was known before it."""

    lm: Floats
    knn: Floats
    levels: Levels
    seen: Seen

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
        return component_weights(settings.gates(method, self.seen))


def gather(
    predictor: Predictor, ids: Ids, *, watch: Watch | None = None, advance: Advance = lambda *_: None
) -> Evidence:
    """Read a text that begins with the beginning-of-text token; the first token has no prediction."""
    with predictor.reading() as sources:
        text = ids.astype(np.int64)
        passes = _Passes(predictor, sources, text, watch, advance)
        passes.run()
        levels = sources.levels(text) if "ngram" in predictor.method else _no_levels(len(ids))
    seen = Seen(passes.peaks, passes.nearest, levels.lengths, levels.totals)
    return Evidence(passes.lm, passes.knn, levels, seen)


def _no_levels(tokens: int) -> Levels:
    nothing = np.zeros((tokens, len(ORDERS) + 1), dtype=np.int64)
    return Levels(np.zeros(tokens, dtype=np.int32), nothing, nothing)


_Input = tuple[Window, Lead]
"""A window of the text, and what stands before it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What a search says of some positions; `near` only for those who watch."""

    where: NDArray[np.int64]
    mass: Floats
    closest: Floats
    near: Nearest | None


class _Passes:
    """The language model's pass and the search, which shares it where the model's own states are the keys."""

    def __init__(
        self,
        predictor: Predictor,
        sources: Sources,
        text: NDArray[np.int64],
        watch: Watch | None,
        advance: Advance,
    ) -> None:
        self._predictor, self._sources, self._text = predictor, sources, text
        self._watch, self._advance = watch, advance
        self.lm, self.peaks = np.zeros(len(text)), np.zeros(len(text))
        self.knn, self.nearest = np.zeros(len(text)), np.full(len(text), np.inf)

    def run(self) -> None:
        predictor, encoder = self._predictor, self._predictor.encoder
        shared = encoder is not None and encoder.model is predictor.model and predictor.leads is None
        key = encoder.key if encoder is not None and shared else None
        self._read(predictor.model, list(self._inputs()), key, "score")
        if encoder is not None and not shared:
            plain = [(frame, Lead()) for frame in encoder.windows.over(len(self._text))]
            self._read(encoder.model, plain, encoder.key, "search", only_keys=True)

    def _inputs(self) -> Iterator[_Input]:
        leads = self._predictor.leads
        windows = leads.windows if leads else self._predictor.windows
        tokens = len(self._text)
        for frame in windows.segments_over(tokens) if leads else windows.over(tokens):
            for lead in leads.find(self._text, frame, self._sources) if leads else [Lead()]:
                yield frame, lead

    def _read(
        self, model: LanguageModel, inputs: list[_Input], key: Key | None, stage: str, *, only_keys: bool = False
    ) -> None:
        """Read all inputs, one per core at a time, and search where there are keys."""
        longest = max((len(self._row(*item).tokens) for item in inputs), default=0)
        length = min(-(-longest // _STEP) * _STEP, model.context)

        def work(item: _Input) -> tuple[RowScores, _Found | None]:
            (read,) = score_rows(model, [self._row(*item)], length, key=key)
            peaks = self.peaks[item[0].targets] if only_keys else read.peaks
            return read, self._search(item[0], read, peaks) if key else None

        count = core_count()
        for at in range(0, len(inputs), count):
            some = inputs[at : at + count]
            for (frame, lead), (read, found) in zip(some, map_on_cores(work, some), strict=True):
                if not only_keys:
                    self._take(frame, lead, read)
                if found is not None:
                    self._note(found)
            self._advance(stage, at + len(some), len(inputs))

    def _row(self, frame: Window, lead: Lead) -> Row:
        tokens = np.concatenate([lead.tokens, self._text[frame.start : frame.until]])
        return Row(tokens, len(lead.tokens) + frame.targets.start - frame.start)

    def _take(self, frame: Window, lead: Lead, read: RowScores) -> None:
        span = frame.targets
        self.lm[span] += lead.weight * np.exp(read.logs)
        self.peaks[span] += lead.weight * read.peaks

    def _search(self, frame: Window, read: RowScores, peaks: Floats) -> _Found | None:
        """The neighbours of the tokens of a frame, as far as they are wanted."""
        settings = self._predictor.settings
        wanted = settings.asks_neighbours(peaks)
        where = np.arange(len(self._text))[frame.targets][wanted]
        if not len(where):
            return None
        near = self._sources.nearest(read.keys[wanted], settings.k, settings.probes, threads=core_count())
        mass = token_mass(near.values, near.distances, settings.tau, self._text[where])
        return _Found(where, mass, near.closest, near if self._watch is not None else None)

    def _note(self, found: _Found) -> None:
        self.knn[found.where] = found.mass
        self.nearest[found.where] = found.closest
        if self._watch is not None and found.near is not None:
            self._watch(found.where, found.near)
