"""Kind `jsonl`: Dolma-style JSON lines, plain or packed with gzip or zstd; a bad line costs only itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from silo.errors import SiloError
from silo.recipe import Limits
from silo.records import Candidate, Quarantined
from silo.sources.reader.bytes import read_file_lines
from silo.sources.reader.fields import Defaults, defaults_of, make_candidate
from silo.sources.reader.plan import SourcePart
from silo.text.strict_json import parse_object

_BOM = b"\xef\xbb\xbf"


def read_jsonl(part: SourcePart, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The records of one file in order."""
    return read_lines(Path(part.path), part.label, limits, defaults_of(part, limits))


def read_lines(path: Path, label: str, limits: Limits, defaults: Defaults) -> Iterator[Candidate | Quarantined]:
    """The records of one file in order, with given defaults."""
    number = 0
    try:
        for number, line in enumerate(read_file_lines(path, limits), start=1):
            if line is None:
                message = f"longer than {limits.max_record_bytes:,} bytes"
                yield Quarantined(f"{label}:line {number}", "line-too-long", message)
                continue
            if number == 1:
                line = line.removeprefix(_BOM)
            if not line or line.isspace():
                continue
            try:
                yield make_candidate(parse_object(line, limits.max_depth), defaults)
            except SiloError as error:
                yield Quarantined(f"{label}:line {number}", error.code, error.message)
    except SiloError as error:
        yield Quarantined(f"{label}:line {number + 1}", error.code, error.message)
