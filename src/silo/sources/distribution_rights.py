"""Promises the licence statements of one installed distribution: its core metadata and the licence files it ships."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path, PurePosixPath

from silo.errors import SiloError
from silo.records import Evidence
from silo.rights import read_license_file
from silo.sources.reader.fields import assessed
from silo.sources.tree_rights import is_license_name, restricted

_MAX_BYTES = 1 << 20
_LONGEST_NAME = 300
_SAYS_NOTHING = frozenset({"License :: OSI Approved", "License"})


def distribution_evidence(distribution: Distribution, place: Path, label: str) -> tuple[Evidence, ...]:
    """What METADATA states (PEP 639 first, then classifiers, then the License field), and every licence file.

    A licence file in words nobody knows ("see LICENSE.APACHE") says nothing against a licence that METADATA states.
    """
    stated, shipped = _stated(distribution, label), _shipped(distribution, place, label)
    if stated:
        shipped = tuple(item for item in shipped if item.method != "unrecognised")
    return stated + shipped


def _stated(distribution: Distribution, label: str) -> tuple[Evidence, ...]:
    core = distribution.metadata
    if expressions := core.get_all("License-Expression"):
        return tuple(assessed(text[:4096], f"{label} METADATA: License-Expression", "pep639") for text in expressions)
    classifiers = [line.strip() for line in core.get_all("Classifier") or () if line.startswith("License")]
    telling = [line for line in classifiers if line not in _SAYS_NOTHING]
    if telling:
        return tuple(assessed(line[:4096], f"{label} METADATA: Classifier") for line in telling)
    where = f"{label} METADATA: License"
    fields = [text.strip() for text in core.get_all("License") or ()]
    return tuple(
        assessed(text, where) if len(text) <= _LONGEST_NAME else read_license_file(text[:_MAX_BYTES], where=where)
        for text in fields
        if text and text.upper() != "UNKNOWN"
    )


def _shipped(distribution: Distribution, place: Path, label: str) -> tuple[Evidence, ...]:
    declared = [PurePosixPath(name) for name in distribution.metadata.get_all("License-File") or ()]
    beside = [PurePosixPath(path.name) for path in sorted(place.iterdir())]
    names = sorted({name for name in (*declared, *beside) if is_license_name(name.name)})
    found = []
    for name in names:
        if name.is_absolute() or ".." in name.parts:
            found.append(restricted("a licence file outside the distribution", f"{label} METADATA: License-File"))
            continue
        path = next((path for path in (place / "licenses" / name, place / name) if path.is_file()), None)
        if path is not None:
            found.append(_file(path, f"{label}: {name}"))
    return tuple(found)


def _file(path: Path, where: str) -> Evidence:
    try:
        with path.open("rb") as stream:
            return read_license_file(stream.read(_MAX_BYTES).decode("utf-8", "replace"), where=where)
    except (OSError, SiloError):
        return restricted("a licence file that cannot be read", where)
