"""Preference signals of a site, read from files beside the text. They only narrow; an unreadable file denies.

Looked for: robots.txt, tdmrep.json, rsl.xml or license.xml, c2pa.json or cawg.json, also in `.well-known/`;
in the folder itself and in subfolders named after hosts. Nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from silo.errors import SiloError
from silo.records import Evidence
from silo.rights.signals.cawg import read_cawg
from silo.rights.signals.robots import read_robots
from silo.rights.signals.rsl import read_rsl
from silo.rights.signals.rules import ALL_AI, Rule, Unreadable, applicable_evidence, path_of, site_rule
from silo.rights.signals.tdmrep import read_tdmrep

MAX_BYTES = 1 << 20
_WELL_KNOWN = ".well-known"
_RSL = ("rsl.xml", "license.xml", f"{_WELL_KNOWN}/rsl.xml")
_JSON: tuple[tuple[str, Callable[[str], tuple[Rule, ...]]], ...] = (
    ("tdmrep.json", read_tdmrep),
    (f"{_WELL_KNOWN}/tdmrep.json", read_tdmrep),
    ("c2pa.json", read_cawg),
    ("cawg.json", read_cawg),
)


@dataclass(frozen=True, slots=True)
class _Site:
    """The rules of one site, by file."""

    files: tuple[tuple[str, tuple[Rule, ...]], ...]

    def evidence_for(self, path: str) -> tuple[Evidence, ...]:
        evidence = [item for file, rules in self.files for item in applicable_evidence(rules, path, file=file)]
        return tuple(
            sorted(set(evidence), key=lambda item: (item.where, item.method, item.asserted, sorted(item.denies)))
        )


@dataclass(frozen=True, slots=True)
class Signals:
    """All signals of a folder: those of the folder itself, and those of hosts that have a subfolder."""

    site: _Site
    hosts: Mapping[str, _Site]

    def evidence_for(self, path: str) -> tuple[Evidence, ...]:
        """What the signals say about a path such as /a/b.html, or a full URL (then its host's files count)."""
        return self.hosts.get(_host(path), self.site).evidence_for(path_of(path))


def load_signals(directory: Path) -> Signals:
    """Read every signal file of a folder. Only a missing folder is an error."""
    if not directory.is_dir():
        raise SiloError("input-missing", f"there is no signal folder at {directory}")
    hosts = {
        folder.name.lower(): _load_site(folder, f"{folder.name}/")
        for folder in sorted(directory.iterdir())
        if folder.is_dir() and not folder.name.startswith(".")
    }
    return Signals(_load_site(directory, ""), hosts)


def _host(location: str) -> str:
    if "://" not in location[:16] and not location.startswith("//"):
        return ""
    try:
        return (urlsplit(location).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _load_site(folder: Path, prefix: str) -> _Site:
    terms_known = any(_exists(folder / name) for name in _RSL)
    readers: list[tuple[str, Callable[[str], tuple[Rule, ...]]]] = [
        ("robots.txt", lambda text: read_robots(text, terms_known=terms_known)),
        *_JSON,
        *((name, read_rsl) for name in _RSL),
    ]
    present = ((name, reader) for name, reader in readers if _exists(folder / name))
    return _Site(tuple((prefix + name, _read(folder / name, reader)) for name, reader in present))


def _exists(path: Path) -> bool:
    """True also for a broken link: something was meant to be there, so it must not pass for absent."""
    return path.is_symlink() or path.exists()


def _read(path: Path, reader: Callable[[str], tuple[Rule, ...]]) -> tuple[Rule, ...]:
    """The rules of one file; whatever goes wrong denies everything below it."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise Unreadable(f"larger than {MAX_BYTES} bytes")
        return reader(content.decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError, SiloError, Unreadable) as error:
        return (site_rule("signal-unreadable", 0, f"cannot be read: {_reason(error)}"[:200], ALL_AI),)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, SiloError):  # of the strict JSON reader; keys of a site's file are not quoted
        return f"not valid JSON: {'a key is given twice' if error.code == 'json-duplicate-key' else error.message}"
    return str(error)
