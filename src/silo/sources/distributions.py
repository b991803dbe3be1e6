"""Kind `distributions`: the Python code and docs of installed distributions, licensed as their core metadata says.

Documents are named `<name>-<version>:<path>`, so that the same release has the same ids on every machine.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

from silo.errors import SiloError
from silo.recipe import Limits, SourceRecipe
from silo.records import Candidate, Evidence, Quarantined
from silo.rights import is_license_name, read_license_file
from silo.sources.reader.fields import Defaults, assess_statement, defaults_of, unreadable_licence
from silo.sources.reader.files import read_text, walk
from silo.sources.reader.plan import (
    SourcePart,
    describe_file,
    is_excluded,
    resolve_signals,
    signals_stamp,
    size_of,
    stamp_of,
)

STDLIB = "stdlib"
_MAX_BYTES = 1_000_000
_MAX_LICENSE_BYTES = 1 << 20
_LONGEST_NAME = 300
_SAYS_NOTHING = frozenset({"License :: OSI Approved", "License"})
_DOCS = frozenset({".md", ".rst", ".txt"})
_INFO = (".dist-info", ".egg-info")
_TEST_DIRECTORIES = frozenset({"test", "tests", "testing", "test_data", "testdata", "data"})
_VENDORED = frozenset({"_vendor", "vendor", "_vendored", "vendored", "_vendored_packages", "third_party", "extern"})
_STDLIB_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "_bundled"})


def plan_distributions(recipe: SourceRecipe, base: Path) -> list[SourcePart]:
    """One part for each distribution named in `paths`; none or `*` means all, and `*` adds the standard library."""
    recipe = resolve_signals(recipe, base)
    installed = _find_installed()
    names = recipe.paths or tuple(installed)
    if "*" in names:
        names = (*names, *installed, STDLIB)
    parts: list[SourcePart] = []
    for name in sorted({item if item == STDLIB else str(canonicalize_name(item)) for item in names} - {"*"}):
        if is_excluded(Path(name), recipe.exclude, Path()):
            continue
        if name != STDLIB and name not in installed:
            raise SiloError("input-missing", f"no distribution {name} is installed here", f"run: pip install {name}")
        place = _stdlib_root() if name == STDLIB else installed[name]
        part = _plan_distribution(name, place, recipe)
        if part.members or (recipe.paths and "*" not in recipe.paths):
            parts.append(part)
    if not parts:
        raise SiloError("input-empty", "no installed distribution has files to read")
    return parts


def _plan_distribution(name: str, place: Path, recipe: SourceRecipe) -> SourcePart:
    root = place if name == STDLIB else place.parent
    members = _stdlib_members(root) if name == STDLIB else _members(place)
    members = [member for member in members if not is_excluded(root / member, recipe.exclude, root)]
    lines = [describe_file(member, root / member) for member in members]
    if name != STDLIB:
        lines += [describe_file(file, place / file) for file in ("METADATA", "PKG-INFO")]
    return SourcePart(
        recipe=recipe,
        path=str(place),
        label=name,
        bytes=sum(size_of(root / member) for member in members),
        stamp=stamp_of(lines, signals_stamp(recipe)),
        members=tuple(members),
    )


def _find_installed() -> dict[str, Path]:
    """Metadata directories by normalised name; the first on sys.path wins, as it does for imports."""
    places: dict[str, Path] = {}
    for entry in sys.path:
        here = Path(entry or ".").absolute()
        listing = sorted(here.iterdir()) if here.is_dir() else []
        for place in listing:
            if place.name.endswith(_INFO) and place.is_dir():
                name = str(canonicalize_name(place.name.rpartition(".")[0].partition("-")[0]))
                places.setdefault(name, place)
    return places


def _members(place: Path) -> list[str]:
    try:
        files = Distribution.at(place).files or []
    except (OSError, ValueError, KeyError):
        files = []
    return sorted({str(file) for file in files if _is_wanted(PurePosixPath(str(file)), place.parent)})


def _is_wanted(path: PurePosixPath, root: Path) -> bool:
    if path.is_absolute() or ".." in path.parts or path.parts[0].endswith(_INFO):
        return False
    if path.suffix not in _DOCS and path.suffix != ".py":
        return False
    if path.suffix in _DOCS and _TEST_DIRECTORIES & set(path.parts[:-1]):
        return False
    return 0 < size_of(root / path) <= _MAX_BYTES


def _stdlib_root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _stdlib_members(root: Path) -> list[str]:
    return sorted(
        entry.relative
        for entry in walk(root, _STDLIB_SKIPPED)
        if entry.suffix == ".py" and not entry.is_link and 0 < entry.size <= _MAX_BYTES
    )


def read_distribution(part: SourcePart, limits: Limits) -> Iterator[Candidate | Quarantined]:
    """The documents of one distribution."""
    place = Path(part.path)
    defaults = defaults_of(part, limits)
    if part.label == STDLIB:
        evidence: tuple[Evidence, ...] = (assess_statement("PSF-2.0", "the Python standard library"),)
        stdlib = f"python-{platform.python_version()}"
        yield from _documents(part, place, limits, defaults, evidence, "Python Software Foundation", stdlib)
        return
    try:
        distribution = Distribution.at(place)
        release = f"{distribution.name}-{distribution.version}"
        evidence = _evidence(distribution, place, part.label)
    except Exception as error:
        # Broken metadata shows in many ways; without it no file has an owner or a licence.
        yield Quarantined(f"{part.label}/METADATA", "metadata-invalid", f"cannot be read: {type(error).__name__}")
        return
    yield from _documents(part, place.parent, limits, defaults, evidence, distribution.name, release)


def _documents(
    part: SourcePart,
    root: Path,
    limits: Limits,
    defaults: Defaults,
    evidence: tuple[Evidence, ...],
    owner: str,
    release: str,
) -> Iterator[Candidate | Quarantined]:
    source = "python:stdlib" if part.label == STDLIB else f"pypi:{part.label}"
    for member in part.members:
        try:
            text = read_text(root, member, limits.max_record_bytes)
        except SiloError as error:
            yield Quarantined(f"{part.label}/{member}", error.code, error.message)
            continue
        path = PurePosixPath(member)
        inherited = () if _VENDORED & set(path.parts[:-1]) else evidence
        yield Candidate(
            external_id=f"{release}:{member}",
            text=text,
            source=source,
            domain=defaults.domain or ("docs" if path.suffix in _DOCS else "code"),
            evidence=inherited + defaults.evidence + defaults.signal_evidence("/" + member),
            owner=owner,
            meta={"package": release, "path": member},
        )


def _evidence(distribution: Distribution, place: Path, label: str) -> tuple[Evidence, ...]:
    """What METADATA states (PEP 639 first, then classifiers, then the License field), and every licence file.

    A licence file in words nobody knows ("see LICENSE.APACHE") says nothing against a licence that METADATA states.
    """
    stated, shipped = _metadata_evidence(distribution, label), _file_evidence(distribution, place, label)
    if stated:
        shipped = tuple(item for item in shipped if item.method != "unrecognised")
    return stated + shipped


def _metadata_evidence(distribution: Distribution, label: str) -> tuple[Evidence, ...]:
    core = distribution.metadata
    if expressions := core.get_all("License-Expression"):
        return tuple(
            assess_statement(text[:4096], f"{label} METADATA: License-Expression", "pep639") for text in expressions
        )
    classifiers = [line.strip() for line in core.get_all("Classifier") or () if line.startswith("License")]
    telling = [line for line in classifiers if line not in _SAYS_NOTHING]
    if telling:
        return tuple(assess_statement(line[:4096], f"{label} METADATA: Classifier") for line in telling)
    where = f"{label} METADATA: License"
    fields = [text.strip() for text in core.get_all("License") or ()]
    return tuple(_field_evidence(text, where) for text in fields if text and text.upper() != "UNKNOWN")


def _field_evidence(text: str, where: str) -> Evidence:
    """A License field holds the name of a licence, or all of its text."""
    if len(text) <= _LONGEST_NAME:
        return assess_statement(text, where)
    return read_license_file(text[:_MAX_LICENSE_BYTES], where=where)


def _file_evidence(distribution: Distribution, place: Path, label: str) -> tuple[Evidence, ...]:
    declared = [PurePosixPath(name) for name in distribution.metadata.get_all("License-File") or ()]
    beside = [PurePosixPath(path.name) for path in sorted(place.iterdir())]
    names = sorted({name for name in (*declared, *beside) if is_license_name(name.name)})
    evidence = []
    for name in names:
        if name.is_absolute() or ".." in name.parts:
            where = f"{label} METADATA: License-File"
            evidence.append(unreadable_licence("a licence file outside the distribution", where))
            continue
        path = next((path for path in (place / "licenses" / name, place / name) if path.is_file()), None)
        if path is not None:
            evidence.append(_read_license(path, f"{label}: {name}"))
    return tuple(evidence)


def _read_license(path: Path, where: str) -> Evidence:
    try:
        with path.open("rb") as stream:
            return read_license_file(stream.read(_MAX_LICENSE_BYTES).decode("utf-8", "replace"), where=where)
    except (OSError, SiloError):
        return unreadable_licence("a licence file that cannot be read", where)
