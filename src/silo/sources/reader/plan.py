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
from silo.sources.reader.skipped import Skipped

_TYPICAL_PACKING = 3.5


@dataclass(frozen=True, slots=True)
class SourcePart:
    """A piece of a source that one process reads alone.

    `label` names it without machine directories; `stamp` changes when the input does. `members` are the files of a
    folder (relative to `path`) that belong to this part; `skipped` is what the folder holds besides, told by its first
    part. In `recipe`, `signals` is absolute.
    """

    recipe: SourceRecipe
    path: str
    label: str
    bytes: int
    stamp: str
    members: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def packing(part: SourcePart) -> float:
    """Text bytes for each byte of a part's file, to show progress inside it; a guess where the file is packed."""
    return _TYPICAL_PACKING if Path(part.path).suffix in (".gz", ".zst", ".parquet") else 1.0


def plan_files(recipe: SourceRecipe, base: Path) -> list[SourcePart]:
    """One part for each file that the recipe's paths name."""
    paths = [path for pattern in recipe.paths for path in _files(pattern, recipe.kind, base)]
    chosen = [path for path in sorted(set(paths)) if not is_excluded(path, recipe.exclude, base)]
    if not chosen:
        raise SiloError("input-empty", f"source '{recipe.kind}' is left with no file: {', '.join(recipe.paths) or '-'}")
    recipe = resolve_signals(recipe, base)
    signals = signals_stamp(recipe)
    labels = short_labels(chosen)
    return [
        SourcePart(recipe, str(path), label, size_of(path), stamp_of([describe_file(path.name, path)], signals))
        for path, label in zip(chosen, labels, strict=True)
    ]


def expand(pattern: str, base: Path) -> list[Path]:
    """The paths one recipe entry names, sorted; nothing found is an error."""
    path = Path(pattern).expanduser()
    absolute = path if path.is_absolute() else base / path
    if not glob.has_magic(str(absolute)):
        matches = [absolute] if absolute.exists() or absolute.is_symlink() else []
    elif glob.has_magic(str(base)) and not path.is_absolute():
        matches = sorted(base.glob(str(path)))
    else:
        root = Path(*_literal_parts(absolute))
        matches = sorted(root.glob(str(absolute.relative_to(root)))) if root.is_dir() else []
    if not matches:
        raise SiloError("input-missing", f"nothing matches {pattern}")
    for item in matches:
        if (name := escape_name(item.name)) != item.name:
            raise SiloError("utf8-invalid", f"the file name {name} is not UTF-8", "rename the file")
    return [item.absolute() for item in matches]


def escape_name(name: str) -> str:
    """A file name with the bytes escaped that are not UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def _literal_parts(path: Path) -> Iterable[str]:
    for part in path.parts:
        if glob.has_magic(part):
            return
        yield part


def _files(pattern: str, kind: str, base: Path) -> list[Path]:
    paths = expand(pattern, base)
    files = [path for path in paths if not path.is_dir()]
    if not files:
        raise SiloError(
            "recipe-value",
            f"{pattern} is a directory, and kind '{kind}' reads files",
            f"name the files, for example {pattern.rstrip('/')}/*",
        )
    return files


def expand_folders(recipe: SourceRecipe, base: Path) -> list[Path]:
    """The directories the recipe's paths name, under names of their own: `..` would be another one elsewhere."""
    paths: list[Path] = []
    for pattern in recipe.paths:
        found = (path for path in expand(pattern, base) if path.is_dir())
        matched = [path.resolve() if path.name == ".." else path for path in found]
        if not matched:
            raise SiloError("recipe-value", f"{pattern} is a file, and kind '{recipe.kind}' reads a directory")
        paths.extend(matched)
    if not paths:
        raise SiloError("recipe-value", f"kind '{recipe.kind}' needs paths: the directories to read")
    return sorted(set(paths))


def is_excluded(path: Path, patterns: tuple[str, ...], base: Path) -> bool:
    """True if an exclude glob matches the path below `base`, or its last name; `*` also crosses slashes."""
    below = path.relative_to(base).as_posix() if path.is_relative_to(base) else path.as_posix()
    return any(fnmatch.fnmatchcase(below, pattern) or fnmatch.fnmatchcase(path.name, pattern) for pattern in patterns)


def resolve_signals(recipe: SourceRecipe, base: Path) -> SourceRecipe:
    """The recipe with `signals` as an absolute path, so that a part can be read from anywhere."""
    if not recipe.signals:
        return recipe
    signals = expand(recipe.signals, base)[0]
    if not signals.is_dir():
        raise SiloError("recipe-value", f"signals must be a directory: {recipe.signals}")
    return replace(recipe, signals=str(signals))


def signals_stamp(recipe: SourceRecipe) -> str:
    """A stamp of the preference signals, which decide about rights as much as the text's own fields."""
    files = sorted(Path(recipe.signals).iterdir()) if recipe.signals else []
    return stamp_of(describe_file(path.name, path) for path in files)


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


def describe_file(name: str, path: Path) -> str:
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
