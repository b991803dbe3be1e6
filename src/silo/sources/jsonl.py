"""JSON lines in the style of Dolma, plain or packed with gzip or zstd; a bad line costs only itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from silo.errors import SiloError
from silo.recipe import Limits
from silo.records import Candidate, Quarantined
from silo.sources.reader.bytes import read_file_lines
from silo.sources.reader.fields import Defaults, make_candidate
from silo.text.strict_json import parse_object

_BOM = b"\xef\xbb\xbf"
_HEAD_BYTES = 1 << 16


def read_lines(path: Path, label: str, limits: Limits, defaults: Defaults) -> Iterator[Candidate | Quarantined]:
    """The records of one file in order, with given defaults; a file that holds none is quarantined as a whole."""
    number = 0
    try:
        for number, line in enumerate(_require_records(read_file_lines(path, limits)), start=1):
            where = f"{label}:line {number}"
            if line is None:
                yield Quarantined(where, "line-too-long", f"longer than {limits.max_record_bytes:,} bytes")
                continue
            if number == 1:
                line = line.removeprefix(_BOM)
            if not line or line.isspace():
                continue
            try:
                yield make_candidate(parse_object(line, limits.max_depth), defaults, where)
            except SiloError as error:
                yield Quarantined(where, error.code, error.message)
    except SiloError as error:
        yield Quarantined(f"{label}:line {number + 1}", error.code, error.message)


def _require_records(lines: Iterator[bytes | None]) -> Iterator[bytes | None]:
    """The lines again. Text of another kind raises, instead of as many bad records as it has lines."""
    head: list[bytes] = []
    size = 0
    for line in lines:
        if line is None or _begins_object(line) or size > _HEAD_BYTES:
            _refuse_others(head, found=size <= _HEAD_BYTES)
            yield from head
            yield line
            yield from lines
            return
        head.append(line)
        size += len(line) + 1
    _refuse_others(head, found=False)
    yield from head


def _begins_object(line: bytes) -> bool:
    start = line.lstrip(_BOM + b" \t")
    return start.startswith(b"{") and start.strip() != b"{"


def _refuse_others(head: list[bytes], *, found: bool) -> None:
    """Raise if these lines, none of which is an object, are text all the same: also before one that is, in a list."""
    try:
        text = b"\n".join(head).removeprefix(_BOM).decode().strip()
    except UnicodeDecodeError:
        return
    is_other = text.startswith("[") and not text.endswith("]") if found else bool(text) and "\0" not in text
    if is_other:
        raise SiloError("not-records", f"the file looks like {_name_text(text)}")


def _name_text(text: str) -> str:
    first, _, second = text.partition("\n")
    if text.startswith(("[", "{")):
        return "JSON over many lines, not like an object per line"
    if text.startswith("<"):
        return "HTML or XML"
    delimiter = next((mark for mark in ",;\t|" if 0 < first.count(mark) == second.partition("\n")[0].count(mark)), "")
    return "a table (CSV)" if delimiter else "plain text"
