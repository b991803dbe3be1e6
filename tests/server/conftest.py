"""One server for all tests of this package: a tiny model that chats, a store, and keys of every role."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from silo.server.access import create_key
from silo.server.app import build_app
from silo.server.config import Limits, ModelRecipe, ServerRecipe
from tests.inference.world import make_model, make_store

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
KEYS = {
    "reader": {"roles": ["reader"], "permissions": ["logprobs"]},
    "plain": {"roles": ["reader"], "policy": 'owner != "f"', "max_tokens": 8, "guard": 12},
    "owner": {"roles": ["owner"], "owner": "f"},
    "operator": {"roles": ["operator"]},
}
LIMITS = Limits(texts=8, queue=8, slots=4, body_bytes=100_000, prompt_tokens=2000, max_tokens=64)


@dataclass(frozen=True)
class Served:
    """A running server: where it is, its folder, its application and its keys."""

    address: str
    place: Path
    app: FastAPI
    keys: dict[str, str]

    def client(self, role: str = "operator", **headers: str) -> TestClient:
        """A client in this process with the key of a role; none with an empty name."""
        key = {"authorization": f"Bearer {self.keys[role]}"} if role else {}
        return TestClient(self.app, base_url="http://127.0.0.1", headers={**key, **headers})


def make_place(root: Path) -> Path:
    """A folder with a model that was taught to chat, and a store."""
    (root / "tokenizer").mkdir()
    (root / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
    model = make_model(root)
    make_store(root / "store", model).close()
    return root


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = make_place(tmp_path_factory.mktemp("served"))
    file = place / "keys.json"
    keys = {name: create_key(file, name=name, **facts)[1] for name, facts in KEYS.items()}  # type: ignore[arg-type]
    recipe = ServerRecipe(
        models={"tiny": ModelRecipe(str(place / "model"), (str(place / "store"),))},
        keys=str(file),
        home=str(place / "home"),
        limits=LIMITS,
    )
    with serving(recipe, place, keys) as server:
        yield server


@contextmanager
def serving(recipe: ServerRecipe, place: Path, keys: dict[str, str]) -> Iterator[Served]:
    """A server that runs while the block does."""
    with running(recipe) as (address, app):
        yield Served(address, place, app, keys)


@contextmanager
def running(recipe: ServerRecipe) -> Iterator[tuple[str, FastAPI]]:
    """A server on a port of its own: its address and its application."""
    app = build_app(recipe)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", app
    finally:
        server.should_exit = True
        thread.join(30)
