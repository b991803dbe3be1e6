"""What a hostile case is, and short ways to write its files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """One hostile input."""

    name: str
    kind: str
    write: Callable[[Path], None]
    expect_codes: tuple[str, ...]
    good: int


def record(**fields: Any) -> bytes:
    """A sound record, with the given fields on top, as a line of JSON."""
    return json.dumps({"id": "a", "text": "Some text.", "license": "MIT", **fields}).encode()


GOOD = record()
BEFORE, AFTER = record(id="before"), record(id="after")


Data = bytes | Callable[[], bytes]
"""Bytes, or for large ones a function that makes them when they are needed."""


def made(data: Data) -> bytes:
    return data if isinstance(data, bytes) else data()


def file(data: Data, name: str = "in.jsonl") -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / name).write_bytes(made(data))

    return write


def between(line: Data) -> Callable[[Path], None]:
    """A line between two sound ones."""
    return file(lambda: b"\n".join([BEFORE, made(line), AFTER]) + b"\n")


def tree(root: str, **files: Data) -> Callable[[Path], None]:
    """A folder of files; `__` in a name stands for a slash and `_dot_` for a dot."""

    def write(directory: Path) -> None:
        for name, data in files.items():
            path = directory / root / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(made(data))

    return write


def then(first: Callable[[Path], None], *more: Callable[[Path], object]) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        first(directory)
        for step in more:
            step(directory)

    return write


def link(name: str, target: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).symlink_to(target)


def fifo(name: str) -> Callable[[Path], object]:
    return lambda directory: os.mkfifo(directory / name)


def mode(name: str, bits: int) -> Callable[[Path], object]:
    return lambda directory: (directory / name).chmod(bits)


def random_bytes(size: int) -> bytes:
    return bytes((at * 197 + (at >> 3) * 31 + 129) % 256 for at in range(size))
