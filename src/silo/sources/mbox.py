"""Kind `mbox`: the plain text of mail, message by message; attachments are left out, a broken message costs itself."""

from __future__ import annotations

import email
import email.policy
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import parseaddr
from pathlib import Path

from silo.errors import SiloError
from silo.recipe import Limits
from silo.records import Candidate, Quarantined
from silo.sources.html import read_html
from silo.sources.reader.bytes import decode_charset, read_file_lines
from silo.sources.reader.fields import Defaults, defaults_of, require_text
from silo.sources.reader.plan import SourcePart

_SEPARATOR = re.compile(rb"From \S.{0,200}\d:\d\d")
"""A sender and a time, as in "From ann@example.org Mon Jan  1 00:00:00 2024": prose may begin with "From " too."""

_QUOTED_SEPARATOR = re.compile(rb"^>(>*From )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Message:
    """What is kept of a mail. `identity` is its Message-ID, or a hash of its bytes."""

    identity: str
    text: str
    sender: str
    subject: str
    date: str

    @property
    def meta(self) -> dict[str, str]:
        return {key: value for key, value in (("date", self.date), ("subject", self.subject)) if value}


def read_mbox(part: SourcePart, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The messages of one mailbox in order."""
    defaults = defaults_of(part, limits)
    number = 0
    try:
        for number, raw in enumerate(split_messages(Path(part.path), limits), start=1):
            try:
                if isinstance(raw, SiloError):
                    raise raw
                yield _candidate(parse_message(raw), defaults)
            except SiloError as error:
                yield Quarantined(f"{part.label}:message {number}", error.code, error.message)
    except SiloError as error:
        yield Quarantined(f"{part.label}:message {number + 1}", error.code, error.message)


def _candidate(message: Message, defaults: Defaults) -> Candidate:
    return Candidate(
        external_id=message.identity,
        text=message.text,
        source=defaults.source,
        domain=defaults.domain or "mail",
        evidence=defaults.evidence,
        owner=message.sender or defaults.owner,
        meta=message.meta,
    )


def split_messages(path: Path, limits: Limits) -> Iterator[bytes | SiloError]:
    """The raw messages; an error stands for one that is too large or does not begin with a From line."""
    lines: list[bytes] = []
    size = 0
    blank = True
    problem: SiloError | None = None
    begun = False
    for line in read_file_lines(path, limits):
        if line is not None and blank and _SEPARATOR.match(line):
            if begun:
                yield problem or b"\n".join(lines)
            lines, size, problem, begun, blank = [], 0, None, True, False
            continue
        if not begun and line:
            begun, problem = True, SiloError("mail-invalid", "the mailbox does not begin with a From line")
        blank = line is not None and not line.rstrip(b"\r")
        size += len(line) + 1 if line is not None else limits.max_record_bytes + 1
        if size > limits.max_record_bytes and not problem:
            problem = SiloError("file-too-large", f"the message is larger than {limits.max_record_bytes:,} bytes")
            lines = []
        if not problem and line is not None:
            lines.append(line)
    if begun:
        yield problem or b"\n".join(lines)


def parse_message(raw: bytes) -> Message:
    """One mail; whatever is wrong with it raises with a code."""
    try:
        return _parse(raw)
    except SiloError:
        raise
    except Exception as error:
        # The mail parser raises errors of any type on hostile headers; one message is the most it may cost.
        raise SiloError("mail-invalid", f"the mail parser failed: {type(error).__name__}") from None


def _parse(raw: bytes) -> Message:
    message = email.message_from_bytes(_QUOTED_SEPARATOR.sub(rb"\1", raw), policy=email.policy.default)
    if not message.keys() or message.defects:
        reason = type(message.defects[0]).__name__ if message.defects else "no header"
        raise SiloError("mail-invalid", f"the message is malformed: {reason}")
    subject = _header(message, "Subject")
    text = f"{subject}\n\n{_body(message)}".strip()
    require_text(text)
    return Message(
        identity=_header(message, "Message-ID").strip("<> ") or hashlib.blake2b(raw, digest_size=16).hexdigest(),
        text=text,
        sender=parseaddr(_header(message, "From"))[1].lower(),
        subject=subject,
        date=_header(message, "Date"),
    )


def _header(message: EmailMessage, name: str) -> str:
    value = str(message.get(name, "")).encode("utf-8", "replace").decode()
    return " ".join(value.split())[:2000]


def _body(message: EmailMessage) -> str:
    """All text/plain parts, or the text of the HTML parts if there are none."""
    plain: list[str] = []
    pages: list[str] = []
    for piece in message.walk():
        if piece.is_multipart():
            if piece.defects:
                raise SiloError("mail-invalid", f"a part is malformed: {type(piece.defects[0]).__name__}")
        elif piece.get_content_disposition() != "attachment":
            if piece.get_content_type() == "text/plain":
                plain.append(_decode_part(piece))
            elif piece.get_content_type() == "text/html":
                pages.append(_decode_part(piece))
    return "\n\n".join(part.strip() for part in (plain or [read_html(page).text for page in pages]))


def _decode_part(piece: EmailMessage) -> str:
    data = piece.get_payload(decode=True)
    if piece.defects or not isinstance(data, bytes):
        raise SiloError("mail-invalid", "a text part is wrongly encoded")
    return decode_charset(data, piece.get_content_charset("utf-8")).replace("\r\n", "\n")
