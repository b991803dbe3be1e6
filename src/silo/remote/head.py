"""The head of a remote artefact: the one object that changes, and names all others with their checksums.

`head.json` holds `id` (of the artefact, random), `number` (one more with every change), `at` (when it was written) and
`files`: of each file its object, SHA-256 and size. An object is named after the file, the number of the head its
writer began with, and 16 random digits. It is written once and never again, so that nobody who removes an old object
can hit a new one, and whoever lists the objects sees which of those that no head names can never be named.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from silo.errors import SiloError
from silo.files import canonical_json, fingerprint

FORMAT = "silo-remote-1"
HEAD = "head.json"
_OBJECT = re.compile(r"(?P<file>.+)\.(?P<base>[0-9]{6,18})-[0-9a-f]{16}", re.DOTALL)
_ID = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME_BYTES = 247
"""The longest name of a file or folder: disks take 255 bytes, and `.partial` is put behind it for a while."""
_PATH_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Part:
    """One file: the object that holds it, and what its bytes must be."""

    object: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Head:
    """One state of an artefact."""

    id: str
    number: int
    at: str
    files: Mapping[str, Part]

    @classmethod
    def first(cls) -> Head:
        """The state before anything was written."""
        return cls(secrets.token_hex(16), 0, "", {})

    def following(self, files: Mapping[str, Part]) -> Head:
        """The state that comes next."""
        return Head(self.id, self.number + 1, datetime.now(UTC).isoformat(), dict(sorted(files.items())))

    @property
    def objects(self) -> set[str]:
        return {part.object for part in self.files.values()}

    def encode(self) -> bytes:
        """The bytes of `head.json`, which carry their own fingerprint."""
        files = {name: asdict(part) for name, part in self.files.items()}
        content = {"format": FORMAT, "id": self.id, "number": self.number, "at": self.at, "files": files}
        return canonical_json({**content, "fingerprint": fingerprint(content)})

    @classmethod
    def decode(cls, data: bytes, where: str) -> Head:
        """The inverse of `encode`; a changed head is refused, and one that names anything outside the artefact.

        Checksums become names of files on this machine, objects are read and removed: whoever wrote the head must not
        choose others than a writer does.
        """
        try:
            content = json.loads(data)
            files = {_file(name): _part(part) for name, part in content["files"].items()}
            head = cls(_id(content["id"]), _count(content["number"]), _time(content["at"]), files)
            unchanged = content["format"] == FORMAT and head.encode() == data and not _is_folder_too(files)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            unchanged = False
        if not unchanged:
            raise SiloError("remote-damaged", f"{where}/{HEAD} is not as it was written")
        return head


def new_object(file: str, base: int) -> str:
    """A name that was never used, for a file that is written by somebody who began with the head `base`."""
    return f"{file}.{base:06d}-{secrets.token_hex(8)}"


def is_garbage(name: str, head: Head) -> bool:
    """Whether an object can never be named by a head: not by this one, and its writer began with an older one.

    Objects of writers who began with this very head may be named by the next.
    """
    match = _OBJECT.fullmatch(name)
    return match is not None and name not in head.objects and int(match["base"]) < head.number


def _is_folder_too(files: Mapping[str, Part]) -> bool:
    """Whether a file has the name of a folder of another one."""
    folders = {name[:at] for name in files for at, letter in enumerate(name) if letter == "/"}
    return not folders.isdisjoint(files)


def _file(name: str) -> str:
    if any(len(part.encode()) > _NAME_BYTES for part in name.split("/")):
        raise ValueError(name)
    return _safe(name)


def _part(content: Mapping[str, Any]) -> Part:
    part = Part(**content)
    if not _OBJECT.fullmatch(_safe(part.object)) or not _SHA256.fullmatch(part.sha256):
        raise ValueError(part)
    _count(part.bytes)
    return part


def _id(value: str) -> str:
    if not _ID.fullmatch(value):
        raise ValueError(value)
    return value


def _count(value: int) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _time(value: str) -> str:
    if datetime.fromisoformat(value).tzinfo is None:
        raise ValueError(value)
    return value


def _safe(name: str) -> str:
    """A path inside the artefact; whoever wrote the head must not name files elsewhere."""
    outside = name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/"))
    if outside or "\\" in name or "\0" in name or len(name.encode()) > _PATH_BYTES:
        raise ValueError(name)
    return name
