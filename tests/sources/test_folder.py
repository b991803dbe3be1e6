from __future__ import annotations

from pathlib import Path

import pytest

from silo.recipe import SourceRecipe
from silo.records import Right
from silo.sources import plan
from tests.sources.reading import bad, good, read_source, spdx, tiers, write

ROW = '{"path": "a.txt", "license": "CC0-1.0", "owner": "Ann", "url": "http://x/a", "title": "A"}\n'
FORMS = {
    "metadata.jsonl": ROW,
    "metadata.csv": "path,license,owner,url,title\na.txt,CC0-1.0,Ann,http://x/a,A\n",
    "metadata.json": f"[{ROW}]",
    "other.json": '{"a.txt": {"license": "CC0-1.0", "owner": "Ann", "url": "http://x/a", "title": "A"}}',
}


@pytest.mark.parametrize("name", FORMS)
def test_a_metadata_file_speaks_for_the_files_it_names(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"in/a.txt": "A.", "in/deep/b.md": "B.", "in/c.png": b"\x89PNG", f"in/{name}": FORMS[name]})
    given = name if name == "other.json" else ""
    first, second = good(read_source(tmp_path, "folder", "in", domain="prose", metadata=given))
    assert (first.external_id, first.text, first.source, first.domain) == ("a.txt", "A.", "in", "prose")
    assert (first.owner, first.url, first.meta) == ("Ann", "http://x/a", {"title": "A"})
    assert spdx(first) == ["CC0-1.0"]
    assert (second.external_id, second.evidence) == ("deep/b.md", ())


def test_two_rows_on_one_file_both_count(tmp_path: Path) -> None:
    write(tmp_path, {"in/a.txt": "A.", "in/metadata.csv": "path,license\na.txt,CC0-1.0\n./a.txt,GPL-3.0-only\n"})
    (found,) = good(read_source(tmp_path, "folder", "in"))
    assert tiers(found) == ["pd", "restricted"]


def test_signals_beside_the_texts_apply_by_path(tmp_path: Path) -> None:
    robots = "User-agent: *\nContent-Usage: /closed/ train-ai=n\n"
    write(tmp_path, {"in/closed/a.txt": "A.", "in/open/b.txt": "B.", "in/robots.txt": robots})
    closed, public = good(read_source(tmp_path, "folder", "in"))
    assert {right for item in closed.evidence for right in item.denies} == {Right.train}
    assert public.evidence == ()


def test_a_large_folder_is_shared_out_and_problems_are_told_once(tmp_path: Path) -> None:
    texts: dict[str, str | bytes] = {f"in/{at:04}.txt": f"Text {at}." for at in range(1500)}
    write(tmp_path, texts | {"in/metadata.jsonl": ROW + "broken\n"})
    recipe = SourceRecipe("folder", ("in",))
    parts = plan(recipe, tmp_path)
    assert [part.label for part in parts] == ["in[1]", "in[2]"]
    items = read_source(tmp_path, "folder", "in")
    assert bad(items) == [("in/metadata.jsonl:line 2", "metadata-invalid")]
    assert len(items) == 1501
    write(tmp_path, {"in/metadata.jsonl": ROW})
    assert {part.stamp for part in plan(recipe, tmp_path)}.isdisjoint(part.stamp for part in parts)


def test_excluded_files_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"in/a.txt": "A.", "in/drafts/b.txt": "B.", "in/c.rst": "C."})
    found = good(read_source(tmp_path, "folder", "in", exclude=("drafts/*", "in/c.*")))
    assert [item.external_id for item in found] == ["a.txt"]
