"""The places of a document: which page, section or row a character stands in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.records import PLACES, Candidate, place_at
from silo.sources import judge
from silo.text.masks import PERSONAL, mask_personal_data
from silo.text.normalise import normalise

TEXT = "Handbook\n\nLeave\nSixteen weeks.\n\nPay\nMonthly."


def document(places: Any, text: str = TEXT) -> Any:
    return judge(Candidate("a", text, "handbook", "prose", (), meta={PLACES: places}))


def test_a_character_stands_in_the_last_place_that_began_before_it() -> None:
    handbook = document([[2, "section Leave"], [5, "section Pay"]])
    assert place_at(handbook, TEXT.index("Handbook")) == ""
    assert place_at(handbook, TEXT.index("Leave")) == "section Leave"
    assert place_at(handbook, TEXT.index("weeks")) == "section Leave"
    assert place_at(handbook, TEXT.index("Pay")) == "section Pay"
    assert place_at(handbook, len(TEXT) + 5) == "section Pay"
    assert place_at(handbook, -3) == ""


def test_places_survive_normalising_and_masking() -> None:
    text = "Ann\r\nann@example.org\r\nPay\r\ncafe\u0301"
    handbook = document([[0, "p. 1"], [2, "p. 2"]], text)
    masked = replace(handbook, text=mask_personal_data(handbook.text, ("email",))[0])
    assert "[**email**]" in masked.text and len(masked.text) != len(text)
    assert place_at(masked, masked.text.index("email")) == "p. 1"
    assert place_at(masked, masked.text.index("Pay")) == "p. 2"
    assert place_at(masked, masked.text.index("caf")) == "p. 2"


@given(st.text(st.sampled_from("12a@.+-() :[*]\nGB\r\x0b\x01\u0301"), max_size=80))
def test_masking_and_normalising_keep_the_lines(text: str) -> None:
    once = normalise(text)
    assert normalise(once).count("\n") == once.count("\n")
    assert mask_personal_data(once, PERSONAL)[0].count("\n") == once.count("\n")


@pytest.mark.parametrize(
    "places", [None, "Berlin", ["Berlin", "Rome"], [[1]], [["1", "p. 1"]], [[True, "p. 1"]], 7, {}]
)
def test_metadata_that_means_something_else_gives_no_place(places: Any) -> None:
    assert place_at(document(places), 3) == ""


def test_white_space_is_part_of_no_document() -> None:
    handbook = document([])
    assert handbook.contains(" sixteen \n WEEKS")
    assert not any(map(handbook.contains, ("", " ", "\n\t", "\u2003")))
