"""`/v1/chat/completions` with OpenAI's own client: messages are text, answers carry citations, streams keep shares."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from silo.inference.session import open_session
from tests.server.conftest import Served

QUESTION: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The quick brown"}]
OPTIONS: Any = {"model": "tiny", "messages": QUESTION, "max_tokens": 8, "temperature": 0}
FROM_THE_STORE: Any = {**OPTIONS, "extra_body": {"silo": {"lambda": 0.9}}}


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key=served.keys["reader"], max_retries=0) as client:
        yield client


def test_a_conversation_is_continued_in_the_form_of_the_template(client: openai.OpenAI, served: Served) -> None:
    prompt = "system: Be brief.\nuser: The quick brown\nassistant: "
    expected = open_session(served.place / "model", served.place / "store", threads=1).answer(prompt, max_tokens=8)
    answer = client.chat.completions.create(**OPTIONS)
    assert answer.choices[0].message.content == expected.text
    shares: Any = answer.choices[0]
    assert shares.silo["lm_share"] == pytest.approx(expected.lm_share)


def test_a_sentence_that_a_document_carried_is_cited(client: openai.OpenAI) -> None:
    choice: Any = client.chat.completions.create(**FROM_THE_STORE).choices[0]
    cited = choice.message.annotations[0].url_citation
    documents = {f"urn:silo:{item['document']}": item for item in choice.silo["documents"]}
    assert documents[cited.url]["external_id"] == cited.title
    assert 0 <= cited.start_index < cited.end_index <= len(choice.message.content)


def test_the_streaming_helper_keeps_shares_and_citations(client: openai.OpenAI) -> None:
    written = client.chat.completions.create(**FROM_THE_STORE).choices[0].message.content or ""
    options: Any = {**FROM_THE_STORE, "logprobs": True, "top_logprobs": 2, "stop": written[4:6]}
    whole = client.chat.completions.create(**options)
    with client.chat.completions.stream(**options) as stream:
        chunks: list[Any] = [event.chunk for event in stream if event.type == "chunk"]
        last: Any = stream.get_final_completion()
    expected: Any = whole.choices[0]
    assert last.choices[0].message.content == expected.message.content
    assert [item.silo for item in last.choices[0].logprobs.content] == [item.silo for item in expected.logprobs.content]
    assert last.choices[0].message.annotations == expected.message.annotations
    assert chunks[-1].choices[0].silo["documents"] == expected.silo["documents"]
    assert last.choices[0].finish_reason == expected.finish_reason


def test_an_async_stream_ends_with_its_usage(served: Served) -> None:
    async def read() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{served.address}/v1", api_key=served.keys["reader"]) as client:
            stream = await client.chat.completions.create(
                **OPTIONS, stream=True, stream_options={"include_usage": True}, n=2
            )
            return [chunk async for chunk in stream]

    chunks = asyncio.run(read())
    assert chunks[-1].usage.completion_tokens > 0
    texts = ["", ""]
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}, None),
    ],
)
def test_what_cannot_be_honoured_is_named(served: Served, change: dict[str, Any], param: str | None) -> None:
    answer = served.client().post("/v1/chat/completions", json={**OPTIONS, **change})
    assert answer.status_code == 400
    assert param is None or answer.json()["error"]["param"] == param
    assert param is not None or answer.json()["error"]["param"].startswith("messages.0.content")


def test_a_conversation_that_is_too_long_is_refused_before_it_is_encoded(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = served.app.state.service
    short = replace(service, limits=replace(service.limits, prompt_tokens=10))
    monkeypatch.setitem(served.app.state._state, "service", short)
    messages = [{"role": "user", "content": "x" * 321}] * 2
    answer = served.client().post("/v1/chat/completions", json={**OPTIONS, "messages": messages})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")


def test_fields_that_change_nothing_are_passed_over(served: Served) -> None:
    more = {"user": "me", "metadata": {"a": "b"}, "tools": [], "response_format": {"type": "text"}, "newest": 1}
    assert served.client().post("/v1/chat/completions", json={**OPTIONS, **more}).status_code == 200
