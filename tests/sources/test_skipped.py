"""What a folder holds besides documents is counted with a reason, and nothing is passed over in silence."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.recipe import SourceRecipe
from silo.records import Document, Quarantined
from silo.sources import Tally, plan, read_documents
from silo.sources.reader.skipped import Skipped, describe_skipped
from tests.sources.reading import write


def skipped(base: Path, kind: str = "folder", **recipe: Any) -> list[tuple[str, str, int]]:
    parts = plan(SourceRecipe(kind, ("in",), **recipe), base)
    return [(item.ending, item.reason, item.files) for part in parts for item in part.skipped]


def test_files_are_counted_by_ending_and_reason(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "in/a.txt": "A.",
        "in/.hidden.md": "Read, as it always was.",
        "in/robots.txt": "User-agent: *",
        "in/metadata.csv": "path\na.txt\n",
        "in/b.xyz": "text",
        "in/deep/C.XYZ": "text",
        "in/d.bin": b"\0\1",
        "in/Makefile": "all:",
        "in/e.jsonl": "{}",
        "in/f.doc": b"\xd0\xcf",
        "in/.git/description.txt": "x",
        "in/g.png": b"\x89PNG\0",
    }
    write(tmp_path, files)
    (tmp_path / "in" / "h.txt").symlink_to("a.txt")
    assert skipped(tmp_path) == [
        (".xyz", "kind-unknown", 2),
        ("", "kind-unknown", 1),
        (".bin", "not-text", 1),
        (".doc", "old-format", 1),
        (".git/", "not-entered", 1),
        (".jsonl", "records", 1),
        (".png", "not-text", 1),
        (".txt", "link", 1),
    ]
    assert skipped(tmp_path, exclude=("*.xyz", "*.XYZ", "*.png"))[0] == ("", "kind-unknown", 1)
    texts: list[Document] = []
    tally, unreadable = Tally(), list[Quarantined]()
    texts += read_documents(SourceRecipe("folder", ("in",)), tmp_path, unreadable, tally=tally)
    assert [text.external_id for text in texts] == [".hidden.md", "a.txt"]
    assert tally.as_json()["skipped"] == 9
    assert tally.as_json()["skipped_files"][0] == {
        "ending": ".xyz",
        "reason": "kind-unknown",
        "why": "unknown kind",
        "files": 2,
    }


def test_a_source_tree_says_what_it_passes_by(tmp_path: Path) -> None:
    write(tmp_path, {"in/a.py": "x", "in/LICENSE": "MIT License", "in/b.png": b"\x89", "in/build/c.py": "x"})
    assert skipped(tmp_path, "tree") == [(".png", "kind-unknown", 1), ("build/", "not-entered", 1)]


def test_a_folder_without_documents_says_what_it_holds_instead(tmp_path: Path) -> None:
    write(tmp_path, {"in/a.xyz": "x", "in/b.xyz": "x"})
    with pytest.raises(SiloError, match=r"skipped 2 files: 2 .xyz \(unknown kind\)") as caught:
        plan(SourceRecipe("folder", ("in",)), tmp_path)
    assert caught.value.code == "input-empty"
    write(tmp_path, {"more/a.txt": "A."})
    assert len(plan(SourceRecipe("folder", ("in", "more")), tmp_path)) == 2


def test_a_kind_whose_library_is_missing_is_skipped_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"in/a.txt": "A.", "in/b.pdf": b"%PDF-1.4"})
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pypdfium2" else found(name))
    assert skipped(tmp_path) == [(".pdf", "extra-missing", 1)]
    (part,) = plan(SourceRecipe("folder", ("in",)), tmp_path)
    assert describe_skipped(part.skipped) == "skipped 1 file: 1 .pdf (needs: pip install 'silo-lm[docs]')"


def test_the_line_for_people_is_short(tmp_path: Path) -> None:
    assert describe_skipped([]) == ""
    some = [Skipped(".xyz", "kind-unknown", 2), Skipped(".bin", "not-text", 1)]
    assert describe_skipped(some) == "skipped 3 files: 2 .xyz (unknown kind), 1 .bin (binary)"
    many = [Skipped(f".k{at}", "kind-unknown", 1) for at in range(1200)]
    assert describe_skipped(many).startswith("skipped 1,200 files: 1 .k0 (unknown kind), ")
    assert describe_skipped(many).endswith(", 1,192 of other kinds")
