"""A conversation that is answered from a store: what the network reads, and what gives way where there is no room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from silo.inference.ask.conversation import Conversation
from silo.inference.ask.evidence import Excerpt
from silo.inference.ask.prompt import AnswerWindows, Lookup, Prompt
from silo.inference.predict import open_predictor
from silo.inference.retrieval import reading
from silo.pairing import open_store
from silo.store.policy import EVERYTHING
from silo.store.store import Store
from silo.text.chat import ChatFormat, Message
from tests.inference.ask.world import CHAT, note_store, speaker

BOAT = "When was the boat painted?"
EARLIER = [Message("user", "Where is the boat?"), Message("assistant", "The boat stands in a barn.")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("conversation")
    note_store(root / "store", speaker(root, "The boat was painted in 1987 by Anna Berg.")).close()
    return open_store(root / "store")


def converse(store: Store, *messages: Message, template: str = CHAT) -> tuple[Conversation, list[Excerpt]]:
    """A conversation, and what is found for it."""
    conversation = Conversation(ChatFormat(store.tokenizer, template, {}, store.root), messages)
    with reading([store], EVERYTHING) as retriever:
        return conversation, conversation.excerpts(retriever)


def text_of(store: Store, conversation: Conversation, excerpts: list[Excerpt], room: int = 1000) -> str:
    fitted = conversation.fit(excerpts, room)
    assert fitted is not None
    return store.tokenizer.decode(fitted[0].astype(np.uint32))


def test_one_question_is_asked_as_by_silo_ask(store: Store) -> None:
    conversation, excerpts = converse(store, Message("user", BOAT))
    prompt = Prompt(store.root.parent / "model", store.tokenizer)
    with reading([store], EVERYTHING) as retriever:
        expected = prompt.encode([Lookup(BOAT, ()).evidence(retriever).excerpts(1)[0].text], BOAT)
    fitted = conversation.fit(excerpts, 1000)
    assert fitted is not None and fitted[0].tolist() == expected.tolist()


def test_a_system_message_of_the_client_stays_and_none_is_forced_on_a_template(store: Store) -> None:
    own, excerpts = converse(store, Message("system", "The boat is blue."), Message("user", BOAT))
    assert "Answer the question" not in text_of(store, own, excerpts)
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHAT
    conversation, excerpts = converse(store, Message("user", BOAT), template=refusing)
    assert "painted in 1987" in text_of(store, conversation, excerpts)


def test_earlier_turns_give_way_first_and_excerpts_last(store: Store) -> None:
    conversation, excerpts = converse(store, *EARLIER, *EARLIER, Message("user", BOAT))
    whole = text_of(store, conversation, excerpts)
    assert whole.count("Where is the boat?") == whole.count(" <unk> is the boat?") == 0 and whole.count("barn.") == 3
    sizes = [len(conversation.encode([excerpts[0].text], left_out)) for left_out in range(3)]
    assert sizes == sorted(sizes, reverse=True)
    one_turn, no_turn = (text_of(store, conversation, excerpts, room) for room in (sizes[1], sizes[2]))
    assert (one_turn.count("barn."), no_turn.count("barn.")) == (2, 1)
    alone = text_of(store, conversation, excerpts, len(conversation.encode([], 2)))
    assert "1987" not in alone and alone.count("barn.") == 0
    assert conversation.fit(excerpts, 3) is None


def test_a_follow_up_question_leans_on_the_one_before(store: Store) -> None:
    _, alone = converse(store, Message("user", "And who did it?"))
    assert alone == []
    _, after = converse(
        store, Message("user", BOAT), Message("assistant", "In 1987."), Message("user", "And who did it?")
    )
    assert [item.source.document.external_id for item in after] == ["boat.md"]


def test_the_text_before_an_answer_is_outside_its_windows() -> None:
    first, shifted = AnswerWindows(64), AnswerWindows(64, begin=10)
    for position in (1, 5, 40, 90):
        one, other = first.at(position), shifted.at(position + 9)
        assert (other.start, other.first, other.until) == (one.start + 9, one.first + 9, one.until + 9)


def test_nobody_asks_where_no_user_speaks(store: Store) -> None:
    predictor = open_predictor(store.root.parent / "model", [store.root], method="ric", threads=1)
    conversation, _ = converse(store, Message("system", "The boat is blue."))
    assert conversation.read_by(predictor, 5) is None


def test_a_conversation_of_many_turns_is_not_encoded_once_for_each(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, excerpts = converse(store, *(400 * EARLIER), Message("user", BOAT))
    encode, encoded = conversation.encode, list[int]()

    def counted(texts: Sequence[str] = (), left_out: int = 0) -> Any:
        encoded.append(left_out)
        return encode(texts, left_out)

    monkeypatch.setattr(conversation, "encode", counted)
    fitted = conversation.fit(excerpts, 200)
    assert fitted is not None
    assert len(encoded) < 20
    texts = [item.text for item in excerpts]
    first = next(ids for ids in (encode(texts, left_out) for left_out in range(380, 401)) if len(ids) <= 200)
    assert fitted[0].tolist() == first.tolist()
    assert len(encode(texts, 380)) > 200
