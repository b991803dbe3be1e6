"""A backup is a whole store of one moment; putting it back brings nothing back that was erased since."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import stat
from datetime import UTC, datetime
from pathlib import Path
from threading import Timer

import pytest

from silo.errors import SiloError
from silo.store import backup as backups
from silo.store.backup import back_up, restore
from silo.store.bucket import Bucket
from silo.store.erasure.erase import Erased, accept
from silo.store.paths import StorePaths
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.usage import Share, Usage, append_usage
from tests.reliability.test_store_readers import no_writes
from tests.store.small import SmallEncoder, document, small_store, tree

DOCUMENTS = [
    document(f"d{n}", f"Letter {n} tells of {n * 31} sheep on hill {n}. " * 3, owner=f"o{n % 3}") for n in range(9)
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with a receipt and a ledger."""
    made = small_store(tmp_path / "store")
    made.add(DOCUMENTS)
    made.erase(Selector(document="d0"))
    shares = {DOCUMENTS[1].id: Share("o1", "", 1.0), DOCUMENTS[2].id: Share("o2", "", 1.0)}
    append_usage(made.paths, Usage(datetime.now(UTC), 3, shares), held=made.held)
    return made


def _held(root: Path) -> list[str]:
    opened = Store.open(root)
    try:
        return sorted(item.external_id for item in opened.documents())
    finally:
        opened.close()


def _refusal(code: str, act: object) -> SiloError:
    assert callable(act)
    with pytest.raises(SiloError) as caught:
        act()
    assert caught.value.code == code, caught.value
    return caught.value


def _without(root: Path, *names: str) -> dict[str, bytes]:
    """The data of a store that never held these documents."""
    never = small_store(root)
    never.add([item for item in DOCUMENTS if item.external_id not in names])
    never.close()
    return tree(root / "data")


def _modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")}


def test_a_backup_is_a_whole_store_with_the_permissions_of_its_files(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "backups" / "monday"
    steps: list[tuple[int, int]] = []
    done = back_up(store, place, advance=lambda _, at, total: steps.append((at, total)))
    assert (done.documents, done.digest, done.noted) == (8, store.digest(), True)
    assert steps[-1][0] == steps[-1][1] == len(steps)
    passing = {"lock", "ledger.lock", "readers"}
    kept = {name: data for name, data in tree(store.root).items() if name.split("/")[0] not in passing}
    assert tree(place) == kept
    modes = _modes(place)
    assert modes == {name: mode for name, mode in _modes(store.root).items() if name.split("/")[0] not in passing}
    assert modes["keys/receipts.pem"] == modes["suppression/key"] == 0o600
    opened = Store.open(place, SmallEncoder())
    assert opened.verify().problems == ()
    opened.erase(Selector(document="d4"))
    assert opened.verify().problems == ()
    assert sorted(path.name for path in place.parent.iterdir()) == ["monday"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_store_that_may_only_be_read_can_be_backed_up(store: Store, tmp_path: Path, number: int) -> None:
    store.close()
    before = tree(store.root)
    with no_writes(store.root, number):
        done = back_up(Store.open(store.root), tmp_path / "copy")
    assert not done.noted
    assert tree(store.root) == before
    assert Store.open(tmp_path / "copy").verify().problems == ()


def test_a_backup_replaces_nothing_and_lies_apart(store: Store, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    for place in (tmp_path / "full", tmp_path / "full" / "note"):
        _refusal("out-exists", lambda place=place: back_up(store, place))
    for place in (store.root / "inside", tmp_path, store.root):
        _refusal("usage", lambda place=place: back_up(store, place))
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["note"]
    (tmp_path / "empty").mkdir()
    back_up(store, tmp_path / "empty")
    assert _held(tmp_path / "empty") == [f"d{n}" for n in range(1, 9)]


def test_a_backup_waits_for_an_erasure_under_way(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.reading() as view:
        accept(store.paths, view.generation, [DOCUMENTS[3].id], store.log(), suppress=True)
    monkeypatch.setattr(backups, "PATIENCE_SECONDS", 0.1)
    with no_writes(store.root, errno.EROFS):
        error = _refusal("busy", lambda: back_up(Store.open(store.root), tmp_path / "copy"))
    assert "erasure" in error.message
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    store.close()
    back_up(Store.open(store.root), tmp_path / "copy")
    assert "d3" not in _held(tmp_path / "copy")


def test_a_document_erased_during_a_backup_is_not_in_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silo.store.erasure.erase.DRAIN_SECONDS", 0.05)  # it waits for the backup, in the same thread
    place = tmp_path / "copy"
    erased: list[Erased] = []

    def erase_once(_stage: str, _done: int, _total: int) -> None:
        if not erased and "d4" in _copied(place.with_name("copy.backing-up")):
            erased.append(Store.open(store.root).erase(Selector(document="d4")))

    back_up(store, place, advance=erase_once)
    assert [item.failed_checks for item in erased] == [["readers-drained"]]
    assert tree(place / "data") == _without(tmp_path / "never", "d0", "d4")
    assert Store.open(place).verify().problems == ()


def test_an_erasure_accepted_during_a_backup_is_waited_for(store: Store, tmp_path: Path) -> None:
    """It is accepted when all buckets were copied, and finished a little later by another thread."""
    place = tmp_path / "copy"
    finish = Timer(0.3, lambda: Store.open(store.root).close())

    def accept_at_last(_stage: str, done: int, total: int) -> None:
        if done == total and finish.ident is None:
            with store.reading() as view:
                accept(store.paths, view.generation, [DOCUMENTS[4].id], store.log(), suppress=True)
            finish.start()

    back_up(store, place, advance=accept_at_last)
    finish.join()
    assert not (place / "pending.json").exists()
    assert tree(place / "data") == _without(tmp_path / "never", "d0", "d4")
    assert Store.open(place).verify().problems == ()
    receipt = max((place / "receipts").iterdir())
    assert json.loads(receipt.read_bytes())["checks"]["readers-drained"] is True


def test_a_change_right_after_the_moment_of_a_backup_takes_nothing_from_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silo.store.erasure.erase.DRAIN_SECONDS", 0.05)
    require_whole = backups._require_whole

    def change_then(paths: StorePaths) -> None:
        require_whole(paths)
        Store.open(store.root).erase(Selector(owner="o1"))

    monkeypatch.setattr(backups, "_require_whole", change_then)
    back_up(store, tmp_path / "copy")
    assert tree(tmp_path / "copy" / "data") == _without(tmp_path / "never", "d0")
    assert Store.open(tmp_path / "copy").verify().problems == ()


def _copied(root: Path) -> set[str]:
    """The documents in the buckets that a backup has copied so far."""
    files = {path: path.read_bytes() for path in (root / "data" / "buckets").iterdir()}
    found = (Bucket.open("", path, hashlib.sha256(data).hexdigest()) for path, data in files.items())
    return {bucket.document(row).external_id for bucket in found for row in range(len(bucket))}


def test_what_has_changed_in_a_store_is_not_copied(store: Store, tmp_path: Path) -> None:
    store.close()
    bucket = next(store.paths.buckets.iterdir())
    opened = Store.open(store.root)
    data = bytearray(bucket.read_bytes())
    data[-1] ^= 1
    bucket.write_bytes(data)
    error = _refusal("store-damaged", lambda: back_up(opened, tmp_path / "copy"))
    assert bucket.name in error.message
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_receipt_names_the_backups_that_the_log_knows_of(store: Store, tmp_path: Path) -> None:
    for name in ("one", "two"):
        back_up(store, tmp_path / name)
    done = store.erase(Selector(document="d5"))
    assert done.receipt
    assert not done.failed_checks
    (words,) = (words for words in json.loads(done.receipt.read_bytes())["exclusions"] if "begun before" in words)
    assert ": 2, the last at 20" in words


def test_a_lost_store_is_put_back_as_it_was(store: Store, tmp_path: Path) -> None:
    back_up(store, tmp_path / "copy")
    store.close()
    before = tree(tmp_path / "copy")
    shutil.rmtree(store.root)
    done = restore(tmp_path / "copy", store.root)
    assert (done.documents, done.evidence, done.erased) == (8, "backup", ())
    assert {name: data for name, data in tree(store.root).items() if name in before} == before
    assert _modes(store.root)["keys/receipts.pem"] == 0o600
    opened = Store.open(store.root, SmallEncoder())
    assert opened.verify().problems == ()
    assert opened.add([DOCUMENTS[0]]).reasons == {"suppressed": 1}


@pytest.mark.parametrize("damage", ["bucket", "manifest", "data", "codec", "key", "receipt", "nothing"])
def test_what_was_erased_after_the_backup_stays_erased(store: Store, tmp_path: Path, damage: str) -> None:
    back_up(store, tmp_path / "copy")
    store.erase(Selector(owner="o1"))
    store.erase(Selector(document="d2"), suppress=True)
    store.close()
    if damage != "nothing":
        _damage(store.root, damage)
    done = restore(tmp_path / "copy", store.root, force=damage == "nothing")
    assert done.evidence == "store"
    (erased,) = done.erased
    assert sorted(erased.documents) == sorted(DOCUMENTS[n].id for n in (1, 2, 4, 7))
    assert not erased.failed_checks
    assert erased.receipt and erased.receipt.is_file()
    opened = Store.open(store.root, SmallEncoder())
    assert opened.verify().problems == ()
    assert tree(store.root / "data") == _without(tmp_path / "never", "d0", "d1", "d2", "d4", "d7")
    assert not any(DOCUMENTS[1].id == passage.document for passage in opened.passages("sheep on hill 1", 9))
    assert DOCUMENTS[1].id.encode() not in (store.root / "ledger.jsonl").read_bytes()
    assert len(list((store.root / "receipts").iterdir())) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "never", "store"]


def test_what_may_be_added_again_does_not_come_back_with_a_backup(store: Store, tmp_path: Path) -> None:
    """Erased with `--may-return`, lifted with `allow`, exchanged for another text; and one that was added again."""
    back_up(store, tmp_path / "copy")
    for name in ("d1", "d2", "d3"):
        store.erase(Selector(document=name), suppress=False)
    store.erase(Selector(document="d4"))
    store.allow(DOCUMENTS[4].id)
    store.add([document("d2", "Another letter under the same name."), DOCUMENTS[3]])
    store.close()
    shutil.rmtree(store.paths.data)
    (erased,) = restore(tmp_path / "copy", store.root).erased
    assert sorted(erased.documents) == sorted(DOCUMENTS[n].id for n in (1, 2, 4))
    assert tree(store.root / "data") == _without(tmp_path / "never", "d0", "d1", "d2", "d4")
    opened = Store.open(store.root, SmallEncoder())
    assert opened.verify().problems == ()
    assert opened.add(DOCUMENTS[:5]).added == 3
    assert opened.replay() == ()
    assert opened.verify().problems == ()


def _damage(root: Path, part: str) -> None:
    if part == "bucket":
        next((root / "data" / "buckets").iterdir()).write_bytes(b"gone")
    elif part == "receipt":
        (root / "data" / "manifest.json").unlink()
        min((root / "receipts").iterdir()).unlink()
    else:
        place = {"manifest": "data/manifest.json", "key": "keys"}.get(part, part)
        shutil.rmtree(root / place) if (root / place).is_dir() else (root / place).unlink()


def test_evidence_kept_apart_replays_erasures_in_a_store_that_was_lost(store: Store, tmp_path: Path) -> None:
    back_up(store, tmp_path / "copy")
    store.erase(Selector(document="d3"))
    (tmp_path / "apart").mkdir()
    for name in ("log.jsonl", "suppression", "receipts", "keys"):
        old = store.root / name
        (shutil.copytree if old.is_dir() else shutil.copy)(old, tmp_path / "apart" / name)
    store.close()
    shutil.rmtree(store.root)
    done = restore(tmp_path / "copy", store.root, evidence=tmp_path / "apart")
    assert (done.evidence, [item.documents for item in done.erased]) == ("given", [(DOCUMENTS[3].id,)])
    assert tree(store.root / "data") == _without(tmp_path / "never", "d0", "d3")
    assert Store.open(store.root).verify().problems == ()


def test_older_evidence_than_that_of_the_backup_is_not_gone_by(store: Store, tmp_path: Path) -> None:
    back_up(store, tmp_path / "old")
    store.erase(Selector(document="d3"))
    back_up(store, tmp_path / "new")
    store.close()
    shutil.rmtree(store.root)
    done = restore(tmp_path / "new", store.root, evidence=tmp_path / "old")
    assert done.evidence == "backup"
    assert "d3" not in _held(store.root)
    assert restore(tmp_path / "old", store.root, evidence=tmp_path / "old", force=True).evidence == "store"
    assert "d3" not in _held(store.root)


def test_an_erasure_that_was_accepted_is_finished_in_what_is_put_back(store: Store, tmp_path: Path) -> None:
    back_up(store, tmp_path / "copy")
    with store.reading() as view:
        accept(store.paths, view.generation, [DOCUMENTS[6].id], store.log(), suppress=True)
    store.close()
    shutil.rmtree(store.paths.data)
    restore(tmp_path / "copy", store.root)
    assert "d6" not in _held(store.root)
    assert Store.open(store.root, SmallEncoder()).add([DOCUMENTS[6]]).reasons == {"suppressed": 1}


@pytest.mark.parametrize(
    "part", ["data/manifest.json", "data/buckets", "log.jsonl", "codec", "suppression", "keys", "receipts"]
)
def test_a_damaged_backup_is_refused_and_nothing_is_changed(store: Store, tmp_path: Path, part: str) -> None:
    back_up(store, tmp_path / "copy")
    store.close()
    shutil.rmtree(store.paths.data)
    before = tree(store.root)
    place = tmp_path / "copy" / part
    for path in [place] if place.is_file() else list(place.iterdir())[:1]:
        path.write_bytes(path.read_bytes()[:40] + b"???" + path.read_bytes()[43:])
    with pytest.raises(SiloError) as caught:
        restore(tmp_path / "copy", store.root)
    assert int(caught.value.status) == 4
    assert {name: data for name, data in tree(store.root).items() if name in before} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "store"]


def test_what_is_no_damaged_store_is_not_replaced(store: Store, tmp_path: Path) -> None:
    back_up(store, tmp_path / "copy")
    error = _refusal("out-exists", lambda: restore(tmp_path / "copy", store.root))
    assert "--force" in error.hint
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "note").touch()
    _refusal("out-exists", lambda: restore(tmp_path / "copy", tmp_path / "folder"))
    _refusal("not-a-store", lambda: restore(tmp_path / "folder", tmp_path / "nothing"))
    _refusal("usage", lambda: restore(tmp_path / "copy", tmp_path / "copy"))
    other = small_store(tmp_path / "other")
    other.add(DOCUMENTS[:2])
    other.close()
    _refusal("store-mismatch", lambda: restore(tmp_path / "copy", other.root, force=True))
    store.close()
    assert (_held(other.root), len(_held(store.root))) == (["d0", "d1"], 8)
    with store.writing():
        _refusal("busy", lambda: restore(tmp_path / "copy", store.root, force=True))
