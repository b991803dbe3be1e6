"""Stores and models together: a store is made with a model, opened with it, and asks models what they were trained on.

`store.json` beside the data says where the model lies; it is a convenience and shapes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from silo.errors import SiloError
from silo.files import MANIFEST, file_sha256, read_json, write_json
from silo.lm.firewall import DOCUMENTS, load_seen
from silo.lm.manifest import (
    CODEC_FOLDER,
    Key,
    codec_key,
    is_in_between,
    model_fingerprint,
    open_manifest,
    recover_model,
)
from silo.lm.windows import Windows
from silo.progress import Advance
from silo.search.knn.codec import Codec
from silo.store.backup import Restored, restore
from silo.store.erasure.receipt import ModelListing
from silo.store.manifest import SEARCHES
from silo.store.paths import StorePaths
from silo.store.store import Store

if TYPE_CHECKING:
    from silo.lm.encode import DocumentEncoder
    from silo.lm.model import LanguageModel


def create_store(
    path: Path,
    model: Path,
    *,
    searches: Iterable[str] = SEARCHES,
    passage_tokens: int = 0,
    bucket_bytes: int = 0,
    verify: bool = False,
) -> Store:
    """Make an empty store for a model directory; `verify` is as for `LanguageModel.open`.

    A model whose keys are not all numbers is refused: no search could tell them apart.
    """
    wanted = tuple(searches)
    recover_model(model)
    codec = Codec.open(model / CODEC_FOLDER) if "knn" in wanted and (model / CODEC_FOLDER).exists() else None
    encoder = _open_encoder(model, verify=verify)
    if "knn" in wanted:
        encoder.require_finite_keys()
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
    store.list_models = partial(list_models, model)
    return store


def open_store(
    path: Path, model: Path | None = None, *, encoding: bool = False, verify: bool = False, restored: bool = False
) -> Store:
    """Open a store; `encoding` loads its model too, from where it was made or from `model`.

    `verify` reads the model's files again; `restored`: for `replay`, whatever was put back from a copy.
    """
    place = model or model_of(path)
    encoder = None
    if encoding:
        if place is None or not recover_model(place):
            raise SiloError("input-missing", f"the model of {path} is not at {place}", "give it with --model")
        encoder = _open_encoder(place, verify=verify)
    return Store.open(path, encoder, list_models=partial(list_models, place), restored=restored)


def restore_store(
    backup: Path,
    path: Path,
    *,
    evidence: Path | None = None,
    force: bool = False,
    accept_loss: bool = False,
    advance: Advance = lambda *_: None,
) -> Restored:
    """Put a store back from a backup, without what was erased since; see `silo.store.backup.restore`."""
    models = partial(list_models, model_of(backup))
    return restore(
        backup, path, evidence=evidence, force=force, accept_loss=accept_loss, list_models=models, advance=advance
    )


def _open_encoder(model: Path, *, verify: bool) -> DocumentEncoder:
    """A model with the kind of key its codec was learned for."""
    from silo.lm.encode import DocumentEncoder
    from silo.lm.model import LanguageModel

    return DocumentEncoder(LanguageModel.open(model, verify=verify), codec_key(model))


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
        if not recover_model(root):
            continue
        candidate = model if root == model.root else LanguageModel.open(root)
        key = codec_key(root)
        if DocumentEncoder(candidate, key).fingerprint in wanted:
            return KeyEncoder.of(candidate, key)
    tried = ", ".join(map(str, places))
    raise SiloError("store-mismatch", f"the model that made the keys is none of {tried}", "give it with --encoder")


def find_model(stores: Sequence[Store], given: Path | None = None) -> Path:
    """The directory of a model that reads these stores: the one given, or the one the first was made with.

    Its tokens must be theirs, which is seen without loading it.
    """
    place = given or model_of(stores[0].root)
    if place is None or not recover_model(place):
        raise SiloError("input-missing", f"the model of {stores[0].root} is not at {place}", "give it with --model")
    file = place / "tokenizer.json"
    for store in stores:
        if not file.is_file() or file_sha256(file) != store.tokenizer.fingerprint:
            raise SiloError("store-mismatch", f"{store.root} was made with another tokenizer than {place}")
    return place


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


def list_models(
    model: Path | None, names: Sequence[str], texts: Mapping[str, bytes] | None = None
) -> tuple[ModelListing, ...]:
    """For the model of a store and those that lie beside it: does it list any of these documents as training text?

    `texts` gives the text hashes of documents by their ids: a text that a model lists under another id is listed too. A
    model that cannot say no, since nobody knows what it was trained on or it is damaged, is left out.
    """
    if model is None or not model.parent.is_dir():
        return ()
    ids = {bytes.fromhex(name) for name in names}
    marks = {mark for name, mark in (texts or {}).items() if name in set(names)}
    listings = []
    for place in sorted(model.parent.iterdir()):
        if (place / MANIFEST).exists() and (place / DOCUMENTS).exists() and not is_in_between(place):
            listings += _ask_model(place, ids, marks)
    return tuple(listings)


def _ask_model(place: Path, ids: set[bytes], marks: set[bytes]) -> list[ModelListing]:
    try:
        manifest, rows = open_manifest(place), load_seen(place)
    except SiloError:  # a damaged model cannot say no, and must not keep a document from being erased
        return []
    listed = not ids.isdisjoint(rows["id"].tolist()) or not marks.isdisjoint(rows["text"].tolist())
    return [ModelListing(place.name, model_fingerprint(manifest), listed)] if listed or "training" in manifest else []
