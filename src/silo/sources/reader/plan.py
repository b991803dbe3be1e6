"""Promises that one recipe on the same files always gives the same parts, in the same order, under the same labels."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from silo.errors import SiloError
from silo.recipe import SourceRecipe


@dataclass(frozen=True, slots=True)
class SourcePart:
    """A piece of a source that one process reads alone.

    `label` names it without machine directories; `stamp` changes when the input does. `members` are the files of a
    folder (relative to `path`) that belong to this part. In `recipe`, `signals` is absolute.
    """

    recipe: SourceRecipe
    path: str
    label: str
    bytes: int
    stamp: str
    members: tuple[str, ...] = ()


def plan_files(recipe: SourceRecipe, base: Path) -> list[SourcePart]:
    """One part for each file that the recipe's paths name."""
    found = [path for pattern in recipe.paths for path in _files(pattern, recipe.kind, base)]
    kept = [path for path in sorted(set(found)) if not excluded(path, recipe.exclude, base)]
    if not kept:
        raise SiloError("input-empty", f"source '{recipe.kind}' is left with no file: {', '.join(recipe.paths) or '-'}")
    settled = settle(recipe, base)
    signals = signals_stamp(settled)
    labels = short_labels(kept)
    return [
        SourcePart(settled, str(path), label, size_of(path), stamp_of([described(path.name, path)], signals))
        for path, label in zip(kept, labels, strict=True)
    ]


def expand(pattern: str, base: Path) -> list[Path]:
    """The paths one recipe entry names, sorted; nothing found is an error."""
    path = Path(pattern).expanduser()
    whole = path if path.is_absolute() else base / path
    if not glob.has_magic(str(whole)):
        found = [whole] if whole.exists() or whole.is_symlink() else []
    elif glob.has_magic(str(base)) and not path.is_absolute():
        found = sorted(base.glob(str(path)))
    else:
        root = Path(*_literal_parts(whole))
        found = sorted(root.glob(str(whole.relative_to(root)))) if root.is_dir() else []
    if not found:
        raise SiloError("input-missing", f"nothing matches {pattern}")
    for item in found:
        if (name := printable(item.name)) != item.name:
            raise SiloError("utf8-invalid", f"the file name {name} is not UTF-8", "rename the file")
    return [item.absolute() for item in found]


def printable(name: str) -> str:
    """A file name with the bytes escaped that are not UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def _literal_parts(path: Path) -> Iterable[str]:
    for part in path.parts:
        if glob.has_magic(part):
            return
        yield part


def _files(pattern: str, kind: str, base: Path) -> list[Path]:
    matched = expand(pattern, base)
    files = [path for path in matched if not path.is_dir()]
    if not files:
        raise SiloError(
            "recipe-value",
            f"{pattern} is a directory, and kind '{kind}' reads files",
            f"name the files, for example {pattern.rstrip('/')}/*",
        )
    return files


def folders(recipe: SourceRecipe, base: Path) -> list[Path]:
    """The directories the recipe's paths name."""
    found: list[Path] = []
    for pattern in recipe.paths:
        matched = [path for path in expand(pattern, base) if path.is_dir()]
        if not matched:
            raise SiloError("recipe-value", f"{pattern} is a file, and kind '{recipe.kind}' reads a directory")
        found.extend(matched)
    if not found:
        raise SiloError("recipe-value", f"kind '{recipe.kind}' needs paths: the directories to read")
    return sorted(set(found))


def excluded(path: Path, patterns: tuple[str, ...], base: Path) -> bool:
    """True if an exclude glob matches the path below `base`, or its last name; `*` also crosses slashes."""
    below = path.relative_to(base).as_posix() if path.is_relative_to(base) else path.as_posix()
    return any(fnmatch.fnmatchcase(below, pattern) or fnmatch.fnmatchcase(path.name, pattern) for pattern in patterns)


def settle(recipe: SourceRecipe, base: Path) -> SourceRecipe:
    """The recipe with `signals` as an absolute path, so that a part can be read from anywhere."""
    if not recipe.signals:
        return recipe
    signals = expand(recipe.signals, base)[0]
    if not signals.is_dir():
        raise SiloError("recipe-value", f"signals must be a directory: {recipe.signals}")
    return replace(recipe, signals=str(signals))


def signals_stamp(settled: SourceRecipe) -> str:
    """A stamp of the preference signals, which decide about rights as much as the text's own fields."""
    found = sorted(Path(settled.signals).iterdir()) if settled.signals else []
    return stamp_of(described(path.name, path) for path in found)


def short_labels(paths: list[Path]) -> list[str]:
    """The shortest trailing pieces of the paths that tell all of them apart."""
    depth = 1
    labels = [path.name for path in paths]
    while len(set(labels)) < len(labels):
        depth += 1
        counts = Counter(labels)
        labels = [
            "/".join(path.parts[-depth:]) if counts[label] > 1 else label
            for path, label in zip(paths, labels, strict=True)
        ]
    return labels


def size_of(path: Path) -> int:
    """Bytes on disk, or 0 for what cannot be looked at."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def stamp_of(lines: Iterable[str], salt: str = "") -> str:
    """A hash over lines that describe files, in the order given."""
    digest = hashlib.blake2b(salt.encode(), digest_size=16)
    for line in lines:
        digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def described(name: str, path: Path) -> str:
    """A file as a line for `stamp_of`: name, size and modification time."""
    try:
        status = path.stat()
    except OSError:
        return f"{name}\0missing"
    return f"{name}\0{status.st_size}\0{status.st_mtime_ns}"


def refuse_special(path: Path) -> None:
    """Raise unless the path is a regular file: opening a pipe or device could wait for ever."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise SiloError("input-unreadable", f"{path.name} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise SiloError("input-unreadable", f"{path.name} is not a regular file")
