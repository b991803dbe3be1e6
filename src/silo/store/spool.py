"""Documents on their way into a store: set aside by the first byte of their id, in memory while they are few.

On disk: `<byte>.spool` files of heads and packed records in a folder outside the store's data, removed when the work
is done or, after a crash, when the store is next opened. Nothing is ever read from a spool of an earlier process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from silo.files import disk_errors, remove_tree
from silo.records import Document
from silo.store.bucket import pack
from silo.store.partition import Sizes, bits_of, no_sizes, slot

_HELD_BYTES = 64 << 20
_HEAD = struct.Struct("<16s16sII")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A document that waits: its id, the hash of its text, the size of its text and its packed record."""

    id: bytes
    mark: bytes
    text_bytes: int
    frame: bytes


class Spool:
    """What an `add` will put into the store; `sizes` says how much text falls under each prefix."""

    def __init__(self, folder: Path) -> None:
        self.sizes: Sizes = no_sizes()
        self.count = 0
        self.text_bytes = 0
        self._folder = folder
        self._held: dict[int, list[Waiting]] = {}
        self._held_bytes = 0
        self._flushed: set[int] = set()

    def add(self, document: Document, mark: bytes) -> None:
        """Take a document."""
        name, size = bytes.fromhex(document.id), max(1, len(document.text.encode()))
        waiting = Waiting(name, mark, size, pack(document))
        self._held.setdefault(name[0], []).append(waiting)
        self._held_bytes += len(waiting.frame)
        self.sizes[slot(name)] += size
        self.count += 1
        self.text_bytes += size
        if self._held_bytes > _HELD_BYTES:
            self._flush()

    def _flush(self) -> None:
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for first, held in self._held.items():
                self._flushed.add(first)
                with (self._folder / f"{first:02x}.spool").open("ab") as stream:
                    for item in held:
                        stream.write(_HEAD.pack(item.id, item.mark, item.text_bytes, len(item.frame)) + item.frame)
        self._held, self._held_bytes = {}, 0

    def under(self, prefix: str) -> list[Waiting]:
        """The documents under a prefix, in the order of their ids."""
        found = [item for first in range(256) if _meets(first, prefix) for item in self._all(first)]
        return sorted((item for item in found if bits_of(item.id).startswith(prefix)), key=lambda item: item.id)

    def _all(self, first: int) -> Iterator[Waiting]:
        if first in self._flushed:
            with (self._folder / f"{first:02x}.spool").open("rb") as stream:
                while head := stream.read(_HEAD.size):
                    name, mark, size, length = _HEAD.unpack(head)
                    yield Waiting(name, mark, size, stream.read(length))
        yield from self._held.get(first, ())

    def close(self) -> None:
        """Forget everything."""
        self._held = {}
        remove_tree(self._folder)


def _meets(first: int, prefix: str) -> bool:
    bits = f"{first:08b}"
    return bits.startswith(prefix[:8]) or prefix.startswith(bits)
