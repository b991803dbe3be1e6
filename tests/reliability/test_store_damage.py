"""Damaged files are noticed, every one of them, and no wrong answer is given; the residue scanner finds what it should.

Counts come from SILO_FLIPS (every byte of every file in `make reliability`, every 23rd in `make test`).
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import zstandard

from silo.errors import SiloError
from silo.store.erasure.residue import Traces, scan
from silo.store.selector import Selector
from silo.store.store import Store
from tests.reliability.test_store_histories import POOL
from tests.store.small import SmallEncoder, small_store

EVERY = int(os.environ.get("SILO_FLIPS", "23"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = small_store(tmp_path / "store")
    made.add(POOL[:3])
    made.close()
    return made


def _opens(root: Path) -> bool:
    """True if a damaged store can be opened as if nothing had happened."""
    try:
        Store.open(root).close()
    except SiloError as error:
        assert error.code in ("store-damaged", "not-a-store", "codec-invalid", "store-mismatch", "tokenizer-invalid")
        return False
    return True


def test_every_flipped_byte_is_noticed(store: Store) -> None:
    flips = 0
    files = [path for path in sorted(store.root.rglob("*")) if path.is_file()]
    for path in files:
        if path.parent.name == "readers" or path.name == "lock":
            continue
        whole = path.read_bytes()
        for at in range(0, len(whole), EVERY):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
            assert not _opens(store.root), f"byte {at} of {path.name}"
            flips += 1
        path.write_bytes(whole)
    assert _opens(store.root)
    print(f"flipped bytes {flips}, noticed {flips}")


def test_truncated_and_missing_files_are_noticed_and_extra_ones_removed(store: Store) -> None:
    for path in sorted((store.root / "data").rglob("*")):
        if not path.is_file():
            continue
        whole = path.read_bytes()
        for size in (0, 1, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            assert not _opens(store.root)
        path.unlink()
        assert not _opens(store.root)
        path.write_bytes(whole)
    for name in ("stray.txt", "buckets/old.bucket", "manifest.json.partial"):
        (store.root / "data" / name).write_bytes(b"x")
    assert _opens(store.root)
    assert not (store.root / "data" / "stray.txt").exists()
    assert Store.open(store.root).verify().problems == ()


def test_a_changed_log_is_noticed(store: Store) -> None:
    opened = Store.open(store.root, SmallEncoder())
    opened.erase(Selector(document="p1"))
    path = store.root / "log.jsonl"
    whole = path.read_bytes()
    for at in range(0, len(whole) - 1, 17):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(SiloError, match="store-damaged"):
            opened.verify()
    path.write_bytes(whole)
    assert opened.verify().problems == ()


def test_the_scanner_finds_planted_residue_in_every_form(store: Store, tmp_path: Path) -> None:
    opened = Store.open(store.root, SmallEncoder())
    with opened.reading() as view:
        parts = [part for bucket in view.buckets for part in bucket.encoded_documents()]
    name = POOL[1].id
    gone = [part for part in parts if part.id.hex() == name]
    (keys,) = SmallEncoder().keys([gone[0].tokens.astype(np.uint32)])
    vectors = [keys.tobytes(), keys.astype(np.float16).tobytes()]
    traces = Traces.of(gone, vectors).without(part for part in parts if part.id.hex() != name)
    opened.erase(Selector(document="p1"))
    assert scan([opened.root], traces).hits == ()
    text = POOL[1].text
    planted = {
        "raw": text.encode()[7:60],
        "utf16": text.encode("utf-16-le")[10:90],
        "escaped": ('{"t": "' + text[:50] + '"}').encode(),
        "fp16": keys.astype(np.float16).tobytes()[64:128],
        "fp32": keys.tobytes()[:64],
        "codes": gone[0].codes.tobytes()[200:264],
        "tokens": gone[0].tokens[3:30].astype("<u4").tobytes(),
        "id": bytes.fromhex(name),
        "hex": name.encode(),
        "zstd": zstandard.ZstdCompressor().compress(b"header " + text.encode()),
        "gzip": gzip.compress(text.encode()),
    }
    for kind, data in planted.items():
        place = opened.root / "receipts" / f"planted-{kind}"
        place.write_bytes(b"noise" * 11 + data + b"more noise")
        assert scan([opened.root], traces).hits == (place.name,), kind
        place.unlink()
    print(f"planted forms {len(planted)}, found {len(planted)}, hits without planting 0")
