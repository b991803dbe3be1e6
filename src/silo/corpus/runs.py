"""Sorted runs: what reading leaves behind, so that later steps see documents in one order whatever the input order.

A run is up to `RUN_BYTES` of documents sorted by (domain, tier, id). On disk: `<name>.blocks`, zstd frames of JSON
lines, none of which crosses a domain; `<name>.rows.npy`, one `ROW` per document in the same order; `<name>.json`, the
block table and the names behind the numbers. `<name>.drops.npy` is added by exact deduplication.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from silo.corpus.shards import batch_lines
from silo.files import canonical_json, read_json, write_json
from silo.records import Document
from silo.text.normalise import text_hash

RUN_BYTES = 48 << 20
_BLOCK_BYTES = 1 << 17

ROW = np.dtype(
    [
        ("id", "V16"),
        ("text", "V16"),
        ("record", "<u8"),
        ("tier", "u1"),
        ("domain", "<u4"),
        ("license", "<u4"),
        ("bytes", "<u8"),
    ]
)
DROP = np.dtype([("why", "u1"), ("winner", "V16")])

KEPT, SAME_ID, SAME_TEXT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Spooled:
    """One document on its way: its place in the order, whether it was dropped as a repeat, and its record."""

    rank: int
    id: str
    why: int
    winner: str
    line: bytes


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A document that waits to be written."""

    document: Document
    text_hash: bytes
    text_bytes: int
    line: bytes

    @property
    def order(self) -> tuple[str, int, str, bytes, bytes]:
        return self.document.domain, self.document.tier.rank, self.document.id, self.text_hash, self.line


class RunWriter:
    """Collects documents of one part and writes a run whenever enough have come together."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._waiting: list[_Waiting] = []
        self._bytes = 0
        self._runs = 0

    def add(self, document: Document) -> int:
        """Take a document; returns the size of its text in bytes."""
        line = json.dumps(document.as_json(), ensure_ascii=False, allow_nan=False).encode()
        size = len(document.text.encode())
        self._waiting.append(_Waiting(replace(document, text=""), text_hash(document.text), size, line))
        self._bytes += len(line)
        if self._bytes >= RUN_BYTES:
            self.flush()
        return size

    def flush(self) -> None:
        """Write the waiting documents as a run."""
        if self._waiting:
            self._waiting.sort(key=lambda item: item.order)
            _write_run(self._directory / f"run-{self._runs:04d}", self._waiting)
            self._runs += 1
            self._waiting, self._bytes = [], 0


def _write_run(stem: Path, documents: list[_Waiting]) -> None:
    domains = sorted({item.document.domain for item in documents})
    licenses = sorted({item.document.license for item in documents})
    rows = np.empty(len(documents), dtype=ROW)
    rows["id"] = _key_column([bytes.fromhex(item.document.id) for item in documents])
    rows["text"] = _key_column([item.text_hash for item in documents])
    rows["record"] = [_record_hash(item.document) for item in documents]
    rows["tier"] = [item.document.tier.rank for item in documents]
    rows["domain"] = [domains.index(item.document.domain) for item in documents]
    rows["license"] = [licenses.index(item.document.license) for item in documents]
    rows["bytes"] = [item.text_bytes for item in documents]
    np.save(stem.with_suffix(".rows.npy"), rows, allow_pickle=False)
    blocks = _write_blocks(stem.with_suffix(".blocks"), documents, domains)
    write_json(stem.with_suffix(".json"), {"domains": domains, "licenses": licenses, "blocks": blocks})


def _record_hash(document: Document) -> int:
    """Settles which of two records wins that agree in tier, id and text: by what they say, not by where they lay."""
    facts = [document.domain, document.license, document.owner, document.url, dict(document.meta)]
    facts += [item.asserted for item in document.evidence]
    return int.from_bytes(hashlib.blake2b(canonical_json(facts), digest_size=8).digest(), "little")


def _key_column(keys: list[bytes]) -> NDArray[np.void]:
    return np.frombuffer(b"".join(keys), dtype="V16")


def _write_blocks(path: Path, documents: list[_Waiting], domains: list[str]) -> list[tuple[int, int, int, int, int]]:
    """Returns for every block: domain, offset, length, first row, number of rows."""
    packer = zstandard.ZstdCompressor(level=1)
    blocks: list[tuple[int, int, int, int, int]] = []
    first = 0
    with path.open("wb") as stream:
        for domain, group in groupby(documents, key=lambda item: item.document.domain):
            for lines in batch_lines((item.line for item in group), _BLOCK_BYTES):
                packed = packer.compress(b"\n".join(lines))
                blocks.append((domains.index(domain), stream.tell(), len(packed), first, len(lines)))
                stream.write(packed)
                first += len(lines)
    return blocks


@dataclass(frozen=True, slots=True)
class Run:
    """An opened run."""

    stem: Path
    domains: list[str]
    licenses: list[str]
    blocks: list[tuple[int, int, int, int, int]]

    @classmethod
    def open(cls, stem: Path) -> Run:
        content = read_json(stem.with_suffix(".json"))
        return cls(stem, content["domains"], content["licenses"], content["blocks"])

    def rows(self) -> NDArray[np.void]:
        """One `ROW` per document."""
        rows: NDArray[np.void] = np.load(self.stem.with_suffix(".rows.npy"), mmap_mode="r")
        return rows

    def new_drops(self) -> NDArray[np.void]:
        """One `DROP` per document, nothing dropped yet; what is written into it lands on disk."""
        path = self.stem.with_suffix(".drops.npy")
        return np.lib.format.open_memmap(path, mode="w+", dtype=DROP, shape=self.rows().shape)

    def documents(self, domain: str) -> Iterator[Spooled]:
        """The documents of one domain, sorted by tier and id; only one block is held, and no file is kept open."""
        if domain not in self.domains:
            return
        wanted = self.domains.index(domain)
        for number, offset, length, first, count in self.blocks:
            if number == wanted:
                yield from self._read_block(offset, length, slice(first, first + count))

    def _read_block(self, offset: int, length: int, where: slice) -> Iterator[Spooled]:
        rows = self.rows()[where].copy()
        drops = np.load(self.stem.with_suffix(".drops.npy"), mmap_mode="r")[where].copy()
        with self.stem.with_suffix(".blocks").open("rb") as stream:
            stream.seek(offset)
            lines = zstandard.decompress(stream.read(length)).split(b"\n")
        for row, drop, line in zip(rows, drops, lines, strict=True):
            winner = drop["winner"].tobytes().hex()
            yield Spooled(int(row["tier"]), row["id"].tobytes().hex(), int(drop["why"]), winner, line)


def open_runs(directory: Path) -> list[Run]:
    """All runs below a directory, in a fixed order."""
    return [Run.open(path.with_suffix("")) for path in sorted(directory.glob("*/run-*.json"))]


def merge_runs(runs: list[Run], domain: str) -> Iterator[Spooled]:
    """The documents of one domain from all runs, from the lowest tier to the highest, each tier sorted by id.

    Rows that share tier and id (repeats, of which at most one is kept) come kept one first.
    """
    streams = [run.documents(domain) for run in runs if domain in run.domains]
    return heapq.merge(*streams, key=lambda item: (item.rank, item.id, item.why, item.line))
