"""An erasure is checked as well after a crash as without one, and its receipt says nothing that was not looked at."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.files import is_held
from silo.records import Document
from silo.store.bucket import Bucket
from silo.store.erasure import erase
from silo.store.erasure.receipt import NOT_CHECKED, check_receipt, read_receipt
from silo.store.erasure.residue import Traces, scan
from silo.store.selector import Selector
from silo.store.store import Store
from tests.reliability.disk import watched
from tests.store.small import SmallEncoder, document, small_store, tree

HEADER = "Licensed to whoever reads this under the terms of the Example Licence, version 7, without any warranty. "
NOTES = [document(f"n{n}", HEADER + f"Note {n} is about {n * 31} boats. " * 6, owner=f"o{n % 3}") for n in range(12)]


class Cut(BaseException):
    """What ends a process in these tests; nothing in silo catches it."""


def _cut_at(number: int) -> Callable[[int, str, tuple[Any, ...]], None]:
    def on_call(count: int, _name: str, _arguments: tuple[Any, ...]) -> None:
        if count == number:
            raise Cut

    return on_call


def _store(root: Path, documents: list[Document] = NOTES, bucket_bytes: int = 900) -> Store:
    store = small_store(root, bucket_bytes=bucket_bytes)
    store.add(documents)
    return store


def _receipts(root: Path) -> list[dict[str, Any]]:
    return [read_receipt(path) for path in sorted((root / "receipts").glob("*.json"))]


def _said(receipt: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on salts, times and on how many files lie about."""
    checks = {name: value for name, value in receipt["checks"].items() if name != "residue-files"}
    return {**{name: receipt[name] for name in ("counts", "generation", "digest")}, "checks": checks}


def test_text_that_merged_siblings_share_is_no_residue(tmp_path: Path) -> None:
    """Erasing one document after the other merges buckets again and again; all share a licence header."""
    store = _store(tmp_path / "s")
    merges = 0
    for item in NOTES[:-1]:
        with store.reading() as view:
            before = {bucket.prefix for bucket in view.buckets}
        checks = store.erase(Selector(document=item.id)).checks
        with store.reading() as view:
            merges += bool({bucket.prefix for bucket in view.buckets} - before)
        assert checks["residue-hits"] == 0, item.external_id
        assert checks["digest-recomputed"] is True
    assert merges >= 3


def test_what_stays_of_a_document_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bugs: the buckets are left as they are, and a file with the text lies about."""
    store = _store(tmp_path / "s")
    monkeypatch.setattr(erase, "apply_change", lambda _paths, _builder, now, *_: now)
    (tmp_path / "s" / "note.txt").write_text(NOTES[2].text)
    checks = store.erase(Selector(document="n2")).checks
    assert checks["residue-hits"] == 1
    assert checks["digest-recomputed"] is False


def test_numbers_that_look_like_tokens_of_the_document_are_no_residue(tmp_path: Path) -> None:
    """Passages of others end at the tokens 32, 40, 48 and 56, which as bytes are " (08"."""
    goes = document("goes", "Ring us up: (08) 94 17 00")
    store = _store(tmp_path / "s", [*NOTES, goes], bucket_bytes=100_000)
    with store.reading() as view:
        (bucket,) = view.buckets
        parts = {part.id.hex(): part for part in bucket.encoded_documents()}
    traces = Traces.of([parts[goes.id]]).without(parts[item.id] for item in NOTES)
    done = store.erase(Selector(document="goes"))
    assert scan([tmp_path / "s" / "data"], traces).hits, "the windows must coincide to show anything"
    assert done.checks["residue-hits"] == 0


def test_what_receipts_say_is_no_residue(tmp_path: Path) -> None:
    words = "Backups, snapshots and copies of the store made earlier are not covered."
    store = _store(tmp_path / "s", [*NOTES, document("words", words)])
    store.erase(Selector(document="n1"))
    assert store.erase(Selector(document="words")).checks["residue-hits"] == 0


@pytest.mark.parametrize("first", [1, *(pytest.param(call, marks=pytest.mark.slow) for call in (2, 3))])
def test_an_erasure_cut_off_anywhere_ends_with_the_receipt_of_one_that_was_not(tmp_path: Path, first: int) -> None:
    small_store(tmp_path / "base", bucket_bytes=900).add(NOTES)
    twin = tmp_path / "twin"
    shutil.copytree(tmp_path / "base", twin)
    Store.open(twin).erase(Selector(owner="o1"))
    (expected,) = map(_said, _receipts(twin))
    assert expected["counts"]["tokens"] > 0 and expected["checks"]["residue-windows"] > 0
    finished_later = 0
    for number in itertools.count(first, 3):
        root = tmp_path / f"s{number}"
        shutil.copytree(tmp_path / "base", root)
        store, cut = Store.open(root), True
        with suppress(Cut), watched(_cut_at(number)):
            store.erase(Selector(owner="o1"))
            cut = False
        store.close()
        accepted = (root / "pending.json").exists()
        reopened = Store.open(root, SmallEncoder())
        left = [path.name for path in root.rglob("*")]
        assert not [name for name in left if name.startswith(("pending", "erasing")) or name.endswith(".partial")]
        if cut and not accepted and not _receipts(root):
            assert len(list(reopened.documents())) == len(NOTES)
        else:
            assert tree(root / "data") == tree(twin / "data")
            assert list(map(_said, _receipts(root))) == [expected], f"cut at call {number}"
            finished_later += accepted
        reopened.close()
        shutil.rmtree(root)
        if not cut:
            break
    assert finished_later > 10


def _cut_after_the_exchange(root: Path) -> None:
    """Leave an erasure of n4 whose documents are out of the buckets and whose checks were not made."""
    store = Store.open(root)
    with pytest.MonkeyPatch.context() as patch, suppress(Cut):
        patch.setattr("silo.store.store.redact_usage", _raise_cut)
        store.erase(Selector(document="n4"))
    store.close()
    assert (root / "pending.json").exists()


def _raise_cut(*_: Any) -> None:
    raise Cut


def test_checks_that_cannot_be_made_any_more_are_called_that(tmp_path: Path) -> None:
    """As after a crash of a silo that kept nothing for the checks."""
    root = tmp_path / "s"
    _store(root).close()
    _cut_after_the_exchange(root)
    shutil.rmtree(root / "erasing")
    Store.open(root).close()
    (receipt,) = _receipts(root)
    assert receipt["counts"] == {"documents": 1, "tokens": NOT_CHECKED, "passages": NOT_CHECKED}
    assert receipt["checks"]["residue-hits"] == receipt["checks"]["digest-recomputed"] == NOT_CHECKED
    findings = check_receipt(receipt, log=root / "log.jsonl")
    assert findings["failed_checks"] == []
    assert {"digest-recomputed", "residue-hits", "tokens", "passages"} <= set(findings["not_checked"])
    assert "readers-drained" not in findings["not_checked"]


@pytest.mark.parametrize("damage", ["manifest.json", "*.bucket"])
def test_a_damaged_memory_of_the_state_before_stops_nobody(tmp_path: Path, damage: str) -> None:
    root = tmp_path / "s"
    _store(root).close()
    _cut_after_the_exchange(root)
    (file,) = (root / "erasing").glob(damage)
    file.write_bytes(b"damaged" + file.read_bytes())
    _cut_after_the_exchange_again(root)
    Store.open(root).close()
    (receipt,) = _receipts(root)
    assert receipt["checks"]["residue-hits"] == NOT_CHECKED
    assert not (root / "erasing").exists()


def _cut_after_the_exchange_again(root: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, suppress(Cut):
        patch.setattr("silo.store.store.redact_usage", _raise_cut)
        Store.open(root)
    assert (root / "pending.json").exists()


def test_a_reader_is_locked_in_before_it_maps_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in between, it would hold the documents and nobody would know."""
    _store(tmp_path / "s").close()
    opened, held = Bucket.open, []

    def watching(*given: Any) -> Bucket:
        held.append(any(map(is_held, (tmp_path / "s" / "readers").iterdir())))
        return opened(*given)

    monkeypatch.setattr(Bucket, "open", watching)
    store = Store.open(tmp_path / "s")
    assert held and all(held)
    store.close()


READER = """
import os, signal, sys
from pathlib import Path
from silo.store.store import Store
store = Store.open(Path(sys.argv[1]))
print("open", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.parametrize("when", ["before an add", "before the erasure", "before the recovery"])
def test_a_stopped_reader_is_never_called_drained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    monkeypatch.setattr(erase, "DRAIN_SECONDS", 0.3)
    root = tmp_path / "s"
    _store(root).close()
    reader = subprocess.Popen([sys.executable, "-c", READER, str(root)], stdout=subprocess.PIPE, text=True)
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        os.waitpid(reader.pid, os.WUNTRACED)
        if when == "before an add":
            writer = Store.open(root, SmallEncoder())
            writer.add([document("more", "Something else that comes in later.")])
            writer.close()
        if when == "before the recovery":
            _cut_after_the_exchange(root)
            Store.open(root).close()
        else:
            Store.open(root).erase(Selector(document="n4"))
        (receipt,) = _receipts(root)
        assert receipt["checks"]["readers-drained"] is False
        assert check_receipt(receipt)["failed_checks"] == ["readers-drained"]
    finally:
        reader.kill()
        reader.communicate()
    monkeypatch.setattr(erase, "DRAIN_SECONDS", 10)
    assert Store.open(root).erase(Selector(document="n5")).checks["readers-drained"] is True


def test_documents_come_in_only_after_an_erasure_that_was_cut_off(tmp_path: Path) -> None:
    root = tmp_path / "s"
    other = _store(root)
    _cut_after_the_exchange(root)
    other.add([document("more", "Something else that comes in later.")])
    (receipt,) = _receipts(root)
    assert check_receipt(receipt)["failed_checks"] == []
    assert "more" in {item.external_id for item in other.documents()}


@pytest.mark.parametrize("content", [b"{}", b"[]", b"nothing", b'{"documents": {"xy": ""}}', b'{"documents": 5}'])
def test_a_damaged_intent_is_told(tmp_path: Path, content: bytes) -> None:
    root = tmp_path / "s"
    _store(root).close()
    (root / "pending.json").write_bytes(content)
    with pytest.raises(SiloError) as caught:
        Store.open(root)
    assert caught.value.code == "store-damaged"


def test_the_salts_of_a_receipt_are_never_on_the_disk(tmp_path: Path) -> None:
    store = _store(tmp_path / "s")
    written = bytearray()

    def on_call(_count: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "write":
            written.extend(bytes(arguments[1]))

    with watched(on_call):
        done = store.erase(Selector(document="n3"))
    (salt,) = done.salts.values()
    assert salt.encode() not in written
    assert done.documents[0].encode() in written


@pytest.mark.parametrize("write", ["silo.store.manifest.write_manifest", "silo.store.erasure.suppression.write_atomic"])
def test_whoever_recovers_may_die_at_the_same_place_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """Right after a change was announced in the log and before it is made."""
    store = _store(tmp_path / "s")

    def cut(*_: object) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(write, cut)
        with pytest.raises(Cut):
            store.erase(Selector(document="n3"))
        store.close()
        for _ in range(3):
            with pytest.raises(Cut):
                Store.open(tmp_path / "s", SmallEncoder())
    store = Store.open(tmp_path / "s", SmallEncoder())
    assert "n3" not in {item.external_id for item in store.documents()}
    assert store.verify().problems == ()
    assert len(_receipts(tmp_path / "s")) == 1
