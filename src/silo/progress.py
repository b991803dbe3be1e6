"""Progress of long work, as a function that whoever shows it hands in."""

from __future__ import annotations

from collections.abc import Callable

Advance = Callable[[str, int, int], None]
"""Called with the stage, what is done of it and its total; the command line draws a bar from it."""
