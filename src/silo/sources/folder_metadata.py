"""Promises what a metadata file says about each text of a folder; a doubtful row is reported, never guessed at.

Forms: metadata.jsonl (one object per line), metadata.csv (a header line), metadata.json (a list of objects, or an
object from path to object). A row has `path` and any of license, owner, url, domain, source; other keys are kept.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from silo.errors import SiloError
from silo.recipe import Limits
from silo.records import Quarantined
from silo.sources.reader.bytes import lines
from silo.sources.reader.plan import refuse_special
from silo.text.strict_json import parse_object

NAMES = ("metadata.jsonl", "metadata.csv", "metadata.json")
_PATH_KEYS = ("path", "file", "file_name", "filename")


@dataclass(frozen=True, slots=True)
class Metadata:
    """Rows by relative path (several rows on one file all count), and the rows that could not be read."""

    rows: Mapping[str, tuple[Mapping[str, Any], ...]]
    problems: tuple[Quarantined, ...]


def metadata_path(root: Path, given: str, base: Path) -> Path | None:
    """The metadata file of a folder: the one given (below the folder or the recipe), or one of the usual names."""
    if given:
        found = [place for place in (root / given, base / Path(given).expanduser()) if place.exists()]
        if not found:
            raise SiloError("input-missing", f"there is no metadata file {given}")
        return found[0].absolute()
    return next((root / name for name in NAMES if (root / name).exists()), None)


def load_metadata(path: Path, limits: Limits) -> Metadata:
    """Read a metadata file whole; problems are collected per row."""
    rows: dict[str, tuple[Mapping[str, Any], ...]] = {}
    problems: list[Quarantined] = []
    try:
        for where, row in _rows(path, limits):
            if isinstance(row, SiloError):
                problems.append(Quarantined(where, row.code, row.message))
                continue
            try:
                place = _place(row)
            except SiloError as error:
                problems.append(Quarantined(where, error.code, error.message))
                continue
            rows[place] = (*rows.get(place, ()), row)
    except SiloError as error:
        problems.append(Quarantined(path.name, "metadata-invalid", error.message))
    return Metadata(rows, tuple(problems))


def _place(row: Mapping[str, Any]) -> str:
    value = next((row[key] for key in _PATH_KEYS if row.get(key)), None)
    if not isinstance(value, str):
        raise SiloError("metadata-invalid", "the row names no path")
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or "\0" in value:
        raise SiloError("path-unsafe", f"the row names a path outside the folder: {value[:200]!r}")
    return path.as_posix()


def _rows(path: Path, limits: Limits) -> Iterator[tuple[str, Mapping[str, Any] | SiloError]]:
    if path.suffix == ".csv":
        return _csv_rows(path, limits)
    if path.suffix == ".json":
        return _json_rows(path, limits)
    return _jsonl_rows(path, limits)


def _jsonl_rows(path: Path, limits: Limits) -> Iterator[tuple[str, Mapping[str, Any] | SiloError]]:
    for number, line in enumerate(lines(path, limits), start=1):
        where = f"{path.name}:line {number}"
        if line is None:
            yield where, SiloError("metadata-invalid", "the row is too long")
        elif line.strip():
            try:
                yield where, parse_object(line.removeprefix(b"\xef\xbb\xbf"), limits.max_depth)
            except SiloError as error:
                yield where, SiloError("metadata-invalid", error.message)


def _csv_rows(path: Path, limits: Limits) -> Iterator[tuple[str, Mapping[str, Any] | SiloError]]:
    reader = csv.DictReader(io.StringIO(_whole(path, limits).decode("utf-8-sig"), newline=""), strict=True)
    try:
        names = list(reader.fieldnames or ())
        if len(set(names)) != len(names):
            raise SiloError("metadata-invalid", "a column is given twice")
        for row in reader:
            where = f"{path.name}:line {reader.line_num}"
            if None in row or None in row.values():
                yield where, SiloError("metadata-invalid", "the row has another number of columns than the header")
            else:
                yield where, {key: value for key, value in row.items() if value}
    except csv.Error as error:
        raise SiloError("metadata-invalid", f"line {reader.line_num}: {error}") from None


def _json_rows(path: Path, limits: Limits) -> Iterator[tuple[str, Mapping[str, Any] | SiloError]]:
    data = _whole(path, limits)
    content = parse_object(b'{"rows":' + data.removeprefix(b"\xef\xbb\xbf") + b"}", limits.max_depth)
    rows = content["rows"]
    if isinstance(rows, dict):
        rows = [{**row, "path": name} if isinstance(row, dict) else row for name, row in rows.items()]
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], start=1):
        good = isinstance(row, dict)
        yield f"{path.name}:row {number}", row if good else SiloError("metadata-invalid", "a row must be an object")


def _whole(path: Path, limits: Limits) -> bytes:
    refuse_special(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(limits.max_record_bytes + 1)
        data.decode("utf-8")
    except OSError as error:
        raise SiloError("metadata-invalid", f"{path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SiloError("metadata-invalid", f"{path.name} is not UTF-8") from None
    if len(data) > limits.max_record_bytes:
        raise SiloError("metadata-invalid", f"{path.name} is larger than {limits.max_record_bytes:,} bytes")
    return data
