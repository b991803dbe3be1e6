"""Short ways for the tests to read a source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from silo.recipe import Limits, SourceRecipe
from silo.records import Candidate, Quarantined
from silo.sources import plan, read


def read_source(base: Path, kind: str, *paths: str, limits: Limits | None = None, **recipe: Any) -> list[Any]:
    """Everything a source yields, in order."""
    parts = plan(SourceRecipe(kind=kind, paths=paths, **recipe), base)
    return [item for part in parts for item in read(part, limits or Limits())]


def good(items: list[Any]) -> list[Candidate]:
    """The candidates; the test fails if anything was quarantined."""
    assert [item for item in items if isinstance(item, Quarantined)] == []
    return [item for item in items if isinstance(item, Candidate)]


def one(items: list[Any]) -> Candidate:
    """The only candidate, with nothing quarantined."""
    (item,) = good(items)
    return item


def bad(items: list[Any]) -> list[tuple[str, str]]:
    """Where and why records were quarantined."""
    return [(item.where, item.code) for item in items if isinstance(item, Quarantined)]


def tiers(candidate: Candidate) -> list[str]:
    """The tiers of a candidate's licence evidence."""
    return [str(item.tier) for item in candidate.evidence if item.tier is not None]


def spdx(candidate: Candidate) -> list[str]:
    """The SPDX readings of a candidate's licence evidence."""
    return [item.spdx for item in candidate.evidence if item.tier is not None]


def write(base: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below a folder."""
    for name, content in files.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return base
