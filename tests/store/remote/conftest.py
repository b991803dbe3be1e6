"""A home and quick looks at the head for every test of remote stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from silo.store.remote.working import WorkingCopy


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(WorkingCopy, "fresh_seconds", 0.02)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/remote"
