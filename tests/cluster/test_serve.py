"""`silo serve --ray` over HTTP: the answers of a server without a cluster, and documents that leave."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.inference.predict import open_predictor
from silo.inference.session import Session
from silo.server.config import ServerRecipe, add_model, require_servable
from tests.inference.world import make_model, make_store

CONFIG = """
port = {port}
ray = "{address}"
parts = 2
home = "home"

[models.tiny]
model = "model"
stores = ["store"]
method = "knn+ngram"
"""


@dataclass(frozen=True)
class Served:
    port: int
    root: Path

    def call(self, path: str, body: Any = None) -> Any:
        """The content of an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def complete(self, prompt: str) -> str:
        asked = {"model": "tiny", "prompt": prompt, "max_tokens": 6, "seed": 4}
        return json.dumps(self.call("/v1/completions", asked)["choices"])


@pytest.fixture(scope="module")
def served(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("served")
    make_store(root / "store", make_model(root)).close()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (root / "server.toml").write_text(CONFIG.format(port=port, address=cluster.address))
    command = [sys.executable, "-m", "silo", "serve", str(root / "server.toml"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["models"] == ["tiny"]
        yield Served(port, root)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode == 0


def test_answers_are_those_of_one_machine_and_what_is_erased_has_no_part_in_them(served: Served) -> None:
    predictor = open_predictor(served.root / "model", [served.root / "store"], method="knn+ngram")
    prompt = "The licensee shall not copy the"
    alone = Session(predictor).answer(prompt, max_tokens=6, seed=4, temperature=1.0)
    assert json.loads(served.complete(prompt))[0]["text"] == alone.text
    name = next(item["id"] for item in served.call("/v1/silo/documents")["data"] if item["external_id"] == "law")
    assert name in served.complete(prompt)
    job = served.call("/v1/silo/erase", {"document": f"id:{name}"})
    assert name not in served.complete(prompt)
    while job["state"] not in ("done", "failed"):
        time.sleep(0.1)
        job = served.call(f"/v1/silo/jobs/{job['id']}")
    assert job["state"] == "done"
    assert name not in served.complete(prompt)


@pytest.mark.parametrize(
    "options",
    [{"parts": 2}, {"ray": "auto", "parts": -1}],
)
def test_what_cannot_be_served_is_refused_first(options: dict[str, Any]) -> None:
    with pytest.raises(SiloError) as caught:
        require_servable(add_model(ServerRecipe(**options), "model", []))
    assert caught.value.code == "usage"
    assert "--ray" in caught.value.hint
