"""A disk that changes bytes by itself, under the same size and times: nothing is made from what was not read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import silo.checksums
from silo.cli.main import main
from silo.errors import SiloError
from silo.store.backup import back_up, restore
from silo.store.bucket import Bucket
from silo.store.selector import Selector
from silo.store.store import Store
from tests.store.small import SmallEncoder, document, small_store

Flip = Callable[[Path], None]


@pytest.fixture(autouse=True)
def _unseen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No change of a file shows in what is known of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(silo.checksums, "_identity", lambda found: [0, 0, found.st_size, 0, 0])
    monkeypatch.setattr(silo.checksums, "_SETTLED_NS", -1)
    monkeypatch.setattr(silo.checksums, "_is_told_apart", lambda _: True)
    yield


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that was opened once, so that its checksums are remembered."""
    with_owners = [document(f"p{at}", f"page {at} of the book, {at * 7}", owner=f"o{at % 2}") for at in range(6)]
    store = small_store(tmp_path / "store", bucket_bytes=100_000)
    store.add(with_owners)
    store.close()
    Store.open(tmp_path / "store").close()
    return tmp_path / "store"


def _bucket(root: Path) -> Path:
    (file,) = (root / "data" / "buckets").iterdir()
    return file


def _flip_owner(root: Path) -> None:
    """Give one of the documents of o1 to the other owner."""
    file = _bucket(root)
    content = bytearray(file.read_bytes())
    bucket = Bucket("", memoryview(bytes(content)))
    wanted = bucket.names["owner"].index("o1")
    row = next(row for row in range(len(bucket)) if bucket.index[row]["owner"] == wanted)
    begin = bytes(content).index(bucket.index.tobytes()) + row * bucket.index.dtype.itemsize
    fields = bucket.index.dtype.fields
    assert fields is not None
    content[begin + fields["owner"][1]] ^= 1
    file.write_bytes(content)


def _flip_places(root: Path) -> None:
    """Make places point far outside of the tokens."""
    file = _bucket(root)
    content = bytearray(file.read_bytes())
    places = Bucket("", memoryview(bytes(content))).sections["places"].tobytes()
    content[bytes(content).index(places) + 2] ^= 0x80
    file.write_bytes(content)


FLIPS = pytest.mark.parametrize("flip", [_flip_owner, _flip_places])


def test_an_erasure_cannot_pass_over_a_document_of_a_changed_index(root: Path) -> None:
    _flip_owner(root)
    with closing(Store.open(root)) as store, pytest.raises(SiloError) as caught:
        store.erase(Selector(owner="o1"))
    assert caught.value.code == "store-damaged"
    assert not list((root / "receipts").glob("*")), "nothing was accepted"


@FLIPS
def test_adding_gives_no_changed_byte_a_new_checksum(root: Path, flip: Flip) -> None:
    flip(root)
    before = _bucket(root).read_bytes()
    with closing(Store.open(root, SmallEncoder())) as store, pytest.raises(SiloError) as caught:
        store.add([document("more", "another page")])
    assert caught.value.code == "store-damaged"
    assert _bucket(root).read_bytes() == before


@FLIPS
def test_verify_reports_the_damage(root: Path, flip: Flip, capsys: pytest.CaptureFixture[str]) -> None:
    flip(root)
    assert main(["store", "verify", str(root)]) not in (0, 1)
    assert "differs from the manifest" in capsys.readouterr().out


def test_a_restore_takes_the_place_of_a_changed_store(root: Path, tmp_path: Path) -> None:
    with closing(Store.open(root)) as store:
        back_up(store, tmp_path / "backup")
    with pytest.raises(SiloError, match="without any damage"):
        restore(tmp_path / "backup", root)
    _flip_owner(root)
    restore(tmp_path / "backup", root)
    with closing(Store.open(root)) as store:
        assert store.verify().problems == ()
