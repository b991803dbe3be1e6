"""An erasure or a replacement that was accepted and is not done: whoever opens the store next finishes it.

On disk `pending.json`, the only file that names the documents, removed in the end. Readers read it too: what is being
erased is found by nobody. A replacement hides nothing, since its documents change in one instant: before it they are
the old ones, after it the new ones, and `after` names the generation that tells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.files import read_marked, write_marked
from silo.store.erasure.receipt import NotChecked, Result, fingerprint_of_commitments

FORMAT = "silo-pending-3"
_FIRST_FORMAT, _SECOND_FORMAT = "silo-pending-1", "silo-pending-2"
_PLAIN = ("suppress", "accepted", "generation", "digest")


@dataclass(frozen=True, slots=True)
class Findings:
    """What went, what the checks showed, and the hash (hex) of each text, by which models are asked for it.

    `replaced` counts the documents, tokens and passages that came in place of what went; empty if nothing did.
    """

    tokens: int | NotChecked
    passages: int | NotChecked
    checks: Mapping[str, Result]
    text_hashes: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PendingErasure:
    """What `pending.json` says: `documents` are those that leave, or whose old versions do.

    `generation` and `digest` are those it began with; `findings` are there once the checks were made, and
    `commitments` (their fingerprint, which tells nothing) once the salts of a receipt were drawn. `coming` are the new
    versions of a replacement: document id -> SHA-256 of its element of the digest.
    """

    documents: tuple[str, ...]
    suppress: bool
    accepted: str
    generation: str
    digest: str
    commitments: str = ""
    coming: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    findings: Findings | None = None

    @classmethod
    def read(cls, path: Path) -> PendingErasure | None:
        """What is under way, None if nothing is."""
        try:
            return cls._from_json(_content(path))
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SiloError("store-damaged", f"{path} is not as it was written") from None

    @classmethod
    def _from_json(cls, content: Mapping[str, Any]) -> PendingErasure:
        given = content["documents"]  # with a salt for each in the first format
        commitments = fingerprint_of_commitments(given) if isinstance(given, dict) else content["commitments"]
        pending = cls(
            documents=tuple(_id(document) for document in given),
            commitments=commitments,
            coming={_id(document): mark for document, mark in content.get("coming", {}).items()},
            after=content.get("after", ""),
            findings=Findings(**content["findings"]) if "findings" in content else None,
            **{name: content[name] for name in _PLAIN},
        )
        datetime.fromisoformat(pending.accepted)
        marks = (pending.generation, pending.digest)
        if not pending.documents or type(pending.suppress) is not bool or {len(mark) for mark in marks} != {64}:
            raise ValueError("not of its kind")
        return pending

    def write(self, path: Path) -> None:
        """Make the intent durable."""
        content = {"format": FORMAT, **asdict(self), "documents": list(self.documents)}
        if self.findings is None:
            del content["findings"]
        write_marked(path, content)

    @property
    def ids(self) -> frozenset[bytes]:
        return frozenset(map(bytes.fromhex, self.documents))

    @property
    def hidden(self) -> frozenset[bytes]:
        """The documents that nobody finds any more."""
        return frozenset() if self.coming else self.ids

    @property
    def gone(self) -> frozenset[bytes]:
        """The documents of which no other version comes."""
        return self.ids - set(map(bytes.fromhex, self.coming))


def _content(path: Path) -> dict[str, Any]:
    """What the file says; its fingerprint is checked, which the first format did not have."""
    plain = json.loads(path.read_bytes())
    if isinstance(plain, dict) and plain.get("format") == _FIRST_FORMAT and "fingerprint" not in plain:
        return plain
    content = read_marked(path, damaged="store-damaged")
    if content["format"] not in (FORMAT, _SECOND_FORMAT):
        what = f"{path} has the format {content['format']!r}, not {FORMAT!r}"
        raise SiloError("store-mismatch", what, "finish it with the version of silo that began it")
    return content


def _id(document: str) -> str:
    name = bytes.fromhex(document)
    if len(name) != 16:
        raise ValueError("not the id of a document")
    return name.hex()
