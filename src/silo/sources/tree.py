"""Kind `tree`: source code and documentation of a git or plain source tree, read as files only (git is never run).

What the tree says about a file comes from a .license file, from REUSE, or from the nearest licence file; the more
specific statement replaces the more general one: REUSE information on a file replaces the LICENSE above it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from silo.errors import SiloError
from silo.recipe import Limits, SourceRecipe
from silo.records import Candidate, Evidence, Quarantined
from silo.rights import is_license_name, read_license_file
from silo.sources.reader.fields import assess_statement, defaults_of, unreadable_licence
from silo.sources.reader.files import Entry, display_path, plan_members, read_text, require_members
from silo.sources.reader.plan import SourcePart, expand_folders, refuse_special, resolve_signals
from silo.sources.reader.skipped import TAKEN, USED
from silo.sources.reuse import DEP5, TOML, Annotation, last_match, read_dep5, read_reuse_toml

_DOC_ENDINGS = ".md .markdown .rst .txt .text .adoc .asciidoc .org .tex .texi .pod .rdoc"
_CODE_ENDINGS = (
    ".py .pyi .pyx .pxd .c .h .cc .cpp .cxx .hh .hpp .hxx .cs .java .kt .kts .scala .groovy .js .jsx .mjs .cjs .ts "
    ".tsx .vue .go .rs .rb .php .pl .pm .lua .swift .m .mm .r .jl .hs .ml .mli .fs .erl .ex .exs .clj .cljs .lisp "
    ".el .scm .rkt .f .f90 .f95 .f03 .for .pas .ada .adb .ads .d .nim .zig .v .sv .vhd .vhdl .s .asm .sh .bash .zsh "
    ".fish .ps1 .bat .cmd .sql .proto .thrift .css .scss .less .html .htm .cmake .mk .tcl .vim .awk .cu .cuh .dart "
    ".hx .coffee .lean .coq .agda .idr .sol .glsl .hlsl .wgsl .toml .yaml .yml .xml"
)
_SKIPPED_NAMES = (
    ".git .hg .svn .bzr CVS build dist _build node_modules __pycache__ .venv venv .tox .nox .eggs .mypy_cache "
    ".pytest_cache .ruff_cache .idea .gradle LICENSES"
)
_DOCS = frozenset(_DOC_ENDINGS.split())
_CODE = frozenset(_CODE_ENDINGS.split())
_SKIPPED = frozenset(_SKIPPED_NAMES.split())
_MAX_LICENSE_BYTES = 1 << 20
_SPDX_LINE = re.compile(r"SPDX-License-Identifier:[ \t]*([^\r\n]{1,1000})")
_REMOTE_URL = re.compile(r"\[remote \"origin\"\][^\[]*?\n\s*url\s*=\s*(\S+)")


def plan_tree(recipe: SourceRecipe, base: Path) -> list[SourcePart]:
    """Parts over the source and documentation files of each tree; REUSE files yield only their own problems."""
    recipe = resolve_signals(recipe, base)
    parts = [
        part
        for root in expand_folders(recipe, base)
        for part in plan_members(root, recipe, choose=_choose, base=base, skip=_SKIPPED)
    ]
    return require_members(parts, f"no source files in {', '.join(recipe.paths)}")


def _choose(entry: Entry) -> str:
    name = PurePosixPath(entry.relative).name
    if is_license_name(name) or (entry.suffix == ".license" and not _speaks_of_rights(entry.relative)):
        return USED
    known = entry.suffix in _CODE or entry.suffix in _DOCS or _speaks_of_rights(entry.relative)
    return TAKEN if known else "kind-unknown"


def _speaks_of_rights(relative: str) -> bool:
    return relative == DEP5 or relative.rpartition("/")[2] == TOML


def read_tree(part: SourcePart, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The files of one part with what the tree says about each."""
    root = Path(part.path)
    rights = _TreeRights(root)
    owner = git_owner(root) or part.recipe.owner or root.name
    defaults = replace(defaults_of(part, limits), source=part.recipe.name or root.name, owner=owner)
    for relative in part.members:
        try:
            if _speaks_of_rights(relative):
                if problem := rights.problem(relative):
                    raise problem
                continue
            text = read_text(root, relative, limits.max_record_bytes)
        except SiloError as error:
            yield Quarantined(display_path(root, relative), error.code, error.message)
            continue
        kind = "docs" if PurePosixPath(relative).suffix.lower() in _DOCS else "code"
        evidence = rights.evidence_for(relative) + defaults.evidence + defaults.signal_evidence("/" + relative)
        yield Candidate(
            external_id=relative,
            text=text,
            source=defaults.source,
            domain=defaults.domain or kind,
            evidence=evidence,
            owner=owner,
        )


def git_owner(root: Path) -> str:
    """The account that holds the origin of a clone, from .git/config; empty if there is none."""
    config = root / ".git" / "config"
    if (root / ".git").is_symlink() or not config.is_file() or config.stat().st_size > 1 << 20:
        return ""
    try:
        match = _REMOTE_URL.search(read_text(root, ".git/config", 1 << 20))
    except SiloError:
        return ""
    if not match:
        return ""
    place = re.sub(r"^[a-z+]+://", "", match[1])
    pieces = [piece for piece in re.split(r"[/:]", place.rpartition("@")[2]) if piece]
    return pieces[-2] if len(pieces) > 2 else ""


@dataclass(slots=True)
class _TreeRights:
    """The rights statements of one tree, each file of which is read once."""

    root: Path
    _licenses: dict[str, tuple[Evidence, ...]] = field(default_factory=dict)
    _reuse: dict[str, tuple[Annotation, ...] | SiloError] = field(default_factory=dict)

    def evidence_for(self, relative: str) -> tuple[Evidence, ...]:
        """What the tree says about one file."""
        return self._reuse_for(relative) or self._nearest(_parent(relative))

    def problem(self, relative: str) -> SiloError | None:
        """Why a REUSE file cannot be read, if so."""
        annotations = self._annotations(relative)
        return annotations if isinstance(annotations, SiloError) else None

    def _nearest(self, directory: str) -> tuple[Evidence, ...]:
        if directory not in self._licenses:
            evidence = self._licenses_in(directory)
            if not evidence and directory:
                evidence = self._nearest(_parent(directory))
            self._licenses[directory] = evidence
        return self._licenses[directory]

    def _licenses_in(self, directory: str) -> tuple[Evidence, ...]:
        try:
            places = sorted(path for path in (self.root / directory).iterdir() if is_license_name(path.name))
        except OSError as error:
            return (
                unreadable_licence(
                    f"the folder cannot be listed: {error.strerror}", display_path(self.root, directory)
                ),
            )
        return tuple(self._license_file(path) for path in places if not path.is_dir())

    def _license_file(self, path: Path) -> Evidence:
        where = display_path(self.root, path.relative_to(self.root).as_posix())
        try:
            return read_license_file(_read_license(path, self.root), where=where)
        except SiloError as error:
            return unreadable_licence(error.message, where)

    def _reuse_for(self, relative: str) -> tuple[Evidence, ...]:
        sidecar = self._sidecar(relative)
        added: tuple[Evidence, ...] = ()
        closest: tuple[Evidence, ...] = ()
        for name, inner in _reuse_files(relative):
            annotations = self._annotations(name)
            where = display_path(self.root, name)
            if isinstance(annotations, SiloError):
                added += (unreadable_licence(annotations.message, where),)
                continue
            annotation = last_match(annotations, inner)
            if annotation is None or not annotation.licenses:
                continue
            stated = tuple(assess_statement(statement, where, "reuse") for statement in annotation.licenses)
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
        where = display_path(self.root, f"{relative}.license")
        try:
            text = _read_license(path, self.root)
        except SiloError as error:
            return (unreadable_licence(error.message, where),)
        tags = _SPDX_LINE.findall(text)
        if not tags:
            return (read_license_file(text, where=where),)
        return tuple(assess_statement(tag.strip(), where, "reuse") for tag in tags)


def _parent(relative: str) -> str:
    return relative.rpartition("/")[0]


def _reuse_files(relative: str) -> list[tuple[str, str]]:
    """The REUSE files that may speak about a path, from the root down, each with the path as seen from there."""
    parts = relative.split("/")
    files = [(DEP5, relative)]
    for depth in range(len(parts)):
        files.append(("/".join([*parts[:depth], TOML]), "/".join(parts[depth:])))
    return files


def _read_license(path: Path, root: Path) -> str:
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
            data = stream.read(_MAX_LICENSE_BYTES + 1)
    except OSError as error:
        raise SiloError("input-unreadable", f"{path.name} cannot be read: {error.strerror}") from None
    if len(data) > _MAX_LICENSE_BYTES:
        raise SiloError("file-too-large", f"{path.name} is too large for a licence")
    return data.decode("utf-8", "replace")
