"""Promises what a source tree says about a file from outside it: a .license file, REUSE, or the nearest licence file.

The more specific statement replaces the more general one: REUSE information on a file replaces the LICENSE above it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from silo.errors import SiloError
from silo.records import Evidence, Tier
from silo.rights import read_license_file
from silo.sources.reader.fields import assessed
from silo.sources.reader.files import shown
from silo.sources.reader.plan import refuse_special
from silo.sources.reuse import DEP5, TOML, Annotation, last_match, read_dep5, read_reuse_toml

_MAX_BYTES = 1 << 20
_LICENSE_FILE = re.compile(r"(?:un)?licen[cs]e(?:[-_.].*)?|copying(?:[-_.].*)?", re.IGNORECASE)
_NOT_PROSE = re.compile(r"\.(?:py|pyi|js|ts|json|c|h|go|rs|java|rb|toml|ya?ml|xml|sh|license|png|svg)", re.IGNORECASE)
_SPDX_LINE = re.compile(r"SPDX-License-Identifier:[ \t]*([^\r\n]{1,1000})")


def is_license_name(name: str) -> bool:
    """True for LICENSE, LICENCE.md, COPYING.LESSER, LICENSE-MIT, UNLICENSE and the like, not for license.py."""
    return bool(_LICENSE_FILE.fullmatch(name)) and not _NOT_PROSE.fullmatch(Path(name).suffix or "-")


def restricted(reason: str, where: str) -> Evidence:
    """Evidence for a statement that is there but cannot be read: it may forbid anything."""
    return Evidence(reason, where, "unreadable", 1.0, Tier.restricted)


@dataclass(slots=True)
class TreeRights:
    """The rights statements of one tree, each file of which is read once."""

    root: Path
    _licenses: dict[str, tuple[Evidence, ...]] = field(default_factory=dict)
    _reuse: dict[str, tuple[Annotation, ...] | SiloError] = field(default_factory=dict)

    def evidence_for(self, relative: str) -> tuple[Evidence, ...]:
        """What the tree says about one file."""
        return self._reuse_for(relative) or self._nearest(_parent(relative))

    def problem(self, relative: str) -> SiloError | None:
        """Why a REUSE file cannot be read, if so."""
        found = self._annotations(relative)
        return found if isinstance(found, SiloError) else None

    def _nearest(self, directory: str) -> tuple[Evidence, ...]:
        if directory not in self._licenses:
            found = self._licenses_in(directory)
            if not found and directory:
                found = self._nearest(_parent(directory))
            self._licenses[directory] = found
        return self._licenses[directory]

    def _licenses_in(self, directory: str) -> tuple[Evidence, ...]:
        try:
            places = sorted(path for path in (self.root / directory).iterdir() if is_license_name(path.name))
        except OSError as error:
            return (restricted(f"the folder cannot be listed: {error.strerror}", shown(self.root, directory)),)
        return tuple(self._license_file(path) for path in places if not path.is_dir())

    def _license_file(self, path: Path) -> Evidence:
        where = shown(self.root, path.relative_to(self.root).as_posix())
        try:
            return read_license_file(_bounded(path, self.root), where=where)
        except SiloError as error:
            return restricted(error.message, where)

    def _reuse_for(self, relative: str) -> tuple[Evidence, ...]:
        sidecar = self._sidecar(relative)
        added: tuple[Evidence, ...] = ()
        closest: tuple[Evidence, ...] = ()
        for name, inner in _reuse_files(relative):
            found = self._annotations(name)
            where = shown(self.root, name)
            if isinstance(found, SiloError):
                added += (restricted(found.message, where),)
                continue
            annotation = last_match(found, inner)
            if annotation is None or not annotation.licenses:
                continue
            stated = tuple(assessed(statement, where, "reuse") for statement in annotation.licenses)
            if annotation.precedence == "override":
                return added + stated
            if annotation.precedence == "aggregate":
                added += stated
            else:
                closest = stated
        return added + (sidecar or closest)

    def _annotations(self, name: str) -> tuple[Annotation, ...] | SiloError:
        if name not in self._reuse:
            try:
                self._reuse[name] = self._read_reuse(name)
            except SiloError as error:
                self._reuse[name] = SiloError("metadata-invalid", error.message)
        return self._reuse[name]

    def _read_reuse(self, name: str) -> tuple[Annotation, ...]:
        if not os.path.lexists(self.root / name):
            return ()
        return read_dep5(self.root) if name == DEP5 else read_reuse_toml(self.root, name)

    def _sidecar(self, relative: str) -> tuple[Evidence, ...]:
        path = self.root / f"{relative}.license"
        if not os.path.lexists(path):
            return ()
        where = shown(self.root, f"{relative}.license")
        try:
            text = _bounded(path, self.root)
        except SiloError as error:
            return (restricted(error.message, where),)
        tags = _SPDX_LINE.findall(text)
        if not tags:
            return (read_license_file(text, where=where),)
        return tuple(assessed(tag.strip(), where, "reuse") for tag in tags)


def _parent(relative: str) -> str:
    return relative.rpartition("/")[0]


def _reuse_files(relative: str) -> list[tuple[str, str]]:
    """The REUSE files that may speak about a path, from the root down, each with the path as seen from there."""
    parts = relative.split("/")
    found = [(DEP5, relative)]
    for depth in range(len(parts)):
        found.append(("/".join([*parts[:depth], TOML]), "/".join(parts[depth:])))
    return found


def _bounded(path: Path, root: Path) -> str:
    """A licence text: links inside the tree are fine, and old texts may be in Latin-1."""
    try:
        inside = path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        inside = False
    if not inside:
        raise SiloError("path-unsafe", f"{path.name} is a link that leaves the folder")
    refuse_special(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SiloError("input-unreadable", f"{path.name} cannot be read: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise SiloError("file-too-large", f"{path.name} is too large for a licence")
    return data.decode("utf-8", "replace")
