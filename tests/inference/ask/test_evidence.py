"""What is found for a question, where it stands, and how well it fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tokenizers import Tokenizer, normalizers

from silo.inference.ask.evidence import Evidence
from silo.inference.retrieval import reading
from silo.store.excerpt import locate_tokens
from silo.store.policy import Policy
from silo.store.selector import Selector
from silo.store.store import Store
from silo.text.tokenizer import load_tokenizer
from tests.byte_tokenizer import write_byte_tokenizer
from tests.store.small import SmallEncoder, document

FERRY = "Sackville Ferry\n\nIt crosses the river. The ferry, naïve as it is, carries twelve cars — no more. It is free."
LONG = " ".join(f"Day {day} was calm and nothing happened at sea." for day in range(200))
LOG = f"{LONG} On that evening the mast broke in a storm. {LONG}"
TEXTS = {"ferry": FERRY, "log": LOG, "tea": "Tea is made with hot water. Cars are not."}


@contextmanager
def gathered(store: Store, question: str, policy: str = "", **options: str) -> Iterator[Evidence]:
    with reading([store], Policy.parse(policy)) as retriever:
        yield Evidence.gather(question, retriever, **options)


@pytest.fixture(scope="module", params=[24, 400], ids=["short passages", "long passages"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    place = tmp_path_factory.mktemp("evidence") / "store"
    made = Store.create(place, SmallEncoder(), searches=("bm25",), passage_tokens=request.param)
    made.add([document(name, text, owner=name) for name, text in TEXTS.items()])
    return made


def best(evidence: Evidence) -> str:
    return evidence.rated[0].sentence.text


def test_the_best_sentence_is_the_one_that_answers(store: Store) -> None:
    with gathered(store, "How many cars does the Sackville ferry carry?") as evidence:
        assert best(evidence) == "The ferry, naïve as it is, carries twelve cars — no more."
    with gathered(store, "When did the mast break?") as evidence:
        assert best(evidence) == "On that evening the mast broke in a storm."


def test_sentences_and_excerpts_stand_in_their_documents(store: Store) -> None:
    for question in ("Sackville ferry cars", "mast storm evening", "hot water tea", "calm sea on day 70"):
        with gathered(store, question) as evidence:
            for item in evidence.rated:
                text = TEXTS[item.source.document.external_id]
                assert text[item.sentence.start : item.sentence.end] == item.sentence.text
            parts = evidence.excerpts(3)
            assert parts and all(part.text in TEXTS[part.source.document.external_id] for part in parts)
            places = [(part.source.document.id, sentence.start) for part in parts for sentence in part.sentences]
            assert len(places) == len(set(places)), "nothing is read twice"
            assert all(len(part.text) <= 500 for part in parts)


def test_what_a_question_asks_beyond_the_documents_lowers_the_strength(store: Store) -> None:
    def strength(question: str) -> float:
        with gathered(store, question) as evidence:
            return evidence.strength

    assert strength("How many cars does the Sackville ferry carry?") > 0.7
    assert strength("Which engine drives the Sackville ferry?") < 0.6
    assert strength("Who painted the Mona Lisa?") == 0.0
    assert strength("") == 0.0


def test_a_heading_is_no_answer(store: Store) -> None:
    with gathered(store, "What is the Sackville Ferry?") as evidence:
        assert best(evidence) != "Sackville Ferry"


def test_what_the_policy_forbids_is_not_found(store: Store) -> None:
    with gathered(store, "How many cars does the ferry carry?", 'owner != "ferry"') as evidence:
        assert {item.source.document.external_id for item in evidence.rated} <= {"tea", "log"}


def test_a_question_may_lean_on_the_one_before(store: Store) -> None:
    with gathered(store, "And is it free?") as alone, gathered(store, "And is it free?", earlier="the ferry?") as after:
        assert alone.question.weights.keys() < after.question.weights.keys()
        assert best(after) == "It is free."


def test_an_erased_document_is_not_found(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", SmallEncoder(), searches=("bm25",))
    store.add([document(name, text) for name, text in TEXTS.items()])
    store.erase(Selector(document="ferry"))
    with gathered(store, "How many cars does the Sackville ferry carry?") as evidence:
        assert evidence.strength < 0.5


def test_places_are_exact_where_a_tokenizer_changes_the_text(tmp_path: Path) -> None:
    file = write_byte_tokenizer(tmp_path / "tokenizer")
    changing = Tokenizer.from_file(str(file))
    changing.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    changing.save(str(file))
    encoder = SmallEncoder()
    encoder.tokenizer = load_tokenizer(str(file))
    store = Store.create(tmp_path / "store", encoder, tokenizer_file=file, searches=("bm25",), passage_tokens=24)
    text = "ﬁrst ÅNGSTRÖM ½ words. " * 5 + "The FERRY carries twelve cars. " + "Then Ⅷ more words. " * 5
    store.add([document("odd", text)])
    with reading([store], Policy.parse("")) as retriever:
        for _, passage in retriever.passages_apart("ferry twelve cars", 3):
            start, end = locate_tokens(text, retriever.views[0], passage, store.tokenizer)
            (ids,) = store.tokenizer.encode([text[start:end]])
            shown = store.tokenizer.decode(passage.tokens)
            assert shown.strip("\N{REPLACEMENT CHARACTER}") in store.tokenizer.decode(ids)
        evidence = Evidence.gather("How many cars does the ferry carry?", retriever)
    assert best(evidence) == "The FERRY carries twelve cars."
