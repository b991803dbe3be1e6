"""A place for stores that are made by the thousand."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where the machine has such a thing: a killed process loses nothing there either."""
    if not _MEMORY.is_dir():
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="silo-test-", dir=_MEMORY))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
