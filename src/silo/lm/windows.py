"""Which stretch of a text the network sees when it predicts a token: a function of the token's position alone.

So scoring, which reads whole stretches, and generation, which goes token by token, show the network the same input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from silo.lm.scoring import Windows

_FIRST_LOOK = 8


@dataclass(frozen=True, slots=True)
class Frame:
    """Tokens `first` to `until` are predicted from what the text holds from `start` on."""

    start: int
    first: int
    until: int


def window_at(position: int, windows: Windows) -> Frame:
    """The paper's windows: the first predicts all of its tokens, later ones their last `stride`."""
    if position < windows.length:
        return Frame(0, 0, windows.length)
    first = windows.length + (position - windows.length) // windows.stride * windows.stride
    return Frame(first + windows.stride - windows.length, first, first + windows.stride)


def segment_at(position: int, windows: Windows) -> Frame:
    """Segments between two looks into a store: every `stride` tokens, and at powers of two before the first stride.

    A short text is helped too: it is looked up after 8, 16, 32 ... tokens.
    """
    if position >= windows.stride:
        first = position // windows.stride * windows.stride
        until = first + windows.stride
    else:
        first, until = 0, min(_FIRST_LOOK, windows.stride)
        while until <= position:
            first, until = until, min(2 * until, windows.stride)
    return Frame(max(0, until - windows.length), first, until)


def frames(tokens: int, windows: Windows, *, segments: bool = False) -> Iterator[Frame]:
    """The frames of a text, one after the other; the last one may reach beyond its end."""
    at = segment_at if segments else window_at
    position = 0
    while position < tokens:
        frame = at(position, windows)
        yield frame
        position = frame.until
