"""A place for stores that are made by the thousand."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@pytest.fixture
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory, where the machine has such a thing: a killed process loses nothing there either."""
    with _folder(tmp_path_factory) as folder:
        yield folder


@pytest.fixture(scope="module")
def module_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same for all tests of a module."""
    with _folder(tmp_path_factory) as folder:
        yield folder


@contextmanager
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not _MEMORY.is_dir():
        yield tmp_path_factory.mktemp("memory")
        return
    folder = Path(tempfile.mkdtemp(prefix="silo-test-", dir=_MEMORY))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no process waits for it in the end."""
    items.sort(key=lambda item: "test_every_answer_is_of_one_state" not in item.name)
