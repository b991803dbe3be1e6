"""Evaluation files: JSON lines (plain, gzip, zstd) with a `text`, or plain text; every record is read, or none.

A record that cannot be read is an error and not a gap: what is kept out of training must be complete.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from silo.errors import SiloError
from silo.files import nearest_path
from silo.recipe import Limits
from silo.sources.reader.bytes import read_file_lines
from silo.text.masks import is_mostly_masked
from silo.text.normalise import normalise
from silo.text.strict_json import parse_object

_SUFFIXES = {".gz", ".zst", ".jsonl", ".json", ".ndjson", ".txt", ".md"}
_SPLITS = {".train", ".validation", ".test"}


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One evaluation text; `label` names file and record, `split` is its own.

    `domain` is its own too, or else the name of a file DOMAIN.jsonl or DOMAIN.SPLIT.jsonl, packed or not.
    """

    label: str
    domain: str
    text: str
    split: str = ""


def read_evaluation(path: Path, limits: Limits | None = None) -> Iterator[EvaluationRecord]:
    """Every record of an evaluation file; a plain text file is one record."""
    limits = limits or Limits()
    if not path.is_file():
        raise SiloError("input-missing", f"there is no evaluation file at {path}", nearest_path(path))
    if path.suffix in (".txt", ".md"):
        yield EvaluationRecord(path.name, _plain_name(path), _read_plain_text(path))
        return
    empty = True
    for number, line in enumerate(read_file_lines(path, limits), start=1):
        if line is None:
            raise SiloError("line-too-long", f"{path.name}:line {number} is too long for an evaluation record")
        if line.strip():
            empty = False
            yield _parse_record(line, path, number, limits)
    if empty:
        raise SiloError("input-empty", f"the evaluation file {path} holds no record")


def read_scored(paths: Iterable[Path]) -> Iterator[EvaluationRecord]:
    """The records of some files that an evaluation counts: all that have text which is not mostly masked."""
    for path in paths:
        kept = 0
        for record in read_evaluation(path):
            if normalise(record.text).strip() and not is_mostly_masked(record.text):
                kept += 1
                yield record
        if not kept:
            raise SiloError("input-empty", f"every record of the evaluation file {path} is empty or mostly masked")


def _read_plain_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SiloError("input-unreadable", f"{path.name} cannot be read: {error.strerror}") from None


def _parse_record(line: bytes, path: Path, number: int, limits: Limits) -> EvaluationRecord:
    try:
        record = parse_object(line.removeprefix(BOM_UTF8), limits.max_depth)
    except SiloError as error:
        raise SiloError(error.code, f"{path.name}:line {number}: {error.message}") from None
    texts = [record[key] for key in ("text", "text2") if isinstance(record.get(key), str)]
    if not texts:
        raise SiloError("field-missing", f"{path.name}:line {number} has no text")
    domain = record.get("domain")
    domain_name = domain if isinstance(domain, str) and domain else _plain_name(path)
    label = f"{path.name}#{record.get('id', number)}"
    return EvaluationRecord(label, domain_name, "\n".join(texts), str(record.get("split", "")))


def _plain_name(path: Path) -> str:
    """A file's name without the suffixes that say how it is packed and which split it is."""
    while path.suffix in _SUFFIXES:
        path = path.with_suffix("")
    return path.with_suffix("").name if path.suffix in _SPLITS else path.name
