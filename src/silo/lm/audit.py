"""`silo lm verify` and `silo lm saw`: a model directory against its own checksums, a corpus, a document or a text.

A model saw a text if the hash of one it lists is the same (case and white space apart), a near copy if their sketches
show enough runs of words in common. Only a list that is complete, and a text long enough for the sample, allow a no.

`silo lm sign` writes `signature.json`: the fingerprint of the manifest, signed with a key of the kind stores have. The
manifest names the SHA-256 of every file, the list of documents among them, so whoever trusts the key trusts the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from silo.corpus.corpus import Corpus
from silo.errors import ExitStatus, SiloError, did_you_mean
from silo.files import MANIFEST, read_json, read_manifest, write_json
from silo.lm.firewall import (
    DOCUMENTS,
    Permit,
    find_overclaim,
    load_seen,
    load_sketches,
    parts_shaped,
    what_it_shaped,
)
from silo.lm.manifest import is_in_between, model_fingerprint, open_manifest, verify_files
from silo.lm.tokenizer import model_origin
from silo.records import Document, is_document_id
from silo.signing import decode, encode, load_or_make_key, parse_public_key, public_bytes, sign, signature_fits
from silo.text.normalise import normalise, text_hash
from silo.text.sketch import Sketches, chance_to_miss

Answer = Literal["seen", "near copy", "not seen", "unknown"]

SIGNATURE = "signature.json"
_SIGNATURE_FORMAT = "silo-model-signature-1"
Verdict = Literal["genuine", "self-consistent", "not signed"]

SAW_STATUS = {
    "seen": ExitStatus.SEEN,
    "near copy": ExitStatus.NEAR_COPY,
    "not seen": ExitStatus.OK,
    "unknown": ExitStatus.REFUSED,
}
"""How a command ends that was asked."""

_NO_LIST = "the model does not say what it was trained on"

_NEAR_SHARE = 0.1
"""From this share of its runs on a text is a near copy; notices and headers make up less of a text of some pages."""
_NEAR_CONTAINED, _NEAR_HITS = 0.5, 16
"""Or if so much of a document is in it, shown by so many runs: an anthology holds a story."""
_MISSED = 0.05
"""A text that its sample would miss more often than this is too short for a no."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What `silo lm verify` found: documents that shaped the model, and those a corpus does not let it use."""

    documents: int
    tiers: dict[str, int]
    violations: list[str]


def audit(model: Path, corpus: Corpus, permit: Permit) -> Audit:
    """Compare what a model saw with a corpus: all of it must be there, unchanged, permitted and not opted out.

    The corpus must be what its manifest says.
    """
    corpus.verify()
    rows = load_seen(model)
    listed = {row["id"].tobytes().hex(): row["text"].tobytes() for row in rows}
    opted_out = corpus.opted_out()
    tiers: dict[str, int] = {}
    violations: list[str] = []
    missing = set(listed)
    for shard in corpus.shards():
        for document in shard.documents():
            if document.id not in listed:
                continue
            missing.discard(document.id)
            tiers[str(document.tier)] = tiers.get(str(document.tier), 0) + 1
            violations += _find_violations(document, listed[document.id], permit, opted_out)
    violations += [f"{name} is not in the corpus" for name in missing]
    return Audit(len(rows), dict(sorted(tiers.items())), sorted(violations))


def _find_violations(document: Document, mark: bytes, permit: Permit, opted_out: frozenset[str]) -> list[str]:
    problems = []
    if text_hash(document.text) != mark:
        problems.append(f"{document.id} has another text than the model saw")
    if document.id in opted_out:
        problems.append(f"{document.id} has opted out since")
    if not permit.allows(document):
        problems.append(f"{document.id} is {document.tier} and may not train")
    if overclaim := find_overclaim(document):
        problems.append(f"{document.id} {overclaim}")
    return problems


@dataclass(frozen=True, slots=True)
class Sighting:
    """Did a model see a text? `share` is the part of its 13-word runs that was found in what shaped the model."""

    answer: Answer
    shaped: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    share: float | None = None
    reason: str = ""

    @property
    def status(self) -> ExitStatus:
        """How a command ends that was asked this."""
        return SAW_STATUS[self.answer]

    def as_json(self) -> dict[str, Any]:
        share = None if self.share is None else round(self.share, 3)
        return {
            "answer": self.answer,
            "share": share,
            "shaped": list(self.shaped),
            "documents": list(self.documents),
            "reason": self.reason,
        }


def saw_text(model: Path, text: str) -> Sighting:
    """Did this text, or a near copy of it, shape the model?"""
    text = normalise(text)
    if not text:
        raise SiloError("input-empty", "there is no text to ask about")
    manifest = open_manifest(model)
    if DOCUMENTS not in manifest["files"]:
        return Sighting("unknown", reason=_NO_LIST)
    rows = load_seen(model)
    same = rows[rows["text"] == np.void(text_hash(text))]
    if len(same):
        return _sighting("seen", same, 1.0)
    sketches = load_sketches(model)
    overlap = sketches.find(text)
    if overlap.share >= _NEAR_SHARE or (overlap.contained >= _NEAR_CONTAINED and overlap.hits >= _NEAR_HITS):
        return _sighting("near copy", rows[rows["text"] == np.void(overlap.text)], overlap.share)
    doubt = _find_doubt(manifest, rows, sketches, text)
    return Sighting("unknown" if doubt else "not seen", share=overlap.share, reason=doubt)


def _sighting(answer: Answer, rows: NDArray[np.void], share: float) -> Sighting:
    return Sighting(answer, tuple(parts_shaped(rows)), tuple(row["id"].tobytes().hex() for row in rows), share)


def _find_doubt(manifest: dict[str, Any], rows: NDArray[np.void], sketches: Sketches, text: str) -> str:
    """Why a text that was not found may have been seen all the same."""
    if "training" not in manifest:
        return "nobody says what the weights were trained on: only what shaped the codec is listed"
    if len(sketches.texts) < len({row["text"].tobytes() for row in rows}):
        return "no exact copy was seen; the model has no sketches, in which near copies would show"
    if chance_to_miss(text) > _MISSED:
        return "no exact copy was seen; the text is too short to be noticed inside a longer one"
    return ""


def saw_document(model: Path, name: str, *, corpus: Corpus | None = None) -> Sighting:
    """Did a document shape the model, under its id or, where a corpus has its text, under another?

    `name` is silo's id, or with a corpus the id that its record had.
    """
    if DOCUMENTS not in open_manifest(model)["files"]:
        return Sighting("unknown", reason=_NO_LIST)
    document = None
    if corpus and not is_document_id(name):
        document = _find_document(corpus, name)
        name = document.id
    if shaped := what_it_shaped(model, name):
        return Sighting("seen", tuple(shaped), (name,), 1.0)
    if corpus and document is None:
        document = next((item for item in corpus.documents() if item.id == name), None)
    if document:
        return saw_text(model, document.text)
    nowhere = "neither the model nor the corpus has" if corpus else "the model does not list"
    return Sighting(
        "unknown", reason=f"{nowhere} a document of this id; its text may be listed under another: ask with it"
    )


def _find_document(corpus: Corpus, name: str) -> Document:
    """The document whose record had an id."""
    names: set[str] = set()
    for document in corpus.documents():
        if name == document.external_id:
            return document
        names.add(document.external_id)
    message = f"no document of {corpus.root} has the id '{name}'"
    raise SiloError("nothing-selected", message, did_you_mean(name, names) or "silo's ids have 32 digits of 0 to f")


def ask_models(folder: Path, names: Iterable[str], marks: Iterable[bytes]) -> list[tuple[str, str, bool]]:
    """Name and fingerprint of every model of a folder that can say so, and whether it lists one of some documents.

    Documents are named by their ids, texts by their hashes: a text may be listed under another id. A model that is
    damaged, or that cannot say no since nobody knows what it was trained on, is left out unless it lists one.
    """
    ids, texts = {bytes.fromhex(name) for name in names}, set(marks)
    found = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (place / MANIFEST).exists() and (place / DOCUMENTS).exists() and not is_in_between(place):
            found += _ask_model(place, ids, texts)
    return found


def _ask_model(place: Path, ids: set[bytes], texts: set[bytes]) -> list[tuple[str, str, bool]]:
    try:
        manifest, rows = open_manifest(place), load_seen(place)
    except SiloError:  # a damaged model cannot say no, and must not keep a document from being erased
        return []
    listed = not ids.isdisjoint(rows["id"].tolist()) or not texts.isdisjoint(rows["text"].tolist())
    return [(place.name, model_fingerprint(manifest), listed)] if listed or "training" in manifest else []


def verify_model(
    model: Path, *, corpus: str | None = None, saw: str | None = None, trusted: bytes | None = None
) -> dict[str, Any]:
    """What `silo lm verify` prints; `violations` is empty if nothing speaks against the model.

    With `saw`, the answer of `saw_document` is part of it; `trusted` is as for `check_signature`.
    """
    signature = check_signature(model, trusted)
    manifest = open_manifest(model)
    verify_files(model, manifest)
    training, origin = manifest.get("training", {}), model_origin(model, manifest)
    report: dict[str, Any] = {
        "model": model_fingerprint(manifest),
        "files": len(manifest["files"]),
        "permitted": bool(training.get("permitted", False) and origin.known),
        "permitted_weights": bool(training.get("permitted_weights", training.get("permitted", False))),
        "tokenizer": origin.provenance,
        "tiers": training.get("tiers", []),
    }
    opened = Corpus.open(Path(corpus)) if corpus else None
    if saw:
        report |= {"document": saw, **saw_document(model, saw, corpus=opened).as_json()}
    if opened:
        result = audit(model, opened, Permit.for_codec(manifest))
        report |= {"documents": result.documents, "document_tiers": result.tiers, "violations": result.violations}
    return {**report, "signature": signature}


def sign_model(root: Path, key_file: Path) -> dict[str, Any]:
    """Sign a model whose files are what its manifest says; the key is made if there is none."""
    if not (root / MANIFEST).exists():
        raise SiloError("not-a-model", f"{root} has no manifest to sign", "bring the model in with `silo lm import`")
    verify_files(root, _manifest(root))
    key = load_or_make_key(key_file)
    content = {
        "format": _SIGNATURE_FORMAT,
        "manifest": _manifest(root)["fingerprint"],
        "signed": datetime.now(UTC).isoformat(timespec="seconds"),
        "public_key": encode(public_bytes(key)),
    }
    write_json(root / SIGNATURE, {**content, "signature": sign(content, key)})
    return content


def check_signature(root: Path, trusted: bytes | None) -> Verdict:
    """Whether a model is signed as it is now; `genuine` only by the public key that is given as trusted."""
    place = root / SIGNATURE
    if not place.exists():
        if trusted is not None:
            raise SiloError("model-damaged", f"{root} is not signed")
        return "not signed"
    try:
        content = read_json(place)
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("format") != _SIGNATURE_FORMAT:
        raise SiloError("model-damaged", f"{place} is not a signature")
    signature, public = decode(content.pop("signature", None), 64), decode(content.get("public_key"), 32)
    if signature is None or public is None or not signature_fits(content, signature, public):
        raise SiloError("model-damaged", f"the signature in {place} does not fit its content")
    if content.get("manifest") != _manifest(root)["fingerprint"]:
        raise SiloError("model-damaged", f"{root} has changed since it was signed", "sign it again if that is right")
    if trusted is None:
        return "self-consistent"
    if parse_public_key(trusted) != public:
        raise SiloError("model-damaged", f"{root} was signed by another key than the one given")
    return "genuine"


def _manifest(root: Path) -> dict[str, Any]:
    return read_manifest(root, missing="not-a-model", damaged="model-damaged")
