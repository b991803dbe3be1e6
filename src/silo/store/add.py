"""Adding documents: who may come in.

A document is taken if its `store` right is given, it is not there already, and it was not erased before. All documents
of one call are set aside first, so that every bucket is written once; a call that was cut off is simply made again,
and what is in the store already is skipped.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from silo.files import canonical_json
from silo.progress import Advance
from silo.records import Document
from silo.store.bucket import Bucket, EncodedDocument, unpack
from silo.store.encode import DocumentPipeline
from silo.store.erasure.suppression import Suppression
from silo.store.manifest import Announce, Generation
from silo.store.partition import leaf_of
from silo.store.paths import StorePaths
from silo.store.write import BucketBuilder, Change, Spool, apply_change
from silo.text.normalise import text_hash

_LISTED = 1000


@dataclass(frozen=True, slots=True)
class Refusal:
    """A document that was not taken, and why."""

    id: str
    external_id: str
    reason: str
    detail: str


@dataclass(slots=True)
class Added:
    """What became of the documents of one call; `read` is the sum of the others. The first refusals are listed."""

    read: int = 0
    added: int = 0
    unchanged: int = 0
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)
    written_bytes: int = 0

    def refuse(self, document: Document, reason: str, detail: str) -> None:
        self.refused += 1
        self.reasons[reason] += 1
        if len(self.refusals) < _LISTED:
            self.refusals.append(Refusal(document.id, document.external_id, reason, detail))


def add_documents(
    documents: Iterable[Document],
    *,
    paths: StorePaths,
    builder: BucketBuilder,
    pipeline: DocumentPipeline,
    generation: Generation,
    buckets: Sequence[Bucket],
    announce: Announce,
    advance: Advance,
) -> Added:
    """Set documents aside, then write the buckets they fall into."""
    done = Added()
    spool = Spool(paths.adding)
    try:
        admission = _Admission(buckets, Suppression.open(paths.suppression))
        for document in documents:
            _set_aside(document, admission, spool, done)
            advance("read", done.read, 0)
        progress = _Progress(spool.text_bytes, advance)
        change = Change(spool, encode=lambda some: pipeline.encode(some, progress.note), announce=announce)
        if spool.count:
            apply_change(paths, builder, generation, buckets, change)
    finally:
        spool.close()
    done.written_bytes = change.written_bytes
    return done


def _set_aside(document: Document, admission: _Admission, spool: Spool, done: Added) -> None:
    done.read += 1
    reason, detail = admission.reason_against(document)
    if not reason:
        spool.add(document, text_hash(document.text))
        done.added += 1
    elif reason == "unchanged":
        done.unchanged += 1
    else:
        done.refuse(document, reason, detail)


class _Admission:
    """Decides document by document."""

    def __init__(self, buckets: Sequence[Bucket], suppression: Suppression) -> None:
        self._buckets = {bucket.prefix: bucket for bucket in buckets}
        self._prefixes = sorted(self._buckets)
        self._suppression = suppression
        self._coming: dict[bytes, bytes] = {}

    def reason_against(self, document: Document) -> tuple[str, str]:
        """The reason to leave a document out and a detail; ("", "") to take it, ("unchanged", "") if it is there."""
        if not document.rights.store:
            return "no-store-right", _denial(document)
        if not document.text:
            return "empty", "the text is empty"
        name, record_hash = bytes.fromhex(document.id), _record_hash(canonical_json(document.as_json()))
        known = self._coming.get(name) or self._stored_hash(name)
        if known == record_hash:  # before suppression: an objection to a copy takes nothing from who held it already
            return "unchanged", ""
        if known is not None:
            return "other-record", "another text or licence is stored under this id: erase that first"
        if blocked := self._suppression.blocks(document.id, document.text):
            return "suppressed", blocked
        self._coming[name] = record_hash
        return "", ""

    def _stored_hash(self, name: bytes) -> bytes | None:
        prefix = leaf_of(name, self._prefixes)
        row = self._buckets[prefix].find(name) if prefix is not None else -1
        if prefix is None or row < 0:
            return None
        return _record_hash(unpack(self._buckets[prefix].record(row)))


def _record_hash(record: bytes) -> bytes:
    return hashlib.sha256(record).digest()


def _denial(document: Document) -> str:
    statements = [item.asserted for item in document.evidence if "store" in item.denies]
    if statements:
        return f"storing is denied by {statements[0]!r}"
    return f"licence {document.license or 'unknown'} does not allow it"


@dataclass(slots=True)
class _Progress:
    """Text bytes that were encoded, of so many."""

    total: int
    advance: Advance
    done: int = 0

    def note(self, documents: Sequence[EncodedDocument]) -> None:
        self.done += sum(document.text_bytes for document in documents)
        self.advance("encode", min(self.done, self.total), self.total)
