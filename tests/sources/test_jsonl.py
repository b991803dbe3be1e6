from __future__ import annotations

import gzip
import json
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from silo.errors import SiloError
from silo.recipe import Limits, SourceRecipe
from silo.records import Candidate, Right, Tier
from silo.sources import plan, read
from silo.sources.reader.bytes import read_file_lines
from tests.sources.reading import bad, good, one, read_source, tiers, write


def line(**fields: Any) -> str:
    return json.dumps({"id": "1", "text": "Hello.", **fields}) + "\n"


def test_fields_of_a_record_are_kept(tmp_path: Path) -> None:
    given_fields = {"source": "s", "domain": "d", "license": "MIT", "tier": "sw", "owner": "o", "url": "http://x/y"}
    write(tmp_path, {"a.jsonl": line(**given_fields, origin="here", created="2020", metadata={"title": "T"})})
    found = one(read_source(tmp_path, "jsonl", "a.jsonl"))
    assert (found.external_id, found.text, found.source, found.domain) == ("1", "Hello.", "s", "d")
    assert (found.owner, found.url, found.stated_tier) == ("o", "http://x/y", "sw")
    assert found.meta == {"title": "T", "origin": "here", "created": "2020"}
    assert [(item.asserted, item.where, item.tier) for item in found.evidence] == [("MIT", "a.jsonl: license", Tier.sw)]


def test_gaps_are_filled_from_the_recipe_and_then_from_the_file(tmp_path: Path) -> None:
    write(tmp_path, {"books.jsonl": line(), "more.jsonl.gz": gzip.compress(line(metadata={"domain": "m"}).encode())})
    bare = one(read_source(tmp_path, "jsonl", "books.jsonl"))
    assert (bare.source, bare.domain, bare.owner, bare.evidence) == ("books", "books", "", ())
    filled = one(read_source(tmp_path, "jsonl", "books.jsonl", name="n", domain="d", owner="o", license="CC0-1.0"))
    assert (filled.source, filled.domain, filled.owner) == ("n", "d", "o")
    assert [(item.method, item.tier) for item in filled.evidence] == [("recipe", Tier.pd)]
    assert one(read_source(tmp_path, "jsonl", "more.jsonl.gz")).domain == "m"


def test_every_licence_a_record_states_is_evidence(tmp_path: Path) -> None:
    write(tmp_path, {"a.jsonl": line(licence="MIT", metadata={"license": "GPL-3.0-only"})})
    assert tiers(one(read_source(tmp_path, "jsonl", "a.jsonl"))) == ["sw", "restricted"]
    write(tmp_path, {"b.jsonl": line(metadata={"license": ["CC0-1.0", "CC-BY-4.0"]})})
    assert tiers(one(read_source(tmp_path, "jsonl", "b.jsonl"))) == ["pd", "by"]


def test_evidence_does_not_depend_on_the_other_lines(tmp_path: Path) -> None:
    write(tmp_path, {"1/a.jsonl": line(license="MIT"), "2/a.jsonl": line(id="0") + "\n" + line(license="MIT")})
    assert read_source(tmp_path / "1", "jsonl", "a.jsonl")[0] == read_source(tmp_path / "2", "jsonl", "a.jsonl")[1]


def test_signals_apply_to_records_with_a_url(tmp_path: Path) -> None:
    robots = "User-agent: *\nContent-Usage: /private/ train-ai=n\n"
    write(tmp_path, {"a.jsonl": line(url="http://x/private/1") + line(url="http://x/open"), "sig/robots.txt": robots})
    closed, public = good(read_source(tmp_path, "jsonl", "a.jsonl", signals="sig"))
    assert Right.train in {right for item in closed.evidence for right in item.denies}
    assert public.evidence == ()


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_packed_files_read_like_plain_ones(tmp_path: Path, ending: str) -> None:
    text = "".join(line(id=str(at), text=f"Text {at} é ✓. " * 50) for at in range(3000)).encode()
    half = text.index(b"\n", len(text) // 2) + 1
    packers: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}
    pack = packers[ending]
    write(tmp_path, {f"a.jsonl{ending}": pack(text[:half]) + pack(text[half:])})
    found = good(read_source(tmp_path, "jsonl", f"a.jsonl{ending}"))
    assert [item.external_id for item in found] == [str(at) for at in range(3000)]


def test_a_quarantined_record_is_named_by_its_line(tmp_path: Path) -> None:
    write(tmp_path, {"a.jsonl": line() + "\n\nnot json\n" + line()})
    assert bad(read_source(tmp_path, "jsonl", "a.jsonl")) == [("a.jsonl:line 4", "json-invalid")]


def test_a_long_line_is_skipped_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as stream:
        for _ in range(40):
            stream.write(b"x" * (1 << 20))
        stream.write(b"\n" + line().encode())
    tracemalloc.start()
    found = list(read_file_lines(path, Limits(max_record_bytes=1 << 20)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0] is None and len(found) == 2
    assert peak < 8 << 20


@given(st.lists(st.binary(max_size=40).filter(lambda data: b"\n" not in data), max_size=8), st.integers(0, 50))
def test_lines_are_those_of_split_with_long_ones_replaced(
    tmp_path_factory: pytest.TempPathFactory, rows: list[bytes], limit: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(b"row\n" + b"\n".join(rows))
    expected = [b"row", *rows]
    if not expected[-1]:
        expected.pop()
    wanted = [None if len(row) > max(limit, 3) else row for row in expected]
    assert list(read_file_lines(path, Limits(max_record_bytes=max(limit, 3)))) == wanted


@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    base = tmp_path_factory.mktemp("bytes")
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"):
        (base / name).write_bytes(data)
    for item in read_source(base, "jsonl", "*"):
        assert item


def test_truncation_anywhere_is_noticed_and_costs_only_the_tail(tmp_path: Path) -> None:
    text = "".join(line(id=str(at), text=f"{at} " * (at % 40)) for at in range(200)).encode()
    for ending, data in ((".gz", gzip.compress(text)), (".zst", zstandard.compress(text))):
        for cut in range(1, len(data), 97):
            (tmp_path / f"a.jsonl{ending}").write_bytes(data[:cut])
            items = read_source(tmp_path, "jsonl", f"a.jsonl{ending}")
            assert [code for _, code in bad(items)] == ["archive-damaged"], (ending, cut)
            assert [item.external_id for item in items[:-1]] == [str(at) for at in range(len(items) - 1)]


def test_plan_is_sorted_labelled_and_stamped(tmp_path: Path) -> None:
    write(tmp_path, {"b/x.jsonl": line(), "a/x.jsonl": line(), "a/y.jsonl": line(), "a/skip.jsonl": line()})
    recipe = SourceRecipe("jsonl", ("**/*.jsonl", "a/y.jsonl"), exclude=("skip*",))
    parts = plan(recipe, tmp_path)
    assert [part.label for part in parts] == ["a/x.jsonl", "y.jsonl", "b/x.jsonl"]
    assert parts == plan(recipe, tmp_path) == pickle.loads(pickle.dumps(parts))
    write(tmp_path, {"a/y.jsonl": line() * 2})
    again = plan(recipe, tmp_path)
    assert [old.stamp == new.stamp for old, new in zip(parts, again, strict=True)] == [True, False, True]
    assert again[1].bytes == 2 * parts[1].bytes


def test_absolute_paths_and_home_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"home/a.jsonl": line(), "elsewhere/c.txt": ""})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for pattern in (str(tmp_path / "home" / "*.jsonl"), str(tmp_path / "home" / "a.jsonl"), "~/a.jsonl", "~/*.jsonl"):
        assert [part.label for part in plan(SourceRecipe("jsonl", (pattern,)), tmp_path / "elsewhere")] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("kind", "paths", "code", "word"),
    [
        ("jsonl", ("none/*.jsonl",), "input-missing", "none/*.jsonl"),
        ("jsonl", ("none.jsonl",), "input-missing", "none.jsonl"),
        ("jsonl", ("folder",), "recipe-value", "directory"),
        ("folder", ("a.jsonl",), "recipe-value", "file"),
        ("jsnol", ("a.jsonl",), "recipe-value", "parquet"),
        ("jsonl", (), "input-empty", "jsonl"),
        ("tree", (), "recipe-value", "paths"),
    ],
)
def test_a_wrong_recipe_is_explained(tmp_path: Path, kind: str, paths: tuple[str, ...], code: str, word: str) -> None:
    write(tmp_path, {"a.jsonl": line(), "folder/x": ""})
    with pytest.raises(SiloError) as caught:
        plan(SourceRecipe(kind, paths), tmp_path)
    assert caught.value.code == code and word in caught.value.message


@pytest.mark.shared
def test_the_shared_files_read_without_loss(shared: Path) -> None:
    parts = plan(SourceRecipe("jsonl", ("gutenberg.validation.jsonl.zst",)), shared / "data")
    found = [item for part in parts for item in read(part, Limits())]
    assert len(found) == 7
    assert all(isinstance(item, Candidate) and tiers(item) == ["pd"] for item in found)
