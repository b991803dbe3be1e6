"""Documents change: a new version takes the place of the old one in one instant, and nothing of the old one is left."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.records import Document
from silo.store.backup import back_up, restore
from silo.store.bucket import Bucket
from silo.store.erasure import erase
from silo.store.erasure.receipt import NOT_CHECKED, check_receipt, proves, read_receipt
from silo.store.partition import bits_of
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.usage import Share, statements
from silo.store.write import Change, PlannedBucket
from tests.reliability.disk import watched
from tests.store.small import SmallEncoder, document, small_store, tree

OLD = [
    document(f"n{n}", f"Note {n} is about {n * 31} boats in the harbour. " * 5, owner=f"o{n % 3}") for n in range(10)
]


def _version(n: int, text: str) -> Document:
    return document(f"n{n}", text, owner=f"o{n % 3}")


OLD = [_version(n, f"Note {n} is about {n * 31} boats in the harbour. " * 5) for n in range(10)]

NEW = [
    _version(2, "Note 2 speaks of 5 trains and of nothing else, at some length. " * 4),
    _version(3, OLD[3].text + "A sentence was added at the end."),
    _version(7, OLD[7].text.replace("harbour", "haven")),
]
AFTER = [next((item for item in NEW if item.id == old.id), old) for old in OLD]


class Cut(BaseException):
    """What ends a process in these tests; nothing in silo catches it."""


def _cut_at(number: int) -> Callable[[int, str, tuple[Any, ...]], None]:
    def on_call(count: int, _name: str, _arguments: tuple[Any, ...]) -> None:
        if count == number:
            raise Cut

    return on_call


def _store(root: Path, documents: list[Document] = OLD) -> Store:
    store = small_store(root, bucket_bytes=900)
    store.add(documents)
    return store


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the old versions, to be copied."""
    root = tmp_path_factory.mktemp("base") / "store"
    _store(root).close()
    return root


@pytest.fixture(scope="module")
def never(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The data of a store that only ever held the new versions."""
    root = tmp_path_factory.mktemp("never") / "store"
    _store(root, AFTER).close()
    return tree(root / "data")


@pytest.fixture
def store(base: Path, tmp_path: Path) -> Store:
    shutil.copytree(base, tmp_path / "s")
    return Store.open(tmp_path / "s", SmallEncoder())


def _receipts(root: Path) -> list[dict[str, Any]]:
    return [read_receipt(path) for path in sorted((root / "receipts").glob("*.json"))]


def test_a_changed_document_is_refused_unless_it_may_be_replaced(store: Store, never: dict[str, bytes]) -> None:
    before = tree(store.root / "data")
    refused = store.add(NEW)
    assert refused.reasons == {"other-record": 3}
    assert all("--update" in item.detail for item in refused.refusals)
    assert tree(store.root / "data") == before
    done = store.add([*NEW, OLD[0], OLD[1]], update=True)
    assert (done.read, done.added, done.replaced, done.unchanged, done.refused) == (5, 0, 3, 2, 0)
    assert tree(store.root / "data") == never
    assert {item.id: item.text for item in store.documents()} == {item.id: item.text for item in AFTER}
    assert store.verify(keys=True).problems == ()
    assert store.add(NEW, update=True).unchanged == 3
    assert len(_receipts(store.root)) == 1


def test_one_receipt_says_what_was_replaced(store: Store) -> None:
    before = store.digest()
    done = store.add([*NEW, document("more", "Something new comes in with it.")], update=True)
    assert done.added == 1 and done.erased is not None and done.erased.receipt is not None
    (receipt,) = _receipts(store.root)
    assert receipt["kind"] == "replacement"
    assert (receipt["counts"]["documents"], receipt["replaced"]["documents"]) == (3, 3)
    assert receipt["counts"]["tokens"] == sum(len(old.text) + 1 for old in OLD if old.id in {new.id for new in NEW})
    assert receipt["replaced"]["tokens"] == sum(len(new.text) + 1 for new in NEW)
    assert receipt["digest"]["before"] != receipt["digest"]["after"] == store.digest() != before
    assert receipt["checks"]["residue-hits"] == 0 < receipt["checks"]["residue-windows"]
    assert receipt["checks"]["digest-recomputed"] is receipt["checks"]["readers-drained"] is True
    key = (store.root / "keys" / "receipts.pem.pub").read_bytes()
    found = check_receipt(receipt, key=key, log=store.root / "log.jsonl")
    assert (found["valid"], found["kind"], found["replaced"]) == (True, "replacement", 3)
    assert all(proves(receipt, item.id, done.erased.salts[item.id]) for item in NEW)
    with pytest.raises(SiloError, match="replaced"):
        check_receipt({**receipt, "kind": "erasure"}, key=key)
    fewer = {**receipt["replaced"], "documents": 1}
    with pytest.raises(SiloError, match="signature"):
        check_receipt({**receipt, "replaced": fewer}, key=key)


def test_what_stays_of_an_old_version_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bugs: a file with the old text lies about, and the new buckets are made of the old versions."""
    (store.root / "note.txt").write_text(OLD[2].text)
    checks = store.add(NEW[:1], update=True).erased
    assert checks is not None and checks.failed_checks == ["residue-hits"]
    (store.root / "note.txt").unlink()

    def careless(prefix: str, old: list[Bucket], change: Change) -> PlannedBucket:
        here = [part for bucket in old for part in bucket.encoded_documents() if bits_of(part.id).startswith(prefix)]
        return PlannedBucket(here, change.coming.under(prefix) if change.coming else [])

    monkeypatch.setattr("silo.store.write._plan_bucket", careless)
    monkeypatch.setattr("silo.store.write._merge", lambda staying, _: staying)
    checks = store.add(NEW[1:2], update=True).erased
    assert checks is not None and checks.failed_checks == ["digest-recomputed"]


def test_an_update_cut_off_anywhere_leaves_the_old_versions_or_the_new(
    base: Path, never: dict[str, bytes], tmp_path: Path
) -> None:
    """At calls to the disk, the first and every third, and while that is recovered; whoever recovers has no model."""
    old = tree(base / "data")
    number, cancelled, finished = 0, 0, 0
    while True:
        number += 1 if number < 24 else 3
        root = tmp_path / f"s{number}"
        shutil.copytree(base, root)
        store, cut = Store.open(root, SmallEncoder()), True
        with suppress(Cut), watched(_cut_at(number)):
            store.add(NEW, update=True)
            cut = False
        store.close()
        accepted = (root / "pending.json").exists()
        with suppress(Cut), watched(_cut_at(1 + number % 7)):
            Store.open(root).close()
        reopened = Store.open(root)
        assert tree(root / "data") in ((old, never) if cut else (never,)), f"cut at call {number}"
        replaced = tree(root / "data") == never
        left = [path.name for path in root.rglob("*")]
        assert not [name for name in left if name.startswith(("pending", "erasing", "adding")) or "partial" in name]
        receipts = _receipts(root)
        assert [item["kind"] for item in receipts] == (["replacement"] if replaced else [])
        assert all(check_receipt(item, log=root / "log.jsonl")["failed_checks"] == [] for item in receipts)
        assert all(NOT_CHECKED not in item["checks"].values() for item in receipts)
        assert number % 4 or reopened.verify().problems == ()
        cancelled += accepted and not replaced
        finished += accepted and replaced
        reopened.close()
        shutil.rmtree(root)
        if not cut:
            break
    assert cancelled > 3 and finished > 7


def test_no_query_ever_misses_both_versions(store: Store) -> None:
    """Another process asks at every call to the disk: it finds the old text or the new one."""
    other = Store.open(store.root)
    seen = []

    def look(*_: object) -> None:
        seen.append([item.text for item in other.documents(Selector(document="n2"))])

    with watched(look):
        store.add(NEW, update=True)
    look()
    assert all(texts in ([OLD[2].text], [NEW[0].text]) for texts in seen)
    assert sum(one != two for one, two in itertools.pairwise(seen)) == 1
    other.close()


def test_an_update_is_no_way_around_an_objection(store: Store) -> None:
    store.erase(Selector(document="n4"))
    again = store.add([_version(4, "Quite another text under the erased id."), OLD[4]], update=True)
    assert again.reasons == {"suppressed": 2}
    moved = store.add([replace(OLD[5], text=OLD[4].text)], update=True)
    assert moved.reasons == {"suppressed": 1}, "the erased text under an id that is there"
    assert next(store.documents(Selector(document="n5"))).text == OLD[5].text


def test_whoever_held_a_copy_before_an_objection_may_still_change_its_owner(store: Store) -> None:
    store.add([document("copy", OLD[4].text, owner="another")])
    store.erase(Selector(document="n4"))
    done = store.add([document("copy", OLD[4].text, owner="a third")], update=True)
    assert done.replaced == 1
    assert [item.owner for item in store.documents(Selector(document="copy"))] == ["a third"]


def test_of_two_versions_in_one_input_the_first_counts(store: Store) -> None:
    for first, second in ((NEW[0], OLD[2]), (NEW[0], _version(2, "A third text."))):
        done = store.add([first, second], update=True)
        assert done.reasons == {"other-record": 1}
        assert "twice" in done.refusals[0].detail
    assert next(store.documents(Selector(document="n2"))).text == NEW[0].text


def test_a_backup_brings_back_neither_the_old_version_nor_loses_the_new(store: Store, tmp_path: Path) -> None:
    back_up(store, tmp_path / "before")
    store.add(NEW[:1], update=True)
    back_up(store, tmp_path / "after")
    restored = restore(tmp_path / "after", store.root, force=True)
    assert restored.erased == ()
    restored = restore(tmp_path / "before", store.root, force=True)
    assert [item.documents for item in restored.erased] == [(NEW[0].id,)]
    again = Store.open(store.root, SmallEncoder())
    assert "n2" not in {item.external_id for item in again.documents()}
    assert again.add([OLD[2]]).added == 1, "it may come back if somebody adds it"


def test_a_document_that_changes_back_is_not_taken_for_erased(store: Store, tmp_path: Path) -> None:
    before = tree(store.root / "data")
    store.add(NEW, update=True)
    done = store.add([OLD[2], OLD[3], OLD[7]], update=True)
    assert done.replaced == 3
    assert tree(store.root / "data") == before
    back_up(store, tmp_path / "copy")
    assert restore(tmp_path / "copy", store.root, force=True).erased == ()


def test_a_change_of_the_licence_alone_keeps_the_text(store: Store, tmp_path: Path) -> None:
    done = store.add([document("n6", OLD[6].text, owner="o0", license="CC0-1.0")], update=True)
    assert done.replaced == 1 and done.erased is not None and done.erased.failed_checks == []
    back_up(store, tmp_path / "copy")
    assert restore(tmp_path / "copy", store.root, force=True).erased == ()
    assert [item.license for item in Store.open(store.root).documents(Selector(document="n6"))] == ["CC0-1.0"]


def test_shares_of_a_replaced_document_stay_its_own(store: Store) -> None:
    store.note_usage(8, {NEW[0].id: Share("o2", "", 2.0), OLD[5].id: Share("o2", "", 1.0)})
    store.add(NEW[:1], update=True)
    (own,) = statements(store.paths).owners
    assert (own.owner, own.tokens) == ("o2", 3.0)


def test_a_stopped_reader_of_the_old_version_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erase, "DRAIN_SECONDS", 0.1)
    other = Store.open(store.root)
    with other.reading():
        done = store.add(NEW[:1], update=True).erased
    assert done is not None and done.failed_checks == ["readers-drained"]
    other.close()


def test_a_model_that_cannot_be_loaded_leaves_everything_as_it_was(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "s")
    store = Store.open(tmp_path / "s")
    loads = []

    def load() -> SmallEncoder:
        loads.append(1)
        raise SiloError("model-damaged", "nothing there")

    store.load_encoder = load
    before = tree(tmp_path / "s" / "data")
    assert store.add(OLD, update=True).unchanged == len(OLD)
    assert loads == [], "nothing is to be encoded"
    for documents in (NEW, [document("x", "A new one.")]):
        with pytest.raises(SiloError, match="nothing there"):
            store.add(documents, update=True)
    assert tree(tmp_path / "s" / "data") == before
    assert store.verify().problems == ()
