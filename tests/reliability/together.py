"""Readers and writers of one store, and somebody who stops and kills them: what each did and saw is written down.

`python -m tests.reliability.together` serves lines `folder seconds seed plant` (see `helper`): makes `folder/store`,
lets readers and writers at it for so long, and leaves a journal of each in `folder`. `plant` is a bug to put in, or
`none`. `read_history` makes operations and requests of the journals. All times are of the monotonic clock, which
processes share, in nanoseconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import silo.store.store
from silo.errors import SiloError
from silo.store.erasure.erase import accept
from silo.store.erasure.pending import PendingErasure
from silo.store.policy import Policy
from silo.store.selector import Selector
from silo.store.store import Store
from tests.reliability.helper import serve
from tests.reliability.linear import Operation, Request
from tests.reliability.test_store_histories import POOL
from tests.store.small import SmallEncoder, small_store

READERS, WRITERS = 8, 2
DOCUMENTS = POOL[:8]
PLANTS = ("old-view", "lost-add", "no-mask")
_POLICY = Policy.of(owners=["o1", "o2"])
_CLOCK = time.monotonic_ns


@cache
def _keys() -> Any:
    ids = np.concatenate([[256], np.frombuffer(POOL[5].text.encode(), dtype=np.uint8)]).astype(np.uint32)
    (keys,) = SmallEncoder().keys([ids])
    return keys[::9]


def _neighbours(store: Store, policy: Policy) -> object:
    found = store.search(_keys(), 6, policy, probes=3)
    return found.distances.tobytes(), found.positions.tolist(), [found.documents(at) for at in range(len(found.rows))]


def _followers(store: Store, policy: Policy) -> object:
    after = store.continuations([*b"of the red book tells how"], policy)
    return after.length, after.tokens.tolist(), after.counts.tolist(), after.documents(), after.positions.tolist()


def _passages(store: Store, policy: Policy) -> object:
    return [(item.document, item.first, item.end, item.score) for item in store.passages("blue harbour 3", 4, policy)]


QUESTIONS: dict[str, Callable[[Store], object]] = {
    "documents": lambda store: [item.external_id for item in store.documents()],
    "holds": lambda store: store.holds(DOCUMENTS[1].id),
    "search": lambda store: _neighbours(store, Policy()),
    "search with a policy": lambda store: _neighbours(store, _POLICY),
    "continuations": lambda store: _followers(store, Policy()),
    "continuations with a policy": lambda store: _followers(store, _POLICY),
    "passages": lambda store: _passages(store, Policy()),
    "passages with a policy": lambda store: _passages(store, _POLICY),
}
"""What readers ask: each one call, which must be answered from one state."""


def answer(store: Store, question: str) -> str:
    """An answer to the bit, in few letters."""
    return hashlib.blake2b(repr(QUESTIONS[question](store)).encode(), digest_size=10).hexdigest()


class _Journal:
    """A file of lines that are there whatever happens to the process."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, **fields: Any) -> None:
        os.write(self._handle, json.dumps({"at": _CLOCK(), **fields}).encode() + b"\n")
        os.fsync(self._handle)


def _read(root: Path, journal: _Journal, rng: random.Random) -> NoReturn:
    """Ask without end; now and then open the store anew, or verify it."""
    questions = list(QUESTIONS)
    while True:
        store = Store.open(root)
        for _ in range(rng.choice((1, 20, 200))):
            question = rng.choice(questions)
            start = _CLOCK()
            said = answer(store, question)
            journal.note(start=start, question=question, answer=said)
            time.sleep(rng.random() * 0.004)
        if problems := store.verify().problems:
            journal.note(error=f"verify: {problems}")
        store.close()


def _write(root: Path, journal: _Journal, rng: random.Random) -> NoReturn:
    """Add and erase without end, as soon as nobody else writes."""

    def noted(*given: Any, **more: Any) -> None:
        accept(*given, **more)
        journal.note(ends=True, changed=len(given[2]))

    silo.store.store.accept = noted  # type: ignore[attr-defined]
    store = Store.open(root, SmallEncoder())
    while True:
        adds = rng.random() < 0.5
        some = rng.sample(range(len(DOCUMENTS)), rng.randint(1, 3) if adds else 1)
        by_owner = not adds and rng.random() < 0.2
        if by_owner:
            some = [at for at, item in enumerate(DOCUMENTS) if item.owner == DOCUMENTS[some[0]].owner]
        journal.note(adds=adds, documents=some)
        try:
            if adds:
                journal.note(ends=True, changed=store.add([DOCUMENTS[at] for at in some]).added)
            else:
                item = DOCUMENTS[some[0]]
                selector = Selector(owner=item.owner) if by_owner else Selector(document=item.external_id)
                done = store.erase(selector, suppress=False)
                journal.note(**({"receipt": True} if done.receipt else {"ends": True, "changed": 0}))
        except SiloError as error:
            if error.code != "busy":
                raise
            journal.note(busy=True)
            time.sleep(rng.random() * 0.01)


def _start(folder: Path, name: str, seed: str, plant: str) -> int:
    child = os.fork()
    if child:
        return child
    journal = _Journal(folder / f"{name}.jsonl")
    try:
        rng = random.Random(seed)
        if plant != "none":
            _PLANTED[plant](name)
        (_read if name.startswith("reader") else _write)(folder / "store", journal, rng)
    except BaseException as error:
        journal.note(error=f"{type(error).__name__}: {error}")
    finally:
        os._exit(1)


def _run(folder: Path, seconds: float, seed: int, plant: str) -> str:
    """Let everybody loose, stop and kill at random, and start again what was killed."""
    rng = random.Random(seed)
    small_store(folder / "store").close()
    names = [f"reader{number}" for number in range(READERS)] + [f"writer{number}" for number in range(WRITERS)]
    living = {name: _start(folder, name, f"{seed} {name}", plant) for name in names}
    nemesis = _Journal(folder / "nemesis.jsonl")
    end, starts = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        time.sleep(rng.expovariate(12))
        name = rng.choice(names if rng.random() < 0.7 else names[READERS:])
        if rng.random() < 0.5:
            os.kill(living[name], signal.SIGSTOP)
            time.sleep(rng.random() * 0.25)
            os.kill(living[name], signal.SIGCONT)
            nemesis.note(stopped=name)
        else:
            starts += 1
            _kill(living[name], name, nemesis)
            living[name] = _start(folder, name, f"{seed} {name} {starts}", plant)
    for name, child in living.items():
        _kill(child, name, nemesis)
    return "done"


def _kill(child: int, name: str, nemesis: _Journal) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    nemesis.note(killed=name)


def _keep_old_view(name: str) -> None:
    """Bug: a reader does not look whether there is a new generation."""
    if name == "reader0":
        refresh = Store.refresh
        Store.refresh = lambda self: refresh(self) if self._view is None else None  # type: ignore[method-assign]


def _lose_adds(name: str) -> None:
    """Bug: a writer says that it has added what it has not."""
    if name == "writer0":
        silo.store.store.apply_change = lambda _paths, _builder, now, *_: now  # type: ignore[attr-defined]


def _overlook_intents(name: str) -> None:
    """Bug: readers do not see that an erasure was accepted, only that it is done."""
    if name.startswith("reader"):
        PendingErasure.read = lambda _: None  # type: ignore[method-assign, assignment]


_PLANTED = dict(zip(PLANTS, (_keep_old_view, _lose_adds, _overlook_intents), strict=True))


@dataclass(frozen=True, slots=True)
class History:
    """What happened: who did and who saw what, what went wrong, and how often somebody was stopped or killed."""

    operations: list[Operation]
    requests: list[Request]
    errors: list[str]
    stops: int
    kills: int
    receipts: int
    """Erasures that were reported as done."""


def read_history(folder: Path) -> History:
    """The history that the journals in a folder tell."""
    deaths: dict[str, list[int]] = {}
    stops = 0
    for line in _lines(folder / "nemesis.jsonl"):
        stops += "stopped" in line
        if "killed" in line:
            deaths.setdefault(line["killed"], []).append(line["at"])
    operations: list[Operation] = []
    requests: list[Request] = []
    errors: list[str] = []
    receipts = 0
    for path in sorted(folder.glob("*er[0-9].jsonl")):
        lines = list(_lines(path))
        errors += [f"{path.stem}: {line['error']}" for line in lines if "error" in line]
        receipts += sum("receipt" in line for line in lines)
        requests += [_request(line) for line in lines if "question" in line]
        operations += _operations(lines, deaths.get(path.stem, []))
    return History(operations, requests, errors, stops, sum(map(len, deaths.values())), receipts)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_bytes().split(b"\n")[:-1])


def _request(line: dict[str, Any]) -> Request:
    return Request(line["start"], line["at"], line["question"], line["answer"])


def _operations(lines: list[dict[str, Any]], deaths: list[int]) -> Iterator[Operation]:
    """Those of one writer; one that was neither ended nor refused ended with the death of its process."""
    begun: dict[str, Any] | None = None
    for line in lines:
        if "documents" in line:
            if begun is not None:
                yield _operation(begun, _death(begun, deaths), None)
            begun = line
        elif begun is not None and "ends" in line:
            yield _operation(begun, line["at"], line["changed"])
            begun = None
        elif begun is not None and "busy" in line:
            begun = None
    if begun is not None:
        yield _operation(begun, _death(begun, deaths), None)


def _death(begun: dict[str, Any], deaths: list[int]) -> int:
    return next(at for at in deaths if at > begun["at"])


def _operation(begun: dict[str, Any], end: int, changed: int | None) -> Operation:
    bits = [1 << at for at in begun["documents"]]
    return Operation(begun["at"], end, begun["adds"], tuple(bits) if begun["adds"] else (sum(bits),), changed)


class Truth:
    """What a store says that only ever held the documents of a state."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[tuple[int, str], str] = {}

    def fits(self, request: Request, state: int) -> bool:
        """Is this the answer of the state?"""
        if (state, request.question) not in self._known:
            store = self.store(state)
            self._known |= {(state, question): answer(store, question) for question in QUESTIONS}
            store.close()
        return self._known[state, request.question] == request.answer

    def store(self, state: int) -> Store:
        """A store of the documents of a state."""
        place = self._folder / str(state)
        self._folder.mkdir(exist_ok=True)
        if place.exists():
            return Store.open(place, SmallEncoder())
        store = small_store(place)
        store.add([item for at, item in enumerate(DOCUMENTS) if state >> at & 1])
        return store

    @property
    def states(self) -> int:
        return len(self._known) // len(QUESTIONS)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        truth = Truth(Path(place))
        truth.fits(Request(0, 0, "documents", ""), 255)
        truth.store(255).erase(Selector(document="p1"))
    serve(lambda words: _run(Path(words[0]), float(words[1]), int(words[2]), words[3]))


if __name__ == "__main__":
    main()
