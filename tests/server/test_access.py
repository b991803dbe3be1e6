"""Who may ask for what: every route with every role, keys that are stored as hashes, and bounds that requests keep."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from silo.cli import main
from silo.errors import SiloError
from silo.server.access import Key, KeyRing, Role, create_key, read_key_log, read_keys, revoke_key
from silo.server.app import ENDPOINTS, Endpoint, build_app
from silo.server.config import ModelRecipe, ServerRecipe, require_servable
from tests.server.conftest import Served

CALLERS = ("", "reader", "owner", "operator")


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda item: f"{item.method} {item.path}")
def test_a_route_lets_exactly_its_roles_pass(served: Served, endpoint: Endpoint, caller: str) -> None:
    path = endpoint.path.replace("{", "").replace("}", "")
    answer = served.client(caller).request(endpoint.method, path, content=b"not even JSON")
    if not endpoint.roles or caller in endpoint.roles:
        assert answer.status_code not in (401, 403)
    else:
        assert answer.status_code == (401 if not caller else 403)


def test_every_route_of_the_application_is_listed_with_its_roles(served: Served) -> None:
    schema = served.app.openapi()
    listed = {(item.path, item.method.lower()): [str(role) for role in item.roles] for item in ENDPOINTS}
    found = {
        (path, method): operation["x-silo-roles"]
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    }
    assert found == listed
    for path in ("/docs", "/redoc", "//v1/models", "/v1//models"):
        assert served.client().get(path).status_code == 404


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Basic x", "Bearer wrong", "Bearer " + "x" * 5000, "bearer é"])
def test_a_key_that_is_none_opens_nothing(served: Served, header: str) -> None:
    answer = served.client("").get("/v1/models", headers={b"authorization": header.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["type"] == "authentication_error"


def test_permissions_and_limits_of_a_key_hold(served: Served) -> None:
    def ask(role: str, **change: Any) -> Any:
        request = {"model": "tiny", "prompt": "The quick", "max_tokens": 4, **change}
        return served.client(role).post("/v1/completions", json=request)

    assert ask("plain", logprobs=1).json()["error"]["param"] == "logprobs"
    assert ask("reader", logprobs=1).status_code == 200
    assert ask("reader", silo={"neighbours": 1}).status_code == 403
    assert ask("plain", max_tokens=9).json()["error"]["param"] == "max_tokens"


def test_a_policy_can_only_be_narrowed(served: Served) -> None:
    request = {"model": "tiny", "prompt": "The quick", "max_tokens": 6, "temperature": 0}
    for policy in ("", 'owner == "f" or owner != "f"', 'owner == "f"'):
        body = {**request, "silo": {"policy": policy}} if policy else request
        choice = served.client("plain").post("/v1/completions", json=body).json()["choices"][0]
        assert all(item["owner"] != "f" for item in choice["silo"]["documents"])
    wide = served.client("reader").post("/v1/completions", json=request).json()["choices"][0]
    assert any(item["owner"] == "f" for item in wide["silo"]["documents"])


def test_keys_are_kept_as_hashes_by_their_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key, secret = create_key(file, roles=["reader"], name="first")
    assert len(secret) >= 43
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ring = KeyRing(file)
    assert ring.find(f"Bearer {secret}") == key
    other, second = create_key(file, roles=["owner"], owner="A. Writer")
    assert ring.find(f"Bearer {second}") == other
    revoke_key(file, "first")
    assert ring.find(f"Bearer {secret}") is None
    assert read_keys(file) == (other,)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"format": "silo-keys-1", "keys": [{}]}', b'{"format": "other", "keys": []}']
)
def test_a_damaged_file_of_keys_opens_nothing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys.json"
    _, secret = create_key(file, roles=["operator"])
    ring = KeyRing(file)
    file.write_bytes(content)
    with pytest.raises(SiloError) as damaged:
        ring.find(f"Bearer {secret}")
    assert damaged.value.code == "keys-invalid"


def test_keys_that_are_put_back_open_again(tmp_path: Path) -> None:
    file, aside = tmp_path / "keys.json", tmp_path / "aside.json"
    key, secret = create_key(file, roles=["operator"])
    ring = KeyRing(file)
    file.rename(aside)
    with pytest.raises(SiloError, match="no keys"):
        ring.find(f"Bearer {secret}")
    aside.rename(file)
    assert ring.find(f"Bearer {secret}") == key


@pytest.mark.parametrize(
    "change",
    [
        {"owner": ""},
        {"owner": None},
        {"policy": None},
        {"policy": "owner ="},
        {"guard": -1},
        {"guard": "5"},
        {"max_tokens": True},
        {"roles": []},
        {"roles": ["king"]},
    ],
)
def test_a_key_that_was_changed_by_hand_never_opens_more_than_one_that_was_made(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    file = tmp_path / "keys.json"
    create_key(file, roles=["owner"], owner="A. Writer")
    content = json.loads(file.read_text())
    content["keys"][0] |= change
    file.write_text(json.dumps(content))
    with pytest.raises(SiloError) as changed:
        read_keys(file)
    assert changed.value.code == "keys-invalid"


def test_keys_that_cannot_be_read_are_a_matter_for_the_log(served: Served) -> None:
    file, aside = served.place / "keys.json", served.place / "aside.json"
    file.rename(aside)
    try:
        answer = served.client("", authorization="Bearer silo-nobody").get("/v1/models")
    finally:
        aside.rename(file)
    assert answer.status_code == 503
    assert str(served.place) not in answer.text
    assert served.client().get("/v1/models").status_code == 200


def test_the_command_shows_a_key_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "keys.json")
    assert main(["keys", "create", file, "--role", "owner", "--owner", "f", "--allow", "text", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["keys", "list", file, "--json"]) == 0
    assert made["key"] not in (shown := capsys.readouterr().out)
    assert json.loads(shown)[0]["id"] == made["id"]
    assert main(["keys", "revoke", file, made["id"], "--json"]) == 0
    assert main(["keys", "revoke", file, made["id"]]) == 3
    assert main(["keys", "create", file, "--role", "king"]) == 2
    assert main(["keys", "create", file, "--role", "owner"]) == 2
    assert main(["keys", "create", file, "--policy", "owner ="]) == 2


def test_an_address_that_others_reach_needs_keys() -> None:
    open_to_all = ServerRecipe(models={"a": ModelRecipe("a")}, host="0.0.0.0")
    with pytest.raises(SiloError, match="no keys"):
        require_servable(open_to_all)
    require_servable(ServerRecipe(models={"a": ModelRecipe("a")}, host="::1"))
    with pytest.raises(SiloError, match="nothing to serve"):
        require_servable(ServerRecipe())


def test_without_keys_everybody_on_this_machine_is_an_operator(served: Served, tmp_path: Path) -> None:
    assert KeyRing(None).find(None) == Key("local", tuple(Role))
    with pytest.raises(SiloError, match="no keys at"):
        build_app(ServerRecipe(models={"a": ModelRecipe("a")}, keys=str(tmp_path / "none.json")))


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost:1:2", "[::1", "é"])
def test_a_page_of_somebody_else_does_not_reach_a_local_server(served: Served, host: str) -> None:
    answer = served.client().get("/v1/models", headers={b"host": host.encode("latin-1")})
    assert answer.status_code == 421
    assert served.client().get("/v1/models", headers={"host": "localhost:8000"}).status_code == 200


def test_what_is_too_large_is_refused(served: Served) -> None:
    client = served.client()
    big = b'{"prompt": "' + b"x" * 200_000 + b'"}'
    for body in (big, (big[at : at + 1000] for at in range(0, len(big), 1000))):
        answer = client.post("/tokenize", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 413
    assert client.get("/v1/models", headers={"x-long": "x" * 40_000}).status_code == 431
    long = client.post("/v1/completions", json={"model": "tiny", "prompt": "x" * 3000})
    assert long.json()["error"]["param"] == "prompt"


def test_health_and_numbers(served: Served) -> None:
    assert served.client("").get("/healthz").json() == {"status": "ok"}
    assert served.client("").get("/readyz").json() == {"status": "ready"}
    asked = {"model": "tiny", "prompt": ["The", "A"], "max_tokens": 3}
    before = served.client().get("/metrics").text
    assert served.client().post("/v1/completions", json=asked).status_code == 200
    text = served.client().get("/metrics").text
    assert _number(text, "silo_first_token_seconds_count") == _number(before, "silo_first_token_seconds_count") + 2
    for name in ("search", "network"):
        assert _number(text, f"silo_{name}_seconds_count") >= _number(before, f"silo_{name}_seconds_count") + 3
        assert _number(text, f"silo_{name}_seconds_sum") > _number(before, f"silo_{name}_seconds_sum")
    assert '\nsilo_requests_total{route="/healthz",status="200"}' in text
    assert "silo_request_seconds_bucket" in text
    assert "\nsilo_waiting 0\n" in text


def _number(metrics: str, name: str) -> float:
    return next((float(line.split()[1]) for line in metrics.splitlines() if line.startswith(f"{name} ")), 0.0)


def test_an_operator_makes_and_takes_away_keys_by_the_rules_of_the_command(served: Served) -> None:
    operator = served.client()
    made = operator.post("/v1/silo/keys", json={"roles": ["owner"], "owner": "f", "name": "page", "texts": 2})
    assert made.status_code == 201
    secret, key = made.json()["key"], made.json()["id"]
    assert secret not in (served.place / "keys.json").read_text()
    assert next(item for item in operator.get("/v1/silo/keys").json()["data"] if item["id"] == key)["texts"] == 2
    own = {"authorization": f"Bearer {secret}"}
    assert served.client("", **own).get("/v1/silo/me").json()["owner"] == "f"

    refused: list[dict[str, Any]] = [{"roles": ["owner"]}, {"roles": ["king"]}, {"roles": []}]
    for wrong in (*refused, {"roles": ["reader"], "policy": "tier ~"}):
        assert operator.post("/v1/silo/keys", json=wrong).status_code == 400
    mine = operator.get("/v1/silo/me").json()["id"]
    assert operator.delete(f"/v1/silo/keys/{mine}").status_code == 400
    assert operator.delete("/v1/silo/keys/page").status_code == 404
    assert operator.delete(f"/v1/silo/keys/{key}").json()["revoked"]["name"] == "page"
    assert served.client("", **own).get("/v1/silo/me").status_code == 401

    last, before = operator.get("/v1/silo/keys/log", params={"limit": 2}).json()["data"]
    assert (last["kind"], before["kind"]) == ("key-revoked", "key-created")
    assert last["content"]["key"] == before["content"]["key"] == key
    assert last["content"]["by"] == mine
    assert secret not in (served.place / "keys.log.jsonl").read_text()


def test_the_command_line_notes_keys_in_the_same_log(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key, _ = create_key(file, roles=["reader"], name="0" * 32)
    revoke_key(file, key.id)
    assert [(item.kind, item.content["by"]) for item in read_key_log(file)] == [
        ("key-created", "command line"),
        ("key-revoked", "command line"),
    ]
