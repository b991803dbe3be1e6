"""Stores and models together: a store is made with a model, opened with it, and asks models what they were trained on.

`store.json` beside the data says where the model lies; it is a convenience and shapes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from silo.errors import SiloError
from silo.files import read_json, write_json
from silo.lm.audit import ask_models
from silo.lm.manifest import (
    CODEC_FOLDER,
    Key,
    open_manifest,
    open_tokenizer,
    read_key,
    recover_model,
    require_model,
    verify_network,
)
from silo.lm.windows import Windows
from silo.placement import Placement, asked
from silo.progress import Advance
from silo.remote.place import remote_url
from silo.search.knn.codec import Codec
from silo.store.backup import Restored, restore
from silo.store.encode import Encoder, Quantise
from silo.store.erasure.receipt import ModelListing
from silo.store.manifest import SEARCHES
from silo.store.paths import StorePaths
from silo.store.store import Store
from silo.text.tokenizer import Ids, Tokenizer

if TYPE_CHECKING:
    from silo.lm.engine.decoder import DecodingModel
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
    if url := remote_url(path):
        return _create_remote(
            url,
            path,
            partial(
                create_store,
                model=model,
                searches=searches,
                passage_tokens=passage_tokens,
                bucket_bytes=bucket_bytes,
                verify=verify,
            ),
        )
    wanted = Store.require_room(path, searches)
    require_model(model)
    codec = Codec.open(model / CODEC_FOLDER) if "knn" in wanted and (model / CODEC_FOLDER).exists() else None
    Store.require_codec(wanted, codec)
    encoder = _encoder_for(model, wanted, verify=verify)
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


def _create_remote(url: str, path: Path, create: Callable[[Path], Store]) -> Store:
    """Make a store on this machine and publish it under a URL."""
    from silo.store.remote.store import new_remote

    with new_remote(url) as root:
        made = create(root)
        made.close()
    store = open_store(path)
    store.encoder = made.encoder
    return store


def publish(path: Path, url: str) -> Store:
    """Put a copy of a store of this machine at a URL, where nothing may be yet; gives it opened."""
    from silo.store.remote.store import publish_store

    if remote_url(path) or not remote_url(url):
        raise SiloError("usage", f"cannot publish {path} at {url}", "give the path of a store, then a URL")
    store = open_store(path)
    with store.writing():  # nobody changes it while it is sent
        publish_store(store.root, str(remote_url(url)))
    return open_store(Path(url))


def open_store(
    path: Path, model: Path | None = None, *, encoding: bool = False, verify: bool = False, restored: bool = False
) -> Store:
    """Open a store; with `encoding` its model is loaded when it is needed, from where it was made or from `model`.

    `verify` reads the model's files again; `restored`: for `replay`, whatever was put back from a copy.
    """
    store, place = _open_at(path, model, restored=restored)
    if encoding:
        try:
            store.load_encoder = _find_encoder(store, place, verify=verify)
        except BaseException:
            store.close()
            raise
    return store


def _open_at(path: Path, model: Path | None, *, restored: bool) -> tuple[Store, Path | None]:
    """A store in a directory or at a URL, and where its model is."""
    if url := remote_url(path):
        from silo.store.remote.store import open_remote

        store: Store = open_remote(url, restored=restored)
        place = model or model_of(store.root)
        store.list_models = partial(list_models, place)
        return store, place
    place = model or model_of(path)
    return Store.open(path, list_models=partial(list_models, place), restored=restored), place


def _find_encoder(store: Store, place: Path | None, *, verify: bool) -> Callable[[], Encoder]:
    """What loads the model of a store; another one is refused at once."""
    if place is None or not recover_model(place):
        raise SiloError("input-missing", f"the model of {store.root} is not at {place}", "give it with --model")
    store.require_model(open_tokenizer(place), read_key(place)[1])
    if "knn" not in store.config.searches:
        return partial(_tokens_of, place, verify=verify)
    own = Placement.of_mark(store.config.encoded_on)
    if not asked().agrees(own):
        message = f"the keys of {store.root} were made on {own}: another device or format makes other bits"
        raise SiloError("store-mismatch", message, "leave --device and --dtype out, or make a store there")
    return partial(_open_encoder, place, store.config.encoded_on, verify=verify)


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
    if remote_url(path) or remote_url(backup):
        raise SiloError("usage", "a backup is restored in a directory", "then `silo store publish` puts it at a URL")
    models = partial(list_models, model_of(backup))
    return restore(
        backup, path, evidence=evidence, force=force, accept_loss=accept_loss, list_models=models, advance=advance
    )


@dataclass(frozen=True, slots=True)
class TokenEncoder:
    """A model whose tokenizer is all that a store without token search asks for: its network is not loaded."""

    tokenizer: Tokenizer
    fingerprint: str
    context: int
    mark: str = ""

    def codes(self, documents: Sequence[Ids], quantise: Quantise) -> Iterator[tuple[NDArray[Any], ...]]:
        raise AssertionError(f"keys of {len(documents)} documents for {quantise}, in a store that has none")


def _encoder_for(model: Path, searches: Iterable[str], *, verify: bool) -> Encoder:
    """What reads the documents of a new store."""
    if "knn" not in searches:
        return _tokens_of(model, verify=verify)
    from silo.lm.encode import open_encoder

    encoder = open_encoder(model, verify=verify)
    encoder.network.require_finite()
    return encoder


def _tokens_of(model: Path, *, verify: bool) -> Encoder:
    config = read_json(model / "config.json")
    length = config.get("text_config", config).get("max_position_embeddings")
    if not isinstance(length, int):
        return _open_encoder(model, "", verify=verify)
    verify_network(model, open_manifest(model), again=verify)
    return TokenEncoder(open_tokenizer(model), read_key(model)[1], length)


def _open_encoder(model: Path, mark: str, *, verify: bool) -> Encoder:
    from silo.lm.encode import open_encoder

    return open_encoder(model, mark, verify=verify)


@dataclass(frozen=True, slots=True, eq=False)
class KeyEncoder:
    """The model whose states are the stores' keys, which may be another than the LM."""

    opened: DecodingModel
    key: Key
    windows: Windows

    @classmethod
    def of(cls, model: LanguageModel | DecodingModel, key: Key) -> KeyEncoder:
        from silo.lm.engine.decoder import DecodingModel

        return cls(DecodingModel.of(model), key, Windows().within(model.context))


def locate_key_encoder(model: Path, stores: Sequence[Store], place: str | Path | None) -> tuple[Path, Key]:
    """The directory of the model whose states are the stores' keys, and the kind of key; nothing heavy is loaded.

    It is `model` if the stores were made with it, else the one they were made with, at `place` or where it was.
    """
    with_keys = [store for store in stores if "knn" in store.config.searches]
    if not with_keys:
        raise SiloError("search-missing", "no store offers knn")
    wanted = {store.config.model for store in with_keys}
    if len(wanted) > 1:
        raise SiloError("store-mismatch", "the stores were made with different models: their keys do not compare")
    if place:
        require_model(Path(place))
    places = [Path(place)] if place else [model, *filter(None, (model_of(store.root) for store in with_keys))]
    for root in filter(recover_model, places):
        key, fingerprint = read_key(root)
        if fingerprint in wanted:
            return root, key
    tried = ", ".join(map(str, places))
    raise SiloError("store-mismatch", f"the model that made the keys is none of {tried}", "give it with --encoder")


def find_key_encoder(
    model: LanguageModel | DecodingModel, stores: Sequence[Store], place: str | Path | None
) -> KeyEncoder:
    """The LM itself if the stores were made with it, else the model they were made with; see `locate_key_encoder`."""
    from silo.lm.engine.decoder import DecodingModel

    root, key = locate_key_encoder(model.root, stores, place)
    own = DecodingModel.of(model)
    if root != own.root:
        own = DecodingModel.open(root, placement=own.placement, threads=own.threads)
    return KeyEncoder.of(own, key)


def require_fit(model: Path, stores: Sequence[Store]) -> None:
    """Refuse what is no model directory, and stores that were made with another tokenizer; no network is loaded."""
    tokenizer = open_tokenizer(model)
    for store in stores:
        if store.tokenizer.fingerprint != tokenizer.fingerprint:
            raise SiloError("store-mismatch", f"{store.root} was made with another tokenizer than {model}")


def find_model(stores: Sequence[Store], given: Path | None = None) -> Path:
    """The directory of a model that reads these stores: the one given, or the one the first was made with.

    Its tokens must be theirs, which is seen without loading it.
    """
    place = given or model_of(stores[0].root)
    if place is None or not recover_model(place):
        raise SiloError("input-missing", f"the model of {stores[0].root} is not at {place}", "give it with --model")
    require_fit(place, stores)
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
    if model is None:
        return ()
    marks = [mark for name, mark in (texts or {}).items() if name in set(names)]
    return tuple(ModelListing(*found) for found in ask_models(model.parent, names, marks))
