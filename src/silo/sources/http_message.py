"""Promises status, headers and unpacked body of a stored HTTP response, in bounded memory."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from silo.errors import SiloError

_MAX_HEAD = 1 << 18
_CHARSET = re.compile(r"charset\s*=\s*\"?([\w.:-]{1,40})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Response:
    """One response; header names are lower-case, and a name may come several times."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        """The first header of that name, or an empty string."""
        return next((value for key, value in self.headers if key == name), "")

    @property
    def media_type(self) -> str:
        return self.header("content-type").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        found = _CHARSET.search(self.header("content-type"))
        return found[1] if found else "utf-8"


def parse_response(data: bytes, max_bytes: int) -> Response:
    """Read a response as it went over the wire; the body comes out unpacked and no larger than `max_bytes`."""
    head, blank, body = data.partition(b"\r\n\r\n")
    if not blank:
        head, blank, body = data.partition(b"\n\n")
    lines = head[:_MAX_HEAD].decode("latin-1").splitlines()
    status = re.match(r"HTTP/\d(?:\.\d)? (\d{3})\b", lines[0] if lines else "")
    if not blank or status is None:
        raise SiloError("warc-invalid", "the record holds no HTTP response")
    pairs = (line.partition(":") for line in lines[1:] if ":" in line)
    headers = tuple((name.strip().lower(), value.strip()) for name, _, value in pairs)
    found = Response(int(status[1]), headers, b"")
    if "chunked" in found.header("transfer-encoding").lower():
        body = _joined_chunks(body)
    return Response(found.status, headers, _unpacked(body, found.header("content-encoding").lower(), max_bytes))


def _joined_chunks(body: bytes) -> bytes:
    pieces: list[bytes] = []
    at = 0
    while True:
        end = body.find(b"\r\n", at)
        digits = body[at:end].partition(b";")[0].strip() if end >= 0 else b""
        if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", digits):
            raise SiloError("warc-invalid", "the chunks of the body are broken")
        size = int(digits, 16)
        if size == 0:
            return b"".join(pieces)
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2


def _unpacked(body: bytes, encoding: str, max_bytes: int) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise SiloError("warc-invalid", f"the body is packed with {encoding[:40]}, which is not read")
    raw_deflate = encoding == "deflate" and not body.startswith(b"\x78")
    stream = zlib.decompressobj(-15 if raw_deflate else 47)
    try:
        data = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise SiloError("warc-invalid", f"the body cannot be unpacked: {error}") from None
    if len(data) <= max_bytes and not stream.eof:
        raise SiloError("warc-invalid", "the packed body is cut off")
    return data
