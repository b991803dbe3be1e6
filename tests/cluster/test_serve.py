"""What `silo serve --ray` is told must make sense before anything is opened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from silo.cluster.http import Call, Receive, _read_body, run_app
from silo.errors import SiloError
from silo.remote.place import remote_url
from silo.server.config import ServerRecipe, add_model, require_servable, with_absolute_paths
from silo.server.jobs import taking_up_jobs
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


def test_paths_are_those_of_the_folder_in_which_the_command_runs(tmp_path: Path) -> None:
    recipe = add_model(ServerRecipe(keys="keys.json", home="home"), "model", ["store", "s3://bucket/store"])
    found = with_absolute_paths(recipe, tmp_path)
    assert found.models["model"].model == str(tmp_path / "model")
    assert found.models["model"].stores[0] == str(tmp_path / "store")
    assert remote_url(found.models["model"].stores[1]) == "s3://bucket/store"
    assert (found.keys, found.home) == (str(tmp_path / "keys.json"), str(tmp_path / "home"))


def test_one_server_takes_up_the_jobs_of_a_home(tmp_path: Path) -> None:
    with taking_up_jobs(tmp_path), pytest.raises(SiloError) as caught, taking_up_jobs(tmp_path):
        pass
    assert caught.value.code == "busy" and "--home" in caught.value.hint


def _receive(*messages: dict[str, Any]) -> Receive:
    left = list(messages)

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    return receive


def test_a_client_that_leaves_before_the_end_of_its_request_asks_nothing() -> None:
    begun = {"type": "http.request", "body": b'{"a', "more_body": True}
    scope: dict[str, Any] = {"headers": []}
    assert asyncio.run(_read_body(scope, _receive(begun, {"type": "http.disconnect"}), 100)) is None
    assert asyncio.run(_read_body(scope, _receive(begun, {"type": "http.request", "body": b'"}'}), 100)) == b'{"a"}'


def test_of_a_body_that_is_too_long_only_the_headers_are_passed_on() -> None:
    scope = {"headers": [(b"content-length", b"101")]}
    assert asyncio.run(_read_body(scope, _receive(), 100)) == b""


def test_an_application_is_told_that_nobody_reads_on() -> None:
    seen: list[str] = []

    async def app(_: Any, receive: Receive, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start"})
        seen.append((await receive())["type"])
        with pytest.raises(OSError, match="nobody"):
            await send({"type": "http.response.body"})
        seen.append("stopped")

    async def ask() -> None:
        answers = run_app(app, Call({}, b""))
        assert (await anext(answers))["type"] == "http.response.start"
        await answers.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)

    asyncio.run(ask())
    assert seen == ["http.disconnect", "stopped"]
