"""Texts are advanced together: clients in turn, each alone with its error, and none beyond what was promised."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from silo.inference.asking.asks import Asking
from silo.inference.context import InContext
from silo.inference.credit import Credits
from silo.inference.generate import GenerateOptions, Step, generate, score_tokens, scoring, writing
from silo.inference.predict import Predictor
from silo.inference.settings import Settings, parse_method
from silo.lm.windows import Window
from silo.server.access import LOCAL
from silo.server.answers.generation import Batch, Text, Wanted
from silo.server.engine import END, Engine, Request, Slots
from silo.server.metrics import Metrics
from silo.server.problems import Problem
from silo.store.policy import Policy
from tests.inference.world import TEXTS
from tests.server.conftest import Served


class Collected:
    """Requests that write down, in one list, whose step it was."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.ended = threading.Semaphore(0)

    def request(self, client: str, steps: Callable[[], Asking[Any]]) -> Request:
        def deliver(event: Any) -> None:
            if event is END:
                self.ended.release()
            else:
                self.seen.append((client, event))

        return Request(client, steps, deliver)

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self.ended.acquire(timeout=20)


def count_to(end: int) -> Asking[int]:
    yield from range(end)


def test_every_request_has_one_step_in_a_round() -> None:
    done = Collected()
    slots = Slots()
    for client in "ab":
        slots.add_request(done.request(client, partial(count_to, 2)))
    slots.step()
    assert done.seen == [("a", 0), ("b", 0)]


def test_clients_are_admitted_in_turn_and_the_last_slot_is_kept_for_others() -> None:
    done, engine = Collected(), Engine(slots=2, queue=10)
    many = [done.request("many", partial(count_to, 3)) for _ in range(4)]
    engine.submit(many)
    engine.submit([done.request("one", partial(count_to, 3))])
    engine.start()
    done.wait(5)
    assert [client for client, _ in done.seen][:6].count("one") == 3
    engine.close(5)


def test_an_error_is_that_of_its_request_alone() -> None:
    done, engine = Collected(), Engine(slots=4, queue=10)

    def fail() -> Asking[int]:
        yield 1
        raise ValueError("broken")

    def fail_at_once() -> Asking[int]:
        raise ValueError("broken at once")

    engine.start()
    engine.submit([done.request("a", fail), done.request("b", fail_at_once), done.request("c", partial(count_to, 2))])
    done.wait(3)
    assert [event for client, event in done.seen if client == "c"] == [0, 1]
    assert sorted(str(event) for client, event in done.seen if isinstance(event, ValueError)) == [
        "broken",
        "broken at once",
    ]
    engine.close(5)


def test_what_is_cancelled_frees_its_slot_and_closes_its_text() -> None:
    done, engine = Collected(), Engine(slots=1, queue=10)
    closed, begun = threading.Event(), threading.Event()

    def endless() -> Asking[int]:
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
    engine.submit([done.request("b", partial(count_to, 1))])
    engine.cancel(request)
    done.wait(1)
    assert closed.is_set()
    assert done.seen[-1] == ("b", 0)
    engine.close(5)


def test_too_many_are_sent_away_all_or_none() -> None:
    done, engine = Collected(), Engine(slots=1, queue=2)
    engine.submit([done.request("a", partial(count_to, 1)) for _ in range(2)])
    with pytest.raises(Problem) as refused:
        engine.submit([done.request("b", partial(count_to, 1)) for _ in range(2)])
    assert refused.value.status == 429
    assert refused.value.response().headers["retry-after"] == "1"
    with pytest.raises(Problem) as refused:
        engine.submit([done.request("a", partial(count_to, 1))], most=2)
    assert refused.value.status == 429
    engine.submit([done.request("b", partial(count_to, 1))])
    engine.start()
    done.wait(3)
    assert engine.waiting == engine.running == 0
    engine.close(5)


def test_whoever_leaves_the_queue_makes_room_there() -> None:
    done, engine = Collected(), Engine(slots=1, queue=1)
    requests = [done.request("a", partial(count_to, 1)) for _ in range(3)]
    engine.submit(requests[:2])
    engine.cancel(requests[1])
    assert engine.waiting == 1
    engine.submit(requests[2:])
    engine.start()
    done.wait(2)
    engine.close(5)


def test_a_closing_engine_finishes_what_it_took() -> None:
    done, engine = Collected(), Engine(slots=1, queue=10)
    engine.submit([done.request("a", partial(count_to, 50)) for _ in range(3)])
    engine.start()
    engine.close(20)
    assert len(done.seen) == 150
    with pytest.raises(Problem) as refused:
        engine.submit([done.request("b", partial(count_to, 1))])
    assert refused.value.status == 503


def test_loops_share_the_texts_and_the_cores() -> None:
    """Texts that begin together are spread over the loops; a client's last slot is kept for others over all of them."""
    ran: dict[str, int] = {}
    together = threading.Barrier(3)

    def meet(name: str) -> Asking[int]:
        ran[name] = threading.get_ident()
        together.wait(20)
        yield 0

    done, engine = Collected(), Engine(slots=4, queue=10, loops=3)
    engine.submit([done.request(name, partial(meet, name)) for name in "abc"])
    engine.start()
    done.wait(3)
    assert len(set(ran.values())) == 3  # one loop would have waited for ever
    many = [done.request("many", partial(count_to, 200)) for _ in range(6)]
    engine.submit(many)
    engine.submit([done.request("one", partial(count_to, 3))])
    done.wait(7)
    assert [client for client, _ in done.seen][:700].count("one") == 3
    engine.close(5)
    assert not engine.is_ready


WAYS: list[tuple[str, str, Settings, dict[str, Any]]] = [
    ("knn+ngram", "", Settings(), {"max_tokens": 24}),
    ("knn+ngram", "", Settings(), {"temperature": 0.9, "seed": 3}),
    ("knn+ngram", 'owner != "f"', Settings(), {"guard": 4}),
    ("knn", "", Settings(k=8, tau=2.0, skip=0.5), {"temperature": 0.7, "seed": 1, "neighbours": 2}),
    ("knn+ric", 'tier <= "by"', Settings(), {}),
    ("ngram", "", Settings(), {"stop": ["o"]}),
    ("lm", "", Settings(), {"temperature": 1.2, "seed": 8}),
]
PROMPTS = [TEXTS["fox"], "T", TEXTS["sea"][:20], "The quick", "Tea is", TEXTS["law"], ""]


def test_texts_of_all_kinds_are_written_in_one_pass_as_each_is_alone(served: Served) -> None:
    every = served.app.state.service.catalogue.models["tiny"].language_model
    texts: list[tuple[Predictor, str, GenerateOptions]] = [
        (
            every.with_options(parse_method(method), settings, Policy.parse(policy)),
            prompt,
            GenerateOptions.of(**options),
        )
        for (method, policy, settings, options), prompt in zip(WAYS, PROMPTS, strict=True)
    ]
    alone = [list(generate(predictor, prompt, options)) for predictor, prompt, options in texts]
    scored = list(score_tokens(every, TEXTS["tea"][:12], 2))
    noted: list[str] = []
    slots, done = Slots(lambda name, _: noted.append(name)), Collected()
    for number, text in enumerate(texts):
        slots.add_request(done.request(str(number), partial(writing, *text)))
    slots.add_request(done.request("score", partial(scoring, every, TEXTS["tea"][:12], 2)))
    while len(slots):
        slots.step()
    for number, steps in enumerate(alone):
        together: list[Step] = [event for client, event in done.seen if client == str(number)]
        assert together == steps
        assert [list(step.credits) for step in together] == [list(step.credits) for step in steps]
    assert [event for client, event in done.seen if client == "score"] == scored
    longest = max(map(len, alone))
    assert longest <= noted.count("silo_network_seconds") < 2 * longest + 10


def test_a_long_prompt_holds_up_nobody(served: Served) -> None:
    every = served.app.state.service.catalogue.models["tiny"].language_model
    prompts, options = [np.full(60, number) for number in range(4)], GenerateOptions(max_tokens=1)
    slots, done = Slots(), Collected()
    slots.add_request(done.request("short", partial(writing, every, "T", GenerateOptions(max_tokens=6))))
    for prompt in prompts:
        slots.add_request(done.request("long", partial(writing, every, prompt, options)))
    slots.step()
    assert [client for client, _ in done.seen] == ["short"]
    for _ in range(5):
        slots.step()
    written = [event for client, event in done.seen if client == "long"]
    assert written == [step for prompt in prompts for step in generate(every, prompt, options)]


def test_the_loop_hears_of_a_first_token_and_an_end_at_once_and_of_the_others_together(served: Served) -> None:
    predictor = served.app.state.service.catalogue.models["tiny"].predictor(frozenset(), Settings(), Policy())
    first, *more = (Step(token, "a", 0.0, Credits()) for token in range(5))
    heard, engine = threading.Event(), Engine(slots=1, queue=1)

    class Scripted(Text):
        def run(self) -> Asking[Any]:
            yield first
            assert heard.wait(20)
            yield from more

    async def hear() -> list[list[Any]]:
        text, come = Scripted(0, predictor, np.array([256]), None, Wanted(0), ledger=False), []
        async for pairs in Batch(engine, [text], LOCAL, "a", Metrics(), pause=3600.0).events():
            come.append([item for _, item in pairs])
            heard.set()
        return come

    engine.start()
    assert asyncio.run(hear()) == [[first], [*more, None]]
    engine.close(20)


def test_a_token_after_a_pause_and_the_first_one_of_each_text_are_heard_at_once(served: Served) -> None:
    predictor = served.app.state.service.catalogue.models["tiny"].predictor(frozenset(), Settings(), Policy())
    step, heard, engine = Step(1, "a", 0.0, Credits()), threading.Semaphore(0), Engine(slots=2, queue=2)

    class Slow(Text):
        def run(self) -> Asking[Any]:
            for _ in range(3 - self.index):
                time.sleep(0.2)  # longer than a pause: the loop has looked and found nothing
                yield step
                assert heard.acquire(timeout=20)  # before the engine does anything that would wake the loop

    async def hear() -> list[int]:
        texts = [Slow(at, predictor, np.array([256]), None, Wanted(0), ledger=False) for at in range(2)]
        come = []
        async for pairs in Batch(engine, texts, LOCAL, "a", Metrics(), pause=0.05).events():
            for text, item in pairs:
                come.append(text.index)
                if item is not None:
                    heard.release()
        return come

    engine.start()
    assert sorted(asyncio.run(hear())) == [0, 0, 0, 0, 1, 1, 1]
    engine.close(20)


def test_a_search_that_fails_ends_its_own_text_alone(served: Served) -> None:
    every = served.app.state.service.catalogue.models["tiny"].language_model

    class Broken:
        def window_at(self, position: int) -> Window:
            return Window(0, 0, position)

        def find(self, *_: Any) -> list[InContext]:
            raise ZeroDivisionError

    slots, done, options = Slots(), Collected(), GenerateOptions(max_tokens=1)
    for name, predictor in (("whole", every), ("broken", every.with_context(Broken())), ("other", every)):
        slots.add_request(done.request(name, partial(writing, predictor, "The", options)))
    slots.step()
    assert isinstance(dict(done.seen)["broken"], ZeroDivisionError)
    assert dict(done.seen)["whole"] == dict(done.seen)["other"] == next(generate(every, "The", options))
