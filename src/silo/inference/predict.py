"""A model and any number of stores, opened together: what they say comes next, and what that is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.inference.context import Lead, LeadFinder
from silo.inference.mix import Floats, add_component, component_weights, neighbour_weights
from silo.inference.retrieval import Followers, Nearest, Sources, reading
from silo.inference.settings import ORDERS, Seen, Settings, level_column, level_weight, parse_method
from silo.lm.decoder import Decoder, DecoderOutput
from silo.lm.encode import DocumentEncoder
from silo.lm.manifest import Key, codec_key
from silo.lm.model import LanguageModel
from silo.lm.windows import Windows
from silo.pairing import model_of, open_store
from silo.store.policy import EVERYTHING, Policy
from silo.store.store import Store
from silo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The distribution of the next token after `prefix`, and its components: LM, neighbours, levels short to long.

    `weights` has one entry for each component that the method has, also those that found nothing; `level_weights` are
    those of `levels`. `leads` are the passages the LM had before the text.
    """

    prefix: NDArray[np.int64]
    probabilities: Floats
    lm: Floats
    weights: Floats
    nearest: Nearest | None
    neighbour_weights: Floats | None
    levels: tuple[Followers, ...]
    level_weights: tuple[float, ...]
    leads: tuple[Lead, ...]


class Predictor:
    """What `silo score`, `silo generate` and the server ask. `method` says which searches take part."""

    def __init__(
        self,
        model: LanguageModel,
        stores: Sequence[Store],
        *,
        method: frozenset[str],
        settings: Settings,
        policy: Policy,
        encoder: Encoder | None,
    ) -> None:
        self.model = model
        self.stores = tuple(stores)
        self.method = method
        self.settings = settings
        self.policy = policy
        self.encoder = encoder
        self.windows = Windows().within(model.context)
        self.leads = LeadFinder(model.context, settings.ric, model.tokenizer) if "ric" in method else None

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @contextmanager
    def reading(self) -> Iterator[Sources]:
        """The stores as they are now."""
        with reading(self.stores, self.policy) as sources:
            yield sources

    def reader(self) -> Reader:
        """For one text that grows token by token."""
        return Reader(self)


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """The model whose states are the stores' keys, which may be another than the LM."""

    model: LanguageModel
    key: Key
    windows: Windows

    @classmethod
    def of(cls, model: LanguageModel, key: Key) -> Encoder:
        return cls(model, key, Windows().within(model.context))


def open_predictor(
    model: str | Path,
    stores: Sequence[str | Path] = (),
    *,
    method: str | None = None,
    settings: Settings | Callable[[frozenset[str]], Settings] | None = None,
    policy: Policy = EVERYTHING,
    encoder: str | Path | None = None,
    threads: int | None = None,
) -> Predictor:
    """Open a model directory and store directories; without a method, kNN and n-gram as far as the stores offer them.

    `settings` may be a function of the method.
    """
    language_model = LanguageModel.open(Path(model), threads=threads)
    opened = [open_store(Path(path)) for path in stores]
    offered = {search for store in opened for search in store.config.searches}
    wanted = parse_method(method) if method else frozenset(offered & {"knn", "ngram"})
    if wanted and not opened:
        raise SiloError("usage", f"the method {'+'.join(sorted(wanted))} needs a store", "give one with --store")
    for store in opened:
        if store.tokenizer.fingerprint != language_model.tokenizer.fingerprint:
            raise SiloError("store-mismatch", f"{store.root} was made with another tokenizer than {model}")
    keys = _encoder(language_model, opened, encoder) if "knn" in wanted else None
    chosen = settings(wanted) if callable(settings) else settings or Settings()
    return Predictor(language_model, opened, method=wanted, settings=chosen, policy=policy, encoder=keys)


def _encoder(model: LanguageModel, stores: Sequence[Store], place: str | Path | None) -> Encoder:
    """The LM itself if the stores were made with it, else the model they were made with."""
    with_keys = [store for store in stores if "knn" in store.config.searches]
    if not with_keys:
        raise SiloError("search-missing", "no store offers knn")
    wanted = {store.config.model for store in with_keys}
    if len(wanted) > 1:
        raise SiloError("store-mismatch", "the stores were made with different models: their keys do not compare")
    places = [Path(place)] if place else [model.root, *filter(None, (model_of(store.root) for store in with_keys))]
    for root in places:
        if not root.is_dir():
            continue
        found = model if root == model.root else LanguageModel.open(root)
        key = codec_key(root)
        if DocumentEncoder(found, key).fingerprint in wanted:
            return Encoder.of(found, key)
    tried = ", ".join(map(str, places))
    raise SiloError("store-mismatch", f"the model that made the keys is none of {tried}", "give it with --encoder")


class Reader:
    """Predicts the next token of a text that grows; the stores are asked anew at every token."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._decoders: list[Decoder] = []
        self._known: tuple[Any, list[Lead]] = (None, [])
        encoder = predictor.encoder
        self._separate = encoder is not None and (predictor.leads is not None or encoder.model is not predictor.model)

    @cached_property
    def _key_decoder(self) -> Decoder:
        encoder = self._predictor.encoder
        assert encoder is not None
        return Decoder(encoder.model, encoder.key)

    def predict(self, ids: NDArray[np.integer[Any]], sources: Sources | None) -> Prediction:
        """The distribution after a text, which begins with the beginning-of-text token."""
        predictor, settings = self._predictor, self._predictor.settings
        prefix = np.asarray(ids, dtype=np.int64)
        leads, outputs = self._language_model(prefix, sources)
        shares = [lead.weight for lead in leads]
        lm = outputs[0].probabilities if len(outputs) == 1 else _averaged(outputs, shares)
        peak = sum(share * output.peak for share, output in zip(shares, outputs, strict=True))
        nearest: Nearest | None = None
        levels: tuple[Followers, ...] = ()
        if sources is not None and "ngram" in predictor.method:
            levels = tuple(sources.followers(prefix))
        if sources is not None and "knn" in predictor.method and settings.asks_neighbours(peak):
            nearest = sources.nearest(self._query(prefix, outputs), settings.k, settings.probes)
        weights = component_weights(settings.gates(predictor.method, _seen(peak, nearest, levels)))[0]
        mixed = lm * weights[0]
        near: Floats | None = None
        if nearest is not None:
            near = neighbour_weights(nearest.distances, settings.tau)
            held = nearest.rows[0] >= 0
            add_component(mixed, nearest.values[0][held], near[0][held], weights[1])
        trusted = tuple(level_weight(weights, level.length) for level in levels)
        for level, weight in zip(levels, trusted, strict=True):
            add_component(mixed, level.tokens, level.counts / level.total, weight)
        return Prediction(prefix, mixed, lm, weights, nearest, near, levels, trusted, tuple(leads))

    def _language_model(
        self, prefix: NDArray[np.int64], sources: Sources | None
    ) -> tuple[list[Lead], list[DecoderOutput]]:
        predictor = self._predictor
        if predictor.leads is None or sources is None:
            leads, start = [Lead()], predictor.windows.at(len(prefix)).start
        else:
            frame = predictor.leads.frame_at(len(prefix))
            mark = (frame.first, prefix[: frame.first].tobytes(), sources.content)
            if self._known[0] != mark:
                self._known = (mark, predictor.leads.find(prefix, frame, sources))
            leads, start = self._known[1], frame.start
        key = predictor.encoder.key if predictor.encoder and not self._separate else "final"
        while len(self._decoders) < len(leads):
            self._decoders.append(Decoder(predictor.model, key))
        texts = [np.concatenate([lead.tokens, prefix[start:]]) for lead in leads]
        return leads, [decoder.read(text) for decoder, text in zip(self._decoders, texts, strict=False)]

    def _query(self, prefix: NDArray[np.int64], outputs: list[DecoderOutput]) -> NDArray[np.float32]:
        """The key of this place, from the text alone."""
        if not self._separate:
            return outputs[0].key[None]
        assert self._predictor.encoder is not None
        frame = self._predictor.encoder.windows.at(len(prefix))
        return self._key_decoder.read(prefix[frame.start :]).key[None]


def _averaged(outputs: Sequence[DecoderOutput], shares: Sequence[float]) -> Floats:
    mean: Floats = np.average([output.probabilities for output in outputs], axis=0, weights=shares)
    return mean


def _seen(peak: float, nearest: Nearest | None, levels: Sequence[Followers]) -> Seen:
    """One position."""
    totals = np.zeros((1, len(ORDERS) + 1), dtype=np.int64)
    for level in levels:
        totals[0, level_column(level.length)] = level.total
    longest = max((level.length for level in levels), default=0)
    closest = nearest.closest if nearest is not None else np.array([np.inf])
    return Seen(np.array([peak]), closest, np.array([longest]), totals)
