"""A disk that can be watched and broken: every write, fsync, rename, link and unlink of the package comes by here."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CALLS = ("write", "fsync", "rename", "link", "unlink", "truncate")


@contextmanager
def watched(on_call: Callable[[int, str, tuple[Any, ...]], Any]) -> Iterator[None]:
    """Calls `on_call(number, name, arguments)` before each call; what it returns, if anything, replaces the call."""
    kept = {name: getattr(os, name) for name in CALLS}
    count = 0

    def wrapped(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            instead = on_call(count, name, arguments)
            return kept[name](*arguments, **named) if instead is None else instead

        return call

    for name in CALLS:
        setattr(os, name, wrapped(name))
    try:
        yield
    finally:
        for name, call in kept.items():
            setattr(os, name, call)


def kill_at(number: int) -> Callable[[int, str, tuple[Any, ...]], None]:
    """End this process, as by a power cut, before call `number`."""

    def on_call(count: int, _name: str, _arguments: tuple[Any, ...]) -> None:
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_call


def fail_at(number: int, kind: str) -> Callable[[int, str, tuple[Any, ...]], Any]:
    """Let call `number` fail: `eio`, `enospc`, or `short` (a write that takes one byte and fails at the next)."""
    broken = False

    def on_call(count: int, name: str, arguments: tuple[Any, ...]) -> Any:
        nonlocal broken
        if kind == "short":
            if count == number and name == "write" and len(arguments[1]) > 1:
                broken = True
                return _first_byte(arguments)
            if broken and name == "write":
                broken = False
                raise OSError(errno.ENOSPC, "no space left")
            return None
        if count == number:
            raise OSError(errno.EIO if kind == "eio" else errno.ENOSPC, "broken")
        return None

    return on_call


def _first_byte(arguments: tuple[Any, ...]) -> int:
    handle, data = arguments
    written = os.pwrite(handle, bytes(data[:1]), os.lseek(handle, 0, os.SEEK_CUR))
    os.lseek(handle, written, os.SEEK_CUR)
    return written
