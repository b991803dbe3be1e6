"""Stores at a URL for tests: small ones, homes of their own for several machines, and objects that stop answering."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.remote.objects import HeadFile, Objects
from silo.store.remote.store import RemoteStore, new_remote, open_remote
from tests.store.small import SmallEncoder, document, small_store

DOCUMENTS = [
    document(f"d{number}", f"Number {number} of some texts, and apple{number} grew there. " * 3, owner=f"o{number % 2}")
    for number in range(6)
]


def make_remote(url: str, **settings: Any) -> RemoteStore:
    """A store at a URL with token n-grams only, and its encoder."""
    with new_remote(url) as root:
        small_store(root, searches=("ngram",), **settings).close()
    return reopened(url)


def reopened(url: str) -> RemoteStore:
    """The store as another process sees it."""
    store = open_remote(url)
    store.use(SmallEncoder())
    return store


class Machine:
    """A home of its own, with or without the signing keys of another one."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._monkeypatch = monkeypatch

    def use(self) -> None:
        self._monkeypatch.setenv("SILO_HOME", str(self.root))

    def take_keys(self, other: Machine) -> None:
        (self.root / "keys").mkdir(parents=True)
        for file in (other.root / "keys").iterdir():
            copy = self.root / "keys" / file.name
            copy.write_bytes(file.read_bytes())
            copy.chmod(0o600)


class Killed(BaseException):
    """The process is gone: nothing it does afterwards reaches the store."""


class MortalObjects(Objects):
    """Objects of a process that is killed before its call number `last`; a swap counts before and after it is made."""

    last = 1 << 30
    calls = 0

    @classmethod
    def live(cls, last: int) -> None:
        MortalObjects.last, MortalObjects.calls = last, 0

    def _count(self) -> None:
        if threading.current_thread().name == "silo-store-watch":  # it looks whenever it likes
            raise SiloError("remote-failed", "not in this test")
        MortalObjects.calls += 1
        if MortalObjects.calls >= MortalObjects.last:
            raise Killed

    def read_head(self) -> HeadFile | None:
        self._count()
        return super().read_head()

    def head_tag(self) -> str | None:
        self._count()
        return super().head_tag()

    def swap_head(self, data: bytes, expected: HeadFile | None) -> None:
        self._count()
        super().swap_head(data, expected)
        self._count()

    def put(self, name: str, file: Path) -> None:
        self._count()
        super().put(name, file)

    def get(self, name: str, file: Path) -> str:
        self._count()
        return super().get(name, file)

    def names(self) -> list[str]:
        self._count()
        return super().names()

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._count()
            super().remove([name])
