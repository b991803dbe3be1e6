"""Parquet files of records: the same fields as JSON lines, as columns, streamed batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.recipe import Limits
from silo.records import Candidate, Quarantined
from silo.sources.reader.fields import Defaults, make_candidate
from silo.sources.reader.plan import refuse_special
from silo.text.strict_json import parse_object

_COLUMN_NAMES = "id text source domain license licence tier owner url origin metadata added created"
_COLUMNS = frozenset(_COLUMN_NAMES.split())
_BATCH_ROWS = 256
_FREE_BYTES = 64 << 20


def read_rows(path: Path, label: str, limits: Limits, defaults: Defaults) -> Iterator[Candidate | Quarantined]:
    """The rows of one file in order, with given defaults."""
    import pyarrow as pa

    number = 0
    try:
        for batch in _batches(path, limits):
            for row in _rows(batch):
                number += 1
                where = f"{label}:row {number}"
                try:
                    yield make_candidate(_check_row(row, limits), defaults, where)
                except SiloError as error:
                    yield Quarantined(where, error.code, error.message)
    except SiloError as error:
        yield Quarantined(f"{label}:row {number + 1}", error.code, error.message)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0][:200]
        yield Quarantined(f"{label}:row {number + 1}", "parquet-invalid", f"not sound Parquet: {reason}")


def _batches(path: Path, limits: Limits) -> Iterator[Any]:
    import pyarrow.parquet as pq

    refuse_special(path)
    with pq.ParquetFile(path, memory_map=False) as opened:
        names = set(opened.schema_arrow.names)
        if missing := {"text"} - names:
            raise SiloError("parquet-invalid", f"the column {min(missing)} is missing")
        if len(names) != len(opened.schema_arrow.names):
            raise SiloError("json-duplicate-key", "a column is given twice")
        packed = path.stat().st_size
        for group in range(opened.num_row_groups):
            unpack = opened.metadata.row_group(group).total_byte_size
            if unpack > _FREE_BYTES and unpack > packed * limits.max_ratio:
                raise SiloError("archive-bomb", f"a row group unpacks to more than {limits.max_ratio} times the file")
            yield from opened.iter_batches(_BATCH_ROWS, row_groups=[group], columns=sorted(_COLUMNS & names))


def _rows(batch: Any) -> Iterator[dict[str, Any] | SiloError]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for at in range(batch.num_rows):
            try:
                yield from batch.slice(at, 1).to_pylist()
            except UnicodeDecodeError:
                yield SiloError("utf8-invalid", "a value of the row is not UTF-8")


def _check_row(row: dict[str, Any] | SiloError, limits: Limits) -> dict[str, Any]:
    if isinstance(row, SiloError):
        raise row
    text = row.get("text")
    if isinstance(text, str) and len(text) > limits.max_record_bytes:
        raise SiloError("line-too-long", f"the text is longer than {limits.max_record_bytes:,} bytes")
    for name in ("metadata", "added", "created", "origin"):
        if row.get(name) is not None:
            row[name] = _as_json(row[name], limits.max_depth)
    if isinstance(row.get("metadata"), str):
        row["metadata"] = parse_object(row["metadata"].encode(), limits.max_depth)
    return {key: value for key, value in row.items() if value is not None}


def _as_json(value: Any, depth: int) -> Any:
    """A value as JSON can hold it: times as ISO text, NaN as null, bytes left out."""
    if depth < 0:
        raise SiloError("json-depth", "the metadata is nested too deep")
    if isinstance(value, dict):
        return {str(key): _as_json(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(inner, depth - 1) for inner in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return None if isinstance(value, bytes) else str(value)
