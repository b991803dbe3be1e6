"""Exact erasure: accepted in milliseconds, done when no trace is left, with a signed receipt.

Accepted: the intent is on the disk (`pending.json`) and no query finds the documents any more. Then the works are kept
out (suppression), the buckets are written anew without them and exchanged, the usage ledger loses their names, readers
of older generations are waited for, digest and residue are checked, and the receipt is signed and logged: done. A
crash in between is finished at the next opening, with the same checks: the buckets from before stay in `erasing/` until
what was found is in `pending.json`. That is removed in the end: it is the only place that names the documents.
`Store.erase` calls the steps below in this order.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from silo.files import canonical_json, disk_errors, is_held, remove_file, sync_directory, write_json
from silo.records import Document
from silo.signing import load_or_make_key
from silo.store.bucket import Bucket, EncodedDocument
from silo.store.erasure.before import Before, keep_before, read_before
from silo.store.erasure.copies import Copy, find_copies
from silo.store.erasure.digest import Digest
from silo.store.erasure.evidence import announce_generation, announce_suppression, noted_backups
from silo.store.erasure.log import AuditLog, Head
from silo.store.erasure.pending import Findings, PendingErasure
from silo.store.erasure.receipt import (
    CACHES_ELSEWHERE,
    EXCLUSIONS,
    KNOWN_BACKUPS,
    NOT_CHECKED,
    Erasure,
    ModelListing,
    Result,
    draft_receipt,
    exclusions_with,
    failed_checks,
    fingerprint_of_commitments,
    log_facts,
    new_salts,
    sign_draft,
    unmade_checks,
)
from silo.store.erasure.residue import Traces, scan
from silo.store.erasure.suppression import Suppression
from silo.store.manifest import Generation
from silo.store.paths import StorePaths
from silo.store.selector import Selector
from silo.store.view import View
from silo.store.write import BucketBuilder, Change, apply_change

ListModels = Callable[[Sequence[str], Mapping[str, bytes]], tuple[ModelListing, ...]]
"""Which models list any of these documents, or under another id the same text, as training text."""

DRAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure did. `salts` belong to the owner: they open the receipt's commitments and are kept nowhere.

    `checks` is what the receipt says of them: done is not the same as proven.
    """

    documents: tuple[str, ...]
    accepted_ms: float
    done_ms: float
    receipt: Path | None
    salts: dict[str, str]
    copies: tuple[Copy, ...] = ()
    checks: Mapping[str, Result] = field(default_factory=dict)

    @property
    def failed_checks(self) -> list[str]:
        return failed_checks(self.checks)

    @property
    def unmade_checks(self) -> list[str]:
        return unmade_checks(self.checks) if self.receipt else []


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


def accept(paths: StorePaths, generation: Generation, ids: Sequence[str], log: AuditLog, *, suppress: bool) -> None:
    """Make the intent to erase durable; who opens or refreshes the store from here on does not find the documents."""
    now = datetime.now(UTC).isoformat()
    pending = PendingErasure(tuple(ids), suppress, now, generation.fingerprint, generation.digest)
    pending.write(paths.pending)
    log.append("erase-accepted", {"documents": len(ids)})


@dataclass(frozen=True, slots=True)
class Removal:
    """What is known of documents that have left the buckets, and of the versions that came in their place.

    It is not `complete` if what was kept of the state before is lost.
    """

    before: Generation
    after: Generation
    leaving: tuple[EncodedDocument, ...]
    passages: int
    complete: bool
    coming: tuple[EncodedDocument, ...] = ()
    coming_passages: int = 0

    @property
    def replaced(self) -> dict[str, int]:
        """Counts of what came, empty if nothing did."""
        tokens = sum(len(document.tokens) for document in self.coming)
        counts = {"documents": len(self.coming), "tokens": tokens, "passages": self.coming_passages}
        return counts if self.coming else {}


def remove_documents(
    view: View, pending: PendingErasure, paths: StorePaths, builder: BucketBuilder, log: AuditLog
) -> Removal:
    """List the works as kept out, or as erased, and write the buckets anew without them; each announced in the log."""
    ids = pending.ids
    before = read_before(paths, pending.generation) or keep_touched(view, ids, paths)
    left = Found.of(before.buckets, ids)
    suppression = Suppression.open(paths.suppression, partial(announce_suppression, log))
    (suppression.add if pending.suppress else suppression.note)(left.works())
    change = Change(leaving=ids, announce=partial(announce_generation, log))
    return Removal(
        before=before.generation,
        after=apply_change(paths, builder, view.generation, view.buckets, change),
        leaving=left.documents,
        passages=left.passages,
        complete={document.id for document in left.documents} == ids,
    )


def keep_touched(view: View, ids: frozenset[bytes], paths: StorePaths) -> Before:
    """The state before an erasure, which is kept before anything changes."""
    touched = tuple(bucket for bucket in view.buckets if any(bucket.find(name) >= 0 for name in ids))
    before = Before(view.generation, touched)
    keep_before(paths, before)
    return before


@dataclass(frozen=True, slots=True)
class Found:
    """Documents of some buckets: where they are, and all that is kept of them."""

    rows: tuple[tuple[Bucket, int], ...]
    documents: tuple[EncodedDocument, ...]

    @classmethod
    def of(cls, buckets: Iterable[Bucket], ids: frozenset[bytes]) -> Found:
        """Those with these ids; buckets without any are not read."""
        found = ((bucket, row) for bucket in buckets for row in map(bucket.find, sorted(ids)) if row >= 0)
        rows = tuple(found)
        holding = {id(bucket): bucket for bucket, _ in rows}.values()
        parts = (document for bucket in holding for document in bucket.encoded_documents())
        return cls(rows, tuple(document for document in parts if document.id in ids))

    def works(self) -> Iterator[tuple[str, str]]:
        """The id and the text of each."""
        documents = (bucket.document(row) for bucket, row in self.rows)
        return ((document.id, document.text) for document in documents)

    @property
    def passages(self) -> int:
        return sum(_count_passages(bucket, row) for bucket, row in self.rows)


def _count_passages(bucket: Bucket, row: int) -> int:
    owners = bucket.sections.get("passages.documents")
    return 0 if owners is None else int((owners == row).sum())


def check_removal(
    view: View, removal: Removal, pending: PendingErasure, paths: StorePaths, builder: BucketBuilder
) -> Findings:
    """Wait for old readers, then look at what is left; `view` is of the generation after."""
    drained = drain_readers(paths, removal.after)
    texts = {document.id.hex(): document.text_hash.hex() for document in removal.leaving}
    if not removal.complete:
        unmade = ("digest-recomputed", "residue-windows", "residue-files", "residue-hits")
        made: dict[str, Result] = {**dict.fromkeys(unmade, NOT_CHECKED), "readers-drained": drained}
        return Findings(NOT_CHECKED, NOT_CHECKED, made, texts, removal.replaced)
    known = set(removal.before.files().values())
    fresh = {name: prefix for prefix, name in removal.after.files().items() if name not in known}
    new = [bucket for bucket in view.buckets if bucket.prefix in fresh.values()]
    traces = _traces(removal, new, view)
    in_data, beside = scan([paths.buckets / name for name in fresh], traces), scan(paths.beside_data(), traces)
    suspect = [bucket for bucket in new if bucket.prefix in {fresh[name] for name in in_data.hits}]
    hits = [bucket for bucket in suspect if not _follows_from_others(bucket, removal, builder)]
    checks: dict[str, Result] = {
        "digest-recomputed": _digest_fits(view, new, removal, pending.digest),
        "readers-drained": drained,
        "residue-windows": len(traces),
        "residue-files": in_data.files + beside.files,
        "residue-hits": len(hits) + len(beside.hits),
    }
    tokens = sum(len(document.tokens) for document in removal.leaving)
    return Findings(tokens, removal.passages, checks, texts, removal.replaced)


def _traces(removal: Removal, new: Sequence[Bucket], view: View) -> Traces:
    """What must not be found of documents that left.

    Not what documents in any of the `new` buckets have as well, which may come from buckets that never held the
    others, or are the versions that came, nor names (owners, licences and the like) of documents that stay, nor the
    words of receipts: files rightly hold these.
    """
    staying = filter(_staying(removal), (item for bucket in new for item in bucket.encoded_documents()))
    names = {name for bucket in view.buckets for values in bucket.names.values() for name in values}
    words = canonical_json([*EXCLUSIONS, KNOWN_BACKUPS, CACHES_ELSEWHERE])
    return Traces.of(removal.leaving).without(staying).not_in([canonical_json(sorted(names)), words])


def _staying(removal: Removal) -> Callable[[EncodedDocument], bool]:
    """Tells documents that did not leave, and the very versions that came, from all others."""
    left = {document.id for document in removal.leaving}
    came = {document.element for document in removal.coming}
    return lambda document: document.id not in left or document.element in came


def _follows_from_others(bucket: Bucket, removal: Removal, builder: BucketBuilder) -> bool:
    """Whether a bucket is byte for byte what documents that stay make: what was found in it is then a coincidence.

    Codes lie there by list and numbers of every kind in a row, so that windows come about which no document has.
    """
    documents = list(bucket.encoded_documents())
    checksum = hashlib.sha256(b"".join(builder.build(documents))).hexdigest()
    written = removal.after.buckets[bucket.prefix].sha256
    return checksum == written and all(map(_staying(removal), documents))


def _digest_fits(view: View, new: Sequence[Bucket], removal: Removal, digest_before: str) -> bool:
    """With the new buckets summed up again: this is the published digest.

    With what left, and without what came in its place, it is the one before.
    """
    config, made_again = removal.after.config.fingerprint, {bucket.prefix for bucket in new}
    now = Digest.of(document.element for bucket in new for document in bucket.encoded_documents())
    now = sum((bucket.digest for bucket in view.buckets if bucket.prefix not in made_again), now)
    then = now + Digest.of(document.element for document in removal.leaving)
    then -= Digest.of(document.element for document in removal.coming)
    return (now.published(config), then.published(config)) == (removal.after.digest, digest_before)


def drain_readers(paths: StorePaths, current: Generation) -> bool:
    """Wait until nobody reads another generation than the current one. A stopped process holds its lock and counts."""
    end = time.monotonic() + DRAIN_SECONDS
    keep = paths.reader_lock(current.fingerprint)
    for lock in sorted(paths.readers.glob("*")):
        while lock != keep and is_held(lock):
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        if lock != keep:
            remove_file(lock)
    return True


def note_findings(pending: PendingErasure, findings: Findings, paths: StorePaths) -> None:
    """Keep what the checks showed: what they needed may go, and after a crash they are not made again."""
    replace(pending, findings=findings).write(paths.pending)


def sign_receipt(
    pending: PendingErasure,
    findings: Findings,
    after: Generation,
    paths: StorePaths,
    log: AuditLog,
    models: tuple[ModelListing, ...],
    exclusions: tuple[str, ...] = (),
) -> tuple[Path, dict[str, str]]:
    """Log the erasure, and write its receipt; gives its path and the owner's salts, which are never on the disk."""
    salts = new_salts(pending.documents)
    replace(pending, findings=findings, commitments=fingerprint_of_commitments(salts)).write(paths.pending)
    erasure = Erasure(
        config=after.config.fingerprint,
        documents=tuple(sorted(pending.documents)),
        tokens=findings.tokens,
        passages=findings.passages,
        generation_before=pending.generation,
        generation_after=after.fingerprint,
        digest_before=pending.digest,
        digest_after=after.digest,
        accepted=datetime.fromisoformat(pending.accepted),
        checks=findings.checks,
        models=models,
        exclusions=(*exclusions_with(noted_backups(log)), *exclusions),
        replaced=findings.replaced,
    )
    key = load_or_make_key(paths.signing_key)
    draft = draft_receipt(erasure, salts, key=key, done=datetime.now(UTC))
    log.append("replaced" if findings.replaced else "erased", log_facts(draft))
    if not paths.receipts.exists():
        with disk_errors(paths.receipts):
            paths.receipts.mkdir()
            sync_directory(paths.root)  # a power cut must not take the folder and leave the intent removed
    path = _receipt_path(paths, log.head())
    write_json(path, sign_draft(draft, key=key, log=log.head()))
    return path, salts


def signed_receipt(pending: PendingErasure, paths: StorePaths, log: AuditLog) -> Path | None:
    """The receipt of an erasure that was cut off after it was signed."""
    if not pending.commitments:
        return None
    logged = (item for item in reversed(log.entries) if item.content.get("commitments") == pending.commitments)
    written = (_receipt_path(paths, Head(item.n, item.hash)) for item in logged)
    return next((path for path in written if path.exists()), None)


def _receipt_path(paths: StorePaths, entry: Head) -> Path:
    return paths.receipts / f"{entry.n:06d}-{entry.hash[:12]}.json"


def forget_intent(paths: StorePaths) -> None:
    """Remove the last file that names the documents: from here on the erasure is done."""
    remove_file(paths.pending)
    sync_directory(paths.root)
