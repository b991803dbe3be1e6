"""Sentences are ranges of their text, and words are compared by what they have in common."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.inference.ask.sentences import content_words, split_sentences, stem, stems


@pytest.mark.parametrize(
    "text, expected",
    [
        ("One is here. Two is there! Is three?", ["One is here.", "Two is there!", "Is three?"]),
        (
            "Dr. Berg, e.g. in St. Ives, met J. R. Smith. He left.",
            ["Dr. Berg, e.g. in St. Ives, met J. R. Smith.", "He left."],
        ),
        ("It costs 3.50 per kg. Bread is less.", ["It costs 3.50 per kg.", "Bread is less."]),
        ("# Leave\n\nParents get\n16 weeks.", ["# Leave", "Parents get\n16 weeks."]),
        ("Items:\n- one thing\n- another\n1. first", ["Items:", "- one thing", "- another", "1. first"]),
        ("| a | b |\n| c | d |", ["| a | b |", "| c | d |"]),
        ('He said "stop." Then he left.', ['He said "stop."', "Then he left."]),
        ("船は青い。納屋にある。", ["船は青い。", "納屋にある。"]),
        (" \n ", []),
    ],
)
def test_sentences_end_where_a_reader_ends_them(text: str, expected: list[str]) -> None:
    assert [sentence.text for sentence in split_sentences(text)] == expected


@given(st.text(alphabet=st.sampled_from("Ab .!?\n-#|1é。\t\"'"), max_size=900))
def test_sentences_are_ranges_and_nothing_but_white_space_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert all(text[item.start : item.end] == item.text for item in sentences)
    assert all(one.end <= other.start for one, other in pairwise(sentences))
    assert "".join("".join(item.text.split()) for item in sentences) == "".join(text.split())
    assert all(len(item.text) <= 400 for item in sentences)


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
