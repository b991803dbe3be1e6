"""Broken disks: old state or new state, nothing between, and every file is synced before a manifest names it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.records import Document
from silo.store.selector import Selector
from silo.store.store import Store
from tests.reliability.disk import fail_at, watched
from tests.reliability.test_store_histories import POOL, answers
from tests.store.small import SmallEncoder, small_store, tree

BASE = POOL[:8]
NEWER = [replace(item, text=f"{item.text} And more of it.") for item in BASE[:2]]


def _made(root: Path, documents: list[Document]) -> dict[str, bytes]:
    """The data of a store that holds these documents."""
    store = small_store(root)
    store.add(documents)
    found = tree(root / "data")
    store.close()
    return found


def _held(documents: Iterable[Document]) -> frozenset[tuple[str, str]]:
    return frozenset((item.external_id, item.text) for item in documents)


@pytest.mark.parametrize("kind", ["eio", "enospc", "short"])
@pytest.mark.parametrize("job", ["add", "erase", "update"])
def test_a_failing_call_leaves_the_old_state_or_the_new(memory: Path, kind: str, job: str) -> None:
    def act(store: Store) -> Any:
        if job == "update":
            return store.add(NEWER, update=True)
        return store.add(POOL[8:12]) if job == "add" else store.erase(Selector(document="p3"))

    erased = [item for item in BASE if item.external_id != "p3"]
    new = {"add": POOL[:12], "erase": erased, "update": [*NEWER, *BASE[2:]]}[job]
    twins = {_held(items): _made(memory / name, items) for name, items in {"base": BASE, "new": new}.items()}
    number, failures = 0, 0
    while True:
        number += (1 if number < 40 else 7) if job != "update" else 3
        root = memory / "store"
        shutil.copytree(memory / "base", root)
        store = Store.open(root, SmallEncoder())
        try:
            with watched(fail_at(number, kind)):
                act(store)
            failed = False
        except (SiloError, OSError):
            failed = True
            failures += 1
        if failed and store.failed:
            with pytest.raises(SiloError, match="disk-failed"):
                store.add(POOL[:1])
        store.close()
        reopened = Store.open(root, SmallEncoder())
        if job == "add":
            reopened.add(POOL[8:12])
        held = _held(reopened.documents())
        assert held in twins
        reopened.compact()
        assert tree(root / "data") == twins[held]
        assert answers(reopened)
        reopened.close()
        shutil.rmtree(root)
        if not failed and kind != "short":
            break
        if kind == "short" and number > 60:
            break
    print(f"{kind} during {job}: {failures} failing calls, 0 states between")


def test_every_file_is_synced_before_a_manifest_names_it(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    assert _unsynced(lambda: store.add(BASE)) == []
    assert _unsynced(lambda: store.erase(Selector(document="p3"))) == []
    assert _unsynced(lambda: store.add(NEWER, update=True)) == []


def test_a_missing_fsync_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: bucket files are written and never synced."""

    def careless(path: Path, *pieces: bytes) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for piece in pieces:
            os.write(handle, piece)
        os.close(handle)

    monkeypatch.setattr("silo.store.manifest.write_durably", careless)
    store = small_store(tmp_path / "s")
    assert _unsynced(lambda: store.add(BASE)) != []


def _unsynced(act: Callable[[], object]) -> list[str]:
    """Files that were written, or whose names are new, and not synced when a manifest was renamed into place."""
    dirty: dict[str, str] = {}
    wrong: list[str] = []

    def on_call(_count: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name in ("write", "fsync"):
            path = str(Path(f"/proc/self/fd/{arguments[0]}").readlink())
            if name == "write":
                dirty[path] = "content"
                dirty.setdefault(str(Path(path).parent), "names")
            else:
                dirty.pop(path, None)
        elif name == "rename" and str(arguments[1]).endswith("manifest.json"):
            data = str(Path(arguments[1]).parent)
            wrong.extend(path for path in dirty if path.startswith(data) and path != data)

    with watched(on_call):
        act()
    return wrong


def test_an_adopted_orphan_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: files that the manifest does not name are kept when the store is opened."""
    store = small_store(tmp_path / "s")
    store.add(BASE)
    store.close()
    twin = _made(tmp_path / "twin", BASE)
    orphan = tmp_path / "s" / "data" / "buckets" / "0101-0123456789abcdef.bucket"
    orphan.write_bytes(b"left behind")
    Store.open(tmp_path / "s").close()
    assert tree(tmp_path / "s" / "data") == twin
    orphan.write_bytes(b"left behind")
    monkeypatch.setattr("silo.store.store.remove_strays", lambda *_: None)
    Store.open(tmp_path / "s").close()
    assert tree(tmp_path / "s" / "data") != twin
