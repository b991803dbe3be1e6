"""Files of records are known by their content, and records without an id by their place."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from silo.recipe import SourceRecipe
from silo.records import Quarantined
from silo.sources import Tally, read_documents
from tests.sources.reading import good, read_source, write


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_content_decides_and_not_the_name_or_the_kind(tmp_path: Path, kind: str) -> None:
    pq.write_table(pa.table({"id": ["a"], "text": ["From a table."]}), tmp_path / "table.jsonl")
    write(tmp_path, {"lines.parquet": "\ufeff\n" + json.dumps({"id": "b", "text": "From a line."})})
    table, lines = good(read_source(tmp_path, kind, "table.jsonl") + read_source(tmp_path, kind, "lines.parquet"))
    assert [(item.external_id, item.text) for item in (table, lines)] == [("a", "From a table."), ("b", "From a line.")]


@pytest.mark.parametrize(
    ("content", "code", "word"),
    [
        (b'[{"id": 1,\n "text": "x"}]', "not-records", "JSON"),
        (b'[\n {"id": 1, "text": "x"},\n {"id": 2, "text": "y"}\n]\n', "not-records", "JSON"),
        (b'{\n "id": 1,\n "text": "x"\n}\n', "not-records", "JSON"),
        (b"name;text\nAnn;x\n", "not-records", "CSV"),
        (b"<html>\n", "not-records", "HTML"),
        (b"Dear Ann,\nhello\n", "not-records", "plain text"),
        (b"%PDF-1.7", "not-text", "PDF"),
        (b"PK\x03\x04", "not-text", "Office"),
        (b"\x1f\x8b\x08", "not-text", "gzip"),
    ],
)
def test_a_file_without_records_says_what_it_looks_like(tmp_path: Path, content: bytes, code: str, word: str) -> None:
    write(tmp_path, {"in.jsonl": content})
    (found,) = read_source(tmp_path, "jsonl", "in.jsonl")
    assert isinstance(found, Quarantined) and (found.where, found.code) == ("in.jsonl:line 1", code)
    assert word in found.message


def test_a_bad_line_still_costs_only_itself(tmp_path: Path) -> None:
    write(tmp_path, {"in.jsonl": "nonsense\n" * 3 + '{"id": "a", "text": "x"}\nnonsense\n'})
    items = read_source(tmp_path, "jsonl", "in.jsonl")
    assert [isinstance(item, Quarantined) for item in items] == [True, True, True, False, True]


def test_a_missing_id_is_the_place_of_the_record_and_stays_the_same(tmp_path: Path) -> None:
    write(tmp_path, {"a.jsonl": '{"text": "x"}\n\n{"id": null, "text": "y"}\n{"id": 7, "text": "z"}\n'})
    pq.write_table(pa.table({"text": ["u", "v"]}), tmp_path / "b.parquet")
    items = good(read_source(tmp_path, "jsonl", "a.jsonl", "b.parquet"))
    assert [(item.external_id, item.id_is_derived) for item in items] == [
        ("a.jsonl:line 1", True),
        ("a.jsonl:line 3", True),
        ("7", False),
        ("b.parquet:row 1", True),
        ("b.parquet:row 2", True),
    ]
    assert items == good(read_source(tmp_path, "jsonl", "a.jsonl", "b.parquet"))
    tally = Tally()
    list(read_documents(SourceRecipe("jsonl", ("a.jsonl",)), tmp_path, [], tally=tally))
    assert tally.derived_ids == 2
