"""A model and any number of stores, opened together: what they say comes next, and what that is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.inference.context import ContextProvider, InContext, RicContext
from silo.inference.guard import Guard
from silo.inference.mix import Floats, add_counts, add_neighbours, component_weights, neighbour_weights
from silo.inference.retrieval import Ints, NgramLevel, Retriever, reading
from silo.inference.settings import METHODS, ORDERS, SPREAD_SHARE, Features, Settings, parse_method
from silo.lm.engine.decoder import Decoder, DecoderOutput, DecodingModel, MakeDraft, Reading, read_together
from silo.lm.engine.weights import Storage
from silo.lm.windows import Windows
from silo.pairing import KeyEncoder, find_key_encoder, locate_key_encoder, open_store, require_fit
from silo.store.policy import EVERYTHING, Policy
from silo.store.store import Store
from silo.store.view import Neighbours
from silo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from silo.lm.model import LanguageModel
    from silo.lm.reading import ReadingNetwork


_LEAST_MATCH = 4
"""Tokens of a match that is followed further."""

NoteTime = Callable[[str, float], None]
"""Is told how many seconds something took."""
_ORDERS = np.array(ORDERS)
_NO_CONTEXT = [InContext()]
_NOTHING = np.empty(0, dtype=np.int64)
_NO_ROWS = np.empty((0, 1), dtype=np.int64)
_NO_NEIGHBOURS = Neighbours(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS, np.empty((0, 1), dtype=np.float32), ())


@dataclass(frozen=True, slots=True, eq=False)
class Near:
    """The neighbours of some texts [searched, k], their shares of P_kNN, and the weight of that [searched].

    `texts` says which text each row is of, `places` which row is a text's: -1 where none were looked for.
    """

    found: Neighbours
    texts: Ints
    places: Ints
    shares: Floats
    weights: Floats


@dataclass(frozen=True, slots=True, eq=False)
class LevelTable:
    """The levels of some texts in a row, those of a text short to long: whose each is, and what it weighs."""

    texts: Ints
    lengths: Ints
    totals: Ints
    weights: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """The distributions of the next tokens after some prefixes [texts, vocabulary], and their components.

    All of them under one policy, method and settings. `lm` is what the language model says, `contexts` what it had
    before each text.
    """

    prefixes: Sequence[Ints]
    probabilities: Floats
    lm: Sequence[Floats]
    near: Near
    levels: LevelTable
    contexts: Sequence[Sequence[InContext]]


class Prediction(NamedTuple):
    """The prediction of one text among others."""

    every: Predictions
    text: int

    @property
    def prefix(self) -> Ints:
        return self.every.prefixes[self.text]

    @property
    def probabilities(self) -> Floats:
        row: Floats = self.every.probabilities[self.text]
        return row

    @property
    def lm(self) -> Floats:
        return self.every.lm[self.text]

    @property
    def neighbours(self) -> Neighbours | None:
        """The neighbours of the text alone; None where none were looked for."""
        place = int(self.every.near.places[self.text])
        return self.every.near.found.of_key(place) if place >= 0 else None

    @property
    def neighbour_shares(self) -> Floats:
        """Their shares of P_kNN."""
        shares: Floats = self.every.near.shares[self.every.near.places[self.text]]
        return shares


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
    def settings(self) -> Settings:
        """How stores are read and mixed; a tau that was left open is that of their codec."""
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._settings = self.with_tau(settings)

    def with_tau(self, settings: Settings) -> Settings:
        """Settings whose tau, where it was left open, is that of the stores' codec."""
        is_open = "knn" in self.method and not settings.tau
        return replace(settings, tau=_usual_tau(self.stores)) if is_open else settings

    @property
    def network(self) -> ReadingNetwork:
        """For passes over whole texts."""
        return self.opened.network

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


def _usual_tau(stores: Sequence[Store]) -> float:
    """A tau that suits the distances between keys of the stores, which have one codec."""
    codec = next(store.codec for store in stores if store.codec is not None)
    return SPREAD_SHARE * codec.spread


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
    """Reads a text that grows; the stores are asked anew at every token."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self._decoders: list[Decoder] = []
        self._last_context: tuple[Any, list[InContext]] = (None, [])
        encoder = predictor.encoder
        self.has_other_keys = encoder is not None and (
            predictor.context is not None or not predictor.opened.is_same(encoder.opened)
        )
        """Keys are those of another network, or of the text without what is put before it."""
        self.kind = (id(predictor.opened), predictor.method, predictor.settings.mark)
        """Equal for texts whose predictions are made in the same way."""

    @cached_property
    def _key_decoder(self) -> Decoder:
        encoder = self.predictor.encoder
        assert encoder is not None
        return encoder.opened.decoder(encoder.key)

    def predict(self, ids: NDArray[np.integer[Any]], retriever: Retriever | None) -> Prediction:
        """The distribution after a text, which begins with the beginning-of-text token."""
        (found,) = predict_together([Place(self, np.asarray(ids, dtype=np.int64), retriever)])
        assert found is not None
        return found

    def find_context(self, place: Place) -> tuple[list[InContext], int]:
        """What is put before the text, and where in the text the network begins to read."""
        provider, prefix, retriever = self.predictor.context, place.ids, place.retriever
        if provider is None or retriever is None:
            return _NO_CONTEXT, self.predictor.windows.at(len(prefix)).start
        window = provider.window_at(len(prefix))
        mark = (window.first, prefix[: window.first].tobytes(), retriever.content)
        if self._last_context[0] != mark:
            self._last_context = (mark, provider.find(prefix, window, retriever))
        return self._last_context[1], window.start

    def reading(self, place: Place, context: Sequence[InContext], start: int) -> Reading:
        """Asks what comes after the text, with each of these things before it; a decoder for each."""
        predictor, prefix, retriever = self.predictor, place.ids, place.retriever
        key = predictor.encoder.key if predictor.encoder and not self.has_other_keys else "final"
        while len(self._decoders) < len(context):
            self._decoders.append(predictor.opened.decoder(key))
        texts = [
            np.concatenate([item.tokens, prefix[start:]]) if len(item.tokens) else prefix[start:] for item in context
        ]
        draft: MakeDraft | None = None
        if predictor.drafting and retriever is not None and "ngram" in predictor.method:
            draft = partial(retriever.continue_match, prefix, least=_LEAST_MATCH)
        return Reading(self._decoders[: len(texts)], texts, draft, place.ahead)

    def key_reading(self, prefix: Ints) -> Reading:
        """Asks for the key of this place, from the text alone."""
        assert self.predictor.encoder is not None
        window = self.predictor.encoder.windows.at(len(prefix))
        return Reading([self._key_decoder], [prefix[window.start :]])


class Place(NamedTuple):
    """A text, what reads it, and the stores as they are now, None where they have no say: what comes next?

    `ahead` is what the text goes on with, where that is known: it will be asked about next.
    """

    reader: Reader
    ids: Ints
    retriever: Retriever | None
    ahead: Ints = _NOTHING

    def asks(self, method: str) -> bool:
        """Do the stores have a say by this method?"""
        return self.retriever is not None and method in self.reader.predictor.method


def predict_together(
    places: Sequence[Place], *, spare: int | None = None, threads: int = 0, note_time: NoteTime = lambda *_: None
) -> list[Prediction | None]:
    """What comes next at every place, which is what each would be told alone; None where a text was read in part only.

    The network reads all texts in one pass, and what the stores are asked in the same way they are asked at once.
    `spare` and `threads` are as for `read_together`. Told are the times of "search" and "network".
    """
    begun = perf_counter()
    contexts = [place.reader.find_context(place) for place in places]
    found_context = perf_counter()
    read = _read(places, contexts, spare, threads)
    was_read = perf_counter()
    groups: dict[tuple[Any, ...], list[int]] = {}
    for at, item in enumerate(read):
        if item is not None:
            groups.setdefault((id(item.place.retriever), item.place.reader.kind), []).append(at)
    alike = [[item for at in group if (item := read[at]) is not None] for group in groups.values()]
    searched = [_search(group, threads) for group in alike]
    note_time("network", was_read - found_context)
    note_time("search", perf_counter() - was_read + found_context - begun)
    predictions: list[Prediction | None] = [None] * len(places)
    for group, items, found in zip(groups.values(), alike, searched, strict=True):
        every = _mix(items, *found)
        for text, at in enumerate(group):
            predictions[at] = Prediction(every, text)
    return predictions


class _Read(NamedTuple):
    """What the language model says at a place; the key of it where neighbours are to be looked for."""

    place: Place
    context: Sequence[InContext]
    lm: Floats
    peak: float
    key: NDArray[np.float32] | None


def _read(
    places: Sequence[Place], contexts: Sequence[tuple[list[InContext], int]], spare: int | None, threads: int
) -> list[_Read | None]:
    """One pass of the network over all texts, and one for keys that are not the same network's."""
    readings = [place.reader.reading(place, *context) for place, context in zip(places, contexts, strict=True)]
    outputs = read_together(readings, spare=spare, threads=threads)
    peaks = [_peak(context, output) for (context, _), output in zip(contexts, outputs, strict=True)]
    keys: dict[int, NDArray[np.float32]] = {}
    others: dict[int, Reading] = {}
    for at, (place, output, peak) in enumerate(zip(places, outputs, peaks, strict=True)):
        if output is not None and place.asks("knn") and place.reader.predictor.settings.asks_neighbours(peak):
            if place.reader.has_other_keys:
                others[at] = place.reader.key_reading(place.ids)
            else:
                keys[at] = output[0].key
    read_others = read_together(list(others.values()), spare=spare, threads=threads)
    for at, output in zip(others, read_others, strict=True):
        if output is None:
            outputs[at] = None
        else:
            keys[at] = output[0].key
    return [
        None if output is None else _Read(place, context, _average(output, context), peak, keys.get(at))
        for at, (place, (context, _), output, peak) in enumerate(zip(places, contexts, outputs, peaks, strict=True))
    ]


def _peak(context: Sequence[InContext], outputs: Sequence[DecoderOutput] | None) -> float:
    """The mean of what the likeliest token has after each of what stands before the text."""
    if outputs is None:
        return 0.0
    return sum(item.weight * output.peak for item, output in zip(context, outputs, strict=True))


def _average(outputs: Sequence[DecoderOutput], context: Sequence[InContext]) -> Floats:
    if len(outputs) == 1:
        return outputs[0].probabilities
    shares = [item.weight for item in context]
    mean: Floats = np.average([output.probabilities for output in outputs], axis=0, weights=shares)
    return mean


def _search(items: Sequence[_Read], threads: int) -> tuple[list[list[NgramLevel]], Neighbours]:
    """What follows the last tokens of each text, and the neighbours of those that have a key."""
    place, settings = items[0].place, items[0].place.reader.predictor.settings
    levels: list[list[NgramLevel]] = [[] for _ in items]
    neighbours = _NO_NEIGHBOURS
    if place.retriever is not None:
        if "ngram" in place.reader.predictor.method:
            levels = place.retriever.next_tokens([item.place.ids for item in items])
        keys = [item.key for item in items if item.key is not None]
        if keys:
            neighbours = place.retriever.neighbours(np.stack(keys), settings.k, settings.probes, threads=threads)
    return levels, neighbours


def _mix(items: Sequence[_Read], levels: Sequence[Sequence[NgramLevel]], found: Neighbours) -> Predictions:
    """The formula, for texts that are asked about in the same way."""
    place, predictor = items[0].place, items[0].place.reader.predictor
    prefixes, lm, contexts = zip(*((item.place.ids, item.lm, item.context) for item in items), strict=True)
    searched = [text for text, item in enumerate(items) if item.key is not None]
    texts, places = np.array(searched, dtype=np.int64), np.full(len(items), -1, dtype=np.int64)
    places[texts] = range(len(searched))
    shares = neighbour_weights(found.distances, predictor.settings.tau)
    flat = [level for of_text in levels for level in of_text]
    whose = np.array([text for text, of_text in enumerate(levels) for _ in of_text], dtype=np.int64)
    lengths = np.array([level.length for level in flat], dtype=np.int64)
    totals = np.array([level.total for level in flat], dtype=np.int64)
    if place.retriever is None or not predictor.method & {"knn", "ngram"}:
        table = LevelTable(whose, lengths, totals, np.empty(0))
        return Predictions(prefixes, np.stack(lm), lm, Near(found, texts, places, shares, np.empty(0)), table, contexts)
    columns = np.searchsorted(_ORDERS, lengths)  # those of longer matches than any order share the last one
    by_level, kinds = np.zeros((2, len(items), len(ORDERS) + 1), dtype=np.int64)
    by_level[whose, columns], kinds[whose, columns] = totals, [len(level.tokens) for level in flat]
    longest = np.array([of_text[-1].length if of_text else 0 for of_text in levels], dtype=np.int64)
    closest, near_kinds = np.full(len(items), np.inf), np.zeros(len(items), dtype=np.int64)
    closest[texts], near_kinds[texts] = found.closest, found.kinds
    features = Features(np.array([item.peak for item in items]), closest, near_kinds, longest, by_level, kinds)
    weights = component_weights(predictor.settings.gates(predictor.method, features))
    mixed = np.empty((len(items), len(lm[0])))
    for row, probabilities in enumerate(lm):
        np.multiply(probabilities, weights[row, 0], out=mixed[row])
    near = Near(found, texts, places, shares, weights[texts, min(1, weights.shape[1] - 1)])
    add_neighbours(mixed, texts, found.values, found.rows, shares, near.weights)
    table = LevelTable(whose, lengths, totals, weights[whose, columns + weights.shape[1] - len(ORDERS) - 1])
    if flat:
        ends = np.array([*accumulate(len(level.tokens) for level in flat)], dtype=np.int64)
        tokens, counts = (np.concatenate(column) for column in zip(*(level[1:3] for level in flat), strict=True))
        add_counts(mixed, whose, ends, tokens, counts, totals, table.weights)
    return Predictions(prefixes, mixed, lm, near, table, contexts)
