"""Who may come in: a document is taken if its `store` right is given, it is not there already, it was not erased
before, it is not mostly masked, and it gives away no evaluation text that was named.

With `update`, a document that is there in another version takes its place, under the same conditions; of several
versions in one input the first counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from silo.corpus.decontaminate import EvaluationText, Leak
from silo.files import canonical_json
from silo.records import Document
from silo.store.bucket import Bucket, unpack
from silo.store.erasure.suppression import Suppression
from silo.store.partition import leaf_of
from silo.text.masks import is_mostly_masked
from silo.text.normalise import normalise

Outcome = Literal["new", "changed", "unchanged", "refused"]

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


class Decision(NamedTuple):
    """What is to become of a document; a refusal has a reason and a detail, a change the fields that differ."""

    outcome: Outcome
    reason: str = ""
    detail: str = ""


class Admission:
    """Decides document by document."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        suppression: Suppression,
        evaluation: EvaluationText | None = None,
        *,
        update: bool = False,
    ) -> None:
        self.suppression = suppression
        self._buckets = {bucket.prefix: bucket for bucket in buckets}
        self._prefixes = sorted(self._buckets)
        self._evaluation = evaluation
        self._update = update
        self._coming: dict[bytes, bytes] = {}
        self._licences = {name for bucket in buckets for name in bucket.names["license"]}

    def decide(self, document: Document) -> Decision:
        """What is to become of a document, given all that came before it."""
        if not document.rights.store:
            return Decision("refused", "no-store-right", _denial(document))
        if not document.text:
            return Decision("refused", "empty", "the text is empty")
        name, record = bytes.fromhex(document.id), document.as_json()
        marks = _marks(record)
        coming, stored = self._coming.get(name), self._stored_marks(name)
        known = coming or stored
        other = _differing(record, marks, known) if known is not None else []
        if known is not None and not other:
            return self._keep(name, marks, document)
        if known is not None and (coming is not None or not self._update):
            return _refuse_other(other, twice=coming is not None and self._update)
        held = stored is not None and "text" not in other  # an objection to a copy takes nothing from who held it
        if not held and (blocked := self.suppression.blocks(document.id, document.text)):
            return Decision("refused", "suppressed", blocked)
        if is_mostly_masked(document.text):
            return Decision("refused", "mostly-masked", "more than half of its words are masks")
        if leak := self._leak(document):
            return Decision("refused", "contaminated", leak.in_words())
        if document.license not in self._licences and len(self._licences) >= _MOST_LICENCES:
            detail = f"the store has {_MOST_LICENCES:,} different licences already"
            return Decision("refused", "too-many-licences", detail)
        self._licences.add(document.license)
        self._coming[name] = marks
        if stored is None:
            self.suppression.readmit(document.id, document.text)
        return Decision("new") if stored is None else Decision("changed", detail=", ".join(other))

    def _keep(self, name: bytes, marks: bytes, document: Document) -> Decision:
        if leak := self._leak(document):
            return Decision("refused", "contaminated-stored", f"{leak.in_words()}: it came in before, erase it")
        if self._update:
            self._coming[name] = marks
        return Decision("unchanged")

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


def _differing(record: Mapping[str, Any], own: bytes, known: bytes) -> list[str]:
    """The fields in which a record differs from the one that is known under its id."""
    places = (slice(at, at + _MARK_BYTES) for at in range(0, len(own), _MARK_BYTES))
    return [name for name, place in zip(sorted(record), places, strict=True) if own[place] != known[place]]


def _refuse_other(fields: Sequence[str], *, twice: bool) -> Decision:
    """A record that differs from the one which is known under its id in these fields."""
    if twice:
        detail = f"it is there twice, with another {' and '.join(fields)}: the first one counts"
        return Decision("refused", "other-record", detail)
    if set(fields) <= _EVIDENCE:
        detail = "the same document is stored with other evidence of its licence, and stays as it is"
        return Decision("refused", "other-evidence", f"{detail}: --update replaces it")
    detail = f"stored under this id with another {' and '.join(fields)}: --update replaces it"
    return Decision("refused", "other-record", detail)


def _denial(document: Document) -> str:
    statements = [item.asserted for item in document.evidence if "store" in item.denies]
    if statements:
        return f"storing is denied by {statements[0]!r}"
    return f"licence {document.license or 'unknown'} does not allow it"
