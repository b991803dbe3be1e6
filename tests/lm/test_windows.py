"""Windows: every token is predicted once, from what its position alone decides, and with context before it."""

from __future__ import annotations

import pytest

from silo.errors import SiloError
from silo.lm.windows import Window, Windows, cover


def test_windows_always_leave_context_and_fit_the_model() -> None:
    with pytest.raises(SiloError, match="usage"):
        Windows(16, 16)
    assert Windows(1024, 512).within(256) == Windows(256, 128)
    assert Windows(1024, 512).within(2048) == Windows(1024, 512)


def test_every_token_is_predicted_by_exactly_one_window() -> None:
    for tokens in (1, 5, 16, 17, 24, 25, 100):
        covered: list[int] = []
        for window in Windows(16, 8).over(tokens):
            assert window.start == 0 or window.first - window.start >= 8
            assert window.until - window.start <= 16
            covered += range(window.first, window.until)
        assert covered == list(range(tokens))


def test_the_windows_of_a_text_are_those_of_the_paper() -> None:
    assert list(Windows(16, 4).over(22)) == [Window(0, 0, 16), Window(4, 16, 20), Window(8, 20, 22)]
    assert list(Windows(16, 4).over(0)) == []


@pytest.mark.parametrize("windows", [Windows(16, 8), Windows(16, 5), Windows(100, 64), Windows(3, 1)])
def test_the_window_of_a_position_is_the_one_that_covers_it(windows: Windows) -> None:
    for at, over in (
        (windows.at, windows.over),
        (windows.segment_at, lambda tokens: cover(tokens, windows.segment_at)),
    ):
        for window in over(300):
            for position in range(window.first, window.until):
                found = at(position)
                assert (found.start, found.first, min(found.until, 300)) == (window.start, window.first, window.until)


def test_a_store_is_looked_up_after_8_16_32_tokens_and_then_at_every_stride() -> None:
    segments = list(cover(200, Windows(96, 64).segment_at))
    assert [segment.first for segment in segments] == [0, 8, 16, 32, 64, 128, 192]
    assert [segment.start for segment in segments] == [0, 0, 0, 0, 32, 96, 160]
    assert segments[-1].until == 200


def test_a_state_lies_one_place_before_the_token_it_predicts() -> None:
    text = list(range(40))
    for window in Windows(16, 4).over(len(text)):
        shown = text[window.start : window.until]
        assert [token + 1 for token in shown[window.states]] == text[window.targets]
    assert Window(0, 0, 5).targets == slice(1, 5)
