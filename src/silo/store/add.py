"""Adding documents: who may come in, and how a text becomes tokens, keys and codes.

A document is taken if its `store` right is given, it was not erased before, and it is not there already. All documents
of one call are set aside first, so that every bucket is written once; a call that was cut off is simply made again,
and what is in the store already is skipped.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.files import canonical_json
from silo.progress import Advance
from silo.records import Document
from silo.store.bucket import Bucket, Part, unpack
from silo.store.config import Encoder
from silo.store.erasure.suppression import Suppression
from silo.store.partition import leaf_of
from silo.store.spool import Spool, Waiting
from silo.store.write import Change, apply
from silo.text.normalise import text_hash
from silo.text.tokenizer import Ids, token_dtype

if TYPE_CHECKING:
    from silo.store.store import Store

_BATCH_TOKENS = 1 << 15
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


class _Gate:
    """Decides document by document."""

    def __init__(self, buckets: Sequence[Bucket], suppression: Suppression) -> None:
        self._buckets = {bucket.prefix: bucket for bucket in buckets}
        self._prefixes = sorted(self._buckets)
        self._suppression = suppression
        self._coming: dict[bytes, bytes] = {}

    def why_not(self, document: Document) -> tuple[str, str]:
        """The reason to leave a document out and a detail; ("", "") to take it, ("unchanged", "") if it is there."""
        if not document.rights.store:
            return "no-store-right", _denial(document)
        if not document.text:
            return "empty", "the text is empty"
        if blocked := self._suppression.blocks(document.id, document.text):
            return "suppressed", blocked
        name, mark = bytes.fromhex(document.id), _record_mark(canonical_json(document.as_json()))
        known = self._coming.get(name) or self._stored(name)
        if known is None:
            self._coming[name] = mark
            return "", ""
        if known == mark:
            return "unchanged", ""
        return "other-record", "another text or licence is stored under this id: erase that first"

    def _stored(self, name: bytes) -> bytes | None:
        prefix = leaf_of(name, self._prefixes)
        row = self._buckets[prefix].find(name) if prefix is not None else -1
        if prefix is None or row < 0:
            return None
        return _record_mark(unpack(self._buckets[prefix].frame(row)))


def _record_mark(record: bytes) -> bytes:
    return hashlib.sha256(record).digest()


def _denial(document: Document) -> str:
    said = [item.asserted for item in document.evidence if "store" in item.denies]
    return f"storing is denied by {said[0]!r}" if said else f"licence {document.license or 'unknown'} does not allow it"


def add_documents(store: Store, documents: Iterable[Document], *, advance: Advance) -> Added:
    """Set documents aside, then build the buckets they fall into."""
    if store.encoder is None:
        raise SiloError("store-mismatch", "adding needs the model the store was made with", "open it with its model")
    done = Added()
    with store.writing() as shop:
        with store.reading() as view:
            spool = Spool(store.root / "adding")
            try:
                gate = _Gate(view.buckets, Suppression.open(store.root))
                for document in documents:
                    _take(document, gate, spool, done)
                    advance("read", done.read, 0)
                progress = _Progress(spool.text_bytes, advance)
                change = Change(coming=spool, encode=lambda waiting: encode(store, waiting, progress.add))
                if spool.count:
                    list(apply(shop, view.generation, view.buckets, change))
            finally:
                spool.close()
        done.written_bytes = change.written
        if done.added:
            store.journal().append("added", {"documents": done.added, "digest": store.digest()})
    return done


def _take(document: Document, gate: _Gate, spool: Spool, done: Added) -> None:
    done.read += 1
    reason, detail = gate.why_not(document)
    if not reason:
        spool.add(document, text_hash(document.text))
        done.added += 1
    elif reason == "unchanged":
        done.unchanged += 1
    else:
        done.refuse(document, reason, detail)


@dataclass(slots=True)
class _Progress:
    """Text bytes that were encoded, of so many."""

    total: int
    advance: Advance
    done: int = 0

    def add(self, parts: Sequence[Part]) -> None:
        self.done += sum(part.text_bytes for part in parts)
        self.advance("encode", min(self.done, self.total), self.total)


def encode(
    store: Store, waiting: Sequence[Waiting], note: Callable[[Sequence[Part]], None] = lambda _: None
) -> list[Part]:
    """Tokens, keys and codes of documents, each from its own text alone; `note` is shown some at a time."""
    encoder = store.encoder
    assert encoder is not None
    parts: list[Part] = []
    held: list[tuple[Waiting, Ids]] = []
    size = 0
    for item in waiting:
        (found,) = encoder.tokenizer.encode([json.loads(unpack(item.frame))["text"]])
        held.append((item, np.concatenate([np.array([encoder.tokenizer.begin], dtype=np.uint32), found])))
        size += len(found)
        if size >= _BATCH_TOKENS:
            parts += _encode_some(store, encoder, held, note)
            held, size = [], 0
    return parts + _encode_some(store, encoder, held, note)


def _encode_some(
    store: Store, encoder: Encoder, held: list[tuple[Waiting, Ids]], note: Callable[[Sequence[Part]], None]
) -> list[Part]:
    kind = token_dtype(store.config.vocabulary)
    codes: Iterator[tuple[NDArray[Any], ...]]
    if store.tables is None:
        codes = iter([(np.empty(0, dtype=np.int32), np.empty((0, 0), dtype=np.uint8))] * len(held))
    else:
        codes = encoder.codes([ids for _, ids in held], store.tables.codec.quantise)
    parts = [
        Part(item.id, item.mark, item.frame, item.text_bytes, ids.astype(kind), *code)
        for (item, ids), code in zip(held, codes, strict=True)
    ]
    note(parts)
    return parts
