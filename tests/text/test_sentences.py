"""Sentences are ranges of a text, and end where a reader would say so."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.text.sentences import best_sentence, split_sentences


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
        ("Pay\nPay comes on the 25th. It is late.", ["Pay", "Pay comes on the 25th.", "It is late."]),
        ("It was late. Dr. Berg came.", ["It was late.", "Dr. Berg came."]),
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


@pytest.mark.parametrize(
    ("words", "best"),
    [
        ("parental weeks", "Parental leave is 16 weeks."),
        ("the days of the year", "Holidays are 25 days of the year."),
        ("zebra", "Parental leave is 16 weeks."),
    ],
)
def test_the_best_sentence_holds_the_rarest_of_the_words(words: str, best: str) -> None:
    text = "Parental leave is 16 weeks. The leave of the staff is paid. Holidays are 25 days of the year."
    start, end = best_sentence(text, 0, len(text), words)
    assert text[start:end] == best


def test_the_best_sentence_may_go_on_beyond_the_part() -> None:
    text = "Before it. The ferry leaves at nine in the morning. After it."
    start, end = best_sentence(text, text.index("leaves"), text.index("nine"), "ferry")
    assert text[start:end] == "The ferry leaves at nine in the morning."
    assert best_sentence("  ", 0, 2, "ferry") == (0, 2)


def test_a_text_of_initials_takes_no_longer_for_each_of_them() -> None:
    begun = time.process_time()
    sentences = split_sentences("A. " * 20_000 + "Berg left.")
    assert "".join(item.text.replace(" ", "") for item in sentences) == "A." * 20_000 + "Bergleft."
    assert time.process_time() - begun < 10
