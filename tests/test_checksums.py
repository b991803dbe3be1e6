"""Remembered checksums save time and never give a wrong answer."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from io import BufferedReader
from pathlib import Path
from types import SimpleNamespace

import pytest

import silo.checksums
from silo.checksums import checksums
from silo.files import file_sha256

LONG_AGO = 1_000_000_000_000_000_000


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The names of files that were read, and a cache of its own; every file counts as settled."""
    names: list[str] = []

    def read(stream: BufferedReader) -> str:
        names.append(Path(stream.name).name)
        return hashlib.file_digest(stream, "sha256").hexdigest()

    monkeypatch.setattr(silo.checksums, "_read", read)
    monkeypatch.setattr(silo.checksums, "_SETTLED_NS", -1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"one")
    os.utime(tmp_path / "model" / "weights", ns=(LONG_AGO, LONG_AGO))
    return tmp_path / "model"


def _ask(folder: Path, **options: bool) -> str:
    return checksums(folder, ["weights"], **options)["weights"]


def test_a_file_is_read_once_until_it_changes(folder: Path, reads: list[str]) -> None:
    first = _ask(folder)
    assert _ask(folder) == first == file_sha256(folder / "weights")
    assert reads == ["weights"]
    assert _ask(folder, again=True) == first
    assert reads == ["weights"] * 2


def test_a_change_under_the_old_size_and_time_is_noticed(folder: Path, reads: list[str]) -> None:
    first = _ask(folder)
    (folder / "weights").write_bytes(b"two")
    os.utime(folder / "weights", ns=(LONG_AGO, LONG_AGO))
    assert _ask(folder) == file_sha256(folder / "weights") != first


def test_a_file_put_in_its_place_is_noticed(folder: Path, reads: list[str]) -> None:
    first = _ask(folder)
    shutil.copy2(folder / "weights", folder / "other")
    (folder / "other").write_bytes(b"two")
    os.utime(folder / "other", ns=(LONG_AGO, LONG_AGO))
    (folder / "other").rename(folder / "weights")
    assert _ask(folder) != first


def test_another_directory_at_the_same_path_is_read(folder: Path, reads: list[str]) -> None:
    first = _ask(folder)
    shutil.copytree(folder, folder.with_name("copy"), copy_function=shutil.copy2)
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    assert _ask(folder) == first
    assert reads == ["weights"] * 2


def test_a_file_that_changed_just_now_is_not_remembered(
    folder: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silo.checksums, "_SETTLED_NS", 3_000_000_000)
    assert _ask(folder) == _ask(folder)
    assert reads == ["weights"] * 2


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "[" * 100_000, '{"weights": 3}', '{"weights": [[1, 2, 3, 4, 5], "0"]}'],
)
def test_whatever_the_cache_holds_the_answer_is_right(folder: Path, reads: list[str], content: str) -> None:
    first = _ask(folder)
    (cache,) = Path(os.environ["XDG_CACHE_HOME"]).rglob("*.json")
    cache.write_text(content)
    assert _ask(folder) == first
    assert reads == ["weights"] * 2


def test_a_cache_that_cannot_be_written_costs_time_only(
    folder: Path, reads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _ask(folder) == _ask(folder)
    assert reads == ["weights"] * 2


def test_a_read_only_file_system_is_read_every_time(
    folder: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _ask(folder)
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert _ask(folder) == _ask(folder) == first
    assert reads == ["weights"] * 3


def test_files_in_memory_are_read_every_time(reads: list[str]) -> None:
    place = Path("/dev/shm")
    kinds = subprocess.run(
        ["stat", "-f", "-c", "%T", place], capture_output=True, text=True, check=False
    ).stdout.strip()
    if kinds != "tmpfs":
        pytest.skip("this machine has no tmpfs at /dev/shm")
    folder = place / f"silo-test-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "weights").write_bytes(b"one")
        assert _ask(folder) == _ask(folder)
    finally:
        shutil.rmtree(folder)
    assert reads == ["weights"] * 2


def test_the_file_that_is_identified_is_the_one_that_is_read(
    folder: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = file_sha256(folder / "weights")

    def exchange(_: int) -> None:
        (folder / "other").write_bytes(b"two")
        (folder / "other").rename(folder / "weights")

    monkeypatch.setattr(silo.checksums, "_write_back", exchange)
    assert _ask(folder) == first


def test_without_a_home_nothing_is_kept(
    folder: Path, reads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home(_: Path) -> Path:
        raise RuntimeError("no home directory")

    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(Path, "expanduser", no_home)
    monkeypatch.chdir(tmp_path)
    assert _ask(folder) == _ask(folder)
    assert reads == ["weights"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
