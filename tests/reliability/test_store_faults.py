"""Broken disks: old state or new state, nothing between, and every file is synced before a manifest names it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.store.selector import Selector
from silo.store.store import Store
from tests.reliability.disk import fail_at, watched
from tests.reliability.test_store_histories import POOL, answers
from tests.store.small import SmallEncoder, small_store, tree

BASE = POOL[:8]


def _made(root: Path, names: list[str]) -> dict[str, bytes]:
    """The data of a store that holds these documents of the pool."""
    store = small_store(root)
    store.add([item for item in POOL if item.external_id in names])
    found = tree(root / "data")
    store.close()
    return found


def _held(store: Store) -> list[str]:
    return sorted(item.external_id for item in store.documents())


@pytest.mark.parametrize("kind", ["eio", "enospc", "short"])
@pytest.mark.parametrize("job", ["add", "erase"])
def test_a_failing_call_leaves_the_old_state_or_the_new(tmp_path: Path, kind: str, job: str) -> None:
    def act(store: Store) -> Any:
        return store.add(POOL[8:12]) if job == "add" else store.erase(Selector(document="p3"))

    base = [item.external_id for item in BASE]
    new = [*base, "p8", "p9", "p10", "p11"] if job == "add" else [name for name in base if name != "p3"]
    twins = {tuple(sorted(names)): _made(tmp_path / f"twin{len(names)}", names) for names in (base, new)}
    number, failures = 0, 0
    while True:
        number += 1 if number < 40 else 7
        root = tmp_path / f"s{number}"
        store = small_store(root)
        store.add(BASE)
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
        held = tuple(_held(reopened))
        assert held in twins
        reopened.compact()
        assert tree(root / "data") == twins[held]
        assert answers(reopened)
        reopened.close()
        if not failed and kind != "short":
            break
        if kind == "short" and number > 60:
            break
    print(f"{kind} during {job}: {failures} failing calls, 0 states between")


def test_every_file_is_synced_before_a_manifest_names_it(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    assert _unsynced(lambda: store.add(BASE)) == []
    assert _unsynced(lambda: store.erase(Selector(document="p3"))) == []


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
    twin = _made(tmp_path / "twin", [item.external_id for item in BASE])
    orphan = tmp_path / "s" / "data" / "buckets" / "0101-0123456789abcdef.bucket"
    orphan.write_bytes(b"left behind")
    Store.open(tmp_path / "s").close()
    assert tree(tmp_path / "s" / "data") == twin
    orphan.write_bytes(b"left behind")
    monkeypatch.setattr("silo.store.store.remove_strays", lambda *_: None)
    Store.open(tmp_path / "s").close()
    assert tree(tmp_path / "s" / "data") != twin
