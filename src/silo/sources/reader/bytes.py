"""Promises the lines of a plain, gzip or zstd file in bounded memory, however hostile the file is.

A break in the file (cut off, damaged, a bomb) raises after every whole line before it has been handed out.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from silo.errors import SiloError
from silo.recipe import Limits
from silo.sources.reader.plan import refuse_special

_CHUNK = 1 << 20
_ZSTD_FEED = 1 << 11
"""A zstd block of 4 bytes can unpack to 128 KiB, so this much input unpacks to at most 64 MiB."""

_MAX_WINDOW = 1 << 27
_RATIO_FREE = 64 << 20
"""The ratio is judged only after this much output: tiny repetitive files are no bombs."""

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PAR1": "Parquet",
    b"PK\x03\x04": "a ZIP archive or an Office file",
    b"%PDF-": "a PDF",
    b"\xd0\xcf\x11\xe0": "an old Office file",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"SQLite format 3": "a database",
}
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
_NO_CHARSETS = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"})
"""Codecs of Python that are no character sets, and of which some take time with the square of the size."""


def read_file_lines(path: Path, limits: Limits) -> Iterator[bytes | None]:
    """Every line without its newline; None stands for one longer than `max_record_bytes`."""
    refuse_special(path)
    try:
        with path.open("rb") as stream:
            yield from _split(unpack(stream, path.name, limits), limits.max_record_bytes)
    except OSError as error:
        raise SiloError("input-unreadable", f"{path.name} cannot be read: {error.strerror}") from None


def _split(chunks: Iterator[bytes], max_bytes: int) -> Iterator[bytes | None]:
    pending: list[bytes] = []
    size = 0
    broken: SiloError | None = None
    while True:
        try:
            chunk = next(chunks, b"")
        except SiloError as error:
            broken, chunk = error, b""
        if not chunk:
            break
        pieces = chunk.split(b"\n")
        last = pieces.pop()
        for piece in pieces:
            size += len(piece)
            if size > max_bytes:
                yield None
            elif pending:
                pending.append(piece)
                yield b"".join(pending)
            else:
                yield piece
            pending, size = [], 0
        size += len(last)
        if size > max_bytes:
            pending = []
        elif last:
            pending.append(last)
    if broken:
        raise broken
    if size:
        yield None if size > max_bytes else b"".join(pending)


def unpack(stream: BinaryIO, name: str, limits: Limits) -> Iterator[bytes]:
    """The bytes of a file in pieces, unpacked as the ending of its name says."""
    if name.endswith(".gz"):
        return _gunzip(stream, name, limits)
    if name.endswith(".zst"):
        return _unzstd(stream, name, limits)
    return _read_plain(stream, name)


def _read_plain(stream: BinaryIO, name: str) -> Iterator[bytes]:
    chunk = stream.read(_CHUNK)
    for magic, form in _MAGIC.items():
        if chunk.startswith(magic):
            raise SiloError("not-text", f"{name} looks like {form}, not like lines of text")
    if chunk.startswith(_WIDE_BOMS):
        raise SiloError("utf8-invalid", f"{name} is UTF-16 or UTF-32")
    while chunk:
        yield chunk
        chunk = stream.read(_CHUNK)


def _gunzip(stream: BinaryIO, name: str, limits: Limits) -> Iterator[bytes]:
    produced = 0
    member = zlib.decompressobj(31)
    data = stream.read(_CHUNK)
    while data:
        try:
            chunk = member.decompress(data, _CHUNK)
        except zlib.error as error:
            raise SiloError("archive-damaged", f"{name} is not sound gzip: {error}") from None
        produced += len(chunk)
        if chunk:
            yield chunk
        if member.eof:
            data = (member.unused_data or stream.read(_CHUNK)).lstrip(b"\0")
            while not data and (more := stream.read(_CHUNK)):
                data = more.lstrip(b"\0")
            if not data:
                return
            member = zlib.decompressobj(31)
        else:
            data = member.unconsumed_tail or stream.read(_CHUNK)
        _check_ratio(produced, stream.tell() - len(data), name, limits)
    if produced or stream.tell():
        raise SiloError("archive-damaged", f"{name} is cut off")


def _unzstd(stream: BinaryIO, name: str, limits: Limits) -> Iterator[bytes]:
    context = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    frame = context.decompressobj()
    fresh = True
    produced = gathered = 0
    pieces: list[bytes] = []
    data = b""
    try:
        while data or (data := stream.read(_ZSTD_FEED)):
            piece = frame.decompress(data)
            fresh = False
            data = b""
            if frame.eof:
                data = frame.unused_data
                frame, fresh = context.decompressobj(), True
            pieces.append(piece)
            gathered += len(piece)
            if gathered >= _CHUNK:
                produced += gathered
                yield b"".join(pieces)
                pieces, gathered = [], 0
                _check_ratio(produced, stream.tell() - len(data), name, limits)
    except zstandard.ZstdError as error:
        if gathered:
            yield b"".join(pieces)
        if "too much memory" in str(error):
            raise SiloError("archive-bomb", f"{name} asks for a window of more than {_MAX_WINDOW >> 20} MiB") from None
        raise SiloError("archive-damaged", f"{name} is not sound zstd: {error}") from None
    if gathered:
        yield b"".join(pieces)
    if not fresh:
        raise SiloError("archive-damaged", f"{name} is cut off")


def _check_ratio(produced: int, consumed: int, name: str, limits: Limits) -> None:
    if produced > _RATIO_FREE and produced > consumed * limits.max_ratio:
        raise SiloError("archive-bomb", f"{name} unpacks to more than {limits.max_ratio} times its size")


def decode_charset(data: bytes, charset: str) -> str:
    """Bytes as text in the named character set, else in UTF-8; what is in neither raises."""
    for name in (charset, "utf-8"):
        try:
            if codecs.lookup(name).name.replace("-", "_") not in _NO_CHARSETS:
                return data.decode(name)
        except (UnicodeError, LookupError):
            continue
    raise SiloError("utf8-invalid", "the text is neither in the character set it names nor in UTF-8")
