"""Copies of a remote artefact on this machine: ordinary directories, filled from objects whose checksums were compared.

On disk, per URL, of which an artefact may have several: `url` (its text), `seen.json` (the newest head that was seen
here: an older one is refused), `objects/` (files by their SHA-256, as the newest head names them) and `copies/`: a
directory per process that has the artefact open, one with `.fetching` for what is on its way to it, and a lock beside
them that ends with the process. Files that never change are second names of `objects/`. Nothing here is ever repaired:
a copy whose process is gone, a damaged object, and everything that the head does not name any more, are removed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.files import (
    SharedLock,
    copy_file,
    disk_errors,
    file_sha256,
    is_held,
    link_or_copy,
    locked_directory,
    read_json,
    remove_file,
    remove_tree,
    write_atomic,
    write_json,
)
from silo.remote.head import Head, Part
from silo.remote.objects import Objects
from silo.remote.place import cache_folder

_AT_ONCE = 8
_POLL_SECONDS = 0.05
_FETCHING = ".fetching"

IsOwn = Callable[[str], bool]
"""Tells by its path in a copy a file that belongs to this process alone: it is neither sent nor removed."""


class Cache:
    """What this machine holds of the artefact at a URL."""

    def __init__(self, objects: Objects) -> None:
        name = hashlib.sha256(objects.url.encode()).hexdigest()[:24]
        self.remote = objects
        self.root = cache_folder() / name
        self._objects = self.root / "objects"
        self._copies = self.root / "copies"
        self._seen = self.root / "seen.json"
        with disk_errors(self.root):
            for folder in (self._objects, self._copies):
                folder.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o700)
            if not (self.root / "url").exists():
                write_atomic(self.root / "url", f"{objects.url}\n".encode())

    def require_newest(self, head: Head) -> None:
        """Refuse a head that is older than, or another one beside, the newest that was seen here; note it otherwise.

        Another artefact under the same URL begins anew.
        """
        mark = hashlib.sha256(head.encode()).hexdigest()
        with locked_directory(self.root, wait=True):
            seen = _read_seen(self._seen)
            if seen.get("id") == head.id and (seen["number"], seen["mark"]) != (head.number, mark):
                if seen["number"] >= head.number:
                    what = f"{self.remote.url} is older than this machine has seen: number {head.number}"
                    hint = f"an old copy was put back; to go on with it all the same, remove {self._seen}"
                    raise SiloError("remote-damaged", f"{what}, and it was at {seen['number']}", hint)
            elif seen.get("id") == head.id:
                return
            write_json(self._seen, {"id": head.id, "number": head.number, "mark": mark})

    def new_copy(self) -> Copy:
        """A place for a copy, with nothing in it; those of processes that are gone are removed first."""
        _remove_dead_copies(self.root)
        return Copy(self, self._copies / secrets.token_hex(8))

    def lock_copy(self, root: Path) -> SharedLock:
        """Hold a copy until this process ends."""
        with locked_directory(self.root, wait=True):
            return SharedLock(root.with_name(f"{root.name}.lock"))

    def fetch(self, parts: Iterable[Part], folder: Path) -> None:
        """Have files in `objects/`, their checksums compared as they come; until then they lie in a copy's folder."""
        missing = {part.sha256: part for part in parts if not self.object(part.sha256).exists()}
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(partial(self._fetch, folder), missing.values()))

    def _fetch(self, folder: Path, part: Part) -> None:
        coming = folder / part.sha256
        try:
            with disk_errors(coming):
                actual = self.remote.get(part.object, coming)
            if actual != part.sha256:
                raise SiloError("remote-damaged", f"{self.remote.url}/{part.object} differs from its checksum")
            with disk_errors(coming):
                coming.rename(self.object(part.sha256))
        finally:
            remove_file(coming)

    def object(self, sha256: str) -> Path:
        """Where a file lies, if it is here."""
        return self._objects / sha256

    def take_in(self, file: Path, sha256: str) -> None:
        """Have a file that was made in a copy among the objects, without fetching it."""
        place = self.object(sha256)
        if not place.exists():
            linked = file.with_name(f"{file.name}.partial")  # in the copy: what is killed here goes with it
            link_or_copy(file, linked)
            linked.rename(place)

    def prune(self, head: Head) -> None:
        """Remove every object that a head does not name."""
        named = {part.sha256 for part in head.files.values()}
        for root in self._roots(head):
            for path in (root / "objects").iterdir():
                if path.name not in named:
                    remove_file(path)

    def _roots(self, head: Head) -> list[Path]:
        """This folder, and those of other URLs that the same artefact was seen at."""
        others = (seen for seen in self.root.parent.glob(f"*/{self._seen.name}") if seen != self._seen)
        return [self.root, *(seen.parent for seen in others if _read_seen(seen).get("id") == head.id)]

    def drop_damaged(self, head: Head) -> bool:
        """Remove objects whose bytes are not what their name says; true if there were any."""
        damaged = [
            path
            for path in map(self.object, {part.sha256 for part in head.files.values()})
            if path.exists() and file_sha256(path) != path.name
        ]
        for path in damaged:
            remove_file(path)
        return bool(damaged)

    def count_strays(self, head: Head, among: str, seconds: float) -> int:
        """How many files this machine holds that a head does not name, of those under a folder of any copy and objects.

        Other processes are given a while to follow; copies of processes that are gone are removed.
        """
        end = time.monotonic() + seconds
        while True:
            for root in self._roots(head):
                _remove_dead_copies(root)
            self.prune(head)
            strays = sum(len(_strays(root, head, among)) for root in self._roots(head))
            if not strays or time.monotonic() > end:
                return strays
            time.sleep(_POLL_SECONDS)

    def copies(self, head: Head) -> list[Path]:
        """The directories of all processes that have the artefact open here, by whatever URL."""
        folders = (folder for root in self._roots(head) for folder in (root / "copies").iterdir())
        return sorted(folder for folder in folders if folder.is_dir() and not folder.suffix)


def _read_seen(path: Path) -> dict[str, Any]:
    """The newest head that was seen; nothing if that is not known any more."""
    try:
        seen = read_json(path)
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return seen if isinstance(seen, dict) and seen.keys() >= {"id", "number", "mark"} else {}


def _remove_dead_copies(root: Path) -> None:
    with locked_directory(root, wait=True):
        for lock in sorted((root / "copies").glob("*.lock")):
            if not is_held(lock):
                for left in lock.parent.glob(f"{lock.stem}*"):
                    if left != lock:
                        remove_tree(left)
                remove_file(lock)


def _strays(root: Path, head: Head, among: str) -> list[Path]:
    named, copies = {part.sha256 for part in head.files.values()}, root / "copies"
    held = (*(root / "objects").iterdir(), *copies.glob(f"*{_FETCHING}/*"))
    objects = [path for path in held if path.name not in named]
    copied = (path for path in copies.glob(f"*/{among}/*") if f"{among}/{path.name}" not in head.files)
    return [*objects, *copied]


class Copy:
    """A directory of one process, brought to a head by `fill` and removed by `close`."""

    def __init__(self, cache: Cache, root: Path) -> None:
        self.cache = cache
        self.root = root
        self._lock = cache.lock_copy(root)
        self._held: dict[str, str] = {}

    def fill(self, head: Head, *, is_own: IsOwn, may_link: IsOwn, is_compared: IsOwn = lambda _: False) -> None:
        """Let the directory hold what a head names, and nothing else; first of all everything is fetched.

        Files that `may_link` never change in place; the others are copied. Each is compared with its checksum, and
        fetched anew if it was damaged here, but those that `is_compared` by whoever opens them.
        """
        self._fetch(head.files.values())
        with disk_errors(self.root):
            for name, part in head.files.items():
                if self._held.get(name) != part.sha256 or not (self.root / name).exists():
                    self._place(name, part, link=may_link(name), compare=not is_compared(name))
            for path in list(self._files()):
                name = str(path.relative_to(self.root))
                if name not in head.files and not is_own(name):
                    remove_file(path)
                    self._held.pop(name, None)

    def forget(self) -> None:
        """Place every file anew at the next `fill`."""
        self._held.clear()

    def _place(self, name: str, part: Part, *, link: bool, compare: bool) -> None:
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        taken = target.with_name(f"{target.name}.partial")
        remove_file(taken)
        damaged = False
        while not self._takes(taken, part, link=link, compare=compare):
            remove_file(taken)
            if damaged:
                raise SiloError("disk-failed", f"{self.cache.root} does not keep what is written to it")
            damaged = True
            remove_file(self.cache.object(part.sha256))
        taken.rename(target)
        self._held[name] = part.sha256

    def _takes(self, taken: Path, part: Part, *, link: bool, compare: bool) -> bool:
        """Take a file from the cache; false if it is damaged there."""
        source = self.cache.object(part.sha256)
        while True:
            try:
                if not link:
                    return copy_file(source, taken) == part.sha256
                link_or_copy(source, taken)
                return not compare or file_sha256(taken) == part.sha256
            except FileNotFoundError:  # it was damaged, or another process, at another head, has removed it
                self._fetch([part])

    def _fetch(self, parts: Iterable[Part]) -> None:
        self.cache.fetch(parts, self.root.with_name(f"{self.root.name}{_FETCHING}"))

    def _files(self) -> Iterator[Path]:
        for folder, _, names in os.walk(self.root):
            yield from (Path(folder) / name for name in names)

    def close(self) -> None:
        """Remove the directory and let go of its lock; nothing happens the second time."""
        for left in self.root.parent.glob(f"{self.root.name}*"):
            if left.suffix != ".lock":
                remove_tree(left)
        remove_file(self.root.with_name(f"{self.root.name}.lock"))
        self._lock.close()
