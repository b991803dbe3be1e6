"""The residue scanner: does any file still hold a piece of what was erased?

It looks for 16-byte windows of a document's text (as UTF-8, UTF-16 and JSON-escaped), of its packed record, its tokens,
its codes and its id, in the bytes of files and in every zstd or gzip stream inside them. Windows that documents which
stay have as well (a licence header, a common code) prove nothing and are left out.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
import zstandard
from numpy.typing import NDArray

from silo.store.bucket import EncodedDocument, unpack

WINDOW = 16
MOST_WINDOWS = 1 << 14
"""Windows taken of one form of one document, evenly spread over it."""

_ZSTD, _GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08"
_LARGEST_UNPACKED = 1 << 28


def forms(document: EncodedDocument) -> Iterator[bytes]:
    """Every form in which a document could lie about."""
    text = str(json.loads(unpack(document.record))["text"])
    yield from (text.encode(), text.encode("utf-16-le"), json.dumps(text).encode(), document.record)
    yield from (document.id, document.id.hex().encode())
    yield from (document.tokens[1:].astype(kind).tobytes() for kind in ("<u2", "<u4"))
    yield document.codes.tobytes()


class Traces:
    """The windows that must not be found, in a hash table."""

    def __init__(self, windows: Iterable[bytes]) -> None:
        self.windows = sorted(set(windows))
        self._halves = np.frombuffer(b"".join(self.windows), dtype="<u8").reshape(-1, 2)
        self._table = np.full(1 << max(4, (4 * len(self.windows)).bit_length()), -1, dtype=np.int64)
        _enter(self._halves, self._table)

    @classmethod
    def of(cls, documents: Iterable[EncodedDocument], more: Iterable[bytes] = ()) -> Traces:
        """The windows of some documents, and of more bytes that belong to them, such as their keys."""
        every = [form for document in documents for form in forms(document)]
        return cls(window for form in [*every, *more] for window in _windows(form))

    def __len__(self) -> int:
        return len(self.windows)

    def without(self, staying: Iterable[EncodedDocument]) -> Traces:
        """Those that documents which stay do not have, neither in their text nor in the rest of their records."""
        return self.not_in(form for item in staying for form in (*forms(item), unpack(item.record)))

    def not_in(self, forms: Iterable[bytes]) -> Traces:
        """Those that occur in none of some bytes."""
        shared = np.zeros(len(self), dtype=np.bool_)
        for form in forms:
            self._look(form, shared)
        return Traces(window for window, held in zip(self.windows, shared, strict=True) if not held)

    def in_any(self, forms: Iterable[bytes]) -> bool:
        """Whether one of them occurs in some bytes."""
        present = np.zeros(len(self), dtype=np.bool_)
        for form in forms:
            self._look(form, present)
            if present.any():
                return True
        return False

    def _look(self, data: bytes, present: NDArray[np.bool_]) -> None:
        """Mark the windows that occur in some bytes."""
        for shift in range(min(8, len(data) - WINDOW + 1)):
            words = np.frombuffer(data, dtype="<u8", count=(len(data) - shift) // 8, offset=shift)
            _find(words, self._halves, self._table, present)


def _windows(data: bytes) -> Iterator[bytes]:
    step = max(1, len(data) // MOST_WINDOWS)
    return (data[at : at + WINDOW] for at in range(0, len(data) - WINDOW + 1, step))


@numba.njit(cache=True, nogil=True)
def _slot(first: np.uint64, second: np.uint64, table: NDArray[np.int64]) -> np.uint64:
    mixed = (first * np.uint64(0x9E3779B97F4A7C15) ^ second) * np.uint64(0xC2B2AE3D27D4EB4F)
    return (mixed >> np.uint64(32)) & np.uint64(len(table) - 1)


@numba.njit(cache=True, nogil=True)
def _enter(halves: NDArray[np.uint64], table: NDArray[np.int64]) -> None:
    for number in range(len(halves)):
        slot = _slot(halves[number, 0], halves[number, 1], table)
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & np.uint64(len(table) - 1)
        table[slot] = number


@numba.njit(cache=True, nogil=True)
def _find(
    words: NDArray[np.uint64], halves: NDArray[np.uint64], table: NDArray[np.int64], present: NDArray[np.bool_]
) -> None:
    """Mark the windows that two words in a row make."""
    for at in range(len(words) - 1):
        slot = _slot(words[at], words[at + 1], table)
        while table[slot] >= 0:
            number = table[slot]
            if halves[number, 0] == words[at] and halves[number, 1] == words[at + 1]:
                present[number] = True
                break
            slot = (slot + np.uint64(1)) & np.uint64(len(table) - 1)


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
        if traces.in_any(_unpacked(data)):
            hits.append(path.name)
    return Scan(files, size, tuple(hits))


def _files(path: Path) -> list[Path]:
    paths = path.rglob("*") if path.is_dir() else [path]
    return [file for file in paths if file.is_file() and not file.is_symlink()]


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
