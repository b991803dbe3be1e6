"""Stores and models together: a store is made with a model, opened with it, and asks models what they were trained on.

`store.json` beside the data says where the model lies; it is a convenience and shapes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from silo.errors import SiloError
from silo.files import MANIFEST, read_json, write_json
from silo.lm.firewall import DOCUMENTS, load_seen
from silo.lm.manifest import CODEC_FOLDER, codec_key, model_fingerprint, open_manifest
from silo.search.knn.codec import Codec
from silo.store.erasure.receipt import ModelListing
from silo.store.manifest import SEARCHES
from silo.store.paths import StorePaths
from silo.store.store import Store

if TYPE_CHECKING:
    from silo.lm.encode import DocumentEncoder


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
    store.list_models = lambda names: listings(model, names)
    return store


def open_store(path: Path, model: Path | None = None, *, encoding: bool = False) -> Store:
    """Open a store; `encoding` loads its model too, from where it was made or from `model`."""
    place = model or model_of(path)
    encoder = None
    if encoding:
        if place is None or not place.is_dir():
            raise SiloError("input-missing", f"the model of {path} is not at {place}", "give it with --model")
        encoder = _open_encoder(place)
    return Store.open(path, encoder, list_models=lambda names: listings(place, names))


def _open_encoder(model: Path) -> DocumentEncoder:
    """A model with the kind of key its codec was learned for."""
    from silo.lm.encode import DocumentEncoder
    from silo.lm.model import LanguageModel

    return DocumentEncoder(LanguageModel.open(model), codec_key(model))


def model_of(path: Path) -> Path | None:
    """Where the model of a store was when it was made."""
    file = StorePaths(path).model_place
    return Path(read_json(file)["model"]) if file.exists() else None


def listings(model: Path | None, names: Sequence[str]) -> tuple[ModelListing, ...]:
    """For the model of a store and those that lie beside it: does it list any of these documents as training text?"""
    if model is None or not model.parent.is_dir():
        return ()
    wanted = np.array([np.void(bytes.fromhex(name)) for name in names])
    found = []
    for place in sorted(model.parent.iterdir()):
        if (place / MANIFEST).exists() and (place / DOCUMENTS).exists():
            listed = bool(np.isin(load_seen(place)["id"], wanted).any())
            found.append(ModelListing(place.name, model_fingerprint(open_manifest(place)), listed))
    return tuple(found)
