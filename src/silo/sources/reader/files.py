"""Promises the text files below a folder and nothing outside it: links are never followed, pipes never opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from silo.errors import SiloError
from silo.recipe import SourceRecipe
from silo.sources.reader.plan import SourcePart, escape_name, is_excluded, refuse_special, signals_stamp, stamp_of
from silo.sources.reader.skipped import TAKEN, USED, count_skipped, describe_skipped

_PART_FILES = 1000
_PART_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One name below a folder, with slashes. A directory is only listed if it is a link or is not entered."""

    relative: str
    size: int
    modified: int
    is_link: bool = False
    leads_out: bool = False
    is_directory: bool = False
    is_passed_by: bool = False

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.relative).suffix.lower()


def walk(root: Path, skip: frozenset[str] = frozenset()) -> Iterator[Entry]:
    """Every file, link and special file below `root` in a fixed order; directories named in `skip` are passed by."""
    home = root.resolve()
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            with os.scandir(root / below) as listing:
                items = sorted(listing, key=lambda item: item.name)
        except OSError as error:
            if not below:
                raise SiloError("input-unreadable", f"{root} cannot be listed: {error.strerror}") from None
            yield Entry(below, 0, 0, is_directory=True)
            continue
        for item in items:
            relative = f"{below}/{item.name}" if below else item.name
            if item.is_symlink():
                yield _link(root / relative, relative, home)
            elif item.is_dir(follow_symlinks=False):
                if item.name in skip:
                    yield Entry(relative, 0, 0, is_directory=True, is_passed_by=True)
                else:
                    pending.append(relative)
            else:
                yield _file(item, relative)


def _file(item: os.DirEntry[str], relative: str) -> Entry:
    """A file that is gone by now keeps its place: reading it will tell."""
    try:
        status = item.stat(follow_symlinks=False)
    except OSError:
        return Entry(relative, 0, 0)
    return Entry(relative, status.st_size, status.st_mtime_ns)


def _link(path: Path, relative: str, home: Path) -> Entry:
    status = path.lstat()
    try:
        leads_out = not path.resolve().is_relative_to(home)
    except (OSError, RuntimeError):
        leads_out = True
    return Entry(relative, 0, status.st_mtime_ns, is_link=True, leads_out=leads_out, is_directory=path.is_dir())


def plan_members(
    root: Path,
    recipe: SourceRecipe,
    *,
    choose: Callable[[Entry], str],
    base: Path,
    skip: frozenset[str] = frozenset(),
    salt: str = "",
) -> list[SourcePart]:
    """Parts over the chosen files of a folder, small enough for several processes to share.

    `choose` gives `TAKEN`, `USED` or the reason why a file is skipped. The first part tells what was; it has no members
    if nothing was taken.
    """
    entries = sorted(walk(root, skip), key=lambda entry: entry.relative)
    lines = (f"{entry.relative}\0{entry.size}\0{entry.modified}" for entry in entries)
    stamp = stamp_of(lines, signals_stamp(recipe) + salt)
    included = [
        (entry, _fate(entry, choose))
        for entry in entries
        if not is_excluded(root / entry.relative, recipe.exclude, base)
        and not is_excluded(root / entry.relative, recipe.exclude, root)
    ]
    groups = list(_groups([entry for entry, fate in included if fate == TAKEN]))
    left_out = ((entry, fate) for entry, fate in included if fate not in (TAKEN, USED))
    skipped = count_skipped((entry.relative + "/" * entry.is_passed_by, fate) for entry, fate in left_out)
    if not groups and skipped:
        groups = [[]]
    return [
        SourcePart(
            recipe=recipe,
            path=str(root),
            label=root.name if len(groups) == 1 else f"{root.name}[{at}]",
            bytes=sum(entry.size for entry in group),
            stamp=stamp,
            members=tuple(entry.relative for entry in group),
            skipped=skipped if at == 1 else (),
        )
        for at, group in enumerate(groups, start=1)
    ]


def require_members(parts: list[SourcePart], what: str) -> list[SourcePart]:
    """The parts, if there is anything to read in them; else an error that says what the folders hold instead."""
    if any(any(part.members) for part in parts):
        return parts
    instead = describe_skipped(item for part in parts for item in part.skipped)
    raise SiloError("input-empty", f"{what}; {instead}" if instead else what)


def _fate(entry: Entry, choose: Callable[[Entry], str]) -> str:
    """What becomes of an entry; links that lead out and folders that cannot be opened are taken: reading tells."""
    if entry.is_passed_by:
        return "not-entered"
    if entry.is_link and not entry.leads_out:
        return "link"
    return TAKEN if entry.is_directory else choose(entry)


def _groups(entries: list[Entry]) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    size = 0
    for entry in entries:
        if group and (len(group) >= _PART_FILES or size + entry.size > _PART_BYTES):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size
    if group:
        yield group


def display_path(root: Path, relative: str) -> str:
    """Where a file is, for people: folder name and path, with undecodable bytes escaped."""
    return escape_name(f"{root.name}/{relative}")


def read_text(root: Path, relative: str, max_bytes: int) -> str:
    """The text of one file below `root`; what is not text, not regular or not inside raises with its code."""
    return decode_text(read_bytes(root, relative, max_bytes), escape_name(relative), max_bytes)


def read_bytes(root: Path, relative: str, max_bytes: int) -> bytes:
    """The bytes of one file below `root`, and one more than `max_bytes` if there are more."""
    path = locate_file(root, relative)
    try:
        with path.open("rb") as stream:
            return stream.read(max_bytes + 1)
    except OSError as error:
        raise SiloError("input-unreadable", f"{escape_name(relative)} cannot be read: {error.strerror}") from None


def locate_file(root: Path, relative: str) -> Path:
    """The path of a regular file below `root`, which may be opened; anything else raises."""
    path = root / relative
    name = escape_name(relative)
    if path.is_symlink():
        raise SiloError("path-unsafe", f"{name} is a link that leaves the folder")
    refuse_special(path)
    if not relative.isascii() and name != relative:
        raise SiloError("utf8-invalid", f"the file name {name} is not UTF-8")
    return path


def decode_text(data: bytes, name: str, max_bytes: int) -> str:
    """UTF-8 bytes as text, without a byte order mark."""
    if len(data) > max_bytes:
        raise SiloError("file-too-large", f"{name} is larger than {max_bytes:,} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        code = "not-text" if b"\0" in data else "utf8-invalid"
        raise SiloError(code, f"byte {error.start} of {name} is not UTF-8") from None
    if "\0" in text:
        raise SiloError("nul-byte", f"{name} holds NUL bytes")
    return text
