"""A process that starts others which are there to be killed: warm, and with one thread, so that it can fork safely.

Reads lines `root job number seconds`: does the job on the store in a child of its own, which kills itself before call
`number` (0: never) or is killed after so many seconds (0: never). A backup goes to, and is put back from, `copy` beside
the store. Answers `done` if the child acknowledged the job,
`killed` if it did not, `failed` if it ended by itself in another way.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

from silo.store.backup import back_up, restore
from silo.store.selector import Selector
from silo.store.store import Store
from tests.reliability.disk import kill_at, watched
from tests.reliability.test_store_histories import POOL, answers
from tests.store.small import SmallEncoder, small_store


def main() -> None:
    """Warm up, say so, then serve until the input ends."""
    with tempfile.TemporaryDirectory() as place:
        store = small_store(Path(place) / "warm")
        store.add(POOL[:8])
        answers(store)
        store.erase(Selector(document="p1"))
        store.close()
    print("ready", flush=True)
    for line in sys.stdin:
        root, job, number, seconds = line.split()
        print(_run(Path(root), job, int(number), float(seconds)), flush=True)


def _run(root: Path, job: str, number: int, seconds: float) -> str:
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        _work(root, job, number, tell)
    os.close(tell)
    if seconds:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    said = os.read(hear, 100).decode()
    os.close(hear)
    return said or ("killed" if os.WIFSIGNALED(status) else "failed")


def _work(root: Path, job: str, number: int, tell: int) -> NoReturn:
    """In the child: do the job, say so, and leave without cleaning up."""
    try:
        store = Store.open(root, SmallEncoder()) if job != "restore" else None
        with watched(kill_at(number)) if number else nullcontext():
            if store is None:
                restore(root.with_name("copy"), root)
            elif job == "backup":
                back_up(store, root.with_name("copy"))
            elif job == "add":
                store.add(POOL[8:14])
            else:
                store.erase(Selector(owner="o1"))
        os.write(tell, b"done")
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
