"""What earlier versions of silo left unfinished is finished; what a later one left is told."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.files import read_json, write_json, write_marked
from silo.store.erasure.pending import PendingErasure
from silo.store.erasure.receipt import NOT_CHECKED, check_receipt, new_salts, proves, read_receipt
from silo.store.selector import Selector
from silo.store.store import Store
from tests.store.small import SmallEncoder, document, small_store, tree

DOCUMENTS = [document(f"d{n}", f"Document {n} is about {n * 13} kites over the sea. " * 4) for n in range(6)]
CUTS = {
    "accepted": "remove_documents",
    "exchanged": "redact_usage",
    "checked": "sign_receipt",
    "signed": "forget_intent",
}
"""What had been done, by the step before which the process ended."""


class Cut(BaseException):
    """What ends a process in these tests; nothing in silo catches it."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("base") / "store"
    store = small_store(root, bucket_bytes=500)
    store.add(DOCUMENTS)
    store.close()
    return root


@pytest.fixture(scope="module")
def never(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("never") / "store"
    small_store(root, bucket_bytes=500).add([item for item in DOCUMENTS if item.external_id != "d4"])
    return tree(root / "data")


def _cut_off(base: Path, root: Path, step: str, salts: dict[str, str], patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Leave an erasure of d4 unfinished, whose receipt has these salts; what `pending.json` says."""
    shutil.copytree(base, root)
    store = Store.open(root)

    def cut(*_: object) -> None:
        raise Cut

    with patch.context() as planted, suppress(Cut):
        planted.setattr(f"silo.store.store.{step}", cut)
        planted.setattr("silo.store.erasure.erase.new_salts", lambda _: salts)
        store.erase(Selector(document="d4"))
    store.close()
    content = read_json(root / "pending.json")
    assert isinstance(content, dict)
    return content


def _write_old(root: Path, content: dict[str, Any], salts: dict[str, str], *, marked: bool) -> None:
    """The intent as it was written once: salts by document id; the first format had no fingerprint."""
    names = ("suppress", "accepted", "generation", "digest")
    old = {"documents": salts, **{name: content[name] for name in names}}
    if "findings" in content:
        known = ("tokens", "passages", "checks", "text_hashes")
        old["findings"] = {name: content["findings"][name] for name in known}
    if marked:
        write_marked(root / "pending.json", {"format": "silo-pending-2", **old})
    else:
        write_json(root / "pending.json", {"format": "silo-pending-1", **old})


@pytest.mark.parametrize("marked", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("done", CUTS)
def test_an_erasure_of_an_earlier_version_is_finished(
    base: Path, never: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: str, marked: bool
) -> None:
    root, salts = tmp_path / "s", new_salts([DOCUMENTS[4].id])
    _write_old(root, _cut_off(base, root, CUTS[done], salts, monkeypatch), salts, marked=marked)
    store = Store.open(root, SmallEncoder())
    assert tree(root / "data") == never
    assert store.verify().problems == ()
    assert store.add([DOCUMENTS[4]]).reasons == {"suppressed": 1}
    (receipt,) = (read_receipt(path) for path in (root / "receipts").iterdir())
    assert check_receipt(receipt, log=root / "log.jsonl")["failed_checks"] == []
    assert NOT_CHECKED not in receipt["checks"].values()
    assert proves(receipt, DOCUMENTS[4].id, salts[DOCUMENTS[4].id]) == (done == "signed")
    store.close()


def test_what_was_not_kept_for_the_checks_is_not_checked(
    base: Path, never: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first versions left it: the documents are out of the buckets, and nothing tells what they were."""
    root, salts = tmp_path / "s", new_salts([DOCUMENTS[4].id])
    _write_old(root, _cut_off(base, root, CUTS["exchanged"], salts, monkeypatch), salts, marked=False)
    shutil.rmtree(root / "erasing")
    Store.open(root).close()
    assert tree(root / "data") == never
    (receipt,) = (read_receipt(path) for path in (root / "receipts").iterdir())
    assert receipt["checks"]["residue-hits"] == NOT_CHECKED


def test_a_later_version_is_told_apart_from_damage(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "s"
    content = _cut_off(base, root, CUTS["accepted"], new_salts([DOCUMENTS[4].id]), monkeypatch)
    del content["fingerprint"]
    write_marked(root / "pending.json", {**content, "format": "silo-pending-9"})
    with pytest.raises(SiloError) as caught:
        Store.open(root)
    assert (caught.value.code, "version of silo" in caught.value.hint) == ("store-mismatch", True)


@pytest.mark.parametrize(
    "change",
    [
        {"documents": {}},
        {"documents": {"ab": "00" * 32}},
        {"documents": {DOCUMENTS[4].id: "no salt"}},
        {"accepted": "yesterday"},
        {"generation": None},
        {"suppress": "yes"},
        {"fingerprint": "00"},
    ],
)
def test_the_first_format_is_read_strictly(tmp_path: Path, change: dict[str, Any]) -> None:
    """It has no fingerprint: what is not exactly of its kind is damage."""
    plain = {
        "format": "silo-pending-1",
        "documents": new_salts([DOCUMENTS[4].id]),
        "suppress": True,
        "accepted": "2026-11-17T07:00:00+00:00",
        "generation": "0" * 64,
        "digest": "1" * 64,
    }
    path = tmp_path / "pending.json"
    path.write_text(json.dumps(plain))
    found = PendingErasure.read(path)
    assert found is not None and found.documents == (DOCUMENTS[4].id,) and found.suppress
    path.write_text(json.dumps({**plain, **change}))
    with pytest.raises(SiloError) as caught:
        PendingErasure.read(path)
    assert caught.value.code == "store-damaged"
