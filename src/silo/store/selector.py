"""Which documents to list or erase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from silo.errors import SiloError, nearest_names
from silo.records import Document, contains, is_document_id
from silo.store.bucket import NAMED, Bucket, external_id_hash
from silo.store.policy.conditions import Among, Mask

_ID, _EXTERNAL = "id:", "external:"


@dataclass(frozen=True, slots=True)
class Selector:
    """Documents to list or erase: all conditions that are given must hold. One without conditions selects nothing.

    `document` is `id:` and silo's id, `external:` and the id that the record had, or either of them plain, as long as
    that means one thing only: anybody may choose a record's own id. `query` is text that the document contains, white
    space and case aside.
    """

    document: str = ""
    owner: str = ""
    source: str = ""
    license: str = ""
    domain: str = ""
    query: str = ""

    def __post_init__(self) -> None:
        if self.document.startswith(_ID) and not is_document_id(self.document.removeprefix(_ID)):
            message = f"{self.document!r} is not silo's id of a document, which has 32 digits of 0 to f"
            raise SiloError("usage", message, f"a record's own id is spelled {_EXTERNAL}{self.document}")

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) for item in fields(self))

    def require_one_meaning(self, buckets: Sequence[Bucket]) -> None:
        """Refuse a plain name that is silo's id of one document and the own id of another one's record."""
        if not is_document_id(self.document):
            return
        with_id = any(bucket.find(bytes.fromhex(self.document)) >= 0 for bucket in buckets)
        others = {
            bucket.index["id"][row].tobytes().hex() for bucket in buckets for row in _own_rows(bucket, self.document)
        }
        if with_id and others - {self.document}:
            message = f"{self.document} is silo's id of one document and the own id of another"
            raise SiloError("document-ambiguous", message, f"write {_ID}{self.document} or {_EXTERNAL}{self.document}")

    def documents(self, bucket: Bucket, among: Mask) -> Iterator[Document]:
        """The documents of a bucket that are meant, of some of its rows; each is read when it is asked for."""
        rows = np.flatnonzero(self._mask(bucket) & among).tolist() if self else []
        found = map(bucket.fields, rows)
        return (Document.from_json(item) for item in found if not self.query or contains(item["text"], self.query))

    def _mask(self, bucket: Bucket) -> Mask:
        """What the index knows of: all conditions but the query."""
        mask = np.ones(len(bucket), dtype=np.bool_)
        if self.document:
            mask &= _named(bucket, self.document)
        for column in NAMED:
            if wanted := getattr(self, column):
                mask &= Among(column, frozenset([wanted])).mask(bucket)
        return mask

    def matches_nothing(self, store: Path, buckets: Sequence[Bucket]) -> SiloError:
        """No document is meant: says by what, and offers names that are near."""
        given = {item.name: getattr(self, item.name) for item in fields(self) if getattr(self, item.name)}
        near = self.nearest_names(buckets)
        conditions = ", ".join(f"{name} '{value}'" for name, value in given.items())
        hint = f"did you mean {' or '.join(near)}?" if near else ""
        return SiloError("nothing-selected", f"no document of {store} has {conditions}", hint)

    def nearest_names(self, buckets: Sequence[Bucket]) -> list[str]:
        """Names of the store's documents that may have been meant by a condition: other case, or much alike."""
        near: list[str] = []
        for column in NAMED:
            if wanted := getattr(self, column):
                known = {name for bucket in buckets for name in bucket.names[column]}
                near += [f"{column} '{name}'" for name in nearest_names(wanted, known)]
        if self.document and not is_document_id(self.document.removeprefix(_ID)):
            known = {bucket.external_id(row) for bucket in buckets for row in range(len(bucket))}
            near += [f"document '{name}'" for name in nearest_names(self.document.removeprefix(_EXTERNAL), known)]
        return near


def _named(bucket: Bucket, name: str) -> Mask:
    """Which documents a name means, in either spelling or plain."""
    mask = np.zeros(len(bucket), dtype=np.bool_)
    internal = name.removeprefix(_ID)
    if is_document_id(internal) and (row := bucket.find(bytes.fromhex(internal))) >= 0:
        mask[row] = True
    if not name.startswith(_ID):
        mask[_own_rows(bucket, name.removeprefix(_EXTERNAL))] = True
    return mask


def _own_rows(bucket: Bucket, external_id: str) -> list[int]:
    """The rows of documents whose records had this id."""
    near = np.flatnonzero(bucket.index["external"] == external_id_hash(external_id)).tolist()
    return [row for row in near if bucket.external_id(row) == external_id]
