"""What a server has open: models under names, each with its stores, and the stores under theirs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silo.corpus.corpus import Corpus
from silo.errors import SiloError
from silo.evaluation.tune import validation_documents
from silo.inference.predict import Predictor, open_predictor
from silo.inference.session import Session
from silo.inference.settings import Settings, load_settings, parse_method
from silo.lm.encode import DocumentEncoder
from silo.lm.engine.decoder import DecodingModel
from silo.lm.manifest import begin_text, read_key
from silo.pairing import TokenEncoder
from silo.server.config import ModelRecipe, ServerRecipe
from silo.server.problems import Problem
from silo.store.policy import Policy
from silo.store.store import Searchers, Store
from silo.text.chat import ChatFormat
from silo.text.tokenizer import Tokenizer

_DOCUMENTS = 64
_DOCUMENT_TOKENS = 256
_VALIDATION_TOKENS = 1024
"""Of each validation document, and of all of them: two passes take seconds, not minutes."""

_WARM_CHARACTERS, _WARM_TOKENS = 200, 4
"""Of a document and of what is written after it, which takes every kind of search there is."""


PlaceSearchers = Callable[[Path], Searchers]
"""Gives the searchers of the store at a path."""


class ServedModel:
    """A model and its stores, and how they are read unless a request says otherwise."""

    def __init__(
        self, name: str, recipe: ModelRecipe, home: Path, threads: int, place: PlaceSearchers | None = None
    ) -> None:
        self.name = name
        self.created = int(time.time())
        self.guard = recipe.guard
        self._home, self._settings = home, recipe.settings
        texts = list(islice(validation_documents([Path(recipe.validation)]), _DOCUMENTS)) if recipe.validation else []
        every = open_predictor(
            recipe.model,
            recipe.stores,
            policy=Policy.parse(recipe.policy),
            encoder=recipe.encoder or None,
            threads=threads or None,
        )
        self._every = every
        for store in every.stores:
            store.searchers = place(store.root) if place else None
        self.method = parse_method(recipe.method) if recipe.method else every.method
        finds_passages = any("bm25" in store.config.searches for store in every.stores)
        self.chat_method = self.method | {"ric"} if finds_passages and not recipe.method else self.method
        self.validation = _first_tokens(texts, every.tokenizer)
        """Text that the stores do not hold, in pieces, for the price of an opt-out."""
        self._warm_up()

    def _warm_up(self) -> None:
        """Write a little as the configuration says: what is wrong with it shows now, and nobody waits for compilers."""
        predictor = self.predictor(self.method, self.settings(self.method), Policy())
        found = (item.text for store in self.stores for item in store.documents(None, predictor.policy))
        Session(predictor).answer(next(found, "")[:_WARM_CHARACTERS], max_tokens=_WARM_TOKENS)

    def settings(self, method: frozenset[str], name: str = "") -> Settings:
        """Settings of a name for a method; those of the configuration without one."""
        wanted = name or self._settings
        return load_settings(self._home, wanted, method) if wanted else Settings()

    def known_settings(self) -> list[str]:
        """Names of settings that a request may ask for."""
        return Settings.saved(self._home)

    def predictor(
        self, method: frozenset[str], settings: Settings, policy: Policy, stores: Sequence[Store] | None = None
    ) -> Predictor:
        """The model and its stores, or some of them, asked in one way; the policy can only narrow what is served."""
        return self._every.with_options(method, settings, self._every.policy.narrowed(policy), stores)

    def choose_stores(self, names: Iterable[str], *, param: str = "silo.stores") -> tuple[Store, ...]:
        """Some of the model's stores, by name."""
        known = {store.root.absolute().name: store for store in self.stores}
        wanted = set(names)
        if unknown := sorted(wanted - known.keys()):
            hint = f"it reads {', '.join(known)}" if known else "it reads none"
            raise Problem(
                404, "store-not-found", f"{self.name} reads no store '{unknown[0][:80]}'", param=param, hint=hint
            )
        return tuple(store for name, store in known.items() if name in wanted)

    @property
    def stores(self) -> tuple[Store, ...]:
        return self._every.stores

    @cached_property
    def end(self) -> str:
        """The text of the token that begins and ends every text."""
        return begin_text(self._every.opened.root)

    @cached_property
    def chat(self) -> ChatFormat | None:
        """How the model wants conversations; None if it was not taught to chat."""
        return ChatFormat.open(self._every.opened.root, self._every.tokenizer)

    @property
    def language_model(self) -> Predictor:
        """Everything that is open, under the policy of the configuration."""
        return self._every

    @property
    def networks(self) -> list[DecodingModel]:
        """The language model, and where keys are another's that too."""
        encoder = self._every.encoder
        return [self._every.opened, *([encoder.opened] if encoder else [])]

    def use_encoder(self, store: Store) -> None:
        """Let documents be added to a store; torch is loaded for that where it made the store's keys."""
        keys, opened = self._every.encoder, self._every.opened
        if "knn" not in store.config.searches:
            store.use(TokenEncoder(opened.tokenizer, opened.fingerprint, opened.context))
            return
        opened, key = (keys.opened, keys.key) if keys else (opened, read_key(opened.root)[0])
        store.use(DocumentEncoder(opened.network_of(store.config.encoded_on, modest=True), key))


def _first_tokens(texts: Iterable[str], tokenizer: Tokenizer) -> tuple[NDArray[np.int64], ...]:
    """The beginnings of some documents, as many as there is room for."""
    pieces: list[NDArray[np.int64]] = []
    left = _VALIDATION_TOKENS
    for text in texts:
        start = text[: 64 * _DOCUMENT_TOKENS]
        piece = tokenizer.encode([start])[0][: min(left, _DOCUMENT_TOKENS)].astype(np.int64)
        left -= len(piece)
        pieces += [piece] if len(piece) else []
    return tuple(pieces)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All models, stores and corpora of a server, by name."""

    models: Mapping[str, ServedModel]
    stores: Mapping[str, Store]
    corpora: Mapping[str, Corpus]

    @classmethod
    def open(cls, recipe: ServerRecipe, place: PlaceSearchers | None = None) -> Catalogue:
        """Open everything; two stores or corpora of one name are refused. `place` is for stores searched elsewhere."""
        home = Path(recipe.home)
        corpora = {Path(path).absolute().name: Corpus.open(Path(path)) for path in recipe.corpora}
        if len(corpora) < len(recipe.corpora):
            raise SiloError("usage", "two corpora have the same name", "give one another folder name")
        models = {name: ServedModel(name, item, home, recipe.threads, place) for name, item in recipe.models.items()}
        stores: dict[str, Store] = {}
        for model in models.values():
            for store in model.stores:
                known = stores.setdefault(store.root.absolute().name, store)
                if known.root.absolute() != store.root.absolute():
                    raise SiloError("usage", f"two stores are called {known.root.name}", "give one another folder name")
        return cls(models, stores, corpora)

    @property
    def weight_bytes(self) -> float:
        """What passes over all networks read of them; without end where one is not the decode engine's."""
        networks = {id(network): network for model in self.models.values() for network in model.networks}
        engines = [network.engine for network in networks.values()]
        return sum(math.inf if engine is None else engine.weight_bytes for engine in engines)

    def let_add(self, store: Store) -> None:
        """Have a store know the model that encodes its documents."""
        if store.encoder is None:
            next(model for model in self.models.values() if store in model.stores).use_encoder(store)

    def close(self) -> None:
        """Let go of all stores."""
        for model in self.models.values():
            for store in model.stores:
                store.close()
