"""Chats on a model with stores: what is found for the question is read and cited, as far as key and request allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from silo.server.access import create_key
from silo.server.config import ModelRecipe, ServerRecipe
from silo.store.selector import Selector
from tests.inference.ask.world import NOTES, note_store, speaker
from tests.server.conftest import Served, serving

PAINTED = "The boat was painted in 1987 by Anna Berg."
BOAT = "When was the boat painted?"
KEYS: dict[str, Any] = {
    "text": {"roles": ["reader"], "permissions": ["text", "logprobs"]},
    "plain": {"roles": ["reader"]},
    "narrow": {"roles": ["reader"], "permissions": ["text"], "policy": 'license == "CC-BY-4.0"'},
}


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose model recites the sentence about the boat, whatever it is asked."""
    place = tmp_path_factory.mktemp("notes")
    note_store(place / "store", speaker(place, PAINTED)).close()
    keys = {name: create_key(place / "keys.json", name=name, **facts)[1] for name, facts in KEYS.items()}
    model = ModelRecipe(str(place / "model"), (str(place / "store"),))
    silent = ModelRecipe(str(place / "model"), (str(place / "store"),), method="ngram")
    recipe = ServerRecipe({"notes": model, "silent": silent}, keys=str(place / "keys.json"), home=str(place / "home"))
    with serving(recipe, place, keys) as server:
        yield server


def ask(notes: Served, question: str, key: str = "text", model: str = "notes", **silo: Any) -> dict[str, Any]:
    body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": question}], "silo": silo}
    answer = notes.client(key).post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def context(choice: dict[str, Any]) -> list[str]:
    return [item["external_id"] for item in choice["silo"]["documents"] if item.get("context")]


def test_a_sentence_cites_the_passage_it_rests_on(notes: Served) -> None:
    choice = ask(notes, BOAT)
    assert choice["message"]["content"] == PAINTED
    (citation,) = choice["silo"]["citations"]
    assert (citation["document"], citation["licence"], citation["span"]) == ("boat.md", "NOASSERTION", [0, 42])
    assert NOTES["boat.md"][citation["start"] : citation["end"]] == citation["quote"] == PAINTED
    assert "boat.md" in [item["external_id"] for item in choice["silo"]["documents"]]
    (annotation,) = choice["message"]["annotations"]
    assert annotation["url_citation"]["title"] == "boat.md"
    assert annotation["url_citation"]["url"] == f"urn:silo:{citation['id']}"
    assert annotation["silo"] == {"place": "", "quote": PAINTED, "licence": "NOASSERTION"}


def test_the_streaming_helper_keeps_citations(notes: Served) -> None:
    options: Any = {"model": "notes", "messages": [{"role": "user", "content": BOAT}], "temperature": 0}
    with (
        openai.OpenAI(base_url=f"{notes.address}/v1", api_key=notes.keys["text"], max_retries=0) as client,
        client.chat.completions.stream(**options) as stream,
    ):
        chunks: list[Any] = [event.chunk for event in stream if event.type == "chunk"]
        last: Any = stream.get_final_completion()
    assert chunks[-1].choices[0].silo["citations"][0]["quote"] == PAINTED
    assert last.choices[0].message.annotations[0].silo["quote"] == PAINTED


def test_a_key_that_may_not_see_text_gets_no_quote(notes: Served) -> None:
    (citation,) = ask(notes, BOAT, "plain")["silo"]["citations"]
    assert (citation["document"], citation["quote"]) == ("boat.md", "")
    assert citation["start"] == citation["end"]


@pytest.mark.parametrize(("key", "silo"), [("narrow", {}), ("text", {"policy": 'license == "CC-BY-4.0"'})])
def test_what_a_policy_leaves_out_is_neither_read_nor_cited(notes: Served, key: str, silo: dict[str, str]) -> None:
    choice = ask(notes, BOAT, key, **silo)
    assert choice["silo"]["citations"] == []
    assert "boat.md" not in [item["external_id"] for item in choice["silo"]["documents"]]
    garden = ask(notes, "What protects the lettuce from slugs?", key, **silo)
    assert context(garden) == ["garden.md"]
    assert garden["silo"]["notices"] == ["CC-BY-4.0: name A. Writer as the author of garden.md"]


def test_the_guard_bounds_answer_and_quote(notes: Served) -> None:
    choice = ask(notes, BOAT, guard=3)
    assert "painted in 1987 by" not in choice["message"]["content"]
    assert all(len(item["quote"].split()) <= 3 for item in choice["silo"]["citations"])


@pytest.mark.parametrize(
    ("model", "silo"), [("notes", {"method": "ngram"}), ("silent", {}), ("notes", {"method": "lm"})]
)
def test_a_method_without_ric_reads_no_passages(notes: Served, model: str, silo: dict[str, str]) -> None:
    choice = ask(notes, BOAT, model=model, **silo)
    assert "citations" not in choice["silo"]
    assert context(choice) == []


def test_a_method_with_ric_reads_them_where_the_configuration_does_not(notes: Served) -> None:
    assert ask(notes, BOAT, model="silent", method="ric")["silo"]["citations"][0]["document"] == "boat.md"


def test_where_nothing_is_found_the_conversation_is_answered_as_it_is(notes: Served) -> None:
    question = "Who composed the ninth symphony?"
    found, alone = ask(notes, question), ask(notes, question, method="ngram")
    assert found["silo"]["citations"] == [] == context(found)
    assert found["message"]["content"] == alone["message"]["content"]
    assert found["silo"]["documents"] == alone["silo"]["documents"]


def test_a_question_that_leaves_no_room_is_answered_without_passages(served: Served) -> None:
    body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "The quick brown fox " * 9}]}
    body |= {"max_tokens": 2, "temperature": 0}
    answer = served.client().post("/v1/chat/completions", json=body)
    assert answer.status_code == 200 and "citations" not in answer.json()["choices"][0]["silo"]
    refused = served.client().post("/v1/chat/completions", json={**body, "silo": {"method": "ric"}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "silo.method")


def test_an_erased_passage_is_not_read_again(notes: Served) -> None:
    store = notes.app.state.service.catalogue.stores["store"]
    assert context(ask(notes, "If the heat pump shows error 14?", method="ric")) == ["house.md"]
    store.erase(Selector(document="house.md"))
    gone = ask(notes, "If the heat pump shows error 14?", method="ric")
    assert gone["silo"]["citations"] == [] == context(gone)
