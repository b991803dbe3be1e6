"""Progress of long work, as a function that whoever shows it hands in, and how long the rest will take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Advance = Callable[[str, int, int], None]
"""Called with the stage, what is done of it and its total (0 where nobody knows); the command line draws a bar from it.

A tab in the stage parts its name from a note on how it goes, which may change.
"""

Talk = Callable[[str], None]
"""Called with a sentence for whoever waits."""


@dataclass(slots=True)
class Estimate:
    """How long a stage still takes, by its pace since it began; what was done before that tells nothing of the pace."""

    done: int
    total: int
    now: float
    _first: int = 0
    _begun: float = 0.0

    def __post_init__(self) -> None:
        self._first, self._begun = self.done, self.now

    def note(self, done: int, total: int, now: float) -> None:
        """So much is done by now; less than before means that the stage has begun anew."""
        if done < self.done:
            self._first, self._begun = done, now
        self.done, self.total, self.now = done, total, now

    def left(self, now: float) -> float | None:
        """Seconds from now on; None as long as nothing was seen to be done."""
        if self.done >= self.total:
            return 0.0
        if self.done == self._first:
            return None
        pace = (self.now - self._begun) / (self.done - self._first)
        return max(0.0, pace * (self.total - self.done) - (now - self.now))


def duration(seconds: float) -> str:
    """A time in words, as exact as one wants to know it: 40 s, 12 min, 2 h 10 min, 3 d 4 h."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
