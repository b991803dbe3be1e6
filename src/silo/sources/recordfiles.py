"""Kinds `jsonl` and `parquet`: files of records. Which of the two a file is, its content says, not its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from silo.errors import SiloError
from silo.recipe import Limits
from silo.records import Candidate, Quarantined
from silo.sources.jsonl import read_lines
from silo.sources.parquet import read_rows
from silo.sources.reader.fields import Defaults, defaults_of
from silo.sources.reader.plan import SourcePart, refuse_special

PARQUET = "parquet"
_MAGIC = b"PAR1"
_HEAD_BYTES = 4096


def read_records(part: SourcePart, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The records of one file in order."""
    return read_record_file(Path(part.path), part.label, limits, defaults_of(part, limits), expected=part.recipe.kind)


def read_record_file(
    path: Path, label: str, limits: Limits, defaults: Defaults, *, expected: str
) -> Iterator[Candidate | Quarantined]:
    """The records of one file in order, with given defaults; `expected` decides where the content does not."""
    reader = read_rows if _is_parquet(path, expected) else read_lines
    return reader(path, label, limits, defaults)


def _is_parquet(path: Path, expected: str) -> bool:
    try:
        refuse_special(path)
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except (OSError, SiloError):
        return expected == PARQUET
    if head.startswith(_MAGIC):
        return True
    lines = head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{") or path.suffix in (".gz", ".zst")
    return expected == PARQUET and not lines
