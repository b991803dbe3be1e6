"""A process that starts others which are there to be killed: warm, and with one thread, so that it can fork safely.

Answers lines `root job seed call seconds`: does the job on the store in a child of its own, which kills itself before
call `call` (0: never) or is killed after so many seconds (0: never). The answer is `done` if the child acknowledged the
job, `killed` if it did not, `in-commit` if it was killed between the first and the last call of a commit, and `failed`
if it ended by itself in another way. A backup goes to, and is put back from, `copy` beside the store.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

from silo.records import Document
from silo.store.backup import back_up, restore
from silo.store.manifest import remove_buckets
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.write import apply_change, exchange, prepare_change
from tests.reliability.disk import watched
from tests.reliability.helper import end_of, serve
from tests.reliability.test_store_histories import POOL, answers
from tests.store.small import SmallEncoder, small_store

BASE = POOL[:8]


def coming(seed: int) -> list[Document]:
    """What the job `add` adds."""
    return random.Random(seed).sample(POOL[8:], 1 + seed % 8)


def leaving(seed: int) -> Selector:
    """What the job `erase` erases of `BASE`."""
    item = BASE[seed % 8]
    return Selector(owner=item.owner) if seed % 3 == 0 else Selector(document=item.external_id)


def changed(seed: int) -> list[Document]:
    """What the job `update` brings: other versions of some of `BASE`, and every other time a new document."""
    some = random.Random(seed).sample(BASE, 1 + seed % 4)
    newer = [replace(item, text=f"Version {seed} of {item.text[: -9 - seed % 40]} is shorter.") for item in some]
    return newer + coming(seed)[: seed % 2]


JOBS: dict[str, Callable[[Store, int], object]] = {
    "add": lambda store, seed: store.add(coming(seed)),
    "erase": lambda store, seed: store.erase(leaving(seed)),
    "update": lambda store, seed: store.add(changed(seed), update=True),
    "backup": lambda store, _seed: back_up(store, store.root.with_name("copy")),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        store = small_store(Path(place) / "warm")
        store.add(BASE)
        answers(store)
        store.erase(Selector(document="p1"))
        store.add(changed(1), update=True)
        store.close()
    serve(lambda words: _run(Path(words[0]), words[1], int(words[2]), int(words[3]), float(words[4])))


def _run(root: Path, job: str, seed: int, call: int, seconds: float) -> str:
    told = mmap.mmap(-1, 16)
    child = os.fork()
    if child == 0:
        _work(root, job, seed, call, told)
    return end_of(child, seconds, told)


def _work(root: Path, job: str, seed: int, call: int, told: mmap.mmap) -> NoReturn:
    """In the child: do the job, say so, and leave without cleaning up."""
    try:
        if job == "recover":
            with watched(_kill_at(call, told)):
                Store.open(root, SmallEncoder())
        elif job == "restore":
            with watched(_kill_at(call, told)):
                restore(root.with_name("copy"), root)
        else:
            store = Store.open(root, SmallEncoder())
            with watched(_kill_at(call, told)):
                JOBS[job](store, seed)
        told[:4] = b"done"
    except BaseException as error:
        print(f"{job} {seed} {call}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)


_COMMITS = tuple(function.__code__ for function in (apply_change, prepare_change, exchange))


def _kill_at(number: int, told: mmap.mmap) -> Callable[[int, str, tuple[Any, ...]], None]:
    """End this process before call `number`; says before whether that is inside a commit.

    A change commits one group of buckets after the other; a commit ends with the removal of old buckets.
    """
    change = removal = 0

    def on_call(count: int, _name: str, _arguments: tuple[Any, ...]) -> None:
        nonlocal change, removal
        before, change = change, next(filter(None, map(_frame_of, _COMMITS)), 0)
        ending, removal = removal, _frame_of(remove_buckets.__code__)
        if count == number:
            if change and change == before and not (ending and not removal):
                told[:9] = b"in-commit"
            os.kill(os.getpid(), signal.SIGKILL)

    return on_call


def _frame_of(code: CodeType) -> int:
    """Which call of a function we are in, 0 if in none."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    return id(frame) if frame is not None else 0


if __name__ == "__main__":
    main()
