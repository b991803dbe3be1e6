"""Texts take turns: one client after the other, each alone with its error, and none beyond what was promised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from silo.server.engine import END, Engine, Request, Slots
from silo.server.problems import Problem


class Collected:
    """Requests that write down, in one list, whose step it was."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.ended = threading.Semaphore(0)

    def request(self, client: str, steps: Callable[[], Iterator[Any]]) -> Request:
        def deliver(event: Any) -> None:
            if event is END:
                self.ended.release()
            else:
                self.seen.append((client, event))

        return Request(client, steps, deliver)

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self.ended.acquire(timeout=20)


def test_every_request_has_one_step_in_a_round() -> None:
    done = Collected()
    slots = Slots(2)
    for client in "ab":
        slots.add_request(done.request(client, lambda: iter(range(2))))
    slots.step()
    assert done.seen == [("a", 0), ("b", 0)]


def test_clients_are_admitted_in_turn_and_the_last_slot_is_kept_for_others() -> None:
    done, engine = Collected(), Engine(slots=2, queue=10)
    many = [done.request("many", lambda: iter(range(3))) for _ in range(4)]
    engine.submit(many)
    engine.submit([done.request("one", lambda: iter(range(3)))])
    engine.start()
    done.wait(5)
    assert [client for client, _ in done.seen][:6].count("one") == 3
    engine.close(5)


def test_an_error_is_that_of_its_request_alone() -> None:
    done, engine = Collected(), Engine(slots=4, queue=10)

    def fail() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    def fail_at_once() -> Iterator[int]:
        raise ValueError("broken at once")

    engine.start()
    engine.submit([done.request("a", fail), done.request("b", fail_at_once), done.request("c", lambda: iter([1, 2]))])
    done.wait(3)
    assert [event for client, event in done.seen if client == "c"] == [1, 2]
    assert sorted(str(event) for client, event in done.seen if isinstance(event, ValueError)) == [
        "broken",
        "broken at once",
    ]
    engine.close(5)


def test_what_is_cancelled_frees_its_slot_and_closes_its_text() -> None:
    done, engine = Collected(), Engine(slots=1, queue=10)
    closed, begun = threading.Event(), threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                begun.set()
                yield 0
        finally:
            closed.set()

    request = done.request("a", endless)
    engine.start()
    engine.submit([request])
    assert begun.wait(10)
    engine.submit([done.request("b", lambda: iter([7]))])
    engine.cancel(request)
    done.wait(1)
    assert closed.is_set()
    assert done.seen[-1] == ("b", 7)
    engine.close(5)


def test_too_many_are_sent_away_all_or_none() -> None:
    done, engine = Collected(), Engine(slots=1, queue=2)
    engine.submit([done.request("a", lambda: iter([1])) for _ in range(2)])
    with pytest.raises(Problem) as refused:
        engine.submit([done.request("b", lambda: iter([1])) for _ in range(2)])
    assert refused.value.status == 429
    assert refused.value.response().headers["retry-after"] == "1"
    with pytest.raises(Problem) as refused:
        engine.submit([done.request("a", lambda: iter([1]))], most=2)
    assert refused.value.status == 429
    engine.submit([done.request("b", lambda: iter([1]))])
    engine.start()
    done.wait(3)
    assert engine.waiting == engine.running == 0
    engine.close(5)


def test_a_closing_engine_finishes_what_it_took() -> None:
    done, engine = Collected(), Engine(slots=1, queue=10)
    engine.submit([done.request("a", lambda: iter(range(50))) for _ in range(3)])
    engine.start()
    engine.close(20)
    assert len(done.seen) == 150
    with pytest.raises(Problem) as refused:
        engine.submit([done.request("b", lambda: iter([1]))])
    assert refused.value.status == 503
