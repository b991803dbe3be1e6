"""A model and any number of stores, opened together: what they say comes next, and what that is made of."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.inference.asking.asks import Ask, answer_together
from silo.inference.context import ContextProvider, InContext, RicContext
from silo.inference.guard import Guard
from silo.inference.mix import Floats, add_counts, add_neighbours, component_weights, neighbour_weights
from silo.inference.retrieval import NearestSearch, NgramLevel, Retriever, Search, reading
from silo.inference.settings import METHODS, ORDERS, Features, Settings, level_column, level_weight, parse_method
from silo.lm.engine.decoder import Decoder, DecoderOutput, DecodingModel, MakeDraft, Reading
from silo.lm.engine.weights import Storage
from silo.lm.windows import Windows
from silo.pairing import KeyEncoder, find_key_encoder, locate_key_encoder, open_store, require_fit
from silo.store.policy import EVERYTHING, Policy
from silo.store.store import Store
from silo.store.view import Neighbours
from silo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from silo.lm.model import LanguageModel


_LEAST_MATCH = 4
"""Tokens of a match that is followed further."""

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The distribution of the next token after `prefix`, and its components: LM, neighbours, levels short to long.

    `weights` has one entry for each component that the method has, also those that found nothing; `level_weights` are
    those of `levels`. `context` is what the LM had before the text.
    """

    prefix: NDArray[np.int64]
    probabilities: Floats
    lm: Floats
    weights: Floats
    neighbours: Neighbours | None
    neighbour_weights: Floats | None
    levels: tuple[NgramLevel, ...]
    level_weights: tuple[float, ...]
    context: tuple[InContext, ...]


class Predictor:
    """What `silo score`, `silo generate` and the server ask. `method` says which searches take part.

    `context` puts passages before the text, None where the method has no `ric`.
    """

    def __init__(
        self,
        model: LanguageModel | DecodingModel,
        stores: Sequence[Store],
        *,
        method: frozenset[str],
        settings: Settings,
        policy: Policy,
        encoder: KeyEncoder | None,
        context: ContextProvider | None,
    ) -> None:
        self.opened = DecodingModel.of(model)
        self.stores = tuple(stores)
        self.method = method
        self.settings = settings
        self.policy = policy
        self.encoder = encoder
        self.windows = Windows().within(model.context)
        self.context = context
        self.drafting = True
        """Read on along the longest match of a store, where that saves time; what is written does not change."""

    @property
    def model(self) -> LanguageModel:
        """The network, for passes over whole texts; loaded if it is not yet."""
        return self.opened.language_model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.opened.tokenizer

    @contextmanager
    def reading(self) -> Iterator[Retriever]:
        """The stores as they are now."""
        with reading(self.stores, self.policy) as retriever:
            yield retriever

    def reader(self) -> Reader:
        """For one text that grows token by token."""
        return Reader(self)

    def with_options(
        self, method: frozenset[str], settings: Settings, policy: Policy, stores: Sequence[Store] | None = None
    ) -> Predictor:
        """The same model and stores, or some of these, asked otherwise; a search that none offers is refused."""
        chosen = self.stores if stores is None else tuple(stores)
        if missing := sorted(method - offered_methods(chosen)):
            raise SiloError("search-missing", f"no store offers what the method {missing[0]} searches")
        ric = RicContext(self.opened.context, settings.ric, self.tokenizer) if "ric" in method else None
        encoder = self.encoder if "knn" in method else None
        return Predictor(
            self.opened, chosen, method=method, settings=settings, policy=policy, encoder=encoder, context=ric
        )

    def with_context(self, context: ContextProvider) -> Predictor:
        """The same, with something else before the text than the paper's passages."""
        changed = self.with_options(self.method, self.settings, self.policy)
        changed.context = context
        return changed


def offered_methods(stores: Sequence[Store]) -> frozenset[str]:
    """The methods for which at least one of some stores has the search."""
    offered = {search for store in stores for search in store.config.searches}
    return frozenset(method for method in METHODS if {"ric": "bm25"}.get(method, method) in offered)


def open_predictor(
    model: str | Path,
    stores: Sequence[str | Path] = (),
    *,
    method: str | None = None,
    settings: Settings | Callable[[frozenset[str]], Settings] | None = None,
    policy: Policy = EVERYTHING,
    encoder: str | Path | None = None,
    context: Callable[[DecodingModel], ContextProvider] | None = None,
    guard: int | None = None,
    threads: int | None = None,
    verify: bool = False,
    storage: Storage = "auto",
) -> Predictor:
    """Open a model directory and store directories; without a method, kNN and n-gram as far as the stores offer them.

    `settings` may be a function of the method; `context` makes another provider for `ric` than the paper's; `guard` is
    what the stores must be fit for; `threads`, `verify` and `storage` are as for `DecodingModel.open`. What is wrong
    with any of that is said before the network is loaded.
    """
    open_stores = [open_store(Path(path)) for path in stores]
    require_fit(Path(model), open_stores)
    wanted = parse_method(method) if method else offered_methods(open_stores) & {"knn", "ngram"}
    if wanted and not open_stores:
        raise SiloError("usage", f"the method {'+'.join(sorted(wanted))} needs a store", "give one with --store")
    chosen = settings(wanted) if callable(settings) else settings or Settings()
    if guard is not None:
        Guard(guard).check(open_stores)
    if "knn" in wanted:
        locate_key_encoder(Path(model), open_stores, encoder)
    opened = DecodingModel.open(Path(model), threads=threads, verify=verify, storage=storage)
    provider: ContextProvider | None = None
    if "ric" in wanted:
        ric = RicContext(opened.context, chosen.ric, opened.tokenizer)
        provider = context(opened) if context else ric
    return Predictor(
        opened,
        open_stores,
        method=wanted,
        settings=chosen,
        policy=policy,
        encoder=find_key_encoder(opened, open_stores, encoder) if "knn" in wanted else None,
        context=provider,
    )


class Reader:
    """Predicts the next token of a text that grows; the stores are asked anew at every token."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._decoders: list[Decoder] = []
        self._last_context: tuple[Any, list[InContext]] = (None, [])
        self._last_levels: tuple[Any, tuple[NgramLevel, ...]] = (None, ())
        encoder = predictor.encoder
        self._separate = encoder is not None and (
            predictor.context is not None or not predictor.opened.is_same(encoder.opened)
        )

    @cached_property
    def _key_decoder(self) -> Decoder:
        encoder = self._predictor.encoder
        assert encoder is not None
        return encoder.opened.decoder(encoder.key)

    def predict(self, ids: NDArray[np.integer[Any]], retriever: Retriever | None) -> Prediction:
        """The distribution after a text, which begins with the beginning-of-text token."""
        asking, answer = self.predicting(ids, retriever), None
        try:
            while True:
                answer = answer_together([asking.send(answer)])[0]
        except StopIteration as end:
            found: Prediction = end.value
            return found

    def use_next(
        self, ids: NDArray[np.integer[Any]], use: Callable[[Prediction, Retriever | None], Made], *, asks_stores: bool
    ) -> Generator[Ask, Any, Made]:
        """What `use` makes of the prediction after a text and the stores as they are now.

        Where a long text was read in part only, they are let go of and asked anew.
        """
        while True:
            with self._predictor.reading() if asks_stores else nullcontext() as retriever:
                prediction = yield from self.predicting(ids, retriever)
                if prediction is not None:
                    return use(prediction, retriever)

    def predicting(
        self, ids: NDArray[np.integer[Any]], retriever: Retriever | None
    ) -> Generator[Ask, Any, Prediction | None]:
        """As `predict`, by asks; None where one was not answered."""
        predictor, settings = self._predictor, self._predictor.settings
        prefix = np.asarray(ids, dtype=np.int64)
        levels: tuple[NgramLevel, ...] = ()
        if retriever is not None and "ngram" in predictor.method:
            levels = yield from self._levels(prefix, retriever)
        context, texts = yield from self._texts(prefix, retriever)
        draft = self._draft_after(prefix, levels, retriever)
        outputs: list[DecoderOutput] | None = yield Reading(self._decoders[: len(texts)], texts, draft)
        if outputs is None:
            return None
        shares = [item.weight for item in context]
        lm = outputs[0].probabilities if len(outputs) == 1 else _average(outputs, shares)
        peak = sum(share * output.peak for share, output in zip(shares, outputs, strict=True))
        if retriever is None or not predictor.method & {"knn", "ngram"}:
            return Prediction(prefix, lm, lm, np.ones(1), None, None, (), (), tuple(context))
        neighbours: Neighbours | None = None
        if "knn" in predictor.method and settings.asks_neighbours(peak):
            at_end = (yield self._key_reading(prefix)) if self._separate else outputs
            if at_end is None:
                return None
            neighbours = yield NearestSearch(retriever, at_end[0].key[None], settings.k, settings.probes)
        weights = component_weights(settings.gates(predictor.method, _features(peak, neighbours, levels)))[0]
        mixed = lm * weights[0]
        near: Floats | None = None
        if neighbours is not None:
            near = neighbour_weights(neighbours.distances, settings.tau)
            add_neighbours(mixed, neighbours.values[0], neighbours.rows[0], near[0], weights[1])
        level_weights = tuple(level_weight(weights, level.length) for level in levels)
        for level, weight in zip(levels, level_weights, strict=True):
            add_counts(mixed, level.tokens, level.counts, level.total, weight)
        return Prediction(prefix, mixed, lm, weights, neighbours, near, levels, level_weights, tuple(context))

    def _levels(self, prefix: NDArray[np.int64], retriever: Retriever) -> Generator[Ask, Any, tuple[NgramLevel, ...]]:
        """What follows matches of the text; known already where it was read in part only when it was last asked for."""
        mark = (prefix.tobytes(), retriever.content)
        if self._last_levels[0] != mark:
            found = yield Search(partial(retriever.next_tokens, prefix))
            self._last_levels = (mark, tuple(found))
        return self._last_levels[1]

    def _texts(
        self, prefix: NDArray[np.int64], retriever: Retriever | None
    ) -> Generator[Ask, Any, tuple[list[InContext], list[NDArray[np.int64]]]]:
        """What is put before the text, and for each such thing the text that the network reads; a decoder for each."""
        predictor = self._predictor
        if predictor.context is None or retriever is None:
            context, start = [InContext()], predictor.windows.at(len(prefix)).start
        else:
            window = predictor.context.window_at(len(prefix))
            mark = (window.first, prefix[: window.first].tobytes(), retriever.content)
            if self._last_context[0] != mark:
                found = yield Search(partial(predictor.context.find, prefix, window, retriever))
                self._last_context = (mark, found)
            context, start = self._last_context[1], window.start
        key = predictor.encoder.key if predictor.encoder and not self._separate else "final"
        while len(self._decoders) < len(context):
            self._decoders.append(predictor.opened.decoder(key))
        return context, [np.concatenate([item.tokens, prefix[start:]]) for item in context]

    def _draft_after(
        self, prefix: NDArray[np.int64], levels: Sequence[NgramLevel], retriever: Retriever | None
    ) -> MakeDraft | None:
        """What follows the longest match, as a guess of what will be written; a short match is no reason for one."""
        if not self._predictor.drafting or retriever is None or not levels or levels[-1].length < _LEAST_MATCH:
            return None
        return partial(retriever.continue_match, prefix)

    def _key_reading(self, prefix: NDArray[np.int64]) -> Reading:
        """Asks for the key of this place, from the text alone."""
        assert self._predictor.encoder is not None
        window = self._predictor.encoder.windows.at(len(prefix))
        return Reading([self._key_decoder], [prefix[window.start :]])


def _average(outputs: Sequence[DecoderOutput], shares: Sequence[float]) -> Floats:
    mean: Floats = np.average([output.probabilities for output in outputs], axis=0, weights=shares)
    return mean


def _features(peak: float, neighbours: Neighbours | None, levels: Sequence[NgramLevel]) -> Features:
    """Of one position."""
    totals = np.zeros((1, len(ORDERS) + 1), dtype=np.int64)
    for level in levels:
        totals[0, level_column(level.length)] = level.total
    longest = max((level.length for level in levels), default=0)
    closest = neighbours.closest if neighbours is not None else np.array([np.inf])
    return Features(np.array([peak]), closest, np.array([longest]), totals)
