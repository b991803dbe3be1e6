"""Data, log, suppression list, receipts and key are one artefact: no part of it can be put back or lost unnoticed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.files import canonical_json, fingerprint
from silo.store.erasure.erase import accept
from silo.store.selector import Selector
from silo.store.store import Store
from tests.store.small import SmallEncoder, document, small_store, tree

DOCUMENTS = [
    document(f"d{n}", f"Letter {n} tells of {n * 31} sheep on hill {n}. " * 3, owner=f"o{n % 3}") for n in range(9)
]
EVIDENCE = ("log.jsonl", "suppression", "keys", "receipts")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store from which one document was erased; `before` beside it is the whole store before that."""
    store = small_store(tmp_path / "store")
    store.add(DOCUMENTS)
    store.close()
    shutil.copytree(tmp_path / "store", tmp_path / "before")
    store.erase(Selector(document="d1"))
    store.close()
    return tmp_path / "store"


def _put_back(root: Path, *names: str) -> None:
    """The state before the erasure of some parts; one that was not there then goes."""
    for name in names:
        old, new = root.with_name("before") / name, root / name
        shutil.rmtree(new) if new.is_dir() else new.unlink()
        if old.exists():
            (shutil.copytree if old.is_dir() else shutil.copy)(old, new)


def _refusal(root: Path) -> SiloError:
    with pytest.raises(SiloError) as caught:
        Store.open(root)
    assert caught.value.code == "store-damaged"
    return caught.value


def _kinds(root: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in (root / "log.jsonl").read_text().splitlines()]


def test_old_data_is_refused_until_it_was_replayed(root: Path, tmp_path: Path) -> None:
    _put_back(root, "data")
    error = _refusal(root)
    assert "older than the log" in error.message
    assert "silo store replay" in error.hint
    store = Store.open(root, SmallEncoder(), restored=True)
    (done,) = store.replay()
    assert done.documents == (DOCUMENTS[1].id,)
    store.close()
    opened = Store.open(root, SmallEncoder())
    assert opened.verify().problems == ()
    never = small_store(tmp_path / "never")
    never.add([item for item in DOCUMENTS if item.external_id != "d1"])
    assert tree(root / "data") == tree(never.root / "data")
    assert opened.add([DOCUMENTS[1]]).reasons == {"suppressed": 1}


def test_old_data_under_an_open_store_is_not_answered_from(root: Path) -> None:
    reader = Store.open(root)
    assert reader.passages("sheep", 3)
    _put_back(root, "data")
    with pytest.raises(SiloError, match="store-damaged"):
        reader.passages("sheep", 3)


@pytest.mark.parametrize("names", [(name,) for name in EVIDENCE] + [("log.jsonl", "suppression"), EVIDENCE])
def test_missing_evidence_is_refused_and_can_be_given_up_in_words(root: Path, names: tuple[str, ...]) -> None:
    for name in names:
        shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()
    assert "--accept-loss" in _refusal(root).hint
    with pytest.raises(SiloError, match="store-damaged"):
        Store.open(root, restored=True).replay()
    Store.open(root, restored=True).replay(accept_loss=True)
    opened = Store.open(root, SmallEncoder())
    assert opened.verify().problems == ()
    (lost,) = (json.loads(line)["lost"] for line in (root / "log.jsonl").read_text().splitlines() if "replayed" in line)
    assert set(names) - {"receipts"} <= set(lost)
    opened.erase(Selector(document="d2"))
    assert opened.verify().problems == ()


@pytest.mark.parametrize(
    "names", [("log.jsonl",), ("suppression",), ("log.jsonl", "suppression"), ("data", "suppression"), ("receipts",)]
)
def test_older_evidence_is_refused(root: Path, names: tuple[str, ...]) -> None:
    _put_back(root, *names)
    _refusal(root)


def test_an_altered_receipt_and_a_foreign_one_are_found_by_verify(root: Path) -> None:
    (receipt,) = (root / "receipts").glob("*.json")
    whole = receipt.read_bytes()
    receipt.write_bytes(whole.replace(b"true", b"false", 1))
    assert Store.open(root).verify().problems == (f"the receipt {receipt.name} was altered",)
    receipt.write_bytes(whole)
    (root / "receipts" / "000001-abc.json").write_bytes(whole)
    assert Store.open(root).verify().problems == ("the receipt 000001-abc.json is in no log entry",)


def test_an_accepted_erasure_cannot_lose_its_intent(root: Path) -> None:
    store = Store.open(root)
    with store.reading() as view:
        accept(store.paths, view.generation, [DOCUMENTS[2].id], store.log(), suppress=True)
    store.close()
    (root / "pending.json").unlink()
    assert "an erasure was accepted" in _refusal(root).message


def test_an_anchor_tells_a_whole_store_that_was_put_back(root: Path) -> None:
    store = Store.open(root, SmallEncoder())
    line = store.anchor()
    store.add([document("new", "A letter that came later.")])
    assert store.verify(anchors=[line]).problems == ()
    (problem,) = Store.open(root.with_name("before")).verify(anchors=[line]).problems
    assert "older copy" in problem
    (problem,) = store.verify(anchors=[line[:-4] + "0000"]).problems
    assert "another one" in problem
    with pytest.raises(SiloError, match="usage"):
        store.verify(anchors=["silo-anchor-1 x"])


def _unsealed(root: Path) -> None:
    """Make a store what it was before there were seals."""
    manifest = json.loads((root / "data" / "manifest.json").read_bytes())
    del manifest["fingerprint"], manifest["logged"]
    whole = {**manifest, "fingerprint": fingerprint(manifest)}
    text = json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    (root / "data" / "manifest.json").write_text(text)
    previous, lines = "0" * 64, []
    for n, kind in enumerate(("added", "erase-accepted"), start=1):
        rest = {"n": n, "previous": previous, "kind": kind, "documents": 1}
        lines.append(canonical_json({**rest, "check": fingerprint(rest)}))
        previous = hashlib.sha256(lines[-1]).hexdigest()
    (root / "log.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))


def test_a_store_made_before_there_were_seals_is_sealed_at_its_next_write(root: Path, tmp_path: Path) -> None:
    _unsealed(root)
    before = tree(root / "data"), _kinds(root)
    store = Store.open(root, SmallEncoder())
    assert store.verify().problems == ()
    assert (tree(root / "data"), _kinds(root)) == before
    store.erase(Selector(document="d3"), suppress=False)
    assert _kinds(root)[2] == "sealed"
    assert _kinds(root)[-1] == "sealed"
    never = small_store(tmp_path / "never")
    never.add([item for item in DOCUMENTS if item.external_id not in ("d1", "d3")])
    assert store.verify().problems == ()
    assert store.digest() == never.digest()
    (root / "log.jsonl").unlink()
    _refusal(root)


def test_a_crash_between_the_data_and_the_seal_is_closed_and_is_no_rollback(root: Path) -> None:
    """The log is cut after each of its entries since the erasure began, with the data and list of that moment."""
    store = Store.open(root, SmallEncoder())
    store.add([document("new", "A letter that came later, and rather late.")])
    store.close()
    lines = (root / "log.jsonl").read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["kind"] for line in lines[-3:]] == ["announced", "added", "sealed"]
    for cut in (1, 2):
        (root / "log.jsonl").write_bytes(b"".join(lines[:-cut]))
        opened = Store.open(root, SmallEncoder())
        assert _kinds(root)[-1] == "sealed"
        assert opened.verify().problems == ()
        opened.close()
    (root / "log.jsonl").write_bytes(b"".join(lines[:-3]))
    _refusal(root)


def test_no_returned_document_is_answered_while_a_replay_is_cut_off(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(root, SmallEncoder())
    store.erase(Selector(owner="o2"))
    store.close()
    _put_back(root, "data")
    calls = 0

    def stop(*_: object) -> None:
        nonlocal calls
        calls += 1
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("silo.store.store.redact_usage", stop)
        with pytest.raises(KeyboardInterrupt):
            Store.open(root, restored=True).replay()
    assert calls == 1
    reopened = Store.open(root, SmallEncoder())
    gone = {"d1", "d2", "d5", "d8"}
    assert not gone & {item.external_id for item in reopened.documents()}
    assert reopened.verify().problems == ()
