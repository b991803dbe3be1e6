"""Sends the files of a directory and makes them the current state by one swap of the head.

New objects first, then the head, then what no head names any more goes. Whoever is killed in between leaves the old
state or the new one, and objects that the next writer removes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from silo.errors import SiloError
from silo.files import file_sha256
from silo.remote.cache import IsOwn
from silo.remote.head import HEAD, Head, Part, is_garbage, new_object
from silo.remote.objects import HeadFile, Objects

_AT_ONCE = 8


def read_head(objects: Objects) -> Head | None:
    """The current state of an artefact, None where there is none."""
    file = objects.read_head()
    return Head.decode(file.data, objects.url) if file else None


def require_alone(objects: Objects) -> None:
    """Refuse a URL inside another artefact or above one: each of the two would take the other's objects for its own."""
    if heads := objects.heads_above() or _heads(objects.names()):
        what = f"{objects.url} lies in another store or corpus, or around one: {heads[0]}"
        raise SiloError("out-exists", what, "choose a path beside it")


def _heads(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(f"/{HEAD}")]


class Publisher:
    """One writer's view of a remote artefact: the state it began with, or has led to since."""

    def __init__(self, objects: Objects, head: Head) -> None:
        self.objects = objects
        self.head = head
        self._unremoved: set[str] = set()
        self._checksums: dict[Path, tuple[tuple[int, int, int], str]] = {}

    @classmethod
    def begin(cls, objects: Objects) -> Publisher:
        """Begin with the state that is there, or with none."""
        return cls(objects, read_head(objects) or Head.first())

    def publish(self, root: Path, *, is_own: IsOwn) -> set[str]:
        """Make the files of a directory the current state; gives the names of those that left.

        The error is `remote-conflict` if somebody else has published meanwhile: then nothing has changed, unless the
        answer to a swap was lost and theirs followed ours, which is then part of what they published.
        """
        files = {str(path.relative_to(root)): path for path in _files(root)}
        checksums = {name: self._checksum(path) for name, path in files.items() if not is_own(name)}
        if checksums == {name: part.sha256 for name, part in self.head.files.items()}:
            return set()
        known, expected = {part.sha256: part for part in self.head.files.values()}, self._expected()
        new = {
            sha256: Part(new_object(name, self.head.number), sha256, files[name].stat().st_size)
            for name, sha256 in checksums.items()
            if sha256 not in known
        }
        sources = {sha256: files[name] for name, sha256 in checksums.items()}
        head = self.head.following({name: (new | known)[sha256] for name, sha256 in checksums.items()})
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(lambda part: self.objects.put(part.object, sources[part.sha256]), new.values()))
            self.objects.swap_head(head.encode(), expected)
        except SiloError as error:
            if error.code == "remote-conflict":
                with suppress(SiloError):  # what the other one took over is named by now, and stays
                    current = read_head(self.objects)
                    named = current.objects if current else set()
                    self.objects.remove(sorted({part.object for part in new.values()} - named))
            raise
        before, self.head = self.head, head
        with suppress(SiloError):  # whoever writes next removes what is left
            self._remove(sorted(before.objects - head.objects))
        return before.files.keys() - head.files.keys()

    def _expected(self) -> HeadFile | None:
        """The head as it lies there, which must be the one that we began with."""
        file = self.objects.read_head()
        if (file and file.data) != (self.head.encode() if self.head.number else None):
            raise SiloError("remote-conflict", f"somebody else has written to {self.objects.url} meanwhile")
        return file

    def remove_garbage(self) -> list[str]:
        """Remove what can never be named again; gives what is left of it at a second look.

        What could not be removed earlier is tried again, whether a listing shows it or not.
        """
        self._remove(sorted(self._unremoved.union(self.garbage())))
        return self.garbage()

    def _remove(self, names: Sequence[str]) -> None:
        """Remove objects; those that are left when it fails are kept in mind."""
        self._unremoved.update(names)
        for name in names:
            self.objects.remove([name])
            self._unremoved.discard(name)

    def garbage(self) -> list[str]:
        """Objects that can never be named again; those of another artefact below this one are its own."""
        names = self.objects.names()
        others = tuple(head.removesuffix(HEAD) for head in _heads(names))
        return [name for name in names if is_garbage(name, self.head) and not name.startswith(others)]

    def heads_below(self) -> list[str]:
        """Heads of other artefacts inside this one, whose objects are not looked at."""
        return _heads(self.objects.names())

    def _checksum(self, path: Path) -> str:
        status = path.stat()
        identity = status.st_ino, status.st_mtime_ns, status.st_size
        known = self._checksums.get(path)
        if known is None or known[0] != identity:
            known = identity, file_sha256(path)
            self._checksums[path] = known
        return known[1]


def _files(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        yield from (Path(folder) / name for name in names)
