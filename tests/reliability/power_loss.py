"""Power loss on a disk that keeps what it was told to keep and nothing more.

`recording` notes every write, truncation, creation, renaming, removal and fsync below a folder. From the notes follow
the states a power cut may leave at any instant: what was synced is there; of the rest any part may be. Contents are
durable after an fsync of the file, names after an fsync of their folder; contents of one file arrive in order and may
stop in the middle of a write, names arrive in any order. `power_cuts` yields such states, `Disk.lay_out` makes a
folder of one.
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_CALLS = ("open", "write", "fsync", "rename", "unlink", "truncate", "mkdir", "rmdir", "link")


@dataclass(frozen=True, slots=True)
class Operation:
    """One call. `inode` is the file it is about, `path` and `target` are names below the folder."""

    kind: str
    path: str = ""
    target: str = ""
    inode: int = 0
    offset: int = 0
    data: bytes = b""
    site: str = ""

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders whose fsync makes this change of names durable."""
        return tuple({str(Path(name).parent) for name in (self.path, self.target) if name})


@dataclass(slots=True)
class Disk:
    """What was there at the beginning, and every operation since."""

    root: Path
    names: dict[str, int] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    contents: dict[int, bytes] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    acknowledged: int | None = None
    _live: dict[str, int] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path) -> Disk:
        """A disk on which all of a folder is durable."""
        disk = cls(root)
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_dir():
                disk.folders.add(name)
            else:
                inode = len(disk.contents) + 1
                disk.names[name], disk.contents[inode] = inode, path.read_bytes()
        disk._live = dict(disk.names)
        disk._sizes = {inode: len(content) for inode, content in disk.contents.items()}
        return disk

    def acknowledge(self) -> None:
        """From here on the work counts as done."""
        self.acknowledged = len(self.operations)

    def is_durable(self, at: int, until: int) -> bool:
        """Was the operation made durable by an fsync before `until`?"""
        done = self.operations[at]
        for later in self.operations[at + 1 : until]:
            if done.kind in ("write", "truncate"):
                if later.kind == "sync" and later.inode == done.inode:
                    return True
            elif later.kind == "sync-folder" and later.path in done.folders:
                return True
        return False

    def lay_out(self, cut: PowerCut, to: Path) -> None:
        """Make a folder of what a power cut leaves."""
        names, folders = dict(self.names), set(self.folders)
        contents = {inode: bytearray(content) for inode, content in self.contents.items()}
        stopped: set[int] = set()
        for at, done in enumerate(self.operations[: cut.until]):
            if done.kind in ("write", "truncate"):
                if done.inode in stopped:
                    continue
                content = contents.setdefault(done.inode, bytearray())
                if not cut.has(at):
                    stopped.add(done.inode)
                elif done.kind == "truncate":
                    del content[done.offset :]
                else:
                    data = done.data[: cut.size] if at == cut.short else done.data
                    content.extend(bytes(max(0, done.offset - len(content))))
                    content[done.offset : done.offset + len(data)] = data
                    if at == cut.short:
                        stopped.add(done.inode)
            elif not done.kind.startswith("sync") and cut.has(at):
                _change_names(done, names, folders)
        for folder in sorted(folders):
            if all(str(parent) in folders for parent in Path(folder).parents if str(parent) != "."):
                (to / folder).mkdir(parents=True, exist_ok=True)
        for name, inode in names.items():
            if (to / name).parent.is_dir():
                (to / name).write_bytes(contents.get(inode, b""))
                (to / name).chmod(0o600)  # modes are not recorded, and keys must be private


def _change_names(done: Operation, names: dict[str, int], folders: set[str]) -> None:
    """Let a change of names take effect."""
    if done.kind == "create":
        names[done.path] = done.inode
    elif done.kind == "unlink":
        names.pop(done.path, None)
    elif done.kind == "mkdir":
        folders.add(done.path)
    elif done.kind == "rmdir":
        folders.discard(done.path)
    elif done.inode:
        names.pop(done.path, None)
        names[done.target] = done.inode
    else:  # a folder with all that is in it
        for place in [name for name in folders if _is_in(name, done.path)]:
            folders.discard(place)
            folders.add(done.target + place[len(done.path) :])
        for name in [name for name in names if _is_in(name, done.path)]:
            names[done.target + name[len(done.path) :]] = names.pop(name)


def _is_in(name: str, folder: str) -> bool:
    return name == folder or name.startswith(folder + "/")


@contextmanager
def recording(root: Path, forget: Callable[[str], bool] = lambda _: False) -> Iterator[Disk]:
    """Note what happens below a folder; an fsync from a place in the code that `forget` names is not carried out."""
    disk, root = Disk.of(root), root.resolve()
    kept = {name: getattr(os, name) for name in _CALLS}

    def inside(path: Any) -> str | None:
        whole = Path(os.path.normpath(Path.cwd() / os.fspath(path)))
        return str(whole.relative_to(root)) if whole.is_relative_to(root) else None

    def of_handle(handle: int) -> str | None:
        return inside(Path(f"/proc/self/fd/{handle}").readlink())

    def note(kind: str, **facts: Any) -> None:
        disk.operations.append(Operation(kind, site=_site(), **facts))

    def call_open(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        name = inside(path) if "dir_fd" not in named else None
        existed = name in disk._live
        handle: int = kept["open"](path, flags, *rest, **named)
        if name is not None and flags & (os.O_WRONLY | os.O_RDWR):
            if not existed:
                inode = disk._live[name] = len(disk._sizes) + 1
                disk._sizes[inode] = 0
                note("create", path=name, inode=inode)
            elif flags & os.O_TRUNC:
                disk._sizes[disk._live[name]] = 0
                note("truncate", inode=disk._live[name])
            disk._offsets[handle] = -1 if flags & os.O_APPEND else 0
        return handle

    def call_write(handle: int, data: Any) -> int:
        written: int = kept["write"](handle, data)
        name = of_handle(handle)
        if name is not None and name in disk._live:
            inode = disk._live[name]
            offset = disk._offsets.get(handle, -1)
            at = disk._sizes[inode] if offset < 0 else offset
            note("write", inode=inode, offset=at, data=bytes(data[:written]))
            disk._sizes[inode] = max(disk._sizes[inode], at + written)
            if offset >= 0:
                disk._offsets[handle] = at + written
        return written

    def call_fsync(handle: int) -> None:
        name = of_handle(handle)
        if name is not None and not forget(_site()):
            if name in disk._live:
                note("sync", inode=disk._live[name])
            else:
                note("sync-folder", path=name)
        kept["fsync"](handle)

    def call_rename(source: Any, target: Any, **named: Any) -> None:
        kept["rename"](source, target, **named)
        old, new = inside(source), inside(target)
        if old is not None and new is not None:
            inode = disk._live.get(old, 0)
            note("rename", path=old, target=new, inode=inode)
            for name in [name for name in disk._live if _is_in(name, old)]:
                disk._live[new + name[len(old) :]] = disk._live.pop(name)

    def call_unlink(path: Any, **named: Any) -> None:
        kept["unlink"](path, **named)
        name = _below(path, named, inside, of_handle)
        if name is not None and disk._live.pop(name, 0):
            note("unlink", path=name)

    def call_link(source: Any, target: Any, **named: Any) -> None:
        kept["link"](source, target, **named)
        old, new = inside(source), inside(target)
        if old in disk._live and new is not None:
            inode = disk._live[new] = disk._live[old]
            note("create", path=new, inode=inode)

    def call_truncate(path: Any, size: int) -> None:
        kept["truncate"](path, size)
        name = inside(path) if not isinstance(path, int) else of_handle(path)
        if name is not None and name in disk._live:
            disk._sizes[disk._live[name]] = size
            note("truncate", inode=disk._live[name], offset=size)

    def call_mkdir(path: Any, *rest: Any, **named: Any) -> None:
        kept["mkdir"](path, *rest, **named)
        if (name := inside(path)) is not None:
            note("mkdir", path=name)

    def call_rmdir(path: Any, **named: Any) -> None:
        kept["rmdir"](path, **named)
        if (name := _below(path, named, inside, of_handle)) is not None:
            note("rmdir", path=name)

    ours = (
        call_open,
        call_write,
        call_fsync,
        call_rename,
        call_unlink,
        call_truncate,
        call_mkdir,
        call_rmdir,
        call_link,
    )
    calls = dict(zip(_CALLS, ours, strict=True))
    for name, call in calls.items():
        setattr(os, name, call)
    try:
        yield disk
    finally:
        for name, call in kept.items():
            setattr(os, name, call)


def _below(path: Any, named: dict[str, Any], inside: Any, of_handle: Any) -> str | None:
    """The name of a path that may be relative to an open folder."""
    if named.get("dir_fd") is not None:
        folder = of_handle(named["dir_fd"])
        return None if folder is None else str(Path(folder) / os.fspath(path))
    name: str | None = inside(path)
    return name


def _site() -> str:
    """Where in the package a call was made: functions of the innermost frames that are ours, the last first."""
    ours = [frame for frame in traceback.extract_stack() if "/silo/" in frame.filename]
    return " < ".join(f"{Path(frame.filename).stem}.{frame.name}" for frame in reversed(ours[-4:]))


@dataclass(frozen=True, slots=True)
class PowerCut:
    """A cut before call `until`: of the operations that were not durable then, those in `arrived` reached the disk.

    The write `short` reached it in its first `size` bytes only.
    """

    until: int
    loose: frozenset[int]
    arrived: frozenset[int]
    short: int = -1
    size: int = 0

    def has(self, at: int) -> bool:
        """Is the operation on the disk?"""
        return at not in self.loose or at in self.arrived


def power_cuts(disk: Disk, rng: random.Random) -> Iterator[PowerCut]:
    """Different cuts without end: nothing more arrived, everything, all but one operation, one alone, or a random part.

    Most fall between two files, since within one a cut is like any other, and many after all is done.
    """
    instants = range(len(disk.operations) + 1)
    between = [at for at in instants if not at or disk.operations[at - 1].kind != "write"]
    seen: set[PowerCut] = set()
    for _ in range(1_000_000):
        until = rng.choice(between if rng.random() < 0.8 else instants) if rng.random() < 0.8 else instants[-1]
        loose = [
            at
            for at, done in enumerate(disk.operations[:until])
            if not done.kind.startswith("sync") and not disk.is_durable(at, until)
        ]
        one = {rng.choice(loose)} if loose else set[int]()
        some = {at for at in loose if rng.random() < 0.5}
        arrived = rng.choice([set[int](), set(loose), set(loose) - one, one, some])
        writes = sorted(at for at in arrived if disk.operations[at].kind == "write")
        short = rng.choice(writes) if writes and rng.random() < 0.3 else -1
        size = rng.randrange(len(disk.operations[short].data) + 1) if short >= 0 else 0
        cut = PowerCut(until, frozenset(loose), frozenset(arrived), short, size)
        if cut not in seen:
            seen.add(cut)
            yield cut
