"""Exact erasure: accepted in milliseconds, done when no trace is left, with a signed receipt.

Accepted: the intent is on the disk (`pending.json`) and no query finds the documents any more. Then the works are kept
out (suppression), the buckets are written anew without them and exchanged, the usage ledger loses their names, readers
of the old generation are waited for, digest and residue are checked, and the receipt is signed and logged: done. A
crash in between is finished at the next opening. `pending.json` is removed in the end: it is the only place that names
the documents. `Store.erase` calls the steps below in this order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from silo.errors import SiloError
from silo.files import canonical_json, disk_errors, is_held, remove_file, sync_directory, write_json
from silo.records import Document
from silo.store.bucket import Bucket
from silo.store.erasure.copies import Copy, find_copies
from silo.store.erasure.digest import Digest
from silo.store.erasure.evidence import announce_generation, announce_suppression
from silo.store.erasure.log import AuditLog
from silo.store.erasure.receipt import Erasure, ModelListing, load_or_make_key, log_facts, make_receipt, new_salts
from silo.store.erasure.residue import Traces, scan
from silo.store.erasure.suppression import Suppression
from silo.store.manifest import Generation
from silo.store.paths import StorePaths
from silo.store.selector import Selector
from silo.store.view import View
from silo.store.write import BucketBuilder, Change, apply_change

ListModels = Callable[[Sequence[str]], tuple[ModelListing, ...]]
"""Which models list any of these documents as training text."""

DRAIN_SECONDS = 30.0
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


def choose_documents(view: View, selector: Selector, *, copies: bool) -> tuple[list[str], tuple[Copy, ...]]:
    """The ids that an erasure takes out, and with `copies` those of other owners, which are only listed.

    Copies that the same owner holds go too.
    """
    chosen: list[Document] = list(view.documents(selector))
    listed: list[Copy] = []
    ids = {document.id for document in chosen}
    if copies and chosen:
        owners = {document.owner for document in chosen}
        alike = find_copies(chosen, view.documents())
        own = {copy.id for copy in alike if copy.owner and copy.owner in owners}
        ids |= own
        listed = [copy for copy in alike if copy.id not in own]
    return sorted(ids), tuple(listed)


@dataclass(frozen=True, slots=True)
class PendingErasure:
    """An erasure that was accepted and is not done, as `pending.json` has it: `salts` by document id."""

    salts: Mapping[str, str]
    suppress: bool
    accepted: str
    generation: str
    digest: str

    @classmethod
    def read(cls, path: Path) -> PendingErasure | None:
        """The erasure under way, None if there is none."""
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise SiloError("store-damaged", f"{path} is not as it was written") from None
        plain = {name: content[name] for name in ("suppress", "accepted", "generation", "digest")}
        return cls(salts=content["documents"], **plain)

    def write(self, path: Path) -> None:
        """Make the intent durable."""
        plain = {name: getattr(self, name) for name in ("suppress", "accepted", "generation", "digest")}
        write_json(path, {"format": _FORMAT, "documents": dict(self.salts), **plain})

    @property
    def ids(self) -> frozenset[bytes]:
        return frozenset(bytes.fromhex(document) for document in self.salts)


def accept(paths: StorePaths, generation: Generation, ids: Sequence[str], log: AuditLog, *, suppress: bool) -> None:
    """Make the intent to erase durable; who opens or refreshes the store from here on does not find the documents."""
    now = datetime.now(UTC).isoformat()
    pending = PendingErasure(new_salts(ids), suppress, now, generation.fingerprint, generation.digest)
    pending.write(paths.pending)
    log.append("erase-accepted", {"documents": len(ids)})


@dataclass(frozen=True, slots=True)
class Removal:
    """What is known of erased documents once they have left the buckets; little if a crash came after that."""

    before: Generation
    after: Generation
    traces: Traces
    expected: Digest
    tokens: int
    passages: int


def remove_documents(
    view: View, pending: PendingErasure, paths: StorePaths, builder: BucketBuilder, log: AuditLog
) -> Removal:
    """Keep the works out if that was asked for, and write the buckets anew without them; each announced in the log."""
    ids = pending.ids
    touched = [bucket for bucket in view.buckets if any(bucket.find(name) >= 0 for name in ids)]
    documents = [document for bucket in touched for document in bucket.encoded_documents()]
    leaving = [document for document in documents if document.id in ids]
    rows = [(bucket, row) for bucket in touched for row in map(bucket.find, sorted(ids)) if row >= 0]
    if pending.suppress:
        works = (bucket.document(row) for bucket, row in rows)
        suppression = Suppression.open(paths.suppression, partial(announce_suppression, log))
        suppression.add((work.id, work.text) for work in works)
    traces = Traces.of(leaving).without(document for document in documents if document.id not in ids)
    before = sum((bucket.digest for bucket in view.buckets), Digest.of())
    change = Change(leaving=ids, announce=partial(announce_generation, log))
    return Removal(
        before=view.generation,
        after=apply_change(paths, builder, view.generation, view.buckets, change),
        traces=traces,
        expected=before - Digest.of(document.element for document in leaving),
        tokens=sum(len(document.tokens) for document in leaving),
        passages=sum(_count_passages(bucket, row) for bucket, row in rows),
    )


def _count_passages(bucket: Bucket, row: int) -> int:
    owners = bucket.sections.get("passages.documents")
    return 0 if owners is None else int((owners == row).sum())


def check_removal(view: View, removal: Removal, paths: StorePaths) -> dict[str, bool | int]:
    """Wait for old readers, then look at what is left; `view` is of the generation after."""
    before, after = removal.before, removal.after
    drained = before.fingerprint == after.fingerprint or _drain(paths.reader_lock(before.fingerprint))
    fresh = [name for prefix, name in after.files().items() if after.buckets[prefix] not in before.buckets.values()]
    traces = _leave_out_names(removal.traces, view)
    residue = scan([*(paths.buckets / name for name in fresh), *paths.beside_data()], traces)
    digest = sum((_recompute_digest(bucket, before, after) for bucket in view.buckets), Digest.of())
    published = removal.expected.published(after.config.fingerprint)
    return {
        "digest-recomputed": digest == removal.expected and after.digest == published,
        "readers-drained": drained,
        "residue-windows": len(traces),
        "residue-files": residue.files,
        "residue-hits": len(residue.hits),
    }


def _leave_out_names(traces: Traces, view: View) -> Traces:
    """Without those that are names (owners, licences and the like) of documents that stay: files rightly hold them."""
    names = {name for bucket in view.buckets for values in bucket.names.values() for name in values}
    return traces.not_in([canonical_json(sorted(names))])


def _recompute_digest(bucket: Bucket, before: Generation, after: Generation) -> Digest:
    """The digest of a bucket: made again from its documents if it was written anew."""
    if before.buckets.get(bucket.prefix) == after.buckets[bucket.prefix]:
        return bucket.digest
    return Digest.of(document.element for document in bucket.encoded_documents())


def _drain(reader_lock: Path) -> bool:
    """Wait until nobody reads a generation any more."""
    end = time.monotonic() + DRAIN_SECONDS
    while is_held(reader_lock):
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    remove_file(reader_lock)
    return True


def sign_receipt(
    removal: Removal,
    pending: PendingErasure,
    checks: Mapping[str, bool | int],
    paths: StorePaths,
    log: AuditLog,
    models: tuple[ModelListing, ...],
) -> Path:
    """Log the erasure, write its receipt, and forget the intent: from here on it is done."""
    erasure = Erasure(
        config=removal.after.config.fingerprint,
        documents=tuple(sorted(pending.salts)),
        tokens=removal.tokens,
        passages=removal.passages,
        generation_before=pending.generation,
        generation_after=removal.after.fingerprint,
        digest_before=pending.digest,
        digest_after=removal.after.digest,
        accepted=datetime.fromisoformat(pending.accepted),
        checks=checks,
        models=models,
    )
    log.append("erased", log_facts(erasure, pending.salts))
    head = log.head()
    key = load_or_make_key(paths.signing_key)
    receipt = make_receipt(erasure, pending.salts, key=key, log=head, done=datetime.now(UTC))
    with disk_errors(paths.receipts):
        paths.receipts.mkdir(exist_ok=True)
    path = paths.receipts / f"{head.n:06d}-{head.hash[:12]}.json"
    write_json(path, receipt)
    remove_file(paths.pending)
    sync_directory(paths.root)
    return path
