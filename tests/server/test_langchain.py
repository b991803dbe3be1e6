"""LangChain's own client against the server, unmodified."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Served


@pytest.mark.filterwarnings("ignore")
def test_langchain_chats_and_streams(served: Served) -> None:
    langchain: Any = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    options = {"base_url": f"{served.address}/v1", "api_key": served.keys["reader"], "model": "tiny"}
    chat = langchain.ChatOpenAI(**options, temperature=0, max_tokens=8, max_retries=0)
    asked = [("system", "Be brief."), ("human", "The quick brown")]
    whole = chat.invoke(asked)
    assert whole.content and whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream(asked)) == whole.content
