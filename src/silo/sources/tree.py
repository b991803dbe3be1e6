"""Kind `tree`: source code and documentation of a git or plain source tree, read as files only (git is never run)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from silo.errors import SiloError
from silo.recipe import Limits, SourceRecipe
from silo.records import Candidate, Quarantined
from silo.sources.reader.fields import defaults_of
from silo.sources.reader.files import Entry, plan_members, read_text, shown
from silo.sources.reader.plan import Part, folders, settle
from silo.sources.reuse import DEP5, TOML
from silo.sources.tree_rights import TreeRights, is_license_name

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
_REMOTE_URL = re.compile(r"\[remote \"origin\"\][^\[]*?\n\s*url\s*=\s*(\S+)")


def plan_tree(recipe: SourceRecipe, base: Path) -> list[Part]:
    """Parts over the source and documentation files of each tree; REUSE files yield only their own problems."""
    settled = settle(recipe, base)
    parts = [
        part
        for root in folders(recipe, base)
        for part in plan_members(root, settled, chosen=_chosen, base=base, skip=_SKIPPED)
    ]
    if not parts:
        raise SiloError("input-empty", f"no source files in {', '.join(recipe.paths)}")
    return parts


def _chosen(entry: Entry) -> bool:
    name = PurePosixPath(entry.relative).name
    if is_license_name(name):
        return False
    return entry.suffix in _CODE or entry.suffix in _DOCS or _speaks_of_rights(entry.relative)


def _speaks_of_rights(relative: str) -> bool:
    return relative == DEP5 or relative.rpartition("/")[2] == TOML


def read_tree(part: Part, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The files of one part with what the tree says about each."""
    root = Path(part.path)
    rights = TreeRights(root)
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
            yield Quarantined(shown(root, relative), error.code, error.message)
            continue
        kind = "docs" if PurePosixPath(relative).suffix.lower() in _DOCS else "code"
        evidence = rights.evidence_for(relative) + defaults.evidence + defaults.heard("/" + relative)
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
        found = _REMOTE_URL.search(read_text(root, ".git/config", 1 << 20))
    except SiloError:
        return ""
    if not found:
        return ""
    place = re.sub(r"^[a-z+]+://", "", found[1])
    pieces = [piece for piece in re.split(r"[/:]", place.rpartition("@")[2]) if piece]
    return pieces[-2] if len(pieces) > 2 else ""
