"""What `silo serve --ray` is told must make sense before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest

from silo.errors import SiloError
from silo.server.config import ServerRecipe, add_model, require_servable

NEEDS_RAY = False


@pytest.mark.parametrize(
    "options",
    [{"parts": 2}, {"ray": "auto", "parts": -1}],
)
def test_what_cannot_be_served_is_refused_first(options: dict[str, Any]) -> None:
    with pytest.raises(SiloError) as caught:
        require_servable(add_model(ServerRecipe(**options), "model", []))
    assert caught.value.code == "usage"
    assert "--ray" in caught.value.hint
