"""Does a history of operations on a set, and of answers about it, fit one order of things?

A state is a set of documents, written as the bits of a number. An operation takes effect in steps, each at one instant
between its beginning and its end; one that was killed may have taken some of its steps, or none, before it died. An
answer must be that of the state at one instant between the beginning and the end of its request (linearizability:
Herlihy and Wing 1990). The checker goes through time and keeps every world that fits what was seen so far.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Operation:
    """Adds or removes the documents of each of its `steps` (masks of bits); `changed` is how many it said it changed.

    `changed` is None if the operation was killed: `end` is then the instant from which it was dead.
    """

    start: int
    end: int
    adds: bool
    steps: tuple[int, ...]
    changed: int | None

    def after(self, state: int, step: int) -> int:
        return state | step if self.adds else state & ~step


@dataclass(frozen=True, slots=True)
class Request:
    """A question, and the answer that came between `start` and `end`."""

    start: int
    end: int
    question: str
    answer: str


class _World(NamedTuple):
    """One way things may be: the state, what operations under way have yet to do, and which requests were served."""

    state: int
    open: tuple[tuple[int, int, int], ...]
    """(operation, its steps that are left as bits, documents it has changed)"""
    served: frozenset[int]


Fits = Callable[[Request, int], bool]
"""Is the answer of a request that of a state?"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What does not fit, in words, and the states that the history may have ended in."""

    wrong: tuple[str, ...]
    last: frozenset[int]
    most_worlds: int


def check(operations: Sequence[Operation], requests: Sequence[Request], fits: Fits, first: int = 0) -> Verdict:
    """Go through the history; after something that does not fit, go on as if it had not been said."""
    worlds = {_World(first, (), frozenset())}
    waiting: dict[int, Request] = {}
    wrong: list[str] = []
    most = 1
    for begins, is_operation, number in _events(operations, requests):
        if is_operation:
            operation = operations[number]
            if begins:
                left = (number, (1 << len(operation.steps)) - 1, 0)
                worlds = {world._replace(open=(*world.open, left)) for world in worlds}
            elif ended := {world for world in map(_ending(number, operation), worlds) if world is not None}:
                worlds = ended
            else:
                wrong.append(f"no order of things explains {operation}")
                worlds = {_without(number, world) for world in worlds}
        elif begins:
            waiting[number] = requests[number]
            worlds = {_serve(world, {number: requests[number]}, fits) for world in worlds}
        else:
            request = waiting.pop(number)
            fitting = {world for world in worlds if number in world.served}
            if not fitting:
                states = sorted({world.state for world in worlds})
                wrong.append(f"not the answer of any state at its time ({states}): {request}")
            worlds = {world._replace(served=world.served - {number}) for world in fitting or worlds}
        worlds = _spread(worlds, operations, waiting, fits)
        most = max(most, len(worlds))
    return Verdict(tuple(wrong), frozenset(world.state for world in worlds), most)


def _events(operations: Sequence[Operation], requests: Sequence[Request]) -> Iterator[tuple[bool, bool, int]]:
    """(begins, is an operation, number) in the order of time; at one instant what begins comes first."""
    kinds: list[list[tuple[int, bool, bool, int]]] = []
    for is_operation, items in ((True, operations), (False, requests)):
        for begins in (True, False):
            times = (item.start if begins else item.end for item in items)
            kinds.append(sorted((time, not begins, is_operation, at) for at, time in enumerate(times)))
    for _, ends, is_operation, number in heapq.merge(*kinds):
        yield not ends, is_operation, number


def _ending(number: int, operation: Operation) -> Callable[[_World], _World | None]:
    """What becomes of a world when an operation ends; None if it cannot have ended there."""

    def end(world: _World) -> _World | None:
        _, left, changed = next(item for item in world.open if item[0] == number)
        if operation.changed is not None and (left or changed != operation.changed):
            return None
        return _without(number, world)

    return end


def _without(number: int, world: _World) -> _World:
    return world._replace(open=tuple(item for item in world.open if item[0] != number))


def _serve(world: _World, waiting: dict[int, Request], fits: Fits) -> _World:
    """The world with every request served whose answer is that of its state."""
    now = {number for number, request in waiting.items() if number not in world.served and fits(request, world.state)}
    return world._replace(served=world.served | now) if now else world


def _spread(
    worlds: set[_World], operations: Sequence[Operation], waiting: dict[int, Request], fits: Fits
) -> set[_World]:
    """All worlds that come about when operations under way take any of their steps."""
    if not any(world.open for world in worlds):
        return worlds
    found, rest = set(worlds), list(worlds)
    while rest:
        world = rest.pop()
        for after in _one_step(world, operations):
            served = _serve(after, waiting, fits)
            if served not in found:
                found.add(served)
                rest.append(served)
    return _best(found)


def _one_step(world: _World, operations: Sequence[Operation]) -> Iterator[_World]:
    for at, (number, left, changed) in enumerate(world.open):
        operation = operations[number]
        for bit, step in enumerate(operation.steps):
            if left >> bit & 1:
                state = operation.after(world.state, step)
                item = (number, left & ~(1 << bit), changed + (state ^ world.state).bit_count())
                yield world._replace(state=state, open=(*world.open[:at], item, *world.open[at + 1 :]))


def _best(worlds: Iterable[_World]) -> set[_World]:
    """Without those that are like another one which has served more."""
    by_state: dict[tuple[int, tuple[tuple[int, int, int], ...]], list[_World]] = {}
    for world in worlds:
        by_state.setdefault((world.state, world.open), []).append(world)
    kept: set[_World] = set()
    for alike in by_state.values():
        kept |= {world for world in alike if not any(world.served < other.served for other in alike)}
    return kept
