"""The tools of the Model Context Protocol with the SDK's own client, over standard input and over HTTP."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from silo.cli import main
from silo.errors import SiloError
from silo.pairing import open_store
from silo.server.access import create_key
from silo.server.mcp.tools import Shelf, StoreTools
from silo.store.policy import Policy
from silo.store.selector import Selector
from tests.inference.world import TEXTS
from tests.server.conftest import Served

mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")
httpx2 = pytest.importorskip("httpx2", reason="comes with the extra mcp")

TOOLS = {"search", "fetch", "check_verbatim", "document_status", "notices"}


async def call(client: Any, name: str, **given: Any) -> Any:
    result = await client.call_tool(name, given)
    assert not result.is_error, result.content
    return result.structured_content


async def call_over_http(served: Served, key: str, name: str, **given: Any) -> Any:
    """The answer of one tool to a key; none with an empty name."""
    from mcp.client.streamable_http import streamable_http_client

    headers = {"authorization": f"Bearer {served.keys.get(key, key)}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        mcp.Client(streamable_http_client(f"{served.address}/mcp", http_client=http)) as client,
    ):
        return await client.call_tool(name, given)


def test_the_sdk_speaks_to_silo_mcp_over_standard_input(served: Served) -> None:
    parameters = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "silo", "mcp", "--store", str(served.place / "store"), "--quiet"],
        env={"PYTHONPATH": ":".join(sys.path)},
    )

    async def talk() -> None:
        async with mcp.Client(parameters) as client:
            listed = await client.list_tools()
            assert {tool.name for tool in listed.tools} == TOOLS
            assert all(tool.annotations.read_only_hint for tool in listed.tools)
            assert listed.cache_scope == "private" and listed.ttl_ms <= 1000
            best = (await call(client, "search", query="quick brown fox"))["results"][0]
            assert "quick brown" in best["text"] and best["license"] == "MIT"
            whole = await call(client, "fetch", id=best["id"])
            assert whole["text"] == TEXTS[best["external_id"]] and whole["whole"]
            wrong = await client.call_tool("fetch", {"id": "0" * 32})
            assert wrong.is_error and "nothing-selected" in wrong.content[0].text

    asyncio.run(talk())


def test_a_reader_asks_over_http_and_sees_no_text_without_the_permission(served: Served) -> None:
    answer = asyncio.run(call_over_http(served, "reader", "search", query="quick brown fox"))
    best = answer.structured_content["results"][0]
    assert best["external_id"] in ("fox", "dog") and "text" not in best
    shown = asyncio.run(call_over_http(served, "operator", "search", query="quick brown fox"))
    assert "quick" in shown.structured_content["results"][0]["text"]


@pytest.mark.parametrize(("key", "status"), [("", 401), ("silo-nobody", 401), ("owner", 403)])
def test_a_caller_without_the_role_is_sent_away(served: Served, key: str, status: int) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"accept": "application/json, text/event-stream"}
    if key:
        headers["authorization"] = f"Bearer {served.keys.get(key, key)}"
    assert served.client("", **headers).post("/mcp", json=body).status_code == status
    with pytest.raises(BaseExceptionGroup, match="TaskGroup"):
        asyncio.run(call_over_http(served, key, "search", query="fox"))


def test_a_body_that_is_too_long_is_refused(served: Served) -> None:
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    parts = iter([b" " * 60_000] * 2)
    assert served.client("reader").post("/mcp", content=parts, headers=headers).status_code == 413


def test_the_policy_and_guard_of_a_key_hold(served: Served) -> None:
    (narrow,) = create_key(
        served.place / "keys.json", roles=["reader"], permissions=["text"], policy='owner != "f"', guard=5
    )[1:]
    answer = asyncio.run(call_over_http(served, narrow, "search", query="quick brown fox jumps"))
    results = answer.structured_content["results"]
    assert results and all(item["external_id"] != "fox" for item in results)
    assert all(len(item["text"].encode()) <= 5 for item in results)
    with open_store(served.place / "store").reading() as view:
        fox = next(view.documents(Selector(document="fox"))).id
    status = asyncio.run(call_over_http(served, narrow, "document_status", id=fox))
    assert status.structured_content == {"held": False, "documents": []}


@pytest.fixture(scope="module")
def tools(served: Served) -> StoreTools:
    return StoreTools([Shelf("store", open_store(served.place / "store"))], shows_text=True)


def test_repeated_runs_are_named_with_their_documents(tools: StoreTools) -> None:
    text = f"He wrote: {TEXTS['tea']} And then nothing more."
    found = tools.check_verbatim(text)
    (longest, *_) = found["runs"]
    assert found["longest"] == longest["tokens"] >= len(TEXTS["tea"])
    start, end = longest["characters"]
    assert TEXTS["tea"] in text[start:end]
    assert [(item["external_id"], item["may_quote"]) for item in longest["documents"]] == [("tea", False)]
    assert tools.check_verbatim("zzzzzz qqqqqq xxxxxx")["runs"] == []


def test_text_that_may_not_be_quoted_is_not_shown(tools: StoreTools) -> None:
    best = tools.search("licensee shall not copy")["results"][0]
    assert (best["external_id"], best["text"], best["whole"]) == ("law", "", False)
    assert tools.fetch(best["id"])["text"] == ""


def test_status_and_notices(tools: StoreTools) -> None:
    (sea,) = tools.document_status(text=TEXTS["sea"])["documents"]
    assert (sea["external_id"], sea["license"]) == ("sea", "CC-BY-4.0")
    said = tools.notices([sea["id"], "f" * 32])
    assert said["missing"] == ["f" * 32]
    assert said["notices"] == [{"id": sea["id"], "notice": "CC-BY-4.0: name s as the author of sea"}]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("document_status", {}),
        ("document_status", {"id": "0" * 32, "text": "x" * 40}),
        ("document_status", {"text": "short"}),
        ("document_status", {"id": "no id"}),
        ("search", {"query": " "}),
        ("check_verbatim", {"text": "x" * 20_001}),
        ("notices", {"ids": ["0" * 32] * 101}),
    ],
)
def test_what_cannot_be_asked_says_why(tools: StoreTools, name: str, given: dict[str, Any]) -> None:
    with pytest.raises(SiloError) as caught:
        getattr(tools, name)(**given)
    assert caught.value.code == "usage"


def test_a_policy_of_the_command_is_checked_before_a_store_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    for options, code in [
        (["--policy", "owner"], "policy-invalid"),
        ([], "usage"),
        (["--store", "none"], "not-a-store"),
    ]:
        assert main(["mcp", *options]) in (2, 3)
        assert f"[{code}]" in capsys.readouterr().err or code == "not-a-store"


def test_without_the_extra_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    monkeypatch.delitem(sys.modules, "silo.server.mcp.protocol", raising=False)
    assert main(["mcp", "--store", "x"]) == 6
    assert "silo-lm[mcp]" in capsys.readouterr().err


def test_policies_of_the_shelf_bound_every_tool(served: Served) -> None:
    shelf = Shelf("store", open_store(served.place / "store"), Policy.parse('license == "MIT"'), 3)
    tools = StoreTools([shelf], shows_text=True)
    assert tools.document_status(text=TEXTS["sea"])["held"] is False
    assert tools.check_verbatim(TEXTS["sea"])["longest"] < len(TEXTS["sea"])
    assert len(tools.search("lazy dog")["results"][0]["text"]) <= 3
