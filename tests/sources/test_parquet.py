from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from silo.recipe import Limits
from tests.sources.reading import bad, good, read_source, spdx


def test_columns_are_the_fields_of_json_lines(tmp_path: Path) -> None:
    when = datetime(2020, 1, 2, 3, 4, 5)
    rows = {"id": [1, 2], "text": ["A.", "B."], "license": ["MIT", None], "owner": ["Ann", None], "added": [when, None]}
    rows |= {"metadata": [{"license": "CC0-1.0", "score": float("nan"), "at": when}, None], "unknown": [b"\xff", None]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet", row_group_size=1)
    first, second = good(read_source(tmp_path, "parquet", "*.parquet", domain="d"))
    assert (first.external_id, first.text, first.source, first.domain, first.owner) == ("1", "A.", "a", "d", "Ann")
    assert first.meta["at"] == first.meta["added"] == "2020-01-02T03:04:05"
    assert first.meta["score"] is None
    assert spdx(first) == ["MIT", "CC0-1.0"]
    assert (second.external_id, second.evidence) == ("2", ())


def test_metadata_as_json_text_is_read_strictly(tmp_path: Path) -> None:
    metadata = ['{"license": "MIT"}', '{"a": 1, "a": 2}']
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["A.", "B."], "metadata": metadata}), tmp_path / "a.parquet")
    items = read_source(tmp_path, "parquet", "a.parquet")
    assert spdx(items[0]) == ["MIT"]
    assert bad(items) == [("a.parquet:row 2", "json-duplicate-key")]


def test_a_text_beyond_the_limit_is_quarantined(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["x" * 2000, "y"]}), tmp_path / "a.parquet")
    items = read_source(tmp_path, "parquet", "a.parquet", limits=Limits(max_record_bytes=1000))
    assert bad(items) == [("a.parquet:row 1", "line-too-long")]
    assert len(items) == 2
