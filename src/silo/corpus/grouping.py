"""Lines in groups of bounded size, so that a stream can be worked on piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def by_size(lines: Iterable[bytes], limit: int) -> Iterator[list[bytes]]:
    """Groups that are closed as soon as they hold `limit` bytes; the last one may be smaller, none is empty."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= limit:
            yield held
            held, size = [], 0
    if held:
        yield held
