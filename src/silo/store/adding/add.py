"""Adding documents: all documents of one call are set aside first, so that every bucket is written once.

New ones are then written one group of buckets after the other: a call that was cut off is simply made again, and what
is in the store already is skipped. Those that take the place of what is stored wait for `erasure.replace`.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from silo.errors import SiloError
from silo.files import remove_tree
from silo.progress import Advance
from silo.records import Document, Quarantined
from silo.sources import Tally
from silo.store.adding.admission import Admission, Decision, Refusal
from silo.store.bucket import EncodedDocument
from silo.store.encode import DocumentPipeline
from silo.store.erasure.erase import Erased
from silo.store.paths import StorePaths
from silo.store.write import BuildBuckets, BuiltBucket, PlannedBucket, Spool, SpooledDocument
from silo.text.normalise import text_hash

_LISTED = 1000
_ID = re.compile(r"[0-9a-f]{32}")

Note = Callable[[Refusal], None]
"""Told of every refusal, also of those that are too many to be listed."""


@dataclass(slots=True)
class Added:
    """What became of the documents of one call; `read` is the sum of added, replaced, unchanged and refused ones.

    The first refusals are listed. `quarantined` are records that could not be read, `tally` tells what else was left
    out of folders. `erased` is how the old versions of replaced documents left, with the receipt.
    """

    read: int = 0
    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)
    quarantined: list[Quarantined] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    written_bytes: int = 0
    erased: Erased | None = None

    @property
    def decontaminated(self) -> int:
        """Documents that were left out because they give away evaluation text."""
        return self.reasons["contaminated"]

    @property
    def masked(self) -> int:
        """Documents that were left out because more of them is masked than is left."""
        return self.reasons["mostly-masked"]

    def count(self, decision: Decision) -> None:
        """Count one document that was read."""
        self.read += 1
        self.added += decision.outcome == "new"
        self.replaced += decision.outcome == "changed"
        self.unchanged += decision.outcome == "unchanged"

    def refuse(self, refusal: Refusal) -> None:
        self.refused += 1
        self.reasons[refusal.reason] += 1
        if len(self.refusals) < _LISTED:
            self.refusals.append(refusal)


class Incoming:
    """Documents on their way in: `new` ones, and those that take the place of what is stored; removed in the end.

    `pipeline` loads the model, with the first document that is to be encoded.
    """

    def __init__(self, paths: StorePaths, pipeline: Callable[[], DocumentPipeline], advance: Advance) -> None:
        self.new = Spool(paths.adding / "new")
        self.changed = Spool(paths.adding / "changed")
        self.changed_ids: set[bytes] = set()
        self._folder = paths.adding
        self._pipeline = pipeline
        self._advance = advance
        self._encoded = 0

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget everything, and what others have put beside it."""
        self.new.close()
        self.changed.close()
        remove_tree(self._folder)

    def take(self, document: Document, *, changed: bool) -> None:
        """Keep a document that is to come in."""
        spool = self.changed if changed else self.new
        spool.add(document, text_hash(document.text))
        if changed:
            self.changed_ids.add(bytes.fromhex(document.id))

    def encode(self, documents: Sequence[SpooledDocument]) -> list[EncodedDocument]:
        """What the model makes of documents; says how far it is with all of them."""
        return self._pipeline().encode(documents, self._note) if documents else []

    def follow(self, build: BuildBuckets, plans: Iterator[PlannedBucket]) -> Iterator[BuiltBucket]:
        """Buckets that are made elsewhere; says how far they are with all documents."""
        coming: deque[Sequence[SpooledDocument]] = deque()

        def note_plans() -> Iterator[PlannedBucket]:
            for plan in plans:
                coming.append(plan.coming)
                yield plan

        for built in build(note_plans()):
            self._note(coming.popleft())
            yield built

    def _note(self, ready: Sequence[EncodedDocument] | Sequence[SpooledDocument]) -> None:
        total = self.new.text_bytes + self.changed.text_bytes
        self._encoded += sum(document.text_bytes for document in ready)
        self._advance("encode", min(self._encoded, total), total)


def gather(
    documents: Iterable[Document], admission: Admission, incoming: Incoming, *, note: Note, advance: Advance
) -> Added:
    """Decide about every document, and keep those that are to come in."""
    done = Added()
    for document in documents:
        decision = decide(document, admission, done, note)
        if decision.outcome in ("new", "changed"):
            incoming.take(document, changed=decision.outcome == "changed")
        advance("read", done.read, 0)
    return done


def decide(document: Document, admission: Admission, done: Added, note: Note) -> Decision:
    """What is to become of a document, which is counted."""
    if not _ID.fullmatch(document.id):
        message = f"{document.id[:80]!r} is not the id of a document, which has 32 digits of 0 to f"
        raise SiloError("field-type", message, "make it with silo.records.document_id(source, external_id)")
    decision = admission.decide(document)
    done.count(decision)
    if decision.outcome == "refused":
        refusal = Refusal(document.id, document.external_id, decision.reason, decision.detail)
        done.refuse(refusal)
        note(refusal)
    return decision
