"""Files are written whole or not at all, manifests notice every change, and a lock has one holder."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.files import (
    SharedLock,
    canonical_json,
    disk_errors,
    exclusive,
    file_sha256,
    fingerprint,
    is_held,
    link_or_copy,
    read_json,
    read_manifest,
    remove_tree,
    write_atomic,
    write_json,
    write_manifest,
)


def test_an_atomic_write_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert read_json(path) == {"a": 1}


def test_canonical_json_does_not_depend_on_order() -> None:
    assert canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'.encode()
    assert fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1}) != fingerprint({"a": 2, "b": 2})


def test_a_manifest_notices_every_changed_byte(tmp_path: Path) -> None:
    mark = write_manifest(tmp_path, {"a": [1, 2]})
    path = tmp_path / "manifest.json"
    content = path.read_bytes()
    codes = {"missing": "not-a-corpus", "damaged": "corpus-damaged"}
    assert read_manifest(tmp_path, **codes) == {"a": [1, 2], "fingerprint": mark}
    for at, byte in enumerate(content):
        if chr(byte).isspace():
            continue
        path.write_bytes(content[:at] + bytes([byte ^ 1]) + content[at + 1 :])
        with pytest.raises(SiloError, match="corpus-damaged"):
            read_manifest(tmp_path, **codes)


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="disk-full"), disk_errors(tmp_path):
        raise OSError(errno.ENOSPC, "no space")
    with pytest.raises(OSError, match="other"), disk_errors(tmp_path):
        raise OSError(errno.EBADF, "other")
    with pytest.raises(SiloError, match="disk-failed"), disk_errors(tmp_path):
        raise OSError(errno.EIO, "broken")


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    with exclusive(tmp_path / "lock"), pytest.raises(SiloError, match="busy"), exclusive(tmp_path / "lock"):
        pass
    with exclusive(tmp_path / "lock"):
        pass


def test_checksums_and_removal(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"")
    assert file_sha256(tmp_path / "d" / "f").startswith("e3b0c442")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    remove_tree(tmp_path / "link")
    assert (tmp_path / "d" / "f").exists()
    remove_tree(tmp_path / "d")
    remove_tree(tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_lock_file_that_goes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock, locks = tmp_path / "lock", fcntl.flock, list[int]()

    def flock(handle: int, operation: int) -> None:
        locks.append(handle)
        if len(locks) == 1:
            path.unlink()
        lock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    held = SharedLock(path)
    assert is_held(path)
    held.close()
    assert not is_held(path)


@pytest.mark.parametrize("number", [0, errno.EPERM, errno.EXDEV, errno.EMLINK])
def test_a_second_name_or_a_copy_outlives_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no links here")

    (tmp_path / "one").write_bytes(b"content")
    if number:
        monkeypatch.setattr(os, "link", refuse)
    link_or_copy(tmp_path / "one", tmp_path / "two")
    (tmp_path / "one").unlink()
    assert (tmp_path / "two").read_bytes() == b"content"
    monkeypatch.setattr(os, "link", refuse)
    number = errno.ENOSPC
    with pytest.raises(SiloError, match="disk-full"):
        link_or_copy(tmp_path / "two", tmp_path / "three")
