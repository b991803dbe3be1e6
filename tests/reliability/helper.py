"""A process of one thread that does what it is asked, line by line: warm, so that it can fork children in no time."""

from __future__ import annotations

import mmap
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Helper:
    """Starts `python -m module`, which must call `serve`."""

    def __init__(self, module: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **_ONE_THREAD, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def ask(self, *words: object) -> str:
        """Send one line of words, none with a space in it, and wait for the answer."""
        assert self._process.stdin
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate()


def serve(answer: Callable[[list[str]], str]) -> None:
    """In the helper: say that we are ready, then answer every line until the input ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(answer(line.split()), flush=True)


def end_of(child: int, seconds: float, told: mmap.mmap) -> str:
    """Wait for a child, which is killed after so many seconds (0: never): what it told, or how else it ended."""
    handle = os.pidfd_open(child)
    select.select([handle], [], [], seconds or None)
    os.close(handle)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return told.read().rstrip(b"\0").decode() or ("killed" if os.WIFSIGNALED(status) else "failed")
