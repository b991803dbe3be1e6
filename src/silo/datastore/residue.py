"""The residue scanner: does any file still hold a piece of what was erased?

It looks for 16-byte windows of a document's text (as UTF-8, UTF-16 and JSON-escaped), of its packed record, its tokens,
its codes and its id, in the bytes of files and in every zstd or gzip stream inside them. Windows that documents which
stay have as well (a licence header, a common code) prove nothing and are left out.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from silo.datastore.bucket import Part, unpack

WINDOW = 16
MOST_WINDOWS = 1 << 14
"""Windows taken of one form of one document, evenly spread over it."""

_MIXER = np.uint64(0x9E3779B97F4A7C15)
_TABLE_BITS = 20
_BLOCK = 1 << 22
_ZSTD, _GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08"
_LARGEST_UNPACKED = 1 << 28


def forms(part: Part) -> Iterator[bytes]:
    """Every form in which a document could lie about."""
    text = str(json.loads(unpack(part.frame))["text"])
    yield from (text.encode(), text.encode("utf-16-le"), json.dumps(text).encode(), part.frame)
    yield from (part.id, part.id.hex().encode())
    yield from (part.tokens[1:].astype(kind).tobytes() for kind in ("<u2", "<u4"))
    yield part.codes.tobytes()


class Traces:
    """The windows that must not be found, behind a table of hashes of their first eight bytes."""

    def __init__(self, windows: Iterable[bytes]) -> None:
        self.windows = frozenset(windows)
        heads = np.frombuffer(b"".join(window[:8] for window in self.windows), dtype="<u8")
        self._table = np.zeros(1 << _TABLE_BITS, dtype=np.bool_)
        self._table[_hashes(heads)] = True

    @classmethod
    def of(cls, parts: Iterable[Part], more: Iterable[bytes] = ()) -> Traces:
        """The windows of some documents, and of more bytes that belong to them, such as their keys."""
        whole = [form for part in parts for form in forms(part)]
        return cls(window for form in [*whole, *more] for window in _windows(form))

    def __len__(self) -> int:
        return len(self.windows)

    def without(self, kept: Iterable[Part]) -> Traces:
        """Those that documents which stay do not have, neither in their text nor in the rest of their records."""
        held = (form for part in kept for form in (*forms(part), unpack(part.frame)))
        shared = {window for form in held for window in self.matches(form)}
        return Traces(self.windows - shared)

    def matches(self, data: bytes) -> set[bytes]:
        """The windows that occur in some bytes."""
        found: set[bytes] = set()
        for first in range(0, len(data), _BLOCK):
            block = data[first : first + _BLOCK + WINDOW - 1]
            for shift in range(min(8, len(block))):
                heads = np.frombuffer(block, dtype="<u8", count=(len(block) - shift) // 8, offset=shift)
                for row in np.flatnonzero(self._table[_hashes(heads)]):
                    at = shift + 8 * int(row)
                    if (window := block[at : at + WINDOW]) in self.windows:
                        found.add(window)
        return found


def _windows(data: bytes) -> Iterator[bytes]:
    step = max(1, len(data) // MOST_WINDOWS)
    return (data[at : at + WINDOW] for at in range(0, len(data) - WINDOW + 1, step))


def _hashes(heads: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed: NDArray[np.uint64] = (heads * _MIXER) >> np.uint64(64 - _TABLE_BITS)
    return mixed


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan saw: files, bytes, and the files that hold traces."""

    files: int
    bytes: int
    hits: tuple[str, ...]


def scan(paths: Iterable[Path], traces: Traces) -> Scan:
    """Look for traces in files, and in every file under folders."""
    files = size = 0
    hits: list[str] = []
    for path in sorted({file for place in paths for file in _files(place)}):
        data = path.read_bytes()
        files, size = files + 1, size + len(data)
        if any(traces.matches(form) for form in _unpacked(data)):
            hits.append(path.name)
    return Scan(files, size, tuple(hits))


def _files(path: Path) -> list[Path]:
    found = path.rglob("*") if path.is_dir() else [path]
    return [file for file in found if file.is_file() and not file.is_symlink()]


def _unpacked(data: bytes) -> Iterator[bytes]:
    """The bytes themselves, and those of every packed stream in them."""
    yield data
    for magic, unpacked in ((_ZSTD, _zstd), (_GZIP, _gzip)):
        at = data.find(magic)
        while at >= 0:
            yield unpacked(memoryview(data)[at:])
            at = data.find(magic, at + 1)


def _zstd(data: memoryview) -> bytes:
    try:
        return zstandard.ZstdDecompressor().stream_reader(data).read(_LARGEST_UNPACKED)
    except zstandard.ZstdError:
        return b""


def _gzip(data: memoryview) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(data, _LARGEST_UNPACKED)
    except zlib.error:
        return b""
