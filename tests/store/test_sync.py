"""A store follows its source: what comes, changes and goes there comes, changes and goes here, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.recipe import SourceRecipe
from silo.store.adding.sync import Item
from silo.store.erasure.receipt import check_receipt, read_receipt
from silo.store.selector import Selector
from silo.store.store import Store
from tests.store.small import document, small_store, tree

OTHER = document("else", "A document of another source, which nobody has asked about.", source="elsewhere")
TEXTS = {f"notes/{n}.txt": f"Note {n} of the folder is about {n * 17} lamps in the tower. " * 3 for n in range(4)}


def _write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _write(tmp_path / "docs", TEXTS)
    return tmp_path / "docs"


@pytest.fixture
def store(tmp_path: Path, folder: Path, no_waiting: None) -> Store:
    made = small_store(tmp_path / "store")
    made.add([OTHER])
    made.sync(folder)
    return made


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing crashes here."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def _names(items: list[Item]) -> list[str]:
    return sorted(item.external_id for item in items)


def _held(store: Store) -> dict[str, str]:
    return {item.external_id: item.text for item in store.documents()}


def _twin(root: Path, folder: Path) -> dict[str, bytes]:
    """The data of a store that only ever saw the folder as it is now."""
    made = small_store(root)
    made.add([OTHER])
    made.add(folder)
    return tree(root / "data")


def test_a_store_becomes_what_the_folder_is(store: Store, folder: Path, tmp_path: Path) -> None:
    assert store.sync(folder).unchanged == 4
    _write(folder, {"notes/1.txt": "Note 1 was written anew.", "more/9.md": "A ninth note, in another place."})
    (folder / "notes/2.txt").unlink()
    planned, before = store.sync(folder, dry_run=True), tree(store.root)
    done = store.sync(folder)
    for found in (planned, done):
        assert (_names(found.added_items), _names(found.changed_items)) == (["more/9.md"], ["notes/1.txt"])
        assert [(item.external_id, item.reason) for item in found.gone] == [("notes/2.txt", "not-there")]
        assert (found.unchanged, found.kept) == (2, [])
    assert planned.erased is None and before != tree(store.root)
    assert tree(store.root / "data") == _twin(tmp_path / "twin", folder)
    assert done.erased is not None and done.erased.receipt is not None
    receipt = read_receipt(done.erased.receipt)
    assert (receipt["kind"], receipt["counts"]["documents"], receipt["replaced"]["documents"]) == ("replacement", 2, 1)
    assert check_receipt(receipt, log=store.root / "log.jsonl")["failed_checks"] == []
    assert store.sync(folder).unchanged == 4
    assert len(list((store.root / "receipts").iterdir())) == 1


def test_what_is_gone_leaves_without_a_model_and_may_come_back(store: Store, folder: Path, tmp_path: Path) -> None:
    (folder / "notes/3.txt").rename(tmp_path / "aside")
    store.close()
    done = Store.open(store.root).sync(folder)
    assert done.erased is not None and done.erased.receipt is not None
    assert read_receipt(done.erased.receipt)["kind"] == "erasure"
    (tmp_path / "aside").rename(folder / "notes/3.txt")
    opened = Store.open(store.root)
    with pytest.raises(SiloError, match="model"):
        opened.sync(folder)
    assert opened.sync(folder, dry_run=True).added == 1


@pytest.mark.parametrize("what", ["file", "folder", "binary"])
def test_what_cannot_be_read_this_time_is_not_gone(store: Store, folder: Path, tmp_path: Path, what: str) -> None:
    before = tree(store.root / "data")
    if what == "binary":
        (folder / "notes/0.txt").write_bytes(b"\0\xff not text any more")
    else:  # a link that leads out of the folder is not followed
        place = folder / ("notes/0.txt" if what == "file" else "notes")
        place.rename(tmp_path / "moved")
        place.symlink_to(tmp_path / "moved")
    done = store.sync(folder)
    kept = ["notes/0.txt"] if what != "folder" else sorted(TEXTS)
    assert (_names(done.kept), done.gone, len(done.quarantined)) == (kept, [], 1)
    assert tree(store.root / "data") == before


def test_a_file_whose_kind_cannot_be_read_here_is_not_gone(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "page.html").write_text("<p>A page about the lamps of the tower.</p>")
    assert store.sync(folder).added == 1
    with monkeypatch.context() as patch:
        patch.setattr("silo.sources.folder.missing_library", lambda kind: "nothing" if kind == "html" else "")
        done = store.sync(folder)
        assert (_names(done.kept), done.gone, done.tally.skipped[0].reason) == (["page.html"], [], "extra-missing")
    (folder / "page.html").unlink()
    assert _names(store.sync(folder).gone) == ["page.html"]


def test_messages_of_a_mailbox_come_and_go(store: Store, folder: Path) -> None:
    head = "From a@b Thu Jan  1 00:00:00 2026\nMessage-ID: <{0}@b>\nSubject: s{0}\n\n"
    letters = [f"{head.format(n)}Letter {n} on lamps.\n\n" for n in "123"]
    (folder / "in.mbox").write_text("".join(letters))
    assert _names(store.sync(folder).added_items) == ["in.mbox#1@b", "in.mbox#2@b", "in.mbox#3@b"]
    (folder / "in.mbox").write_text(letters[0] + letters[2])
    assert _names(store.sync(folder).gone) == ["in.mbox#2@b"]
    (folder / "in.mbox").unlink()
    assert _names(store.sync(folder).gone) == ["in.mbox#1@b", "in.mbox#3@b"]


def test_a_source_is_not_emptied_by_mistake(store: Store, folder: Path, tmp_path: Path) -> None:
    before = tree(store.root / "data")
    shutil.rmtree(folder)
    for allow_empty in (False, True):
        with pytest.raises(SiloError) as caught:
            store.sync(folder, allow_empty=allow_empty)
        assert caught.value.code == "input-missing", "a folder that is not there says nothing"
    folder.mkdir()
    with pytest.raises(SiloError) as caught:
        store.sync(folder)
    assert (caught.value.code, int(caught.value.status)) == ("would-empty", 2)
    assert store.sync(folder, dry_run=True).would_empty
    assert tree(store.root / "data") == before
    assert _names(store.sync(folder, allow_empty=True).gone) == sorted(TEXTS)
    assert _held(store) == {"else": OTHER.text}
    assert store.verify().problems == ()


def test_documents_of_another_source_are_not_touched(store: Store, tmp_path: Path) -> None:
    _write(tmp_path / "docs2" / "docs", {"notes/0.txt": "Another folder of the same name."})
    named = SourceRecipe("folder", (str(tmp_path / "docs2" / "docs"),), name="second")
    done = store.sync(named)
    assert (_names(done.added_items), done.gone, done.changed_items) == (["notes/0.txt"], [], [])
    assert len(_held(store)) == 5 and len(list(store.documents())) == 6


@pytest.mark.parametrize("name", ["https://example.org/" + "x" * 300, "/etc/passwd", "../docs2/else.txt", "a\0b"])
def test_a_name_that_is_no_path_below_the_folder_is_gone(store: Store, folder: Path, tmp_path: Path, name: str) -> None:
    _write(tmp_path / "docs2", {"else.txt": "A file that lies beside the folder."})
    store.add([document(name, "A record of the same source that no file ever held.", source="docs")])
    assert _names(store.sync(folder).gone) == [name]


def test_a_folder_that_is_named_by_the_way_up_has_its_own_name(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "notes")
    for way in ("..", "../notes/.."):
        done = store.sync(SourceRecipe("folder", (way,)))
        assert (done.unchanged, done.added_items, done.gone) == (len(TEXTS), [], [])


def test_a_file_that_may_not_be_stored_any_more_goes(store: Store, folder: Path) -> None:
    (folder / "robots.txt").write_text("User-agent: *\nDisallow: /notes/1.txt\n")
    (folder / "tdmrep.json").write_text(json.dumps([{"location": "/notes/1.txt", "tdm-reservation": 1}]))
    (folder / "notes/2.txt").write_text("")
    done = store.sync(folder)
    reasons = {item.external_id: item.reason for item in done.gone}
    assert reasons["notes/2.txt"] == "empty"
    assert set(reasons) <= {"notes/1.txt", "notes/2.txt"}
    assert "notes/2.txt" not in _held(store)


def test_an_erased_document_stays_out_of_a_sync(store: Store, folder: Path) -> None:
    store.erase(Selector(document="notes/1.txt"))
    done = store.sync(folder)
    assert (done.reasons, done.gone) == ({"suppressed": 1}, [])
    assert "notes/1.txt" not in _held(store)


Lines = Callable[[str, list[dict[str, Any]]], Path]


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    def write(name: str, records: list[dict[str, Any]]) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return path

    return write


def _records(*names: str, source: str = "mail", text: str = "is about the weather") -> list[dict[str, Any]]:
    return [{"id": name, "text": f"Letter {name} {text}.", "source": source} for name in names]


def test_of_json_lines_the_sources_of_the_records_count(store: Store, lines: Lines) -> None:
    store.sync(lines("one.jsonl", [*_records("a", "b", "c"), *_records("x", source="news")]))
    assert len(_held(store)) == 9
    changed = _records("b", text="is about nothing at all")
    done = store.sync(lines("two.jsonl", [*_records("a"), *changed]))
    assert (_names(done.changed_items), _names(done.gone)) == (["b"], ["c"])
    assert {"x", "else", "notes/0.txt"} <= set(_held(store)), "no record of two.jsonl names their sources"


def test_a_line_that_cannot_be_read_keeps_everything(store: Store, lines: Lines) -> None:
    path = lines("one.jsonl", _records("a", "b"))
    store.sync(path)
    path.write_text(path.read_text().splitlines()[0] + "\nno json\n", encoding="utf-8")
    done = store.sync(path)
    assert (_names(done.kept), done.gone) == (["b"], [])


@pytest.mark.parametrize("content", ["", "no json\n"])
def test_json_lines_without_a_record_name_no_source(store: Store, lines: Lines, content: str) -> None:
    path = lines("docs.jsonl", [])
    path.write_text(content)
    with pytest.raises(SiloError) as caught:
        store.sync(path, allow_empty=True)
    assert caught.value.code == "input-empty"
    assert len(_held(store)) == 5


def test_only_folders_and_json_lines_can_be_followed(store: Store) -> None:
    with pytest.raises(SiloError, match="follow") as caught:
        store.sync(SourceRecipe("mbox", ("x.mbox",)))
    assert caught.value.code == "usage"
