"""How long the rest takes: said as soon as something was done, by the pace of this run alone."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from silo.cli import bars, show
from silo.progress import Estimate, duration


def test_the_rest_takes_as_long_as_the_pace_says() -> None:
    estimate = Estimate(0, 100, now=10.0)
    assert estimate.left(10.5) is None
    estimate.note(1, 100, now=11.0)
    assert estimate.left(11.0) == 99.0, "known after the first step"
    assert estimate.left(31.0) == 79.0, "time passes between two steps"
    assert estimate.left(500.0) == 0.0
    estimate.note(50, 100, now=60.0)
    assert estimate.left(60.0) == 50.0
    estimate.note(100, 100, now=100.0)
    assert estimate.left(100.0) == 0.0


def test_what_an_earlier_run_did_does_not_make_this_one_faster() -> None:
    resumed = Estimate(90, 100, now=0.0)
    resumed.note(91, 100, now=2.0)
    assert resumed.left(2.0) == 18.0


def test_a_stage_that_begins_anew_is_measured_anew() -> None:
    estimate = Estimate(0, 10, now=0.0)
    estimate.note(10, 10, now=1000.0)
    estimate.note(0, 20, now=1000.0)
    assert estimate.left(1000.0) is None
    estimate.note(1, 20, now=1001.0)
    assert estimate.left(1001.0) == 19.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"),
        (40, "40 s"),
        (99, "99 s"),
        (100, "2 min"),
        (5_900, "98 min"),
        (7_800, "2 h 10 min"),
        (300_000, "3 d 11 h"),
    ],
)
def test_times_are_as_exact_as_one_wants_to_know(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("silo.cli.bars.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_one_bar_for_each_stage_with_the_time_that_is_left(clock: list[float]) -> None:
    screen = io.StringIO()
    with bars.draw_bars(Console(file=screen, width=100), show.visible) as advance:
        advance("read", 7, 0)
        advance("train", 0, 100)
        for step in (1, 2):
            clock[0] = 60.0 * step
            advance(f"train\tloss {1 / step} at 5 tokens/s", step, 100)
    lines = [line for line in screen.getvalue().splitlines() if line.strip()]
    assert len(lines) == 2
    assert "7 so far" in lines[0]
    assert all(part in lines[1] for part in ("train ", "2 %", "98 min left", "loss 0.5 at 5 tokens/s"))


def test_hostile_stages_and_notes_do_not_command_the_terminal() -> None:
    screen = io.StringIO()
    with bars.draw_bars(Console(file=screen, width=200, color_system=None), show.visible) as advance:
        advance("a\x1b[2J\tnote \x1b[31m[bold]", 1, 2)
    assert "\x1b[2J" not in screen.getvalue() and "\x1b[31m" not in screen.getvalue()
    assert "[bold]" in screen.getvalue()
