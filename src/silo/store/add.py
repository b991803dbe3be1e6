"""Adding documents: who may come in.

A document is taken if its `store` right is given, it is not there already, it was not erased before, it is not
mostly masked, and it gives away no evaluation text that was named. All documents of one call are set aside first, so
that every bucket is written once; a call that was cut off is simply made again, and what is in the store already is
skipped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from silo.corpus.decontaminate import EvaluationText, Leak
from silo.errors import SiloError
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
from silo.text.masks import is_mostly_masked
from silo.text.normalise import normalise, text_hash

_LISTED = 1000
_ID = re.compile(r"[0-9a-f]{32}")
_MOST_LICENCES = 1 << 16
"""Different licences of a store, so that the numbers of those in any of its buckets fit the column (u16)."""
_EVIDENCE = frozenset({"evidence", "conflicts"})
_MARK_BYTES = 16


@dataclass(frozen=True, slots=True)
class Refusal:
    """A document that was not taken, and why."""

    id: str
    external_id: str
    reason: str
    detail: str


Note = Callable[[Refusal], None]
"""Told of every refusal, also of those that are too many to be listed."""


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

    @property
    def decontaminated(self) -> int:
        """Documents that were left out because they give away evaluation text."""
        return self.reasons["contaminated"]

    @property
    def masked(self) -> int:
        """Documents that were left out because more of them is masked than is left."""
        return self.reasons["mostly-masked"]

    def refuse(self, refusal: Refusal) -> None:
        self.refused += 1
        self.reasons[refusal.reason] += 1
        if len(self.refusals) < _LISTED:
            self.refusals.append(refusal)


def add_documents(
    documents: Iterable[Document],
    *,
    paths: StorePaths,
    builder: BucketBuilder,
    pipeline: DocumentPipeline,
    generation: Generation,
    buckets: Sequence[Bucket],
    announce: Announce,
    decontaminate: EvaluationText | None,
    note: Note,
    announce_list: Announce,
    advance: Advance,
) -> Added:
    """Set documents aside, then write the buckets they fall into."""
    done = Added()
    spool = Spool(paths.adding)
    try:
        suppression = Suppression.open(paths.suppression, announce_list)
        admission = _Admission(buckets, suppression, decontaminate)
        for document in documents:
            _set_aside(document, admission, spool, done, note)
            advance("read", done.read, 0)
        progress = _Progress(spool.text_bytes, advance)
        change = Change(spool, encode=lambda some: pipeline.encode(some, progress.note), announce=announce)
        if spool.count:
            suppression.save()
            apply_change(paths, builder, generation, buckets, change)
    finally:
        spool.close()
    done.written_bytes = change.written_bytes
    return done


def _set_aside(document: Document, admission: _Admission, spool: Spool, done: Added, note: Note) -> None:
    if not _ID.fullmatch(document.id):
        message = f"{document.id[:80]!r} is not the id of a document, which has 32 digits of 0 to f"
        raise SiloError("field-type", message, "make it with silo.records.document_id(source, external_id)")
    done.read += 1
    reason, detail = admission.reason_against(document)
    if not reason:
        spool.add(document, text_hash(document.text))
        done.added += 1
    elif reason == "unchanged":
        done.unchanged += 1
    else:
        refusal = Refusal(document.id, document.external_id, reason, detail)
        done.refuse(refusal)
        note(refusal)


class _Admission:
    """Decides document by document."""

    def __init__(self, buckets: Sequence[Bucket], suppression: Suppression, evaluation: EvaluationText | None) -> None:
        self._buckets = {bucket.prefix: bucket for bucket in buckets}
        self._prefixes = sorted(self._buckets)
        self._suppression = suppression
        self._evaluation = evaluation
        self._coming: dict[bytes, bytes] = {}
        self._licences = {name for bucket in buckets for name in bucket.names["license"]}

    def reason_against(self, document: Document) -> tuple[str, str]:
        """The reason to leave a document out and a detail; ("", "") to take it, ("unchanged", "") if it is there."""
        if not document.rights.store:
            return "no-store-right", _denial(document)
        if not document.text:
            return "empty", "the text is empty"
        name, record = bytes.fromhex(document.id), document.as_json()
        known = self._coming.get(name) or self._stored_marks(name)
        if known is not None:  # before suppression: an objection to a copy takes nothing from who held it already
            reason, detail = _reason_of_difference(record, known)
            if reason == "unchanged" and (leak := self._leak(document)):
                return "contaminated-stored", f"{leak.in_words()}: it came in before, erase it"
            return reason, detail
        if blocked := self._suppression.blocks(document.id, document.text):
            return "suppressed", blocked
        if is_mostly_masked(document.text):
            return "mostly-masked", "more than half of its words are masks"
        if leak := self._leak(document):
            return "contaminated", leak.in_words()
        if document.license not in self._licences and len(self._licences) >= _MOST_LICENCES:
            return "too-many-licences", f"the store has {_MOST_LICENCES:,} different licences already"
        self._licences.add(document.license)
        self._coming[name] = _marks(record)
        self._suppression.readmit(document.id, document.text)
        return "", ""

    def _leak(self, document: Document) -> Leak | None:
        return self._evaluation.leak(normalise(document.text)) if self._evaluation else None

    def _stored_marks(self, name: bytes) -> bytes | None:
        prefix = leaf_of(name, self._prefixes)
        row = self._buckets[prefix].find(name) if prefix is not None else -1
        if prefix is None or row < 0:
            return None
        return _marks(json.loads(unpack(self._buckets[prefix].record(row))))


def _marks(record: Mapping[str, Any]) -> bytes:
    """A hash of each field of a record, in the order of their names."""
    values = (canonical_json(record[name]) for name in sorted(record))
    return b"".join(hashlib.blake2b(value, digest_size=_MARK_BYTES).digest() for value in values)


def _reason_of_difference(record: Mapping[str, Any], known: bytes) -> tuple[str, str]:
    """How a record differs from the one that is known under its id."""
    own = _marks(record)
    places = (slice(at, at + _MARK_BYTES) for at in range(0, len(own), _MARK_BYTES))
    other = [name for name, place in zip(sorted(record), places, strict=True) if own[place] != known[place]]
    if not other:
        return "unchanged", ""
    if set(other) <= _EVIDENCE:
        return "other-evidence", "the same document is stored with other evidence of its licence, and stays as it is"
    return "other-record", f"stored under this id with another {' and '.join(other)}: erase that first"


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
