"""What `silo serve --ray` is told must make sense before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.server.config import ServerRecipe, add_model, require_servable
from silo.server.replicas import application

NEEDS_RAY = False


@pytest.mark.parametrize(
    "options",
    [{"parts": 2}, {"ray": "auto", "parts": -1}, {"replicas": 2}, {"ray": "auto", "replicas": -1}],
)
def test_what_cannot_be_served_is_refused_first(options: dict[str, Any]) -> None:
    with pytest.raises(SiloError) as caught:
        require_servable(add_model(ServerRecipe(**options), "model", []))
    assert caught.value.code == "usage"
    assert "--ray" in caught.value.hint


def test_what_ray_deploys_by_itself_needs_keys(tmp_path: Path) -> None:
    (tmp_path / "silo.toml").write_text('ray = "auto"\nreplicas = 2\n[models.tiny]\nmodel = "model"\n')
    with pytest.raises(SiloError) as caught:
        application({"config": str(tmp_path / "silo.toml")})
    assert caught.value.code == "usage"
    assert "silo keys create" in caught.value.hint
