"""What is served: models with their stores, address, keys and limits, from a TOML file or from options."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from silo.errors import SiloError
from silo.recipe import MIB, load_recipe
from silo.remote.place import placed


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one request may ask for, and on how many are taken at a time.

    `texts` is the number of prompts times `n`. `slots` texts are written at a time, `queue` more wait. Attributions are
    kept for `attribution_seconds`; a stopping server gives what is under way `drain_seconds` to end.
    """

    body_bytes: int = 8 * MIB
    header_bytes: int = 32 * 1024
    prompt_tokens: int = 32_768
    texts: int = 64
    max_tokens: int = 2048
    k: int = 4096
    stop: int = 16
    neighbours: int = 16
    slots: int = 16
    queue: int = 128
    attribution_seconds: int = 600
    drain_seconds: int = 30

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise SiloError("recipe-value", f"limits.{name} must be at least 1")


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """A model under a name: its stores, and how they are read where a request does not say.

    `policy` and `guard` bound every request: it may be stricter and never more generous. A guard of 0 is none.
    `validation` is a file of text that no store of the model holds: on it the price of an opt-out is measured.
    """

    model: str
    stores: tuple[str, ...] = ()
    method: str = ""
    settings: str = ""
    policy: str = ""
    guard: int = 0
    encoder: str = ""
    validation: str = ""


@dataclass(frozen=True, slots=True)
class ServerRecipe:
    """Everything `silo serve` needs to know. Paths are relative to the file.

    `hosts` are names under which a reverse proxy passes requests on; `home` holds tuned settings and the jobs;
    `threads` is how many cores the networks may use, all at 0; `corpora` are for the operator to look at. `ray` is the
    address of a cluster that searches the stores, "" for this process; `parts` is into how many parts it divides each,
    one for each of its nodes at 0; `replicas` are processes of the cluster that write texts, this one alone at 0.
    """

    models: dict[str, ModelRecipe] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8000
    keys: str = ""
    home: str = "silo-home"
    hosts: tuple[str, ...] = ()
    corpora: tuple[str, ...] = ()
    threads: int = 0
    ray: str = ""
    parts: int = 0
    replicas: int = 0
    limits: Limits = field(default_factory=Limits)


def read_config(path: Path) -> ServerRecipe:
    """A server's TOML file, with absolute paths."""
    return with_absolute_paths(load_recipe(path, ServerRecipe), path.absolute().parent)


def with_absolute_paths(recipe: ServerRecipe, base: Path) -> ServerRecipe:
    """The same for processes that run in other folders; what is relative is seen from `base`."""

    def absolute(name: str) -> str:
        return str(placed(name, base)) if name else ""

    models = {
        name: replace(
            item,
            model=absolute(item.model),
            stores=tuple(map(absolute, item.stores)),
            encoder=absolute(item.encoder),
            validation=absolute(item.validation),
        )
        for name, item in recipe.models.items()
    }
    return replace(
        recipe,
        models=models,
        keys=absolute(recipe.keys),
        home=absolute(recipe.home),
        corpora=tuple(map(absolute, recipe.corpora)),
    )


def add_model(recipe: ServerRecipe, model: str, stores: Sequence[str]) -> ServerRecipe:
    """With one more model, named after its folder."""
    name = Path(model).absolute().name
    if name in recipe.models:
        raise SiloError("usage", f"two models are called {name}", "give one of them another name in the TOML file")
    return replace(recipe, models={**recipe.models, name: ModelRecipe(model, tuple(stores))})


def narrow(recipe: ServerRecipe, policy: str, guard: int) -> ServerRecipe:
    """With limits on every model that has stores, beside its own; "" and 0 are none."""
    if not policy and not guard:
        return recipe
    models = {name: _narrow_model(item, policy, guard) if item.stores else item for name, item in recipe.models.items()}
    return replace(recipe, models=models)


def _narrow_model(item: ModelRecipe, policy: str, guard: int) -> ModelRecipe:
    policies = [text for text in (item.policy, policy) if text]
    both = " and ".join(f"({text})" for text in policies) if len(policies) > 1 else "".join(policies)
    return replace(item, policy=both, guard=min((tokens for tokens in (item.guard, guard) if tokens), default=0))


def require_servable(recipe: ServerRecipe) -> None:
    """Refuse to serve nothing, or anybody who can reach this machine."""
    if not recipe.models:
        raise SiloError("usage", "there is nothing to serve", "name a model with --model, or in the TOML file")
    if not 0 <= recipe.port < 65_536:
        raise SiloError("usage", f"{recipe.port} is not a port", "ports are 0 to 65,535, and 0 takes any that is free")
    if recipe.parts < 0 or (recipe.parts and not recipe.ray):
        raise SiloError("usage", "--parts says into how many parts a cluster divides each store", "it belongs to --ray")
    if recipe.replicas < 0 or (recipe.replicas and not recipe.ray):
        raise SiloError("usage", "--replicas says how many processes of a cluster write texts", "it belongs to --ray")
    if recipe.replicas and not recipe.port:
        raise SiloError("usage", "a cluster's server needs a port of its own", "give one with --port")
    if not is_loopback(recipe.host) and not recipe.keys:
        message = f"{recipe.host} can be reached from other machines, and there are no keys"
        raise SiloError("usage", message, "make keys with `silo keys create FILE` and pass --keys FILE")


def is_loopback(host: str) -> bool:
    """Can only programs on this machine reach the address?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
