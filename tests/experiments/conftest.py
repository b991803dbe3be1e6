"""One lab for all tests of experiments: what one of them makes (corpus, models, stores) the next one finds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from silo.experiments.harness.lab import Lab
from tests.experiments.small import make_lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        yield make_lab(tmp_path_factory.mktemp("lab"), patch)
