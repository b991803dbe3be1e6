"""`silo serve --ray`: replicas behind Ray Serve answer as the server does, refuse as it does, and forget with it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from silo.errors import SiloError
from silo.server.config import ServerRecipe, add_model, require_servable
from tests.inference.world import make_model, make_store

CONFIG = """
port = {port}
ray = "{address}"
parts = 2
replicas = 2
home = "home"

[models.tiny]
model = "model"
stores = ["store"]
method = "knn+ngram"

[limits]
slots = 2
queue = 2
"""


@dataclass(frozen=True)
class Served:
    port: int

    def call(self, path: str, body: Any = None, *, replica: bool = False) -> tuple[int, Any, dict[str, str]]:
        """Status, content and headers of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port + replica}{path}", data, {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer), dict(answer.headers)
        except urllib.error.HTTPError as error:
            content = error.read()
            found = json.loads(content) if content.startswith(b"{") else content
            return error.code, found, {name.lower(): value for name, value in error.headers.items()}

    def complete(self, prompt: str, *, replica: bool) -> Any:
        asked = {"model": "tiny", "prompt": prompt, "max_tokens": 6, "seed": 4, "logprobs": 2, "echo": True}
        status, content, _ = self.call("/v1/completions", asked, replica=replica)
        assert status == 200, content
        return content["choices"]


@pytest.fixture(scope="module")
def served(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("served")
    make_store(root / "store", make_model(root)).close()
    port = free_ports()
    (root / "server.toml").write_text(CONFIG.format(port=port, address=cluster.address))
    command = [sys.executable, "-m", "silo", "serve", str(root / "server.toml"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["models"] == ["tiny"]
        yield Served(port)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode == 0


def free_ports() -> int:
    """A port that is free, as is the next."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def test_replicas_answer_as_the_server_does(served: Served) -> None:
    for prompt in ("The quick brown", "Tea is made with", "the licensee shall"):
        assert served.complete(prompt, replica=True) == served.complete(prompt, replica=False)


def test_replicas_change_nothing(served: Served) -> None:
    for path in ("/v1/silo/stores", "/v1/silo/jobs", "/v1/silo/documents"):
        assert served.call(path)[0] == 200
        assert served.call(path, replica=True)[0] == 404


def test_too_many_requests_are_told_to_come_back(served: Served) -> None:
    asked = {"model": "tiny", "prompt": "The sea is", "max_tokens": 40, "n": 1}
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda _: served.call("/v1/completions", asked, replica=True), range(24)))
    refused = [headers for status, _, headers in answers if status == 429]
    assert {status for status, _, _ in answers} <= {200, 429}
    assert refused
    assert all("retry-after" in headers for headers in refused)


def test_what_the_server_erases_no_replica_credits(served: Served) -> None:
    prompt = "The licensee shall not copy the"
    before = json.dumps(served.complete(prompt, replica=True))
    status, documents, _ = served.call("/v1/silo/documents")
    assert status == 200
    name = next(item["id"] for item in documents["data"] if item["external_id"] == "law")
    assert name in before
    status, job, _ = served.call("/v1/silo/erase", {"document": f"id:{name}"})
    assert status in (200, 202), job
    while job["state"] not in ("done", "failed"):
        time.sleep(0.1)
        _, job, _ = served.call(f"/v1/silo/jobs/{job['id']}")
    assert job["state"] == "done"
    for _ in range(4):
        assert name not in json.dumps(served.complete(prompt, replica=True))
    assert served.complete(prompt, replica=True) == served.complete(prompt, replica=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parts": 2}, "--ray"),
        ({"replicas": 2}, "--ray"),
        ({"ray": "auto", "replicas": -1}, "--ray"),
        ({"ray": "auto", "replicas": 1, "port": 0}, "--port"),
    ],
)
def test_what_cannot_be_served_is_refused_first(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SiloError) as caught:
        require_servable(add_model(ServerRecipe(**options), "model", []))
    assert caught.value.code == "usage"
    assert words in caught.value.hint
