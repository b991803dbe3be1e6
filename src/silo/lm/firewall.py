"""The training firewall: which documents may shape a model, a check of each of them, and the list of those that did.

`documents.npy` in a model directory holds one `SEEN` row per document, sorted by id: what shaped the tokenizer, the
weights or the codec can be asked for by document id, and compared with a corpus. `sketches.npz` holds a sketch of each
of their texts, so that near copies can be found too; models made before there were sketches have none.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.corpus.corpus import Corpus
from silo.corpus.shards import Shard
from silo.errors import SiloError, did_you_mean
from silo.files import MANIFEST
from silo.lm.manifest import open_manifest, require_model
from silo.records import Document, Evidence, Right, Rights, Tier, is_document_id
from silo.rights import resolve
from silo.text.sketch import Sketches

SEEN = np.dtype([("id", "V16"), ("text", "V16"), ("shaped", "u1")])
TOKENIZER, WEIGHTS, CODEC = 1, 2, 4
SHAPED = {"tokenizer": TOKENIZER, "weights": WEIGHTS, "codec": CODEC}

DOCUMENTS, SKETCHES = "documents.npy", "sketches.npz"

PERMITTED = (Tier.pd, Tier.sw, Tier.by)
"""The tiers that may train a model."""


@dataclass(frozen=True, slots=True)
class Permit:
    """What a training run may use. A `reference` run may use everything, and its model is marked for ever."""

    tiers: frozenset[Tier]
    reference: bool = False

    @classmethod
    def of(cls, tiers: Iterable[str], *, reference: bool = False) -> Permit:
        """Refuses the restricted tier unless the run is a declared reference."""
        chosen = frozenset(map(_tier, tiers))
        if not chosen:
            raise SiloError("recipe-value", "tiers: name at least one of pd, sw, by")
        if Tier.restricted in chosen and not reference:
            raise SiloError("training-refused", "the restricted tier never trains a model")
        return cls(chosen, reference)

    @classmethod
    def for_codec(cls, manifest: Mapping[str, Any]) -> Permit:
        """What may shape the codec of a model: what may train it, or what may train a model if it was imported."""
        training = manifest.get("training", {})
        return cls.of(training.get("tiers", PERMITTED), reference=bool(training.get("reference")))

    def allows(self, document: Document) -> bool:
        """True for a document that the view of this run may hold."""
        return document.tier in self.tiers and (self.reference or document.rights.train)


def _tier(name: str) -> Tier:
    try:
        return Tier(name)
    except ValueError:
        message = f"tiers: '{name}' is not one of {', '.join(Tier)}"
        raise SiloError("recipe-value", message, did_you_mean(name, Tier)) from None


def permitted_shards(corpus: Corpus, permit: Permit) -> list[Shard]:
    """The shards a run may read."""
    shards = corpus.shards(tiers=sorted(permit.tiers))
    if not shards:
        raise SiloError("input-empty", f"{corpus.root} has no document of the tiers {', '.join(sorted(permit.tiers))}")
    return shards


def codec_permit(model: Path, corpus: Corpus) -> Permit:
    """What of a corpus may shape the codec of a model; refused if that is nothing. No network is loaded."""
    require_model(model)
    permit = Permit.for_codec(open_manifest(model))
    permitted_shards(corpus, permit)
    return permit


def checked_documents(shard: Shard, permit: Permit, opted_out: frozenset[str]) -> Iterator[Document | None]:
    """The documents of a shard in order, None for those the run must leave out.

    A document that contradicts its shard, in its tier, its licence rights or its id, or claims more than its evidence
    grants, stops the run: it slipped in.
    """
    index = shard.index()
    for entry, document in zip(index, shard.documents(), strict=True):
        _refuse_intruders(shard, entry, document, permit)
        usable = document.id not in opted_out and permit.allows(document)
        yield document if usable else None


def _refuse_intruders(shard: Shard, entry: Any, document: Document, permit: Permit) -> None:
    problem = ""
    if document.tier != shard.tier:
        problem = f"is {document.tier}"
    elif document.tier not in permit.tiers:
        problem = f"is {document.tier}, which this run may not use"
    elif document.tier == Tier.restricted and document.rights.train:
        problem = "is restricted and yet has the train right"
    elif bool(entry["train"]) != document.rights.train:
        problem = "has another train right in its index than in its record"
    elif entry["id"].tobytes().hex() != document.id:
        problem = "is not the document its index names"
    else:
        problem = find_overclaim(document)
    if problem:
        raise SiloError("training-refused", f"document {document.id} in shard {shard.stem} {problem}")


def find_overclaim(document: Document) -> str:
    """What a record claims beyond its own evidence; a record may be stricter than that, never laxer."""
    facts = frozenset((item.tier, item.spdx, item.confidence, item.denies) for item in document.evidence)
    tier, rights = _judge_again(facts)
    if document.tier.rank < tier.rank:
        return f"claims to be {document.tier}, its evidence makes it {tier}"
    return "" if rights.covers(document.rights) else "claims rights that its evidence does not grant"


@lru_cache(maxsize=4096)
def _judge_again(facts: frozenset[tuple[Tier | None, str, float, frozenset[Right]]]) -> tuple[Tier, Rights]:
    """The verdict on evidence; many documents share one, and where it was found has no part in it."""
    verdict = resolve(
        Evidence("", "", "", confidence, tier=tier, spdx=spdx, denies=denies)
        for tier, spdx, confidence, denies in facts
    )
    return verdict.tier, verdict.rights


def seen_rows(documents: Iterable[tuple[str, bytes]], shaped: int) -> NDArray[np.void]:
    """Rows for documents given as (id, text hash)."""
    pairs = sorted(set(documents))
    rows = np.zeros(len(pairs), dtype=SEEN)
    for at, (name, mark) in enumerate(pairs):
        rows[at] = (bytes.fromhex(name), mark, shaped)
    return rows


def merge_seen(*parts: NDArray[np.void]) -> NDArray[np.void]:
    """One row per document, with everything it shaped."""
    merged: dict[tuple[bytes, bytes], int] = {}
    for row in np.concatenate(parts):
        key = (row["id"].tobytes(), row["text"].tobytes())
        merged[key] = merged.get(key, 0) | int(row["shaped"])
    rows = np.zeros(len(merged), dtype=SEEN)
    for at, (key, shaped) in enumerate(sorted(merged.items())):
        rows[at] = (*key, shaped)
    return rows


def seen_file(rows: NDArray[np.void]) -> bytes:
    """The bytes of `documents.npy`."""
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    return buffer.getvalue()


def load_seen(model: Path) -> NDArray[np.void]:
    """The rows of a model directory, which must be those its manifest names; a model of others has none."""
    data = _read_listed(model, DOCUMENTS)
    if data is None:
        raise SiloError("model-unknown-data", f"{model} does not say what it was trained on")
    try:
        rows: NDArray[np.void] = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError):
        raise SiloError("model-damaged", f"{model / DOCUMENTS} cannot be read") from None
    if rows.dtype != SEEN:
        raise SiloError("model-damaged", f"{model / DOCUMENTS} is not a list of documents")
    return rows


def load_sketches(model: Path) -> Sketches:
    """The sketches of a model directory, none if it was made before there were any."""
    data = _read_listed(model, SKETCHES)
    try:
        return Sketches.of([]) if data is None else Sketches.from_bytes(data)
    except ValueError as error:
        raise SiloError("model-damaged", f"{model / SKETCHES}: {error}") from None


def _read_listed(model: Path, name: str) -> bytes | None:
    """A file that must be what the manifest says, if there is one; None if neither it nor the file is there."""
    expected = open_manifest(model)["files"].get(name, "") if (model / MANIFEST).exists() else None
    if not (model / name).exists() and not expected:
        return None
    try:
        data = (model / name).read_bytes()
    except OSError:
        raise SiloError("model-damaged", f"{model / name} cannot be read") from None
    if expected is not None and hashlib.sha256(data).hexdigest() != expected:
        raise SiloError("model-damaged", f"{model / name} differs from the manifest")
    return data


def what_it_shaped(model: Path, document_id: str) -> list[str]:
    """Which parts a document of this id shaped, none if the model does not list it."""
    if not is_document_id(document_id):
        hint = "the id of a record needs the --corpus that has it"
        raise SiloError("usage", f"silo's id of a document has 32 digits of 0 to f: {document_id!r} is none", hint)
    rows = load_seen(model)
    return parts_shaped(rows[rows["id"] == np.void(bytes.fromhex(document_id))])


def parts_shaped(rows: NDArray[np.void]) -> list[str]:
    """The parts of a model that any of some documents shaped."""
    shaped = int(np.bitwise_or.reduce(rows["shaped"])) if len(rows) else 0
    return [name for name, bit in SHAPED.items() if shaped & bit]
