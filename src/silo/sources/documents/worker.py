"""The process in which files are parsed: it reads one file after the other from a pipe and may be killed at any time.

It bounds itself before it sees a byte: memory, processor time per file, no files of its own. Frames on the pipes are a
length of eight bytes and as many bytes: kind and content go in, JSON comes out.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from silo.errors import SiloError
from silo.recipe import MIB, Limits
from silo.sources.documents.kinds import parse_document

OUT_OF_MEMORY = 77
"""The exit status of a worker that had no memory left; a new one takes its place."""

_LENGTH = struct.Struct("<Q")


def write_frame(stream: BinaryIO, data: bytes) -> None:
    """Send bytes with their length."""
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """The bytes of the next frame; None where the other side has ended."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    data = stream.read(size)
    return data if len(data) == size else None


def serve(max_record_bytes: int, max_ratio: int, max_parse_seconds: int, max_parse_mb: int) -> None:
    """Parse files until the pipe is closed."""
    limits = Limits(max_record_bytes=max_record_bytes, max_ratio=max_ratio)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _bound_memory(max_parse_mb)
    while (kind := read_frame(sys.stdin.buffer)) is not None:
        data = read_frame(sys.stdin.buffer)
        if data is None:
            return
        _bound_time(max_parse_seconds)
        write_frame(answers, json.dumps(_answer(kind.decode(), data, limits)).encode())


def _answer(kind: str, data: bytes, limits: Limits) -> dict[str, Any]:
    try:
        return {"parsed": asdict(parse_document(kind, data, limits))}
    except SiloError as error:
        return {"error": [error.code, error.message, error.hint]}
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except Exception as error:
        # A parser may fail in any way on hostile bytes; what it says may quote them, so only the type is told.
        return {"error": ["document-invalid", f"the parser failed: {type(error).__name__}", ""]}


def _bound_memory(max_mb: int) -> None:
    """No more address space than is used now and `max_mb` on top; no core dump, and no bytes into any file."""
    used = Path("/proc/self/statm")
    pages = int(used.read_text().split()[0]) if used.exists() else 0
    _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + max_mb * MIB)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, 0)


def _bound_time(seconds: int) -> None:
    """The process is ended after so many more seconds of processor time, which other processes cannot use up."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime) + seconds)


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
