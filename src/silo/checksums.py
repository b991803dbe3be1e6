"""SHA-256 of the files of models and stores, computed once for every state of a file and then remembered.

A checksum is believed again only if the file has the device, inode, size and times (of its bytes and of its inode) that
it had then. What that cannot show is a disk that changes bytes by itself: `again=True` reads every byte. Nothing is
remembered of file systems where these facts do not tell files apart: read-only images may give all their files one
time, and the next image their inodes; a file in memory keeps its times while it is written through a memory map.

On disk: `$XDG_CACHE_HOME/silo/checksums/<hash of the directory's path>.json`, name -> [identity, SHA-256]. Whatever is
wrong with that file, or with the place, costs time only: files are then read again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

_SETTLED_NS = 3_000_000_000
"""A file may change again within one tick of its file system's clock (2 s on FAT) and keep its times: what changed less
than this before it was read is not remembered."""
_IN_MEMORY = ("tmpfs", "ramfs")
_write_back = getattr(os, "fdatasync", os.fsync)


class Remembered:
    """What is known of the files of a directory, which is not believed with `again`; `save` keeps it for next time."""

    def __init__(self, root: Path, *, again: bool = False) -> None:
        self._place = _place(root)
        self._known = _recall(self._place) if self._place else {}
        self._again = again
        self._fresh: dict[str, list[Any]] = {}

    def sha256(self, name: str, handle: int, compute: Callable[[], str]) -> str:
        """The checksum of a file that is open, remembered or computed."""
        entry = self._known.get(name)
        if not self._again and entry is not None and entry[0] == _identity(os.fstat(handle)) and _is_told_apart(handle):
            return str(entry[1])
        with suppress(OSError):  # until a page that was written through a map is on the disk, it takes more unseen
            _write_back(handle)
        identity, mark = _hash(handle, compute)
        if identity and _is_told_apart(handle):
            self._fresh[name] = [identity, mark]
        return mark

    def save(self, *, only: Collection[str] | None = None) -> None:
        """Keep what was computed; of all that is known `only` what concerns these files, if they are given."""
        known = {name: entry for name, entry in self._known.items() if only is None or name in only}
        if self._place and known | self._fresh != self._known:
            _remember(self._place, known | self._fresh)


def checksums(root: Path, names: Iterable[str], *, again: bool = False) -> dict[str, str]:
    """SHA-256 of files of a directory by their names; with `again` nothing that was remembered is believed."""
    remembered, marks = Remembered(root, again=again), dict[str, str]()
    for name in names:
        with (root / name).open("rb") as stream:  # the file that is identified is the one that is read
            marks[name] = remembered.sha256(name, stream.fileno(), partial(_read, stream))
    remembered.save()
    return marks


def _read(stream: BufferedReader) -> str:
    return hashlib.file_digest(stream, "sha256").hexdigest()


def _hash(handle: int, compute: Callable[[], str]) -> tuple[list[int], str]:
    """Identity and SHA-256; the identity is empty if the file may have changed meanwhile."""
    before = _identity(os.fstat(handle))
    settled = time.time_ns() - max(before[-2:]) > _SETTLED_NS
    mark = compute()
    return before if settled and _identity(os.fstat(handle)) == before else [], mark


def _identity(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _is_told_apart(handle: int) -> bool:
    """Do device, inode and times name the content of a file, on the file system that it is on?"""
    if os.fstatvfs(handle).f_flag & os.ST_RDONLY:
        return False
    device = os.fstat(handle).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), Path("/proc/self/mountinfo").open(encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            place, _, kind = line.partition(" - ")
            if place.split()[2] == wanted and kind.split()[0] in _IN_MEMORY:
                return False
    return True


def _place(root: Path) -> Path | None:
    """Where checksums of a directory are kept; None without a home directory."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):
        base = Path(cache) if cache.startswith("/") else Path("~/.cache").expanduser()
        name = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32]
        return base / "silo" / "checksums" / f"{name}.json" if base.is_absolute() else None
    return None


def _recall(place: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(place.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return {name: entry for name, entry in content.items() if _is_entry(entry)} if isinstance(content, dict) else {}


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 2
        and isinstance(entry[0], list)
        and len(entry[0]) == 5
        and isinstance(entry[1], str)
    )


def _remember(place: Path, entries: Mapping[str, list[Any]]) -> None:
    """Replace the file whole; nothing waits for the disk, and nothing is lost if there is no room for it."""
    partial = place.with_name(f"{place.name}.{os.getpid()}.partial")
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            partial.write_text(json.dumps(entries, sort_keys=True), encoding="utf-8")
            partial.replace(place)
        finally:
            partial.unlink(missing_ok=True)
