"""Words are compared by what they have in common."""

from __future__ import annotations

import pytest

from silo.inference.ask.words import content_words, stem, stems


def test_question_words_carry_nothing() -> None:
    assert content_words("How many weeks of leave do I get?") == ["weeks", "leave"]
    assert content_words("What is it?") == ["what", "is", "it"], "a question of nothing else keeps them"


@pytest.mark.parametrize(
    "words",
    ["erase erased erases erasing", "policy policies", "stop stopped stops stopping", "week weeks", "class classes"],
)
def test_forms_of_a_word_have_one_stem(words: str) -> None:
    assert len({stem(word) for word in words.split()}) == 1


def test_different_words_have_different_stems() -> None:
    assert len(stems("bus focus sand send band wing king red")) == 8
