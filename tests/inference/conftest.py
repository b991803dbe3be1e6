"""One small world for the tests of a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inference.world import make_model, make_store


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model` and `store`."""
    root = tmp_path_factory.mktemp("world")
    make_store(root / "store", make_model(root)).close()
    return root
