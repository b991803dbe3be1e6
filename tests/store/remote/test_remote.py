"""A store at a URL is the store of a directory: same bytes, same answers, same promises, for several writers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from silo.errors import SiloError
from silo.files import remove_tree
from silo.pairing import open_store
from silo.records import Document
from silo.remote.head import HEAD, Head, Part, is_garbage, new_object
from silo.remote.objects import HeadFile, Objects
from silo.remote.place import remote_url
from silo.remote.publish import Publisher
from silo.store.backup import back_up
from silo.store.erasure.receipt import check_receipt, read_receipt
from silo.store.remote.store import RemoteStore, open_remote, publish_store
from silo.store.selector import Selector
from silo.store.store import Store
from tests.store.remote.homes import DOCUMENTS, Killed, Machine, MortalObjects, make_remote, reopened
from tests.store.small import SmallEncoder, document, small_store, tree


def local_twin(root: Path, documents: list[Document]) -> Store:
    store = small_store(root, searches=("ngram",))
    store.add(documents)
    return store


def head_of(url: str) -> Head:
    file = Objects.at(url).read_head()
    assert file is not None
    return Head.decode(file.data, url)


def remote_bytes(url: str) -> bytes:
    return b"".join(tree(Path(url.removeprefix("file://"))).values())


def test_a_store_at_a_url_has_the_bytes_and_answers_of_one_in_a_directory(url: str, tmp_path: Path) -> None:
    store, twin = make_remote(url), local_twin(tmp_path / "local", DOCUMENTS)
    assert store.add(DOCUMENTS).added == len(DOCUMENTS)
    other = open_remote(url)
    assert tree(store.paths.data) == tree(other.paths.data) == tree(twin.paths.data)
    assert {item.external_id for item in other.documents()} == {f"d{number}" for number in range(6)}
    assert other.verify().problems == ()


def test_an_erased_document_is_gone_from_the_objects_and_from_the_caches_of_two_processes(
    url: str, tmp_path: Path
) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS)
    program = (
        "import sys, time; from silo.store.remote.working import WorkingCopy; WorkingCopy.fresh_seconds = 0.02;"
        "from silo.store.remote.store import open_remote; store = open_remote(sys.argv[1]);"
        "print(len(list(store.documents())), flush=True); sys.stdin.readline();"
        "print(len(list(store.documents())), flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "6\n"
        before = {part.sha256 for name, part in head_of(url).files.items() if name.startswith("data/buckets/")}
        done = store.erase(Selector(document="d3"))
        assert done.failed_checks == [] and done.unmade_checks == []
        assert done.checks["remote-hits"] == done.checks["cache-hits"] == 0
        gone = before - {part.sha256 for part in head_of(url).files.values()}
        assert gone and not gone & {path.name for path in (tmp_path / "home" / "cache").rglob("*")}
        print(file=other.stdin, flush=True)
        assert other.stdout.readline() == "5\n"
    twin = local_twin(tmp_path / "local", [item for item in DOCUMENTS if item.external_id != "d3"])
    assert tree(store.paths.data) == tree(twin.paths.data)
    objects = Objects.at(url)
    assert set(objects.names()) == head_of(url).objects
    assert done.receipt is not None
    facts = check_receipt(read_receipt(done.receipt), log=store.paths.log)
    assert facts["log_checked"] and facts["failed_checks"] == []
    assert store.add(DOCUMENTS).added == 0, "it is kept out"


def test_an_erasure_reaches_the_caches_of_this_machine_under_every_url(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS[:3])
    (tmp_path / "link").symlink_to(tmp_path / "remote")
    (tmp_path / "mount").mkdir()
    for other in (f"file://{tmp_path}/mount/../remote", f"local://{tmp_path}/remote", f"file://{tmp_path}/link"):
        assert open_remote(other).url == url
    with monkeypatch.context() as patch:  # as another mount of one disk, or another name of one bucket
        patch.setattr("os.path.realpath", str)
        linked = open_remote(f"file://{tmp_path}/link")
        assert linked.url != url
        linked.close()
    old = {part.sha256 for name, part in head_of(url).files.items() if name.startswith("data/buckets/")}
    held = [path for path in (tmp_path / "home" / "cache").glob("*/objects/*") if path.name in old]
    assert len(held) == 2 * len(old)
    done = store.erase(Selector(document="d1"))
    assert done.failed_checks == [] and not any(path.exists() for path in held)


def test_nobody_finds_a_document_whose_erasure_was_accepted_elsewhere(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS)
    other, seen = open_remote(url), list[bool]()
    store.erase(Selector(document="d3"), accepted=lambda: seen.append(other.holds(DOCUMENTS[3].id)))
    assert seen == [False]


def test_the_second_of_two_writers_is_told_and_nothing_of_the_first_is_lost(url: str, tmp_path: Path) -> None:
    first, second = make_remote(url), reopened(url)

    def documents() -> Iterator[Document]:
        yield DOCUMENTS[0]
        second.add(DOCUMENTS[1:3])

    with pytest.raises(SiloError) as caught:
        first.add(documents())
    assert caught.value.code == "remote-conflict"
    assert first.add(DOCUMENTS[:1]).added == 1
    assert tree(first.paths.data) == tree(local_twin(tmp_path / "local", DOCUMENTS[:3]).paths.data)
    assert set(Objects.at(url).names()) == head_of(url).objects, "what the loser sent is gone"


def test_an_erasure_that_loses_a_race_begins_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, rival = make_remote(url), reopened(url)
    store.add(DOCUMENTS[:3])
    swap, raced = Objects.swap_head, list[int]()

    def race(self: Objects, *arguments: object) -> None:
        if not raced:
            raced.append(1)
            rival.add(DOCUMENTS[3:])
        swap(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Objects, "swap_head", race)
    store.erase(Selector(document="d1"))
    assert {item.external_id for item in store.documents()} == {"d0", "d2", "d3", "d4", "d5"}


def test_a_lost_answer_and_a_rival_lose_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS[:1])
    rival, swap, lost = reopened(url), Objects._swap_in_directory, list[int]()

    def lose(self: Objects, data: bytes, expected: HeadFile | None) -> bool:
        done = swap(self, data, expected)
        if not lost:  # it arrived, the answer did not; a rival goes on from it, and the second try is refused
            lost.append(1)
            rival.note_backup()
            return False
        return done

    monkeypatch.setattr(Objects, "_swap_in_directory", lose)
    with pytest.raises(SiloError) as caught:
        store.add(DOCUMENTS[2:4])
    assert caught.value.code == "remote-conflict"
    assert head_of(url).objects <= set(Objects.at(url).names())
    assert reopened(url).verify().problems == ()


def test_an_erasure_is_left_to_the_one_who_began_it(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS[:3])
    other, told = reopened(url), list[SiloError]()

    def write() -> None:
        with pytest.raises(SiloError) as caught:
            other.add(DOCUMENTS[3:4])
        told.append(caught.value)

    done = store.erase(Selector(document="d1"), accepted=write)
    assert [error.code for error in told] == ["busy"]
    assert done.salts and done.receipt is not None and done.receipt.parent == tmp_path / "home" / "receipts"
    assert other.add(DOCUMENTS[3:4]).added == 1
    with pytest.raises(Killed):
        store.erase(Selector(document="d2"), accepted=_die)
    for _ in range(2):
        with pytest.raises(SiloError) as caught:
            other.add(DOCUMENTS[4:5])
        assert caught.value.code == "busy"
    monkeypatch.setattr("silo.store.remote.writer.ABANDONED_SECONDS", 0.0)
    assert other.add(DOCUMENTS[4:5]).added == 1, "nothing has happened for long"
    assert not other.holds(DOCUMENTS[2].id) and not other.paths.pending.exists()


def _die() -> None:
    raise Killed


def test_an_erasure_that_is_done_gives_its_salts_though_the_last_objects_did_not_go(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS[:3])
    clean = Publisher.remove_garbage

    def fail(self: Publisher) -> list[str]:
        if "pending.json" not in self.head.files:
            raise SiloError("remote-failed", "not now")
        return clean(self)

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "remove_garbage", fail)
        done = store.erase(Selector(document="d1"))
    assert done.salts and done.receipt is not None and done.receipt.exists()
    assert done.failed_checks == ["remote-cleaned"]
    assert store.erase(Selector(document="d2")).failed_checks == []


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_call_an_erasure_is_whole_or_not_there(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr("silo.store.remote.writer.ABANDONED_SECONDS", 0.0)  # nobody waits for whom the test has killed
    make_remote(url).add(DOCUMENTS[:3])
    with_it, without = (
        tree(local_twin(tmp_path / name, documents).paths.data)
        for name, documents in (("with", DOCUMENTS[:3]), ("without", [DOCUMENTS[0], DOCUMENTS[2]]))
    )
    start = tree(tmp_path / "remote")
    outcomes = set()
    for last in range(1, 1000, step):
        for path in sorted((tmp_path / "remote").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        for name, data in start.items():
            (tmp_path / "remote" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "remote" / name).write_bytes(data)
        monkeypatch.setenv("SILO_CACHE", str(tmp_path / f"cache{last}"))
        remove_tree(tmp_path / "home" / "anchors")  # the test puts an older state back
        accepted, done = killed_erasure(url, last, monkeypatch)
        store = reopened(url)
        held = store.holds(DOCUMENTS[1].id)
        assert not (held and accepted), last
        store.allow("nothing")  # the next writer finishes what was begun
        assert tree(store.paths.data) == (with_it if held else without), last
        assert not store.paths.pending.exists()
        assert not [name for name in Objects.at(url).names() if is_garbage(name, head_of(url))]
        outcomes.add((held, accepted, done))
        store.close()
        if done:
            break
    assert {(True, False, False), (False, True, False), (False, True, True)} <= outcomes
    assert reopened(url).verify().problems == ()


def killed_erasure(url: str, last: int, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, bool]:
    """Erase in a process that dies before a call; was the erasure accepted, and was it done?"""
    accepted: list[bool] = []
    with monkeypatch.context() as patch:
        patch.setattr("silo.store.remote.store.Objects", MortalObjects)
        MortalObjects.live(1 << 30)
        store = reopened(url)
        MortalObjects.live(last)
        try:
            store.erase(Selector(document="d1"), accepted=lambda: accepted.append(True))
        except Killed:
            return bool(accepted), False
        finally:
            MortalObjects.live(1 << 30)
            store.close()
    return True, True


def test_killed_while_adding_what_was_published_is_whole(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_remote(url).close()
    whole = tree(local_twin(tmp_path / "local", DOCUMENTS).paths.data)
    for last in range(3, 40, 6):
        with monkeypatch.context() as patch:
            patch.setattr("silo.store.remote.store.Objects", MortalObjects)
            MortalObjects.live(1 << 30)
            store = reopened(url)
            MortalObjects.live(last)
            try:
                store.add(DOCUMENTS)
            except Killed:
                pass
            finally:
                MortalObjects.live(1 << 30)
    store = reopened(url)
    store.add(DOCUMENTS)
    assert tree(store.paths.data) == whole
    assert store.verify().problems == ()


def test_a_damaged_cache_is_fetched_again_and_a_damaged_object_is_refused(url: str, tmp_path: Path) -> None:
    make_remote(url).add(DOCUMENTS)
    bucket = next(part for name, part in head_of(url).files.items() if name.startswith("data/buckets/"))
    cached = tmp_path / "home" / "cache"
    (file,) = cached.glob(f"*/objects/{bucket.sha256}")
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    store = open_remote(url)
    assert len(list(store.documents())) == len(DOCUMENTS)
    assert store.verify().problems == ()
    remote = tmp_path / "remote" / bucket.object
    remote.write_bytes(damaged)
    assert any("differs from the head" in problem for problem in store.verify().problems)
    file.unlink()
    with pytest.raises(SiloError) as caught:
        open_remote(url)
    assert caught.value.code == "remote-damaged"
    remote.unlink()
    with pytest.raises(SiloError) as caught:
        open_remote(url)
    assert caught.value.code == "remote-damaged"


def test_a_file_that_was_damaged_in_the_cache_is_never_published(url: str, tmp_path: Path) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS[:3])
    store.erase(Selector(document="d1"))
    store.close()
    before = {name: part for name, part in head_of(url).files.items() if name.startswith("receipts/")}
    for part in before.values():
        (file,) = (tmp_path / "home" / "cache").glob(f"*/objects/{part.sha256}")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    store = reopened(url)
    assert store.add(DOCUMENTS[3:4]).added == 1
    assert before and before.items() <= head_of(url).files.items()
    assert store.verify().problems == ()


def test_a_listing_that_fails_is_not_an_empty_one(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS[:3])
    bucket = next(part for name, part in head_of(url).files.items() if name.startswith("data/buckets/"))
    left = tmp_path / "remote" / new_object("data/buckets/x.bucket", 0)
    left.write_bytes((tmp_path / "remote" / bucket.object).read_bytes())
    ls = LocalFileSystem.ls

    def fail(self: LocalFileSystem, path: str, **options: object) -> object:
        if "buckets" in path:
            raise OSError(errno.EIO, "Input/output error")
        return ls(self, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "ls", fail)
        for look in (lambda: store.erase(Selector(document="d1")), store.verify):
            with pytest.raises(SiloError) as caught:
                look()
            assert caught.value.code == "remote-failed"
    assert not store.holds(DOCUMENTS[1].id), "it is accepted"
    store.allow("nothing")
    assert store.verify().problems == () and not left.exists()


def test_what_could_not_be_removed_is_tried_again_though_no_listing_shows_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "a").write_text("one")
    publisher = Publisher.begin(Objects.at(url))
    publisher.publish(tmp_path / "made", is_own=lambda _: False)
    (old,) = publisher.head.objects
    (tmp_path / "made" / "a").write_text("two")

    def fail(*_: object) -> None:
        raise SiloError("remote-failed", "not now")

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "remove", fail)
        publisher.publish(tmp_path / "made", is_own=lambda _: False)
        patch.setattr(Objects, "names", lambda _: [])
        with pytest.raises(SiloError):
            publisher.remove_garbage()
        patch.undo()
        patch.setattr(Objects, "names", lambda _: [])
        assert publisher.remove_garbage() == []
    assert not (tmp_path / "remote" / old).exists()


def test_every_changed_byte_of_the_head_is_noticed(url: str, tmp_path: Path) -> None:
    make_remote(url).close()
    file = tmp_path / "remote" / HEAD
    data = file.read_bytes()
    for at in range(0, len(data), 7):
        with pytest.raises(SiloError) as caught:
            Head.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], url)
        assert caught.value.code == "remote-damaged"
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(SiloError) as caught:
        open_remote(url)
    assert caught.value.code == "remote-damaged"


def test_an_older_state_that_was_put_back_is_refused(url: str, tmp_path: Path) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS[:2])
    old = tree(tmp_path / "remote")
    store.erase(Selector(document="d1"))
    for name, data in old.items():
        (tmp_path / "remote" / name).write_bytes(data)
    time.sleep(0.05)
    for look in (lambda: open_remote(url), lambda: store.holds(DOCUMENTS[1].id)):
        with pytest.raises(SiloError) as caught:
            look()
        assert caught.value.code == "remote-damaged"


def test_an_older_state_under_another_number_or_id_is_refused_without_the_cache_too(url: str, tmp_path: Path) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS[:2])
    old, before = tree(tmp_path / "remote"), head_of(url)
    store.erase(Selector(document="d1"))
    store.close()
    for forged in (replace(before, number=head_of(url).number + 9), replace(before, id="0" * 32), before):
        for name, data in old.items():
            (tmp_path / "remote" / name).write_bytes(data)
        (tmp_path / "remote" / HEAD).write_bytes(forged.encode())
        for _ in range(2):
            with pytest.raises(SiloError) as caught:
                open_remote(url)
            assert caught.value.code == "remote-damaged"
            remove_tree(tmp_path / "home" / "cache")
    remove_tree(tmp_path / "home" / "anchors")
    assert open_remote(url).holds(DOCUMENTS[1].id), "as the hint says"


def test_a_forged_head_sends_no_file_of_this_machine_and_names_none_that_is_its_own(url: str, tmp_path: Path) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS[:2])
    store.close()
    head, part = head_of(url), next(iter(head_of(url).files.values()))
    (key,) = (tmp_path / "home" / "keys").glob("*.pem")
    evil = Part("notes.txt.000001-0123456789abcdef", f"../../../keys/{key.name}", 1)
    for name, forged in (("notes.txt", evil), ("keys/receipts.pem", part), ("lock", part), ("readers/x", part)):
        data = Head(head.id, head.number + 1, head.at, {**head.files, name: forged}).encode()
        (tmp_path / "remote" / HEAD).write_bytes(data)
        with pytest.raises(SiloError) as caught:
            open_remote(url)
        assert caught.value.code == "remote-damaged", name
    assert b"PRIVATE KEY" not in remote_bytes(url)


def test_missing_evidence_is_noticed(url: str, tmp_path: Path) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS[:2])
    head = head_of(url)
    for left in ("suppression/suppressed.json", "log.jsonl"):
        files = {name: part for name, part in head.files.items() if name != left}
        forged = Head(head.id, head.number + 1, head.at, files)
        (tmp_path / "remote" / HEAD).write_bytes(forged.encode())
        (tmp_path / "home" / "cache").rename(tmp_path / f"cache-{left.rpartition('/')[2]}")
        with pytest.raises(SiloError) as caught:
            open_remote(url)
        assert caught.value.code == "store-damaged"


def test_the_signing_key_stays_at_home_and_only_there_one_can_erase(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Machine(tmp_path / "first", monkeypatch), Machine(tmp_path / "second", monkeypatch)
    first.use()
    make_remote(url).add(DOCUMENTS[:2])
    assert b"PRIVATE KEY" not in remote_bytes(url)
    second.use()
    store = reopened(url)
    assert store.add(DOCUMENTS[2:3]).added == 1
    assert "keys" in store.verify().unchecked
    with pytest.raises(SiloError) as caught:
        store.erase(Selector(document="d1"))
    assert caught.value.code == "key-missing" and str(second.root) in caught.value.message
    assert store.holds(DOCUMENTS[1].id), "it was not accepted"
    second.take_keys(first)
    assert reopened(url).erase(Selector(document="d1")).failed_checks == []


def test_a_reader_that_is_cut_off_does_not_answer(url: str, tmp_path: Path) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS[:2])
    (tmp_path / "remote").rename(tmp_path / "away")
    (tmp_path / "remote").write_bytes(b"not a folder")
    time.sleep(0.05)
    with pytest.raises(SiloError):
        list(store.documents())
    (tmp_path / "remote").unlink()
    (tmp_path / "away").rename(tmp_path / "remote")
    assert len(list(store.documents())) == 2


def test_a_reader_goes_on_when_the_store_was_away_for_a_while(url: str, tmp_path: Path) -> None:
    def watchers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "silo-store-watch"}

    before = watchers()
    store = make_remote(url)
    began = watchers() - before
    assert began
    (tmp_path / "remote").rename(tmp_path / "away")
    time.sleep(1.0)
    (tmp_path / "away").rename(tmp_path / "remote")
    assert list(store.documents()) == [] and began & watchers()


def test_documents_are_replaced_and_synced(url: str, tmp_path: Path) -> None:
    store = make_remote(url)
    store.add(DOCUMENTS[:2])
    other = document("d1", "Another version of the second text, which is longer than a few words.", owner="o1")
    done = store.add([other], update=True)
    assert done.replaced == 1 and done.erased is not None and done.erased.failed_checks == []
    assert tree(store.paths.data) == tree(local_twin(tmp_path / "local", [DOCUMENTS[0], other]).paths.data)


def test_a_local_store_is_published_and_a_remote_one_backed_up(url: str, tmp_path: Path) -> None:
    twin = local_twin(tmp_path / "local", DOCUMENTS)
    publish_store(twin.root, url)
    with pytest.raises(SiloError) as caught:
        publish_store(twin.root, url)
    assert caught.value.code == "out-exists"
    store = open_store(Path(url))
    assert isinstance(store, RemoteStore) and tree(store.paths.data) == tree(twin.paths.data)
    assert back_up(store, tmp_path / "backup").noted
    copy = Store.open(tmp_path / "backup", SmallEncoder())
    assert copy.erase(Selector(document="d0")).failed_checks == []


def test_what_a_killed_publishing_sent_is_gone_when_the_store_is_published(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = local_twin(tmp_path / "local", DOCUMENTS[:3])
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "swap_head", lambda *_: _die())
        with pytest.raises(Killed):
            publish_store(twin.root, url)
    assert Objects.at(url).names()
    twin.erase(Selector(document="d1"))
    publish_store(twin.root, url)
    assert set(Objects.at(url).names()) == head_of(url).objects


def test_a_signing_key_that_was_set_aside_is_not_sent_either(url: str, tmp_path: Path) -> None:
    twin = local_twin(tmp_path / "local", DOCUMENTS[:2])
    twin.erase(Selector(document="d0"))
    twin.close()
    twin.paths.public_key.unlink()
    restored = Store.open(twin.root, restored=True)
    restored.replay(accept_loss=True)
    restored.close()
    (twin.root / "notes.txt").write_text("mine alone")
    assert (twin.root / "keys.damaged1" / "receipts.pem").exists()
    publish_store(twin.root, url)
    assert b"PRIVATE KEY" not in remote_bytes(url) and b"mine alone" not in remote_bytes(url)
    assert reopened(url).verify().problems == ()


def test_a_store_is_not_published_inside_itself(tmp_path: Path) -> None:
    twin = local_twin(tmp_path / "local", DOCUMENTS[:2])
    (tmp_path / "link").symlink_to(twin.root)
    before = tree(twin.root)
    for place in (twin.root, twin.root / "more", tmp_path / "link"):
        with pytest.raises(SiloError) as caught:
            publish_store(twin.root, f"file://{place}")
        assert caught.value.code == "usage"
    assert tree(twin.root) == before


def test_stores_neither_begin_inside_each_other_nor_remove_what_is_there(url: str, tmp_path: Path) -> None:
    make_remote(f"{url}/mail").add(DOCUMENTS[:2])
    for other in (url, f"{url}/mail/more", f"{url}/mail/data/buckets"):
        with pytest.raises(SiloError) as caught:
            make_remote(other)
        assert caught.value.code == "out-exists" and HEAD in caught.value.message
    around = f"file://{tmp_path}/around"
    store = make_remote(around)
    (tmp_path / "remote" / "mail").rename(tmp_path / "around" / "mail")
    before = tree(tmp_path / "around" / "mail")
    store.add(DOCUMENTS[2:4])
    done = store.erase(Selector(document="d2"))
    assert tree(tmp_path / "around" / "mail") == before
    assert done.failed_checks == ["remote-hits"], "it says that there is something it did not look at"
    assert [problem for problem in store.verify().problems if "mail/head.json" in problem]


def test_urls_survive_being_paths() -> None:
    for given, meant in (
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("file:///tmp/x", "file:///tmp/x"),
        ("memory://x", "memory://x"),
        ("local:///tmp/x", "file:///tmp/x"),
        ("file:///tmp/y/../x/.", "file:///tmp/x"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("S3://Bucket/a", "s3://Bucket/a"),
        ("FILE:///tmp/x", "file:///tmp/x"),
        ("file://localhost/tmp/x", "file:///tmp/x"),
        ("memory://a//b", "memory://a/b"),
        ("memory:////a", "memory://a"),
        ("sftp://me@host/a", "sftp://me@host/a"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
    ):
        assert remote_url(given) == remote_url(Path(given)) == meant
    assert remote_url("stores/mine") is None and remote_url(Path("/tmp/a:b/c")) is None
    for refused in ("https://host/store", "HTTPS://host/store", "s3://bucket/a/../b", "webhdfs://bob:hunter2@host:1/x"):
        with pytest.raises(SiloError) as caught:
            remote_url(refused)
        assert caught.value.code == "usage" and "hunter2" not in f"{caught.value.message}{caught.value.hint}"


def test_a_lock_object_guards_the_head_where_no_condition_can(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://silo-test-{os.getpid()}/store"
    store = make_remote(url)
    store.add(DOCUMENTS[:2])
    rival = reopened(url)
    store.erase(Selector(document="d0"))
    assert [item.external_id for item in rival.documents()] == ["d1"]
    objects = Objects.at(url)
    objects._system.pipe_file(objects._path("head.lock"), b"")
    with pytest.raises(SiloError) as caught:
        rival.add(DOCUMENTS[2:3])
    assert caught.value.code == "busy" and "head.lock" in caught.value.hint
