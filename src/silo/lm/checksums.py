"""SHA-256 of a model's files, computed once for every state of a file and then remembered.

A checksum is believed again only if the file has the device, inode, size and times (of its bytes and of its inode) that
it had then. What that cannot show is a disk that changes bytes by itself: `again=True` reads every byte.

On disk: `$XDG_CACHE_HOME/silo/checksums/<hash of the directory's path>.json`, name -> [identity, SHA-256]. Whatever is
wrong with that file, or with the place, costs time only: files are then read again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from silo.files import file_sha256

_SETTLED_NS = 3_000_000_000
"""A file may change again within one tick of its file system's clock (2 s on FAT) and keep its times: what changed less
than this before it was read is not remembered."""


def checksums(root: Path, names: Iterable[str], *, again: bool = False) -> dict[str, str]:
    """SHA-256 of files of a directory by their names; with `again` nothing that was remembered is believed."""
    place = _place(root)
    known = _recall(place)
    remembered = {}
    marks = {}
    for name in names:
        entry = known.get(name)
        if again or entry is None or entry[0] != _identity(root / name):
            entry = _hash(root / name)
        marks[name] = entry[1]
        if entry[0]:
            remembered[name] = entry
    if {**known, **remembered} != known:
        _remember(place, {**known, **remembered})
    return marks


def _hash(path: Path) -> list[Any]:
    """[identity, SHA-256]; the identity is empty if the file may have changed meanwhile."""
    with suppress(OSError), path.open("rb") as stream:
        # a page that a memory map has dirtied takes more writes without a change of times until it is written back
        os.fsync(stream.fileno())
    before = _identity(path)
    settled = time.time_ns() - max(before[-2:]) > _SETTLED_NS
    mark = file_sha256(path)
    return [before if settled and _identity(path) == before else [], mark]


def _identity(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _place(root: Path) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with suppress(RuntimeError):  # no home directory
        cache = str(Path(cache).expanduser())
    name = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32]
    return Path(cache) / "silo" / "checksums" / f"{name}.json"


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
