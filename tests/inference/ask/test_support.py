"""An answer is shown only if it rests on sentences that were read."""

from __future__ import annotations

import numpy as np
import pytest

from silo.inference.ask.evidence import Excerpt, Question, Source
from silo.inference.ask.support import Support, find_support
from silo.store.view import Passage
from tests.store.small import document

TEXT = "In winter the boat stands in a barn. The boat was painted blue in 1987 by Anna Berg. It is 7 metres long."
QUESTION = Question("Who painted the boat?", {"paint": 2.0, "boat": 1.0})


def rest(answer: str, question: Question = QUESTION) -> Support | None:
    passage = Passage("", 0, 0, 1, 1.0, np.empty(0, dtype=np.uint32))
    source = Source(0, passage, document("boat.md", TEXT), 0, len(TEXT))
    return find_support(answer, question, [Excerpt(source, 0, len(source.sentences) - 1)])


@pytest.mark.parametrize(
    "answer, on",
    [
        ("Anna Berg painted the boat in 1987.", "The boat was painted blue in 1987 by Anna Berg."),
        ("The boat stands in a barn.", "In winter the boat stands in a barn."),
        ("It was Anna Berg.", "The boat was painted blue in 1987 by Anna Berg."),
        ("7 metres.", "It is 7 metres long."),
    ],
)
def test_an_answer_rests_on_the_sentence_that_says_it(answer: str, on: str) -> None:
    support = rest(answer)
    assert support is not None
    assert [sentence.text for sentence in support.sentences] == [on]


def test_an_answer_may_rest_on_two_sentences_in_a_row() -> None:
    support = rest("The boat, which is 7 metres long, was painted in 1987 by Anna Berg.")
    assert support is not None
    assert len(support.sentences) == 2 and support.sentences[1].text == "It is 7 metres long."


@pytest.mark.parametrize(
    "answer",
    [
        "Anna Berg painted the boat in 1988.",  # a number that is not there
        "The boat was painted by Anna Bergman.",  # a name that is not there
        "The boat was painted by Otto.",
        "The boat is 7.5 metres long.",
        "The boat was painted by the boat.",  # nothing that the question does not say
        "The painted boat costs much money and needs care every spring.",
        "",
    ],
)
def test_what_nobody_wrote_rests_on_nothing(answer: str) -> None:
    assert rest(answer) is None
