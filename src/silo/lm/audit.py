"""`silo lm verify`: a model directory against its own checksums, and what it saw against a corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silo.corpus.corpus import Corpus
from silo.lm.firewall import Permit, find_overclaim, load_seen, what_it_shaped
from silo.lm.manifest import model_fingerprint, open_manifest, verify_files
from silo.lm.tokenizer import model_origin
from silo.records import Document
from silo.text.normalise import text_hash


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


def verify_model(model: Path, *, corpus: str | None = None, saw: str | None = None) -> dict[str, Any]:
    """What `silo lm verify` prints; `violations` is empty if nothing speaks against the model."""
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
    if saw:
        report |= {"document": saw, "shaped": what_it_shaped(model, saw)}
    if corpus:
        result = audit(model, Corpus.open(Path(corpus)), Permit.for_codec(manifest))
        report |= {"documents": result.documents, "document_tiers": result.tiers, "violations": result.violations}
    return report
