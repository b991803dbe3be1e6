"""Promises that a file costs no more than itself: another process parses it, and is killed if it takes too much.

One process serves many files, since starting one takes a third of a second. What becomes of a file depends on the
file alone: if a process that has served others before fails on it, the file is tried again in a new one.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import silo
from silo.errors import SiloError
from silo.recipe import Limits
from silo.sources.documents.parsed import Parsed
from silo.sources.documents.worker import OUT_OF_MEMORY, read_frame, write_frame
from silo.sources.reader.claims import Claims

_PATIENCE = 10
"""Times the limit of processor time that a file may take by the clock: machines are shared."""

_START_SECONDS = 60

_BOOT = (
    "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given.pop('path'); "
    "from silo.sources.documents.worker import serve; serve(**given)"
)


class DocumentParser:
    """Parses files one after the other; to be closed, which ends the process. Nothing starts before the first file."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._served = 0

    def __enter__(self) -> DocumentParser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def parse(self, kind: str, data: bytes) -> Parsed:
        """The document in a file's bytes; whatever stands against it raises with its code."""
        if len(data) > self._limits.max_record_bytes:
            raise SiloError("file-too-large", f"larger than {self._limits.max_record_bytes:,} bytes")
        fresh = self._served == 0
        answer = self._ask(kind, data)
        if isinstance(answer, SiloError) and not fresh and answer.code != "parse-timeout":
            answer = self._ask(kind, data)
        if isinstance(answer, SiloError):
            raise answer
        if "error" in answer:
            raise SiloError(*answer["error"])
        return _read_parsed(answer["parsed"])

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process, self._served = self._process, None, 0
        if process is None:
            return
        process.kill()
        with suppress(OSError):
            process.communicate()

    def _ask(self, kind: str, data: bytes) -> dict[str, Any] | SiloError:
        """The answer of the process; an error if it did not live to give one, after which it is no more."""
        process = self._process or self._start()
        patience = self._limits.max_parse_seconds * _PATIENCE + (0 if self._served else _START_SECONDS)
        waited = threading.Event()
        timer = threading.Timer(patience, _give_up, (process, waited))
        timer.daemon = True
        timer.start()
        try:
            answer = _exchange(process, kind, data)
        finally:
            timer.cancel()
        if answer is not None:
            self._served += 1
            return dict(json.loads(answer))
        status = process.wait()
        self.close()
        return self._explain(status, timed_out=waited.is_set())

    def _start(self) -> subprocess.Popen[bytes]:
        """A new process. It gets the places of our own modules, never those of the current directory."""
        own = str(Path(silo.__file__).parents[1])
        given = {
            "path": [own, *(entry for entry in sys.path if entry)],
            "max_record_bytes": self._limits.max_record_bytes,
            "max_ratio": self._limits.max_ratio,
            "max_parse_seconds": self._limits.max_parse_seconds,
            "max_parse_mb": self._limits.max_parse_mb,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self._process

    def _explain(self, status: int, *, timed_out: bool) -> SiloError:
        seconds, memory = self._limits.max_parse_seconds, self._limits.max_parse_mb
        if timed_out or status == -signal.SIGXCPU:
            return SiloError("parse-timeout", f"reading the file takes more than {seconds:,} seconds")
        if status == OUT_OF_MEMORY:
            return SiloError("parse-memory", f"reading the file takes more than {memory:,} MB of memory")
        name = signal.Signals(-status).name if -status in signal.valid_signals() else f"status {status}"
        return SiloError("parse-crashed", f"the parser died of the file ({name})")


def _give_up(process: subprocess.Popen[bytes], waited: threading.Event) -> None:
    waited.set()
    process.kill()


def _exchange(process: subprocess.Popen[bytes], kind: str, data: bytes) -> bytes | None:
    """Send a file and wait for the answer; None if the process ends first."""
    inbound, outbound = _pipe(process.stdin), _pipe(process.stdout)
    try:
        write_frame(inbound, kind.encode())
        write_frame(inbound, data)
        return read_frame(outbound)
    except (BrokenPipeError, ConnectionResetError):
        return None


def _pipe(stream: IO[bytes] | None) -> Any:
    assert stream is not None
    return stream


def _read_parsed(content: dict[str, Any]) -> Parsed:
    """The inverse of the worker's JSON, in which tuples are lists."""
    claims = Claims(**{name: _pairs(pairs) for name, pairs in content["claims"].items()})
    pairs = {name: _pairs(content[name]) for name in ("unread", "about", "places")}
    return Parsed(**{**content, **pairs, "claims": claims})


def _pairs(pairs: list[list[Any]]) -> tuple[Any, ...]:
    return tuple(tuple(pair) for pair in pairs)
