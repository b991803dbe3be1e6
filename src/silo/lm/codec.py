"""`silo lm codec`: the quantiser of a model, learned from text it may be trained on and frozen beside its weights.

The model directory gains `codec/`, its manifest says for which kind of key (`codec_key`), and its list of documents
which of them shaped the codec. The directory is replaced whole: until then the old one stays as it was.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from silo.corpus.corpus import Corpus
from silo.errors import SiloError
from silo.files import (
    MANIFEST,
    disk_errors,
    locked_directory,
    remove_tree,
    sync_tree,
    write_atomic,
    write_manifest,
)
from silo.lm.encode import DocumentEncoder
from silo.lm.engine.decoder import open_network
from silo.lm.firewall import (
    CODEC,
    DOCUMENTS,
    SEEN,
    SKETCHES,
    Permit,
    checked_documents,
    codec_permit,
    load_seen,
    load_sketches,
    merge_seen,
    permitted_shards,
    seen_file,
    seen_rows,
)
from silo.lm.manifest import CODEC_FOLDER, Key, file_checksums, growing_place, open_manifest, replace_model
from silo.lm.reading import Keys, ReadingNetwork
from silo.progress import Advance
from silo.search.knn.codec import Codec, CodecSettings
from silo.text.normalise import text_hash
from silo.text.sketch import Sketches, sketch
from silo.text.tokenizer import Ids
from silo.text.words import Hashes

_KEYS_PER_DOCUMENT = 256


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A document that shapes a codec: its id, and the hash and the sketch of its text."""

    id: str
    text: bytes
    sketch: Hashes


def learn_codec(
    model_root: Path,
    corpus: Corpus,
    settings: CodecSettings,
    *,
    key: Key | None = None,
    keys: int = 200_000,
    advance: Advance = lambda *_: None,
) -> Codec:
    """Learn a codec from permitted documents of the corpus and put it into the model directory.

    `keys` keys of the kind `key`, or of the model's usual kind, are sampled. The corpus must be what its manifest says.
    A model trained here uses only documents of the tiers it was trained on; an imported one pd, sw and by. Where the
    settings leave the number of dimensions open, half of the model's are kept: on real keys they gave the recall of all
    of them, at less cost.
    """
    model_root = model_root.resolve()
    network = open_network(model_root)
    key = key or network.choose_key()
    sample, seen = _permitted_keys(model_root, network, corpus, key, keys, advance)
    codec = learn_from(sample, settings, advance=advance)
    _install(model_root, {**open_manifest(model_root), "codec_key": key}, codec, seen)
    return codec


def sample_keys(
    model_root: Path, corpus: Corpus, *, key: Key, keys: int = 200_000, advance: Advance = lambda *_: None
) -> Keys:
    """The keys that `learn_codec` learns from; nothing is written."""
    model_root = model_root.resolve()
    return _permitted_keys(model_root, open_network(model_root), corpus, key, keys, advance)[0]


def learn_from(sample: Keys, settings: CodecSettings, *, advance: Advance = lambda *_: None) -> Codec:
    """A codec of some keys; where the settings leave the number of dimensions open, half of them are kept."""
    if settings.rotation != "none" and not settings.dimensions:
        settings = replace(settings, dimensions=max(sample.shape[1] // 2, settings.code_bytes))
    return Codec.learn(sample, settings, advance=advance)


def _permitted_keys(
    root: Path, network: ReadingNetwork, corpus: Corpus, key: Key, wanted: int, advance: Advance
) -> tuple[Keys, list[_Sampled]]:
    """Keys of text that may shape a codec for this model; the corpus must be what its manifest says."""
    permit = codec_permit(root, corpus)
    corpus.verify()
    return _sample_keys(DocumentEncoder(network, key), corpus, permit, wanted, advance)


def _sample_keys(
    encoder: DocumentEncoder, corpus: Corpus, permit: Permit, wanted: int, advance: Advance
) -> tuple[Keys, list[_Sampled]]:
    """Keys from all domains in proportion to their size; at most a few hundred per document."""
    shards = permitted_shards(corpus, permit)
    sizes = {item["stem"]: item["tokens"] for item in corpus.manifest["shards"]}
    total = sum(sizes[shard.stem] for shard in shards)
    opted_out = corpus.opted_out()
    rng = np.random.default_rng(0)
    samples: list[Keys] = []
    seen: list[_Sampled] = []
    count = 0
    for shard in shards:
        room = -(-wanted * sizes[shard.stem] // total)
        for document in checked_documents(shard, permit, opted_out):
            if room <= 0:
                break
            if document is None:
                continue
            keys = _document_keys(encoder, document.text, min(room, _KEYS_PER_DOCUMENT), rng)
            samples.append(keys)
            seen.append(_Sampled(document.id, text_hash(document.text), sketch(document.text)))
            room -= len(keys)
            count += len(keys)
            advance("encode", min(count, wanted), wanted)
    if not samples:
        raise SiloError("input-empty", "no document of the corpus may shape a codec for this model")
    return np.concatenate(samples), seen


def _document_keys(encoder: DocumentEncoder, text: str, most: int, rng: np.random.Generator) -> Keys:
    """Keys from the beginning of a document: about a quarter of what was encoded, so that neighbours are few."""
    (tokens,) = encoder.tokenizer.encode([text[: 16 * most]])
    ids: Ids = np.concatenate([np.array([encoder.tokenizer.begin], dtype=np.uint32), tokens])
    (keys,) = encoder.keys([ids])
    chosen = np.sort(rng.permutation(len(keys))[:most])
    return keys[chosen]


def _install(root: Path, manifest: dict[str, Any], codec: Codec, seen: list[_Sampled]) -> None:
    """Replace the model directory by one that has the codec; killed at any instant, either of the two is there."""
    fresh = growing_place(root)
    if fresh.is_dir():
        with locked_directory(fresh):
            remove_tree(fresh)
    with disk_errors(fresh):
        fresh.mkdir()
        with locked_directory(fresh):
            _fill(root, fresh, manifest, codec, seen)
            replace_model(root)


def _fill(root: Path, fresh: Path, manifest: dict[str, Any], codec: Codec, seen: list[_Sampled]) -> None:
    """Write the model with its codec into an empty directory, durably, the manifest last."""
    left_out = shutil.ignore_patterns(CODEC_FOLDER, MANIFEST)
    shutil.copytree(root, fresh, ignore=left_out, dirs_exist_ok=True)
    codec.save(fresh / CODEC_FOLDER)
    _note_documents(root, fresh, seen)
    sync_tree(fresh)
    rest = {key: value for key, value in manifest.items() if key not in ("fingerprint", "files")}
    write_manifest(fresh, {**rest, "files": file_checksums(fresh), "codec": codec.fingerprint})


def _note_documents(root: Path, fresh: Path, seen: list[_Sampled]) -> None:
    """The list of documents with those that shaped this codec in place of those that shaped an earlier one."""
    documents = load_seen(root).copy() if (root / DOCUMENTS).exists() else np.empty(0, dtype=SEEN)
    documents["shaped"] &= ~np.uint8(CODEC)
    rows = merge_seen(documents, seen_rows(((item.id, item.text) for item in seen), CODEC))
    rows = rows[rows["shaped"] != 0]
    marks = {row["text"].tobytes() for row in rows}
    sketched = [*load_sketches(root).items(), *((item.text, item.sketch) for item in seen)]
    write_atomic(fresh / DOCUMENTS, seen_file(rows))
    write_atomic(fresh / SKETCHES, Sketches.of(item for item in sketched if item[0] in marks).as_bytes())
