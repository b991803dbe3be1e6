"""Normalising keeps the wording."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from silo.text.normalise import normalise, text_hash


@given(st.text())
def test_normalising_twice_changes_nothing_more(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_text_keeps_every_character(text: str) -> None:
    assert normalise(text) == text.strip()


def test_line_ends_controls_and_composition() -> None:
    assert normalise("\ufeff a\r\nb\rc\x00\x07\u2028d e\u0301 ") == "a\nb\nc\nd é"
    assert normalise("\tkeep\ttabs") == "keep\ttabs"


def test_hash_ignores_space_and_case_only() -> None:
    assert text_hash("The  cat\nsat") == text_hash("the cat sat")
    assert text_hash("the cat sat.") != text_hash("the cat sat")
