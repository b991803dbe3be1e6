"""Stores and models together: a store is made with a model, opened with it, and asks models what they were trained on.

`store.json` beside the data says where the model lies; it is a convenience and shapes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from silo.errors import SiloError
from silo.files import MANIFEST, read_json, write_json
from silo.lm.firewall import DOCUMENTS, load_seen
from silo.lm.manifest import CODEC_FOLDER, Key, codec_key, model_fingerprint, open_manifest
from silo.lm.windows import Windows
from silo.search.knn.codec import Codec
from silo.store.erasure.receipt import ModelListing
from silo.store.manifest import SEARCHES
from silo.store.paths import StorePaths
from silo.store.store import Store

if TYPE_CHECKING:
    from silo.lm.encode import DocumentEncoder
    from silo.lm.model import LanguageModel


def create_store(
    path: Path, model: Path, *, searches: Iterable[str] = SEARCHES, passage_tokens: int = 0, bucket_bytes: int = 0
) -> Store:
    """Make an empty store for a model directory."""
    wanted = tuple(searches)
    codec = Codec.open(model / CODEC_FOLDER) if "knn" in wanted and (model / CODEC_FOLDER).exists() else None
    encoder = _open_encoder(model)
    file = model / "tokenizer.json"
    settings = {"bucket_bytes": bucket_bytes} if bucket_bytes else {}
    store = Store.create(
        path,
        encoder,
        codec=codec,
        tokenizer_file=file if file.exists() else None,
        searches=wanted,
        passage_tokens=passage_tokens,
        **settings,
    )
    write_json(StorePaths(path).model_place, {"model": str(model.absolute())})
    store.list_models = lambda names: list_models(model, names)
    return store


def open_store(path: Path, model: Path | None = None, *, encoding: bool = False) -> Store:
    """Open a store; `encoding` loads its model too, from where it was made or from `model`."""
    place = model or model_of(path)
    encoder = None
    if encoding:
        if place is None or not place.is_dir():
            raise SiloError("input-missing", f"the model of {path} is not at {place}", "give it with --model")
        encoder = _open_encoder(place)
    return Store.open(path, encoder, list_models=lambda names: list_models(place, names))


def _open_encoder(model: Path) -> DocumentEncoder:
    """A model with the kind of key its codec was learned for."""
    from silo.lm.encode import DocumentEncoder
    from silo.lm.model import LanguageModel

    return DocumentEncoder(LanguageModel.open(model), codec_key(model))


@dataclass(frozen=True, slots=True, eq=False)
class KeyEncoder:
    """The model whose states are the stores' keys, which may be another than the LM."""

    model: LanguageModel
    key: Key
    windows: Windows

    @classmethod
    def of(cls, model: LanguageModel, key: Key) -> KeyEncoder:
        return cls(model, key, Windows().within(model.context))


def find_key_encoder(model: LanguageModel, stores: Sequence[Store], place: str | Path | None) -> KeyEncoder:
    """The LM itself if the stores were made with it, else the model they were made with, at `place` or where it was."""
    from silo.lm.encode import DocumentEncoder
    from silo.lm.model import LanguageModel

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
        candidate = model if root == model.root else LanguageModel.open(root)
        key = codec_key(root)
        if DocumentEncoder(candidate, key).fingerprint in wanted:
            return KeyEncoder.of(candidate, key)
    tried = ", ".join(map(str, places))
    raise SiloError("store-mismatch", f"the model that made the keys is none of {tried}", "give it with --encoder")


def model_of(path: Path) -> Path | None:
    """Where the model of a store was when it was made."""
    file = StorePaths(path).model_place
    if not file.exists():
        return None
    try:
        return Path(read_json(file)["model"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        hint = "remove it, and say with --model where the model is: the file is a convenience"
        raise SiloError("store-damaged", f"{file} is not as it was written", hint) from None


def list_models(model: Path | None, names: Sequence[str]) -> tuple[ModelListing, ...]:
    """For the model of a store and those that lie beside it: does it list any of these documents as training text?"""
    if model is None or not model.parent.is_dir():
        return ()
    wanted = np.array([np.void(bytes.fromhex(name)) for name in names])
    listings = []
    for place in sorted(model.parent.iterdir()):
        if (place / MANIFEST).exists() and (place / DOCUMENTS).exists():
            listed = bool(np.isin(load_seen(place)["id"], wanted).any())
            listings.append(ModelListing(place.name, model_fingerprint(open_manifest(place)), listed))
    return tuple(listings)
