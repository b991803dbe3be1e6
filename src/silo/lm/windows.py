"""Which part of a text the network sees when it predicts a token: a function of the token's position alone.

So scoring and encoding, which read whole windows, and generation, which goes token by token, show the network the same
input. Windows are those of the paper: the first predicts all of its tokens, every later one its last `stride`, each
with at least `length` - `stride` tokens of context.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from silo.errors import SiloError

_FIRST_LOOKUP = 8
_STEP = 64
"""Inputs of torch are padded to a multiple of this: lengths that were tested to give the same bits in any batch."""


def padded_length(tokens: int, most: int = sys.maxsize) -> int:
    """The length that an input of torch has, which depends on its own tokens alone; at most so many."""
    return min(-(-tokens // _STEP) * _STEP, most)


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens `first` to `until` are predicted from what the text holds from `start` on."""

    start: int
    first: int
    until: int

    @property
    def targets(self) -> slice[int, int, None]:
        """Where the predicted tokens are in the text; the first token of all has nothing to be predicted from."""
        return slice(max(self.first, 1), self.until)

    @property
    def states(self) -> slice[int, int, None]:
        """Where in the window their states are: each lies one place before the token it predicts."""
        return slice(self.targets.start - 1 - self.start, self.until - 1 - self.start)


@dataclass(frozen=True, slots=True)
class Windows:
    """How a text is cut: window length, and how many tokens a later window predicts (so that some context is left)."""

    length: int = 1024
    stride: int = 512

    def __post_init__(self) -> None:
        if not 0 < self.stride < self.length:
            raise SiloError("usage", f"a stride of {self.stride} does not fit windows of {self.length}")

    def within(self, context: int) -> Windows:
        """These windows, or windows of the same shape that fit a shorter context."""
        return self if self.length <= context else Windows(context, max(1, self.stride * context // self.length))

    def at(self, position: int) -> Window:
        """The window that predicts the token at a position."""
        if position < self.length:
            return Window(0, 0, self.length)
        first = self.length + (position - self.length) // self.stride * self.stride
        return Window(first + self.stride - self.length, first, first + self.stride)

    def segment_at(self, position: int) -> Window:
        """The segment that predicts a token where a store is looked up between segments, as RIC does.

        Lookups are every `stride` tokens, and at powers of two before the first stride: a short text is helped too,
        after 8, 16, 32 ... tokens.
        """
        if position >= self.stride:
            first = position // self.stride * self.stride
            until = first + self.stride
        else:
            first, until = 0, min(_FIRST_LOOKUP, self.stride)
            while until <= position:
                first, until = until, min(2 * until, self.stride)
        return Window(max(0, until - self.length), first, until)

    def over(self, tokens: int) -> Iterator[Window]:
        """The windows of a whole text, one after the other; the last one ends with it."""
        return cover(tokens, self.at)


def cover(tokens: int, window_at: Callable[[int], Window]) -> Iterator[Window]:
    """The windows of a whole text, `window_at` being the one that predicts a position; the last ends with the text."""
    position = 0
    while position < tokens:
        window = window_at(position)
        yield Window(window.start, window.first, min(window.until, tokens))
        position = window.until
