"""Sentences are ranges of a text, and end where a reader would say so."""

from __future__ import annotations

import pytest

from silo.text.sentences import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One is here. Two is there! Is three? Yes.", ["One is here.", "Two is there!", "Is three?", "Yes."]),
        ("Dr. Who met J. Smith, e.g. at noon. They spoke.", ["Dr. Who met J. Smith, e.g. at noon.", "They spoke."]),
        ("A line that\ngoes on. Next", ["A line that\ngoes on.", "Next"]),
        ("# Title\n\nText of it\n- first\n- second", ["# Title", "Text of it", "- first", "- second"]),
        ("It costs 3.50 today. Fine.", ["It costs 3.50 today.", "Fine."]),
        ("今日は。明日は。", ["今日は。", "明日は。"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_where_sentences_end(text: str, sentences: list[str]) -> None:
    found = split_sentences(text)
    assert [item.text for item in found] == sentences
    assert all(text[item.start : item.end] == item.text for item in found)


def test_a_text_without_sentences_is_cut_at_spaces() -> None:
    text = "word " * 400
    found = split_sentences(text)
    assert all(len(item.text) <= 400 for item in found)
    assert " ".join(item.text for item in found) == text.strip()
