"""Exact erasure: accepted in milliseconds, done when no trace is left, with a signed receipt.

Accepted: the intent is on the disk (`pending.json`) and no query finds the documents any more. Then the works are kept
out (suppression), the buckets are written anew without them and exchanged, the usage ledger loses their names, readers
of the old generation are waited for, digest and residue are checked, and the receipt is signed and logged: done. A
crash in between is finished at the next opening. `pending.json` is removed in the end: it is the only place that names
the documents.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo.errors import SiloError
from silo.files import canonical_json, is_held, remove_file, sync_directory, write_json
from silo.records import Document
from silo.store.bucket import Bucket, Part
from silo.store.erasure.copies import Copy, find_copies
from silo.store.erasure.digest import Digest
from silo.store.erasure.receipt import Erasure, ModelListing, load_or_make_key, log_facts, make_receipt, new_salts
from silo.store.erasure.residue import Traces, scan
from silo.store.erasure.suppression import Suppression
from silo.store.generation import BUCKETS, READERS, Generation
from silo.store.policy import Selector
from silo.store.usage import redact_usage
from silo.store.view import View
from silo.store.write import Change, apply

if TYPE_CHECKING:
    from silo.store.store import Store

Listing = Callable[[Sequence[str]], tuple[ModelListing, ...]]
"""Which models list any of these documents as training text."""

DRAIN_SECONDS = 30.0
PENDING, RECEIPTS, KEY = "pending.json", "receipts", "keys/receipts.pem"
_FORMAT = "silo-pending-1"


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure did. `salts` belong to the owner: they open the receipt's commitments and are kept nowhere."""

    documents: tuple[str, ...]
    accepted_ms: float
    done_ms: float
    receipt: Path | None
    salts: dict[str, str]
    copies: tuple[Copy, ...] = ()


def selected(store: Store, selector: Selector) -> list[Document]:
    """The documents an erasure would remove."""
    return list(store.documents(selector))


def erase(store: Store, selector: Selector, *, suppress: bool, copies: bool) -> Erased:
    """Erase what a selector means. Copies that the same owner holds go too; those of others are only listed."""
    if not selector:
        raise SiloError("usage", "say what to erase: a document, owner, source, licence, domain or query")
    begun = time.perf_counter()
    with store.writing():
        if (store.root / PENDING).exists():
            finish_erasure(store)
        gone = selected(store, selector)
        listed: list[Copy] = []
        if copies and gone:
            owners = {document.owner for document in gone}
            found = find_copies(gone, store.documents())
            own = {copy.id for copy in found if copy.owner and copy.owner in owners}
            gone += [document for document in store.documents() if document.id in own]
            listed = [copy for copy in found if copy.id not in own]
        if not gone:
            return Erased((), _since(begun), _since(begun), None, {}, tuple(listed))
        salts = _accept(store, sorted(document.id for document in gone), suppress=suppress)
        accepted = _since(begun)
        receipt = finish_erasure(store)
    return Erased(tuple(salts), accepted, _since(begun), receipt, salts, tuple(listed))


def _since(begun: float) -> float:
    return round(1000 * (time.perf_counter() - begun), 3)


def _accept(store: Store, names: list[str], *, suppress: bool) -> dict[str, str]:
    """Make the intent durable; from here on nobody finds the documents."""
    salts = new_salts(names)
    with store.reading() as view:
        content = {
            "format": _FORMAT,
            "documents": salts,
            "suppress": suppress,
            "accepted": datetime.now(UTC).isoformat(),
            "generation": view.generation.fingerprint,
            "digest": view.generation.digest,
        }
    write_json(store.root / PENDING, content)
    store.journal().append("erase-accepted", {"documents": len(names)})
    store.refresh()
    return salts


def pending_documents(path: Path) -> frozenset[bytes]:
    """The documents of an erasure that was accepted and is not done."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return frozenset()
    except ValueError:
        raise SiloError("store-damaged", f"{path} is not as it was written") from None
    return frozenset(bytes.fromhex(name) for name in content["documents"])


def finish_erasure(store: Store) -> Path:
    """Carry out what `pending.json` says, from wherever it was cut off; returns the receipt."""
    pending = json.loads((store.root / PENDING).read_bytes())
    names = frozenset(bytes.fromhex(name) for name in pending["documents"])
    store.refresh()
    with store.reading() as view:
        before, work = view.generation, _Work.of(view, names)
        if pending["suppress"]:
            Suppression.open(store.root).add((name, text) for name, text in work.texts)
        steps = apply(store.workshop(), before, view.buckets, Change(leaving=names))
        after = [before, *steps][-1]
        expected = work.digest_before - work.digest
    store.refresh()
    redact_usage(store.root, names)
    checks = _checks(store, before, after, work, expected)
    receipt = _sign(store, pending, after, work, checks)
    remove_file(store.root / PENDING)
    sync_directory(store.root)
    store.refresh()
    return receipt


@dataclass(frozen=True, slots=True)
class _Work:
    """What is known of the documents while they are still there; empty if a crash came after they had gone."""

    parts: tuple[Part, ...]
    texts: tuple[tuple[str, str], ...]
    traces: Traces
    digest: Digest
    digest_before: Digest
    tokens: int
    passages: int

    @classmethod
    def of(cls, view: View, names: frozenset[bytes]) -> _Work:
        touched = [bucket for bucket in view.buckets if any(bucket.find(name) >= 0 for name in names)]
        parts = [part for bucket in touched for part in bucket.parts()]
        going = [part for part in parts if part.id in names]
        rows = [(bucket, row) for bucket in touched for row in map(bucket.find, sorted(names)) if row >= 0]
        passages = sum(
            int((bucket.sections["passages.documents"] == row).sum())
            for bucket, row in rows
            if "passages.documents" in bucket.sections
        )
        return cls(
            parts=tuple(going),
            texts=tuple((bucket.document(row).id, bucket.document(row).text) for bucket, row in rows),
            traces=Traces.of(going).without(part for part in parts if part.id not in names),
            digest=Digest.of(part.element for part in going),
            digest_before=sum((bucket.digest for bucket in view.buckets), Digest.of()),
            tokens=sum(len(part.tokens) for part in going),
            passages=passages,
        )


def _checks(store: Store, before: Generation, after: Generation, work: _Work, expected: Digest) -> dict[str, Any]:
    """Wait for old readers, then look at what is left."""
    drained = before.fingerprint == after.fingerprint or _drain(store.root, before)
    fresh = [name for prefix, name in after.files().items() if after.buckets[prefix] not in before.buckets.values()]
    with store.reading() as view:
        traces = _unshared(work.traces, view)
        looked = scan([*(store.root / "data" / BUCKETS / name for name in fresh), *_beside(store.root)], traces)
        digest = sum((_recomputed(bucket, before, after) for bucket in view.buckets), Digest.of())
    return {
        "digest-recomputed": digest == expected and after.digest == expected.published(store.config.fingerprint),
        "readers-drained": drained,
        "residue-windows": len(traces),
        "residue-files": looked.files,
        "residue-hits": len(looked.hits),
    }


def _unshared(traces: Traces, view: View) -> Traces:
    """Without those that are names (owners, licences and the like) of documents that stay: files rightly hold them."""
    names = {name for bucket in view.buckets for held in bucket.names.values() for name in held}
    return traces.not_in([canonical_json(sorted(names))])


def _recomputed(bucket: Bucket, before: Generation, after: Generation) -> Digest:
    """The digest of a bucket: made again from its documents if it was written anew."""
    if before.buckets.get(bucket.prefix) == after.buckets[bucket.prefix]:
        return bucket.digest
    return Digest.of(part.element for part in bucket.parts())


def _beside(root: Path) -> list[Path]:
    """Everything in the store's folder but its data and the intent, which goes last."""
    return [path for path in root.iterdir() if path.name not in ("data", PENDING, "codec", "tokenizer.json")]


def _drain(root: Path, generation: Generation) -> bool:
    """Wait until nobody reads a generation any more."""
    lock = root / READERS / generation.fingerprint[:32]
    end = time.monotonic() + DRAIN_SECONDS
    while is_held(lock):
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    remove_file(lock)
    return True


def _sign(store: Store, pending: dict[str, Any], after: Generation, work: _Work, checks: dict[str, Any]) -> Path:
    salts: dict[str, str] = pending["documents"]
    erasure = Erasure(
        config=store.config.fingerprint,
        documents=tuple(sorted(salts)),
        tokens=work.tokens,
        passages=work.passages,
        generation_before=pending["generation"],
        generation_after=after.fingerprint,
        digest_before=pending["digest"],
        digest_after=after.digest,
        accepted=datetime.fromisoformat(pending["accepted"]),
        checks=checks,
        models=store.listing(sorted(salts)),
    )
    journal = store.journal()
    journal.append("erased", log_facts(erasure, salts))
    key = load_or_make_key(store.root / KEY)
    receipt = make_receipt(erasure, salts, key=key, log=journal.head(), done=datetime.now(UTC))
    folder = store.root / RECEIPTS
    folder.mkdir(exist_ok=True)
    path = folder / f"{journal.head().n:06d}-{journal.head().hash[:12]}.json"
    write_json(path, receipt)
    return path
