"""A store that cannot be written can be read: a full disk with an erasure accepted, a read-only mount, another user."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from silo.cli import main
from silo.errors import SiloError
from silo.store.erasure.erase import accept
from silo.store.selector import Selector
from silo.store.store import Store
from tests.reliability.test_store_histories import POOL, answers
from tests.store.small import SmallEncoder, small_store, tree

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = small_store(tmp_path / "store")
    store.add(POOL[:8])
    store.close()
    return store.root


@contextmanager
def no_writes(root: Path, number: int) -> Iterator[None]:
    """Every attempt to write below `root`, or to make, rename or remove something there, fails with this error."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "mkdir", "rename", "unlink", "rmdir", "truncate"):
            patch.setattr(os, name, _refusing(getattr(os, name), name, root, number))
        yield


def _refusing(call: Any, name: str, root: Path, number: int) -> Any:
    def refuse(path: Any, *given: Any, **more: Any) -> Any:
        writes = name != "open" or (given[0] if given else more["flags"]) & _WRITES
        if writes and str(path).startswith(str(root)):
            if name == "mkdir" and Path(path).exists():
                raise FileExistsError(errno.EEXIST, "there", str(path))
            raise OSError(number, os.strerror(number), str(path))
        return call(path, *given, **more)

    return refuse


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_store_on_a_read_only_mount_gives_every_answer(root: Path, number: int) -> None:
    usual = answers(Store.open(root))
    before = tree(root)
    with no_writes(root, number):
        store = Store.open(root)
        assert answers(store) == usual
        assert store.verify().problems == ()
        assert store.unfinished is None
        assert len(list(store.documents())) == 8
        for command in (("list",), ("digest",), ("stats",), ("verify",), ("anchor",)):
            assert main(["store", *command, str(root), "--json"]) == 0
        with pytest.raises(SiloError) as caught:
            store.erase(Selector(document="p1"))
        assert caught.value.code == "not-writable"
        with pytest.raises(SiloError) as caught:
            store.note_usage(3, {})
        assert caught.value.code == "not-writable"
    assert tree(root) == before


def test_a_reader_without_the_right_to_write_holds_the_lock_that_is_there(root: Path) -> None:
    store = Store.open(root)
    with store.reading() as view:
        lock = store.paths.reader_lock(view.generation.fingerprint)
    store.close()
    with no_writes(root, errno.EROFS):
        reader = Store.open(root)
    handle = os.open(lock, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    reader.close()
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)
    lock.unlink()
    with no_writes(root, errno.EROFS):
        assert len(list(Store.open(root).documents())) == 8


def _accepted(root: Path) -> Store:
    store = Store.open(root, SmallEncoder())
    with store.reading() as view:
        accept(store.paths, view.generation, [POOL[3].id], store.log(), suppress=True)
    store.close()
    return store


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_an_accepted_erasure_masks_its_documents_where_it_cannot_be_finished(
    root: Path, number: int, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    _accepted(root)
    never = small_store(tmp_path / "never")
    never.add([item for item in POOL[:8] if item.external_id != "p3"])
    before = tree(root / "data")
    with no_writes(root, number):
        store = Store.open(root, SmallEncoder())
        assert store.unfinished is not None
        assert "is not finished" in caplog.text
        assert answers(store) == answers(never)
        assert not store.holds(POOL[3].id)
        with pytest.raises(SiloError) as caught:
            store.add(POOL[8:10])
        assert caught.value.code in ("disk-full", "disk-failed", "not-writable")
        assert main(["credits", str(root), "--json"]) != 0, "the ledger may still name the documents"
    assert tree(root / "data") == before
    if number == errno.ENOSPC:
        store.add(POOL[8:10])
        never.add(POOL[8:10])
        assert store.unfinished is None
    else:
        store.close()
        store = Store.open(root, SmallEncoder())
    assert tree(root / "data") == tree(never.root / "data")
    assert len(list((root / "receipts").iterdir())) == 1
    assert store.verify().problems == ()


def test_an_erasure_that_fills_the_disk_says_that_it_is_accepted(root: Path) -> None:
    store = Store.open(root, SmallEncoder())
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: object) -> None:
            raise SiloError("disk-full", "no space left while writing buckets")

        patch.setattr("silo.store.erasure.erase.apply_change", full)
        with pytest.raises(SiloError, match="accepted and not done") as caught:
            store.erase(Selector(document="p1"))
        assert caught.value.code == "disk-full"
        assert "p1" not in {item.external_id for item in Store.open(root).documents()}
    store.close()
    assert Store.open(root).verify().problems == ()
    assert not (root / "pending.json").exists()
