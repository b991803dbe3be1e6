"""Masks hit personal data and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.errors import SiloError
from silo.text.masks import PERSONAL, check_kinds, mask_personal_data, masked_share


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("write to ann.lee+x@mail.example.org today", "write to [**email**] today"),
        ("call +1 (415) 555-2671 or 415-555-2671.", "call [**phone**] or [**phone**]."),
        ("tel +49 30 901820", "tel [**phone**]"),
        ("from 8.8.8.8 and 2001:4860:4860::8888", "from [**ip**] and [**ip**]"),
        ("pay 4111 1111 1111 1111 now", "pay [**card**] now"),
        ("to DE89 3704 0044 0532 0130 00,", "to [**iban**],"),
    ],
)
def test_personal_data_is_masked(text: str, masked: str) -> None:
    assert mask_personal_data(text, PERSONAL)[0] == masked


@pytest.mark.parametrize(
    "text",
    [
        "card 4111 1111 1111 1112 fails its check digit",
        "DE88 3704 0044 0532 0130 00 fails its check digits",
        "hosts 10.0.0.1, 127.0.0.1, 192.168.1.7 and version 1.2.3.4.5",
        "on 2024-01-02 at 12:30:45, pages 1999 2000 2001",
        "ISBN 978-3-16-148410-0 and 3.14159265358979",
        "a @ b, x@y and user@localhost",
    ],
)
def test_what_looks_similar_is_left_alone(text: str) -> None:
    assert mask_personal_data(text, PERSONAL) == (text, 0)


def test_given_masks_are_kept_and_only_wanted_kinds_are_masked() -> None:
    text = "[**Name: a@b.com 8.8.8.8**] wrote a@b.com from 8.8.8.8"
    assert mask_personal_data(text, ["email"]) == ("[**Name: a@b.com 8.8.8.8**] wrote [**email**] from 8.8.8.8", 1)


@given(st.text(alphabet="ab@.+0123456789 -()[]*:", max_size=120))
def test_masking_twice_changes_nothing_more(text: str) -> None:
    once, _ = mask_personal_data(text, PERSONAL)
    assert mask_personal_data(once, PERSONAL) == (once, 0)


def test_masked_share_counts_words_in_masks() -> None:
    assert masked_share("[**First Name**] saw [**2020**]") == pytest.approx(3 / 4)
    assert masked_share("nothing here") == 0.0


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(SiloError, match="recipe-value"):
        check_kinds(["email", "shoe size"])
