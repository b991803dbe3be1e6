"""Byte-level BPE learned from permitted documents only: lossless on normalised text, same corpus -> same bytes.

`<|endoftext|>` has id 0 and begins every document; the 256 byte symbols follow, so any text has a spelling. On disk:
`tokenizer.json` and `tokenizer_config.json`, which silo and `transformers.AutoTokenizer` both load.

A tokenizer that comes as a file has an origin too, as far as anybody can tell: `find_origin`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from silo.corpus.corpus import Corpus
from silo.corpus.shards import Shard
from silo.errors import SiloError
from silo.files import MANIFEST, file_sha256, write_atomic, write_json
from silo.lm.firewall import (
    DOCUMENTS,
    SEEN,
    TOKENIZER,
    Permit,
    checked_documents,
    load_seen,
    load_sketches,
    permitted_shards,
)
from silo.lm.manifest import open_manifest
from silo.progress import Advance
from silo.recipe import MIB
from silo.records import Document
from silo.text.normalise import text_hash
from silo.text.sketch import Sketches, sketch
from silo.text.words import Hashes

BEGIN = "<|endoftext|>"
FILE, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
SMALLEST = 257
"""The begin mark and every byte."""

Provenance = Literal["learned here", "bytes", "stated", "unknown"]

_NO_SKETCHES = Sketches.of([])
_LONGEST_TOKEN = 32
_MOST_MARKS = 16
"""Marks that a tokenizer of bytes may add; more could be words."""
_PIECE_CHARS = 1 << 16


@dataclass(frozen=True, slots=True)
class TrainedTokenizer:
    """A tokenizer's folder, how many ids it has, and (id, text hash) and sketch of every document that shaped it."""

    root: Path
    vocabulary: int
    text_bytes: int
    documents: tuple[tuple[str, bytes], ...]
    sketches: Sketches


def train_tokenizer(
    corpus: Corpus,
    *,
    tiers: Iterable[str],
    vocabulary: int,
    out: Path,
    max_bytes: int = 50 * MIB,
    reference: bool = False,
    advance: Advance = lambda *_: None,
) -> TrainedTokenizer:
    """Learn from the permitted documents of some tiers, each shard giving its share of at most `max_bytes`.

    `reference` is for models that are declared to have seen everything; see `silo.lm.firewall`.
    """
    if vocabulary < SMALLEST:
        raise SiloError("recipe-value", f"vocabulary must be at least {SMALLEST}, not {vocabulary}")
    permit = Permit.of(tiers, reference=reference)
    sample = _Sample(corpus, permit, max_bytes, advance)
    tokenizer = _empty_tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BEGIN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=_LONGEST_TOKEN,
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample.texts(), trainer)
    if not sample.documents:
        raise SiloError("input-empty", f"{corpus.root} has no document a tokenizer may learn from")
    save_tokenizer(tokenizer, out, BEGIN)
    sketches = Sketches.of(sample.sketched)
    return TrainedTokenizer(out, tokenizer.get_vocab_size(), sample.text_bytes, tuple(sample.documents), sketches)


def _empty_tokenizer(model: Any) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class _Sample:
    """The text a tokenizer learns from, and what it turned out to be.

    Documents lie in the order of their ids, which are hashes: the first ones of a shard are a fair sample of it.
    """

    def __init__(self, corpus: Corpus, permit: Permit, max_bytes: int, advance: Advance) -> None:
        self.documents: list[tuple[str, bytes]] = []
        self.sketched: list[tuple[bytes, Hashes]] = []
        self.text_bytes = 0
        self._permit = permit
        self._opted_out = corpus.opted_out()
        self._advance = advance
        shards = permitted_shards(corpus, permit)
        sizes = [_usable_bytes(shard, permit, self._opted_out) for shard in shards]
        share = min(1.0, max_bytes / max(1, sum(sizes)))
        self._quotas = [(shard, int(size * share)) for shard, size in zip(shards, sizes, strict=True)]
        self._total = sum(quota for _, quota in self._quotas)

    def texts(self) -> Iterator[str]:
        for shard, quota in self._quotas:
            yield from self._shard_texts(shard, quota)
        self._advance("tokenizer", self._total, self._total)

    def _shard_texts(self, shard: Shard, quota: int) -> Iterator[str]:
        room = quota
        for document in checked_documents(shard, self._permit, self._opted_out):
            if room <= 0:
                return
            if document is None:
                continue
            text = _first_bytes(document.text, room)
            self._note(document, len(text.encode()))
            room -= len(document.text.encode())
            yield from (text[at : at + _PIECE_CHARS] for at in range(0, len(text), _PIECE_CHARS))

    def _note(self, document: Document, size: int) -> None:
        mark = text_hash(document.text)
        self.documents.append((document.id, mark))
        self.sketched.append((mark, sketch(document.text)))
        self.text_bytes += size
        self._advance("tokenizer", min(self.text_bytes, self._total), self._total)


def _usable_bytes(shard: Shard, permit: Permit, opted_out: frozenset[str]) -> int:
    index = shard.index()
    usable = np.ones(len(index), dtype=np.bool_) if permit.reference else index["train"] == 1
    if opted_out:
        usable &= [entry["id"].tobytes().hex() not in opted_out for entry in index]
    return int(index["bytes"][usable].sum())


def _first_bytes(text: str, room: int) -> str:
    """The longest beginning of a text that takes at most `room` bytes."""
    if len(text) * 4 <= room:
        return text
    return text.encode()[:room].decode(errors="ignore")


def save_tokenizer(tokenizer: Tokenizer, out: Path, begin: str) -> None:
    """Write both files."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / CONFIG, tokenizer_config(begin))
    plain = json.dumps(json.loads(tokenizer.to_str()), indent=1, ensure_ascii=False)
    write_atomic(out / FILE, (plain + "\n").encode())


def tokenizer_config(begin: str) -> dict[str, Any]:
    """What `AutoTokenizer` needs to know beside `tokenizer.json`: the mark that begins and ends a text."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": begin,
        "unk_token": begin,
        "clean_up_tokenization_spaces": False,
    }


@dataclass(frozen=True, slots=True)
class TokenizerOrigin:
    """What a tokenizer was learned from: documents of ours, nothing (bytes), what somebody states, or nobody knows."""

    provenance: Provenance
    documents: NDArray[np.void]
    sketches: Sketches = _NO_SKETCHES
    tiers: tuple[str, ...] = ()
    statement: str = ""

    @property
    def known(self) -> bool:
        return self.provenance != "unknown"

    def as_json(self, file: Path) -> dict[str, Any]:
        """What the manifest of a model says of its tokenizer."""
        facts = {"fingerprint": file_sha256(file), "provenance": self.provenance, "documents": len(self.documents)}
        return {**facts, "tiers": list(self.tiers), "statement": self.statement}


def find_origin(file: Path, statement: str = "") -> TokenizerOrigin:
    """Where a tokenizer that is given as a file comes from: a model trained here that it lies in, or else its content.

    `statement` is what the recipe says of it; it counts where nothing better is known.
    """
    place, origin = file.parent, TokenizerOrigin("unknown", _no_documents())
    if file.name == FILE and (place / MANIFEST).is_file():
        manifest = open_manifest(place)
        if manifest["files"].get(FILE) == file_sha256(file):
            origin = model_origin(place, manifest)
    if not origin.known and _is_bytes(file):
        origin = TokenizerOrigin("bytes", _no_documents())
    if not origin.known and statement:
        origin = TokenizerOrigin("stated", _no_documents(), statement=statement)
    return origin


def model_origin(model: Path, manifest: Mapping[str, Any]) -> TokenizerOrigin:
    """What the tokenizer of a model directory was learned from, as its manifest and its list of documents say."""
    training = manifest.get("training", {})
    stated = training.get("tokenizer", {})
    rows = load_seen(model) if training and (model / DOCUMENTS).is_file() else _no_documents()
    rows = rows[rows["shaped"] & TOKENIZER != 0].copy()
    rows["shaped"] = TOKENIZER
    if len(rows):
        recipe = training.get("recipe", {})
        tiers = stated.get("tiers") or recipe.get("tokenizer_tiers") or training.get("tiers", ())
        marks = {row["text"].tobytes() for row in rows}
        return TokenizerOrigin("learned here", rows, load_sketches(model).select(marks), tuple(tiers))
    if stated.get("provenance") in ("bytes", "stated"):
        return TokenizerOrigin(stated["provenance"], rows, statement=str(stated.get("statement", "")))
    known = (model / FILE).is_file() and _is_bytes(model / FILE)
    return TokenizerOrigin("bytes" if known else "unknown", rows)


def _no_documents() -> NDArray[np.void]:
    return np.empty(0, dtype=SEEN)


def _is_bytes(file: Path) -> bool:
    """True for byte-level BPE without a merge: its ids are bytes and a few marks, learned from nothing."""
    try:
        content = json.loads(file.read_bytes())
        model, marks = content["model"], content["added_tokens"]
        plain = model["type"] == "BPE" and not model["merges"] and len(marks) <= _MOST_MARKS
        known = {mark["content"] for mark in marks if mark["special"]}
        return plain and all(len(token) == 1 or token in known for token in model["vocab"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False
