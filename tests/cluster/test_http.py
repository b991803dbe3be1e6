"""`silo serve --ray --replicas`: the same answers as one process, none lost with a writer, erasures seen by all."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from silo.server.access import create_key
from silo.server.app import build_app
from silo.server.config import ServerRecipe, read_config
from tests.inference.world import TEXTS
from tests.server.conftest import make_place

CONFIG = """
port = {port}
keys = "keys.json"
home = "home"
parts = 1
replicas = 2
ray = "{address}"

[models.tiny]
model = "model"
stores = ["store"]

[limits]
slots = 2
queue = 2
"""
PROMPTS = [text[:30] for text in TEXTS] + ["The quick", "A lazy dog", "fox"]


@dataclass(frozen=True)
class Server:
    """One that runs on the cluster: its address, its configuration and its key."""

    address: str
    recipe: ServerRecipe
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        return httpx2.post(f"{self.address}{path}", json=body, headers=self.headers, timeout=120)

    def complete(self, prompt: str, **more: Any) -> dict[str, Any]:
        """A completion; a full queue is waited for, as clients do."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 2, **more}
        while (found := self.post("/v1/completions", body)).status_code == 429:
            assert found.headers["retry-after"] and found.json()["error"]["code"] == "overloaded"
        assert found.status_code == 200, found.text
        answer: dict[str, Any] = found.json()
        return answer


@pytest.fixture(scope="module")
def server(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = make_place(tmp_path_factory.mktemp("http"))
    key = create_key(place / "keys.json", name="all", roles=["operator"])[1]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (place / "silo.toml").write_text(CONFIG.format(port=port, address=cluster.address))
    command = [sys.executable, "-m", "silo", "serve", str(place / "silo.toml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == f"serving tiny at http://127.0.0.1:{port}/v1\n"
            made = Server(f"http://127.0.0.1:{port}", read_config(place / "silo.toml"), key)
            yield made
            _stop_within_a_stream(made, process)
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
        assert process.wait(120) == 0
    assert not _replicas("") and not _named("silo-search")


def _stop_within_a_stream(server: Server, process: subprocess.Popen[str]) -> None:
    """A server that is told to stop finishes what it has begun."""
    body = {"model": "tiny", "prompt": "The quick", "max_tokens": 200, "temperature": 0, "stream": True}
    url = f"{server.address}/v1/completions"
    with httpx2.stream("POST", url, json=body, headers=server.headers, timeout=60) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert next(lines).startswith("data: ")
        process.send_signal(signal.SIGTERM)
        assert list(lines)[-1] == "data: [DONE]"


def _named(start: str) -> list[dict[str, str]]:
    from ray.util import list_named_actors

    return [actor for actor in list_named_actors(all_namespaces=True) if actor["name"].startswith(start)]


def _replicas(deployment: str) -> list[Any]:
    import ray

    found = _named(f"SERVE_REPLICA::silo#{deployment}")
    return [ray.get_actor(actor["name"], namespace=actor["namespace"]) for actor in found]


def _known(answer: dict[str, Any]) -> Any:
    """What does not depend on when and where an answer was made."""
    return answer["choices"], answer["usage"]


def test_answers_are_those_of_one_process(server: Server) -> None:
    with TestClient(build_app(server.recipe), base_url="http://127.0.0.1", headers=server.headers) as alone:
        for prompt in PROMPTS:
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 2}
            assert _known(server.complete(prompt)) == _known(alone.post("/v1/completions", json=body).json())


def test_a_stream_comes_as_it_is_written(server: Server) -> None:
    body = {"model": "tiny", "prompt": "The quick", "max_tokens": 12, "temperature": 0, "stream": True}
    with httpx2.stream("POST", f"{server.address}/v1/completions", json=body, headers=server.headers) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert answer.headers["content-type"].startswith("text/event-stream") and lines[-1] == "data: [DONE]"
    text = "".join(part["choices"][0]["text"] for part in map(_event, lines[:-1]) if part["choices"])
    assert text == server.complete("The quick")["choices"][0]["text"]


def _event(line: str) -> Any:
    return json.loads(line.removeprefix("data: "))


def test_the_desk_knows_what_writers_wrote(server: Server) -> None:
    for prompt in PROMPTS:
        answer = server.complete(prompt)
        found = httpx2.get(f"{server.address}/v1/silo/attributions/{answer['id']}", headers=server.headers).json()
        shares = [item["share"] for item in found["choices"][0]["documents"]]
        assert 0 < sum(shares) + found["choices"][0]["lm_share"] <= 1.001


def test_errors_are_those_of_the_server(server: Server) -> None:
    assert httpx2.post(f"{server.address}/v1/completions", json={}).status_code == 401
    assert server.post("/v1/completions", {"model": "none", "prompt": "x"}).json()["error"]["code"] == "model-not-found"
    assert server.post("/v1/none", {}).status_code == 404
    large = b" " * (server.recipe.limits.body_bytes + 10)
    found = httpx2.post(f"{server.address}/v1/completions", content=large, headers=server.headers, timeout=60)
    assert found.status_code == 413


def test_a_killed_writer_loses_no_answer(server: Server) -> None:
    import ray

    wanted = {prompt: _known(server.complete(prompt, max_tokens=40)) for prompt in PROMPTS}
    over, counts = threading.Event(), []

    def ask(number: int) -> None:
        asked = 0
        while not over.is_set():
            prompt = PROMPTS[(number + asked) % len(PROMPTS)]
            assert _known(server.complete(prompt, max_tokens=40)) == wanted[prompt]
            asked += 1
        counts.append(asked)

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, number) for number in range(4)]
        for _ in range(2):
            ray.kill(_replicas("writers")[0], no_restart=False)
            over.wait(8)
        over.set()
        for one in asking:
            one.result()
    assert min(counts) > 0


def test_no_writer_credits_what_was_erased(server: Server) -> None:
    listed = httpx2.get(f"{server.address}/v1/silo/documents", headers=server.headers).json()
    gone = listed["data"][0]["id"]
    job = server.post("/v1/silo/erase", {"document": gone}).json()
    while (job := _job(server, job["id"]))["state"] in ("queued", "running"):
        pass
    assert job["state"] == "done", job
    receipt = httpx2.get(f"{server.address}/v1/silo/receipts/{job['result']['receipt']}", headers=server.headers).json()
    assert receipt["checks"]["readers-drained"] is True and receipt["checks"]["residue-hits"] == 0
    for _ in range(4):
        for prompt in PROMPTS:
            assert gone not in json.dumps(server.complete(prompt))


def _job(server: Server, name: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(f"{server.address}/v1/silo/jobs/{name}", headers=server.headers).json()
    return found


def test_a_desk_that_ends_comes_back_with_its_searchers(server: Server) -> None:
    import ray

    searchers = {actor["name"] for actor in _named("silo-search")}
    ray.kill(_replicas("desk")[0], no_restart=False)
    begun = time.monotonic()
    assert server.complete("The quick")["choices"]
    assert time.monotonic() - begun < 5, "texts do not wait for the desk"
    url = f"{server.address}/v1/silo/stores"
    while (found := httpx2.get(url, headers=server.headers, timeout=10)).status_code == 503:  # none is kept waiting
        assert found.headers["retry-after"]
    assert found.status_code == 200
    assert {actor["name"] for actor in _named("silo-search")} == searchers


def test_ray_writes_its_own_file_of_the_application(server: Server, tmp_path: Path) -> None:
    import yaml
    from ray.serve.schema import ServeDeploySchema

    config = Path(server.recipe.keys).parent / "silo.toml"
    lines = f"from silo.server.replicas import application\napp = application({{'config': {str(config)!r}}})\n"
    (tmp_path / "deployment.py").write_text(lines)
    command = [str(Path(sys.executable).parent / "serve"), "build", "deployment:app", "-o", "serve.yaml"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    made = ServeDeploySchema.parse_obj(yaml.safe_load((tmp_path / "serve.yaml").read_text()))
    replicas = {item.name: item.num_replicas for item in made.applications[0].deployments}
    assert replicas == {"desk": 1, "writers": 2, "front": 2}
