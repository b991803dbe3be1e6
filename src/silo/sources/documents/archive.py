"""A ZIP file out of strangers' hands: bounded members, bounded unpacking, and no names that lead anywhere.

Nothing is ever written to the disk; links and `..` are refused all the same, since no office program makes them.
"""

from __future__ import annotations

import io
import posixpath
import stat
import zipfile
import zlib
from lzma import LZMAError

from silo.errors import SiloError
from silo.recipe import Limits

ZIP_MAGIC = b"PK\x03\x04"
_MOST_MEMBERS = 10_000
_RATIO_FREE = 64 << 20
"""The ratio is judged only after this much output: small repetitive parts are no bombs."""

_DAMAGE = (zipfile.BadZipFile, zlib.error, LZMAError, EOFError, NotImplementedError, OSError, ValueError, IndexError)


class Archive:
    """The members of an opened ZIP file, read one at a time."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self._packed = len(data)
        self._unpacked = 0
        self._limits = limits
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except _DAMAGE:
            raise SiloError(
                "document-invalid", "not a sound ZIP file: it is cut off, damaged or of another kind"
            ) from None
        members = self._zip.infolist()
        if len(members) > _MOST_MEMBERS:
            raise SiloError(
                "archive-bomb", f"the file has {len(members):,} members; at most {_MOST_MEMBERS:,} are read"
            )
        for member in members:
            _refuse_unsafe(member)
        self._members = {member.filename: member for member in members}

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def read(self, name: str) -> bytes:
        """The bytes of one member."""
        member = self._members.get(name)
        if member is None:
            raise SiloError("document-invalid", f"the file lacks its part {name[:200]}")
        if member.flag_bits & 1:
            raise SiloError("document-encrypted", "the file is protected by a password")
        limit = self._limits.max_record_bytes
        if member.file_size > limit:
            raise SiloError("file-too-large", f"a part of the file unpacks to more than {limit:,} bytes")
        try:
            data = self._zip.read(member)
        except _DAMAGE:
            raise SiloError("document-invalid", "a part of the file is damaged") from None
        self._unpacked += len(data)
        if self._unpacked > _RATIO_FREE and self._unpacked > self._packed * self._limits.max_ratio:
            raise SiloError("archive-bomb", f"the file unpacks to more than {self._limits.max_ratio} times its size")
        return data

    def read_if_there(self, name: str) -> bytes:
        """The bytes of one member, or none."""
        return self.read(name) if name in self else b""


def _refuse_unsafe(member: zipfile.ZipInfo) -> None:
    name = member.filename
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or ":" in name.partition("/")[0]:
        raise SiloError("path-unsafe", "a member of the file names a place outside it")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise SiloError("path-unsafe", "a member of the file is a link")


def resolve_target(base: str, target: str) -> str:
    """The member that a link inside the file means, seen from the folder of `base`."""
    path = target.partition("#")[0]
    joined = path.lstrip("/") if path.startswith("/") else posixpath.join(posixpath.dirname(base), path)
    return posixpath.normpath(joined)
