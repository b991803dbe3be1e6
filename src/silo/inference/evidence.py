"""What model and stores say about every token of a text that is there already: a few numbers for each.

One pass of the language model, one of the encoder where that is another model or another input, one over the suffixes.
Everything that scoring and tuning need is derived from these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silo.corpus.tokens import Ids
from silo.corpus.units import Advance
from silo.datastore.suffixes import Levels
from silo.inference.frames import Frame, frames
from silo.inference.leads import Lead
from silo.inference.mix import Floats, component_weights, neighbour_weights, token_mass
from silo.inference.predictor import Predictor
from silo.inference.settings import ORDERS, Seen, Settings
from silo.inference.sources import Nearest, Sources
from silo.lm.model import Key, LanguageModel
from silo.lm.scoring import Read, Row, read_rows

_BATCH_ROWS = 2
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
        for spans, reads in self._batches(predictor.model, list(self._inputs()), key, "score"):
            self._take(spans, reads)
            if shared:
                self._search(spans, reads)
        if encoder is not None and not shared:
            plain = [(frame, [Lead()]) for frame in frames(len(self._text), encoder.windows)]
            for spans, reads in self._batches(encoder.model, plain, encoder.key, "search"):
                self._search(spans, reads)

    def _inputs(self) -> Iterator[tuple[Frame, list[Lead]]]:
        leads = self._predictor.leads
        windows = leads.windows if leads else self._predictor.windows
        for frame in frames(len(self._text), windows, segments=leads is not None):
            yield frame, leads.find(self._text, frame, self._sources) if leads else [Lead()]

    def _batches(
        self, model: LanguageModel, inputs: list[tuple[Frame, list[Lead]]], key: Key | None, stage: str
    ) -> Iterator[tuple[list[tuple[Frame, Lead]], list[Read]]]:
        flat = [(frame, lead) for frame, leads in inputs for lead in leads]
        longest = max((len(self._row(frame, lead).tokens) for frame, lead in flat), default=0)
        length = -(-longest // _STEP) * _STEP
        for at in range(0, len(flat), _BATCH_ROWS):
            group = flat[at : at + _BATCH_ROWS]
            rows = [self._row(frame, lead) for frame, lead in group]
            yield group, read_rows(model, rows, length, key=key)
            self._advance(stage, at + len(group), len(flat))

    def _row(self, frame: Frame, lead: Lead) -> Row:
        until = min(frame.until, len(self._text))
        tokens = np.concatenate([lead.tokens, self._text[frame.start : until]])
        return Row(tokens, len(lead.tokens) + max(frame.first, 1) - frame.start)

    def _take(self, spans: list[tuple[Frame, Lead]], reads: list[Read]) -> None:
        for (frame, lead), read in zip(spans, reads, strict=True):
            span = self._span(frame)
            self.lm[span] += lead.weight * np.exp(read.logs)
            self.peaks[span] += lead.weight * read.peaks

    def _span(self, frame: Frame) -> slice:
        return slice(max(frame.first, 1), min(frame.until, len(self._text)))

    def _search(self, spans: list[tuple[Frame, Lead]], reads: list[Read]) -> None:
        settings = self._predictor.settings
        where = np.concatenate([np.arange(len(self._text))[self._span(frame)] for frame, _ in spans])
        keys = np.concatenate([read.keys for read in reads])
        wanted = self.peaks[where] < settings.skip
        where, keys = where[wanted], keys[wanted]
        if not len(where):
            return
        found = self._sources.nearest(keys, settings.k, settings.probes)
        self.knn[where] = token_mass(found.values, neighbour_weights(found.distances, settings.tau), self._text[where])
        self.nearest[where] = found.closest
        if self._watch is not None:
            self._watch(where, found)
