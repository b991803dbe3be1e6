"""Asks: a text says what it needs for its next token and waits, alone or among others that are answered together."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

from silo.inference.retrieval import NearestSearch, Search, search_together
from silo.lm.engine.decoder import Reading, read_together

Ask = Reading | Search | NearestSearch
"""What has to be known for a prediction: a text asks and waits, so that the asks of many can be answered together."""
Made = TypeVar("Made")
Asking = Generator[Ask | Made, Any, None]
"""Gives what it makes, and between that what it asks: it is sent the answer, or None to ask again."""


def answer_together(asks: Sequence[Ask], *, spare: int | None = None) -> list[Any]:
    """The answers to some asks, which are those that each would get alone; `spare` is as for `read_together`."""
    readings = [ask for ask in asks if isinstance(ask, Reading)]
    searches = [ask for ask in asks if not isinstance(ask, Reading)]
    read, found = iter(read_together(readings, spare=spare)), iter(search_together(searches))
    return [next(read) if isinstance(ask, Reading) else next(found) for ask in asks]


def alone(asking: Asking[Made]) -> Iterator[Made]:
    """What one text makes; its asks are answered as they come."""
    answer: Any = None
    try:
        while True:
            item = asking.send(answer)
            answer = answer_together([item])[0] if isinstance(item, Ask) else None
            if not isinstance(item, Ask):
                yield item
    except StopIteration:
        return
    finally:
        asking.close()
