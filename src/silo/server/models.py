"""What a server has open: models under names, each with its stores, and the stores under theirs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from silo.errors import SiloError
from silo.files import fingerprint
from silo.inference.predict import Predictor, open_predictor
from silo.inference.session import Session
from silo.inference.settings import Settings, load_settings, parse_method
from silo.lm.manifest import begin_text
from silo.server.config import ModelRecipe, ServerRecipe
from silo.store.policy import Policy
from silo.store.store import Store
from silo.text.chat import ChatFormat

_WARM_CHARACTERS, _WARM_TOKENS = 200, 4
"""Of a document and of what is written after it, which takes every kind of search there is."""


class ServedModel:
    """A model and its stores, and how they are read unless a request says otherwise."""

    def __init__(self, name: str, recipe: ModelRecipe, home: Path, threads: int) -> None:
        self.name = name
        self.created = int(time.time())
        self.guard = recipe.guard
        self._home, self._settings = home, recipe.settings
        every = open_predictor(
            recipe.model,
            recipe.stores,
            policy=Policy.parse(recipe.policy),
            encoder=recipe.encoder or None,
            threads=threads or None,
        )
        self._every = every
        self.method = parse_method(recipe.method) if recipe.method else every.method
        finds_passages = any("bm25" in store.config.searches for store in every.stores)
        self.chat_method = self.method | {"ric"} if finds_passages and not recipe.method else self.method
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

    def predictor(self, method: frozenset[str], settings: Settings, policy: Policy) -> Predictor:
        """The model and its stores, asked in one way; the policy can only narrow what is served."""
        return self._every.with_options(method, settings, self._every.policy.narrowed(policy))

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

    def digest(self) -> str:
        """Names what all stores hold at this moment, for `system_fingerprint`; of one store it is the store's own."""
        digests = [store.digest() for store in self.stores]
        return digests[0] if len(digests) == 1 else fingerprint(digests)

    def use_encoder(self, store: Store) -> None:
        """Let documents be added to a store; the network of torch is loaded for that, if it is not yet."""
        from silo.lm.encode import DocumentEncoder

        keys = self._every.encoder if "knn" in store.config.searches else None
        model, key = (keys.model, keys.key) if keys else (self._every.model, "final")
        store.use(DocumentEncoder(model, key))


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All models and stores of a server, by name."""

    models: Mapping[str, ServedModel]
    stores: Mapping[str, Store]

    @classmethod
    def open(cls, recipe: ServerRecipe) -> Catalogue:
        """Open everything; two stores of one name are refused."""
        home = Path(recipe.home)
        models = {name: ServedModel(name, item, home, recipe.threads) for name, item in recipe.models.items()}
        stores: dict[str, Store] = {}
        for model in models.values():
            for store in model.stores:
                known = stores.setdefault(store.root.absolute().name, store)
                if known.root.absolute() != store.root.absolute():
                    raise SiloError("usage", f"two stores are called {known.root.name}", "give one another folder name")
        return cls(models, stores)

    def let_add(self, store: Store) -> None:
        """Have a store know the model that encodes its documents."""
        if store.encoder is None:
            next(model for model in self.models.values() if store in model.stores).use_encoder(store)

    def close(self) -> None:
        """Let go of all stores."""
        for model in self.models.values():
            for store in model.stores:
                store.close()
