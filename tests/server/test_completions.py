"""`/v1/completions` gives what `silo generate` and `silo score` give, in the shapes that OpenAI's clients read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from silo.inference.session import Session, open_session
from silo.server.answers.attribution import Attributions, KeptAttribution
from tests.inference.world import TEXTS
from tests.server.conftest import Served

PROMPTS = ["The quick brown", "The sea is", "Tea is made", "The licensee shall"]

POLICIES = ["", 'owner != "f"', 'tier <= "by"', ""]


@pytest.fixture(scope="module")
def session(served: Served) -> Session:
    return open_session(served.place / "model", served.place / "store", threads=1)


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key=served.keys["reader"], max_retries=0) as client:
        yield client


def test_an_answer_is_that_of_generate_with_its_shares(client: openai.OpenAI, session: Session) -> None:
    answer = client.completions.create(model="tiny", prompt=PROMPTS[0], max_tokens=12, temperature=0, logprobs=2)
    expected = session.answer(PROMPTS[0], max_tokens=12)
    choice: Any = answer.choices[0]
    assert choice.text == expected.text
    assert choice.logprobs.token_logprobs == [step.log_probability for step in expected.tokens]
    assert choice.silo["lm_share"] == expected.lm_share
    named = {item["document"]: item["share"] for item in choice.silo["documents"]}
    assert named == pytest.approx(dict(expected.shares()))
    for token in choice.logprobs.silo:
        assert token["lm"] + sum(share for _, share in token["docs"]) + token.get("other", 0) == pytest.approx(1)
    assert answer.system_fingerprint == session.predictor.stores[0].digest()
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(expected.tokens)


def test_requests_among_others_give_what_they_give_alone(served: Served, session: Session) -> None:
    async def ask_all() -> list[str]:
        options: Any = {"model": "tiny", "max_tokens": 10, "temperature": 0.8, "seed": 5}
        async with openai.AsyncOpenAI(base_url=f"{served.address}/v1", api_key=served.keys["reader"]) as client:
            asked = [
                client.completions.create(prompt=prompt, extra_body={"silo": {"policy": policy}}, **options)
                for prompt, policy in zip(PROMPTS, POLICIES, strict=True)
            ]
            return [answer.choices[0].text for answer in await asyncio.gather(*asked)]

    alone = []
    for prompt, policy in zip(PROMPTS, POLICIES, strict=True):
        narrowed = open_session(served.place / "model", served.place / "store", policy=policy, threads=1)
        alone.append(narrowed.answer(prompt, max_tokens=10, temperature=0.8, seed=5).text)
    assert asyncio.run(ask_all()) == alone


def test_lists_ids_and_several_answers(client: openai.OpenAI, session: Session) -> None:
    ids = [list(prompt.encode()) for prompt in PROMPTS[:2]]
    by_text = client.completions.create(model="tiny", prompt=PROMPTS[:2], max_tokens=5, temperature=0)
    by_ids = client.completions.create(model="tiny", prompt=ids, max_tokens=5, temperature=0)
    assert [item.text for item in by_text.choices] == [item.text for item in by_ids.choices]
    drawn = client.completions.create(model="tiny", prompt=PROMPTS[0], max_tokens=5, n=2, seed=3, temperature=1.5)
    for at, choice in enumerate(drawn.choices):
        assert choice.text == session.answer(PROMPTS[0], max_tokens=5, seed=3 + at, temperature=1.5).text


def test_echo_scores_the_prompt_as_score_does(client: openai.OpenAI, session: Session) -> None:
    text = TEXTS["sea"]
    answer = client.completions.create(model="tiny", prompt=text, max_tokens=1, temperature=0, logprobs=1, echo=True)
    choice: Any = answer.choices[0]
    scored = session.score(text)
    assert choice.text.startswith(text)
    assert len(choice.logprobs.tokens) == len(scored.logs)
    assert choice.logprobs.token_logprobs[:-1] == pytest.approx(scored.logs[1:].tolist(), abs=1e-12)
    for log, tops in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True):
        assert log <= max(tops.values())
    only = client.completions.create(model="tiny", prompt=[[256, *b"The"]], max_tokens=0, logprobs=1, echo=True)
    lists: Any = only.choices[0].logprobs
    assert lists.token_logprobs[0] is None
    assert len(lists.tokens) == 4


def test_a_stream_is_the_answer_in_pieces(client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "prompt": PROMPTS[1], "max_tokens": 9, "temperature": 0, "stop": ["\x00"]}
    whole = client.completions.create(**options)
    chunks = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage
    last: Any = chunks[-2].choices[0]
    assert last.finish_reason == whole.choices[0].finish_reason
    assert last.silo["documents"] == whole.choices[0].silo["documents"]


def test_the_guard_ends_an_answer_honestly(served: Served) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": TEXTS["tea"][:30], "max_tokens": 9, "temperature": 0}
    nearest = {"method": "knn", "k": 1, "lambda": 1.0}
    free = served.client().post("/v1/completions", json={**asked, "silo": nearest}).json()["choices"][0]
    assert free["text"].startswith(TEXTS["tea"][30])
    guarded = {**asked, "silo": {**nearest, "guard": 1}}
    stopped = served.client().post("/v1/completions", json=guarded).json()["choices"][0]
    assert (stopped["finish_reason"], stopped["text"]) == ("content_filter", "")
    chunks = served.client().post("/v1/completions", json={**guarded, "stream": True}).text.split("\n\n")
    assert json.loads(chunks[-3].removeprefix("data: "))["choices"][0]["finish_reason"] == "content_filter"
    refused = served.client().post("/v1/completions", json={**asked, "silo": {"guard": 0}})
    assert refused.json()["error"]["param"] == "silo.guard"


def test_options_in_headers_are_those_of_the_body(served: Served) -> None:
    request = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 4, "temperature": 0}
    options = {"method": "ngram", "policy": 'owner != "f"', "k": 3}
    by_body = served.client().post("/v1/completions", json={**request, "silo": options}).json()
    headers = {f"x-silo-{name}": str(value) for name, value in options.items()}
    by_header = served.client(**headers).post("/v1/completions", json=request).json()
    assert by_body["choices"] == by_header["choices"]
    assert by_header["choices"][0]["silo"]["policy"] == 'owner != "f"'


def test_a_header_that_is_given_twice_widens_nothing(served: Served) -> None:
    request = {"model": "tiny", "prompt": "The quick", "max_tokens": 2}
    twice = [(b"x-silo-policy", b'owner != "f"'), (b"x-silo-policy", b'owner == "f"')]
    answer = served.client("reader").post("/v1/completions", json=request, headers=twice)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "usage")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 65}, "max_tokens"),
        ({"n": 9}, "n"),
        ({"n": "2"}, "n"),
        ({"logprobs": 6}, "logprobs"),
        ({"prompt": [300]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"stop": ["x"] * 20}, "stop"),
        ({"temperature": -1}, "temperature"),
        ({"model": "other"}, "model"),
        ({"silo": {"policy": "owner ="}}, "silo.policy"),
        ({"silo": {"method": "magic"}}, "silo.method"),
        ({"silo": {"settings": "none"}}, "silo.settings"),
        ({"silo": {"k": 5000}}, "silo.k"),
        ({"silo": {"lambda": 2}}, "silo.lambda"),
        ({"silo": {"unknown": 2}}, "silo.unknown"),
    ],
)
def test_what_cannot_be_honoured_is_named(served: Served, change: dict[str, Any], param: str) -> None:
    answer = served.client().post("/v1/completions", json={"model": "tiny", "prompt": "The", **change})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "json-invalid"),
        (b"[]", "json-not-object"),
        (b'{"model": "tiny", "model": "tiny", "prompt": ""}', "json-duplicate-key"),
        (b'{"model": "tiny", "prompt": "\\ud800"}', "surrogate-lone"),
        (b'{"model": "tiny", "prompt": "a", "temperature": NaN}', "json-number"),
        (b"\xff", "utf8-invalid"),
    ],
)
def test_a_body_that_is_not_one_clear_object_is_refused(served: Served, body: bytes, code: str) -> None:
    answer = served.client().post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == code


def test_attributions_are_there_for_whoever_asked(served: Served) -> None:
    request = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 4}
    answer = served.client("reader").post("/v1/completions", json=request).json()
    place = f"/v1/silo/attributions/{answer['id']}"
    kept = served.client("reader").get(place).json()
    shares = {item["document"]: item["share"] for item in answer["choices"][0]["silo"]["documents"]}
    assert {item["document"]: item["share"] for item in kept["choices"][0]["documents"]} == pytest.approx(shares)
    assert served.client("operator").get(place).status_code == 404


def test_kept_attributions_are_bounded_however_many_choices_a_request_has() -> None:
    kept = Attributions(600)
    for number in range(100):
        kept.keep(f"cmpl-{number}", "reader", [KeptAttribution(1.0, ())] * 64)
    assert kept.find("cmpl-35", "reader") is None
    assert len(kept.find("cmpl-36", "reader") or ()) == 64
    kept.keep("cmpl-more", "reader", [KeptAttribution(1.0, ())])
    assert kept.find("cmpl-36", "reader") is None
    assert kept.find("cmpl-37", "reader") is not None


def test_the_tokenizer_is_that_of_the_model(served: Served) -> None:
    client = served.client("reader")
    info = client.get("/tokenizer_info").json()
    assert client.post("/tokenize", json={"prompt": info["eos_token"]}).json()["tokens"] == [256]
    given = client.post("/tokenize", json={"prompt": "Tea.", "add_special_tokens": True}).json()
    assert given["tokens"] == [256, *b"Tea."]
    assert client.post("/detokenize", json={"tokens": given["tokens"]}).json() == {"prompt": "Tea."}
    assert client.post("/detokenize", json={"tokens": [999]}).json()["error"]["param"] == "tokens"
