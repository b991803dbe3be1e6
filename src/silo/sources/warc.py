"""Kind `warc`: web pages of a crawl as visible text, with linked licences and the preferences of page and server."""

from __future__ import annotations

import io
import re
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from silo.errors import SiloError
from silo.recipe import Limits, SourceRecipe
from silo.records import Candidate, Evidence, Quarantined, Right
from silo.rights.signals.robots import read_robots
from silo.sources.html import Page, decode_html, page_claims, read_html
from silo.sources.reader.bytes import unpack
from silo.sources.reader.claims import denial, robots_reservation
from silo.sources.reader.fields import Defaults, defaults_of, require_text
from silo.sources.reader.plan import SourcePart, plan_files, refuse_special

_HTML = ("text/html", "application/xhtml+xml")
_MAX_HEAD = 1 << 18
_CHARSET = re.compile(r"charset\s*=\s*\"?([\w.:-]{1,40})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Response:
    """One stored HTTP response; header names are lower-case, and a name may come several times."""

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
        match = _CHARSET.search(self.header("content-type"))
        return match[1] if match else ""


def plan_warc(recipe: SourceRecipe, base: Path) -> list[SourcePart]:
    """One part for each WARC file."""
    _fastwarc()
    return plan_files(recipe, base)


def _fastwarc() -> Any:
    try:
        with warnings.catch_warnings():
            # Importing fastwarc 1.x warns about its own compatibility layer.
            warnings.simplefilter("ignore", DeprecationWarning)
            from fastwarc import warc
    except ImportError:
        hint = "run: pip install 'silo-lm[warc]'"
        raise SiloError("extra-missing", "reading WARC files needs fastwarc", hint) from None
    return warc


def read_warc(part: SourcePart, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The HTML and plain text responses of one crawl file in order."""
    warc = _fastwarc()
    defaults = defaults_of(part, limits)
    path = Path(part.path)
    number = 0
    try:
        refuse_special(path)
        with path.open("rb") as file:
            stream = _Stream(unpack(file, path.name, limits))
            wanted = {"record_types": warc.WarcRecordType.response, "parse_http": False, "stream_detect": False}
            for record in warc.ArchiveIterator(stream, **wanted):
                number += 1
                item = _read_record(record, f"{part.label}:response {number}", limits, defaults)
                if item is not None:
                    yield item
        if stream.broken:
            raise stream.broken
        if not number and stream.tell():
            raise SiloError("warc-invalid", "the file holds no response")
    except SiloError as error:
        yield Quarantined(f"{part.label}:response {number + 1}", error.code, error.message)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        # The archive reader reports damage with many types, and a failure of its own even outside Exception.
        yield Quarantined(
            f"{part.label}:response {number + 1}", "warc-invalid", f"{type(error).__name__}: {error}"[:200]
        )


class _Stream(io.RawIOBase):
    """Unpacked pieces as a file. A break in them reads as the end and is kept in `broken`."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self.broken: SiloError | None = None
        self._pieces = pieces
        self._pending = memoryview(b"")
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        if not self._pending and self.broken is None:
            try:
                self._pending = memoryview(next(self._pieces, b""))
            except SiloError as error:
                self.broken = error
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        self._position += count
        return count


def _read_record(record: Any, where: str, limits: Limits, defaults: Defaults) -> Candidate | Quarantined | None:
    longest = limits.max_record_bytes
    try:
        if record.content_length > longest:
            raise SiloError("file-too-large", f"the response is larger than {longest:,} bytes")
        data = record.reader.read(record.content_length)
        if len(data) < record.content_length:
            raise SiloError("warc-invalid", "the record is cut off")
        response = _parse_response(data, longest)
        if response.status != 200 or response.media_type not in (*_HTML, "text/plain"):
            return None
        if len(response.body) > longest:
            raise SiloError("file-too-large", f"the page is larger than {longest:,} bytes")
        text = decode_html(response.body, response.charset)
        page = read_html(text) if response.media_type in _HTML else Page("", text)
        return _candidate(page, record, response, defaults)
    except SiloError as error:
        return Quarantined(where, error.code, error.message)


def _parse_response(data: bytes, max_bytes: int) -> _Response:
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
    packed = _Response(int(status[1]), headers, body)
    if "chunked" in packed.header("transfer-encoding").lower():
        body = _join_chunks(body)
    return _Response(packed.status, headers, _unpack_body(body, packed.header("content-encoding").lower(), max_bytes))


def _join_chunks(body: bytes) -> bytes:
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


def _unpack_body(body: bytes, encoding: str, max_bytes: int) -> bytes:
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


def _candidate(page: Page, record: Any, response: _Response, defaults: Defaults) -> Candidate:
    url = str(record.headers.get("WARC-Target-URI", "")).strip("<> ")
    if len(url) > defaults.max_chars:
        raise SiloError("field-too-long", f"the address has {len(url):,} characters")
    text = f"{page.title}\n\n{page.text}".strip() if page.title else page.text
    require_text(text)
    return Candidate(
        external_id=str(record.record_id or url).strip("<>").removeprefix("urn:uuid:"),
        text=text,
        source=defaults.source,
        domain=defaults.domain or "web",
        evidence=page_claims(page).evidence(defaults)
        + _header_evidence(response.headers, defaults.label)
        + defaults.evidence
        + defaults.signal_evidence(url),
        owner=_host_of(url) or defaults.owner,
        url=url,
        meta={"date": record.record_date.isoformat()} if record.record_date else {},
    )


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _header_evidence(headers: tuple[tuple[str, str], ...], label: str) -> tuple[Evidence, ...]:
    """What the server's response headers ask for."""
    evidence: list[Evidence] = []
    for name, value in headers:
        where = f"{label}: header {name}"
        if name == "tdm-reservation" and value.strip() == "1":
            evidence.append(denial(f"{name}: 1", where))
        elif name == "x-robots-tag":
            if asked := robots_reservation(word.strip() for word in value.lower().split(",")):
                evidence.append(denial(asked, where))
        elif name in ("content-usage", "content-signal") and (rights := _denied_rights(name, value)):
            evidence.append(denial(f"{name}: {value[:500]}", where, rights))
    return tuple(evidence)


def _denied_rights(name: str, value: str) -> frozenset[Right]:
    """These headers mean what the lines of the same name mean in a robots.txt."""
    rules = read_robots(f"{name}: {' '.join(value.split())}", terms_known=True)
    return frozenset(right for rule in rules for right in rule.denies)
