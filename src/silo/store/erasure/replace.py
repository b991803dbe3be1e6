"""Replacing documents by other versions of themselves: the old ones or the new ones, at any instant, and one receipt.

The new buckets are put on the disk first, where nothing names them yet; then the intent (`pending.json`), what the
checks need of the state before (`erasing/`), the log entry, and one manifest that exchanges everything. A crash before
the manifest leaves the old versions, and the next opening takes the intent back; a crash after it leaves the new ones,
and the next opening makes the checks and signs the receipt as for an erasure. No model is needed for either. Documents
that leave without another version can be part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from silo.store.erasure.before import forget_before, read_before
from silo.store.erasure.erase import Found, Removal, forget_intent, keep_touched
from silo.store.erasure.evidence import announce_generation, announce_suppression
from silo.store.erasure.log import AuditLog
from silo.store.erasure.pending import PendingErasure
from silo.store.erasure.suppression import Suppression
from silo.store.manifest import Generation, read_generation, remove_strays
from silo.store.paths import StorePaths
from silo.store.view import View
from silo.store.write import BucketBuilder, Change, exchange, prepare_change


def prepare_replacement(
    view: View, change: Change, paths: StorePaths, builder: BucketBuilder
) -> tuple[Generation, PendingErasure]:
    """Put the new buckets on the disk; gives the generation that will name them, and the intent to be accepted."""
    coming: dict[str, str] = {}

    def note(elements: Mapping[bytes, bytes]) -> None:
        coming.update((name.hex(), _mark(element)) for name, element in elements.items())

    now, noting = view.generation, replace(change, note=note)
    after = prepare_change(paths, builder, now, view.buckets, noting)
    change.written_bytes = noting.written_bytes
    assert change.coming is not None and len(coming) == change.coming.count, "an erasure would look like this"
    return after, PendingErasure(
        documents=tuple(sorted(name.hex() for name in change.leaving)),
        suppress=False,
        accepted=datetime.now(UTC).isoformat(),
        generation=now.fingerprint,
        digest=now.digest,
        coming=coming,
        after=after.fingerprint,
    )


def _mark(element: bytes) -> str:
    return hashlib.sha256(element).hexdigest()


def exchange_documents(
    view: View, pending: PendingErasure, after: Generation, paths: StorePaths, log: AuditLog
) -> None:
    """Accept a replacement that was prepared, and carry it out: from its manifest on the new versions are found."""
    pending.write(paths.pending)
    keep_touched(view, pending.ids, paths)
    log.append("replace-accepted", {"documents": len(pending.documents), "replaced": len(pending.coming)})
    exchange(paths, view.generation, after, partial(announce_generation, log))


def was_exchanged(pending: PendingErasure, paths: StorePaths) -> bool:
    """Is what a replacement led to the current state? Otherwise it was cut off before, or other data was put back."""
    return read_generation(paths).fingerprint == pending.after


def cancel_replacement(paths: StorePaths, log: AuditLog) -> None:
    """Take the intent back: nothing was exchanged, and nobody was told that anything would be."""
    log.append("replace-cancelled", {})
    remove_strays(paths, read_generation(paths))
    forget_before(paths)
    forget_intent(paths)


def note_replaced(view: View, pending: PendingErasure, paths: StorePaths, log: AuditLog) -> Removal:
    """Keep in mind that the old versions were erased: no backup brings them back. `view` is of the state after."""
    before, ids = read_before(paths, pending.generation), pending.ids
    left = Found.of(before.buckets if before else (), ids)
    came = Found.of(view.buckets, ids - pending.gone)
    suppression = Suppression.open(paths.suppression, partial(announce_suppression, log))
    suppression.note(left.works(), came.works())
    return Removal(
        before=before.generation if before else view.generation,
        after=view.generation,
        leaving=left.documents,
        passages=left.passages,
        complete={document.id for document in left.documents} == ids,
        coming=tuple(item for item in came.documents if _mark(item.element) == pending.coming[item.id.hex()]),
        coming_passages=came.passages,
    )
