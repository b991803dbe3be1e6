"""The engine: loops in threads of their own that advance all texts which have a slot, a token at a time.

`Slots` is a loop's inside: `add_request`, `step`, `cancel`. Every request is a text of its own, with its own policy,
settings, guard and random numbers, which asks what comes next. All of a loop are answered together, by one pass of the
network and one search of what is searched in the same way; answers are those that each would get alone. Of a long text
a part is read in each step, so that nobody waits for it. Requests are admitted between steps, one client after the
other; a client who has a slot already does not get the last one that is free.

One loop with all cores is best where a pass waits for weights from memory: they are read once for all texts. Where the
processor's caches hold them, a loop for each core is: threads of one pass wait for each other, loops do not.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from silo.inference.asking.asks import Ask, Asking, answer_together
from silo.server.problems import Problem

END = object()
"""Delivered after the last step of a request."""

Deliver = Callable[[Any], None]
"""Is given every step of a request, or the error that ended it, and then END; called in a loop's thread."""
NoteTime = Callable[[str, float], None]
"""Is told how many seconds something took, by the name of a metric."""

_SPARE_TOKENS = 64
"""Tokens of long texts that are read in one pass, besides one of each text."""


class Request:
    """A text to be written or scored: `steps` is called in a loop's thread when a slot is free."""

    __slots__ = ("begun", "cancelled", "client", "deliver", "steps")

    def __init__(self, client: str, steps: Callable[[], Asking[Any]], deliver: Deliver) -> None:
        self.client = client
        self.steps = steps
        self.deliver = deliver
        self.cancelled = False
        self.begun = time.monotonic()


class Slots:
    """The requests under way in one loop."""

    def __init__(self, note_time: NoteTime = lambda *_: None) -> None:
        self._note_time = note_time
        self._running: dict[Request, Asking[Any]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def clients(self) -> Counter[str]:
        """How many slots each client has."""
        return Counter(request.client for request in list(self._running))

    def add_request(self, request: Request) -> None:
        """Give a request a slot; its first step comes with the next round."""
        try:
            self._running[request] = request.steps()
        except Exception as error:  # of whatever kind, it concerns this request alone
            self._end(request, error)

    def cancel(self, request: Request) -> None:
        """Forget a request; nothing more is delivered."""
        steps = self._running.pop(request, None)
        if steps is not None:
            steps.close()

    def step(self, *, threads: int = 0) -> None:
        """One step of every request, or a part of it: who has much to read takes several rounds.

        `threads` are those that it may use, 0 for all there are.
        """
        asked: dict[Request, Ask] = {}
        for request in list(self._running):
            if request.cancelled:
                self.cancel(request)
            else:
                self._advance(request, None, asked)
        while asked:
            answers, asked = self._answer(asked, threads), {}
            for request, answer in answers.items():
                if answer is not None:
                    self._advance(request, answer, asked)

    def _answer(self, asks: dict[Request, Ask], threads: int) -> dict[Request, Any]:
        """The answers, all at once; where that fails one by one, so that an error is that of its request alone."""
        try:
            return dict(zip(asks, self._answers(list(asks.values()), threads), strict=True))
        except Exception:
            answers = {}
            for request, ask in asks.items():
                try:
                    (answers[request],) = self._answers([ask], threads)
                except Exception as error:
                    self._end(request, error)
            return answers

    def _answers(self, asks: list[Ask], threads: int) -> list[Any]:
        return answer_together(
            asks,
            spare=_SPARE_TOKENS,
            threads=threads,
            note_time=lambda what, seconds: self._note_time(f"silo_{what}_seconds", seconds),
        )

    def _advance(self, request: Request, answer: Any, asked: dict[Request, Ask]) -> None:
        """Let a request go on with an answer, to what it asks next or to the end of its step."""
        try:
            item = self._running[request].send(answer)
            if isinstance(item, Ask):
                asked[request] = item
            else:
                request.deliver(item)
        except StopIteration:
            self._end(request)
        except Exception as error:  # of whatever kind, it concerns this request alone
            self._end(request, error)

    def _end(self, request: Request, error: Exception | None = None) -> None:
        self.cancel(request)
        if error is not None:
            request.deliver(error)
        request.deliver(END)


class Engine:
    """The loops, and the requests that wait for them. At most `queue` wait; beyond that clients are sent away.

    `slots` are those of all loops. A loop that alone has something to do uses all cores, several use one each.
    """

    def __init__(self, slots: int, queue: int, note_time: NoteTime = lambda *_: None, *, loops: int = 1) -> None:
        self._loops = [Slots(note_time) for _ in range(loops)]
        self._count = slots
        self._most_waiting = queue
        self._waiting: dict[str, deque[Request]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._run, args=(slots,), name="silo-engine", daemon=True) for slots in self._loops
        ]

    def start(self) -> None:
        """Begin to serve."""
        for thread in self._threads:
            thread.start()

    def submit(self, requests: Sequence[Request], *, most: int | None = None) -> None:
        """Queue requests of one client, all or none; `most` is how many it may have at a time."""
        if not requests:
            return
        client = requests[0].client
        with self._changed:
            if self._closing:
                raise Problem(503, "stopping", "the server is stopping")
            if self.waiting + len(requests) > self._most_waiting + self._free():
                raise Problem(429, "overloaded", "too many requests are waiting", hint="try again later")
            if most is not None and self._held_by(client) + len(requests) > most:
                raise Problem(
                    429, "overloaded", f"this key may have {most} texts at a time", hint="wait for the others"
                )
            self._waiting.setdefault(client, deque()).extend(requests)
            self._changed.notify_all()

    def cancel(self, request: Request) -> None:
        """Nobody waits for this request any more: its place in the queue is free now, its slot before the next step."""
        with self._changed:
            request.cancelled = True
            queue = self._waiting.get(request.client, deque())
            if request in queue:
                queue.remove(request)
            if not queue:
                self._waiting.pop(request.client, None)

    @property
    def waiting(self) -> int:
        """Requests that have no slot yet."""
        return sum(map(len, list(self._waiting.values())))

    @property
    def running(self) -> int:
        """Requests that have a slot."""
        return sum(map(len, self._loops))

    @property
    def is_ready(self) -> bool:
        """Are requests taken?"""
        return all(thread.is_alive() for thread in self._threads) and not self._closing

    def close(self, seconds: float) -> None:
        """Take no more requests, finish those that are there, and end after so many seconds in any case."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        end = time.monotonic() + seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))

    def _free(self) -> int:
        return self._count - self.running

    def _clients(self) -> Counter[str]:
        """How many slots each client has."""
        return sum((slots.clients() for slots in self._loops), Counter())

    def _held_by(self, client: str) -> int:
        return self._clients()[client] + len(self._waiting.get(client, ()))

    def _room_in(self, slots: Slots) -> int:
        """How many more requests a loop may have now: its part of all that there are."""
        part = -(-(self.running + self.waiting) // len(self._loops))
        return min(self._free(), part - len(slots))

    def _run(self, slots: Slots) -> None:
        while True:
            with self._changed:
                if self._waiting or self._closing:
                    self._changed.notify_all()  # a request that ended may have made room in another loop
                while not (admitted := list(self._admit(slots))) and not slots:
                    if self._closing and not self._waiting:
                        return
                    self._changed.wait()
                for request in admitted:
                    slots.add_request(request)
                busy = sum(len(other) > 0 for other in self._loops)
            slots.step(threads=1 if busy > 1 else 0)

    def _admit(self, slots: Slots) -> Iterator[Request]:
        """The next requests, one client after the other for as long as there are slots."""
        if not self._waiting:
            return
        held, free, room = self._clients(), self._free(), self._room_in(slots)
        passed_over = 0
        while room > 0 and passed_over < len(self._waiting):
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            if free > 1 or self._count == 1 or not held[client]:
                held[client] += 1
                free, room = free - 1, room - 1
                passed_over = 0
                yield queue.popleft()
            else:
                passed_over += 1
            if queue:
                self._waiting[client] = queue  # at the end: the others come first
