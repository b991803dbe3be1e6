"""Shards: documents of one tier and one domain, in the order of their ids, as records and as tokens.

Stage 3 of a build turns records into tokens.

On disk, under `shards/<tier>/<domain>/`: `00000.jsonl.zst` (one document record per line), `00000.tokens` (token ids,
little-endian u16 or u32, every document led by the beginning-of-text token) and `00000.index.npy` (one `ENTRY` per
document). docs/formats.md has the bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from silo.corpus.workers import tick
from silo.errors import SiloError
from silo.files import file_sha256, sync_file
from silo.records import Document, Rights, Tier
from silo.text.tokenizer import Ids, Tokenizer, load_tokenizer, token_dtype

ENTRY = np.dtype(
    [
        ("id", "V16"),
        ("offset", "<u8"),
        ("tokens", "<u8"),
        ("bytes", "<u8"),
        ("train", "u1"),
        ("store", "u1"),
        ("index", "u1"),
        ("quote", "<u4"),
    ]
)

RECORDS, TOKENS, INDEX = ".jsonl.zst", ".tokens", ".index.npy"
_BATCH_BYTES = 1 << 20
_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def directory_name(domain: str) -> str:
    """A safe, unique file name for any domain name."""
    if _PLAIN_NAME.fullmatch(domain):
        return domain
    plain = re.sub(r"[^a-z0-9_-]+", "-", domain.lower()).strip("-")[:40] or "domain"
    return f"{plain}.{hashlib.blake2b(domain.encode(), digest_size=6).hexdigest()}"


class ShardWriter:
    """Writes the records of one tier and domain, starting a new shard whenever one is full."""

    def __init__(self, root: Path, tier: Tier, domain: str, *, shard_bytes: int) -> None:
        self.written: list[tuple[str, int]] = []
        """Stem and text bytes of every finished shard."""
        self._root = root
        self._prefix = f"{tier}/{directory_name(domain)}"
        self._shard_bytes = shard_bytes
        self._stem = ""
        self._text_bytes = 0
        self._stream: io.BufferedWriter | None = None
        self._packed: zstandard.ZstdCompressionWriter | None = None

    def add(self, line: bytes, text_bytes: int) -> None:
        """Append one record."""
        if self._packed is None or self._text_bytes >= self._shard_bytes:
            self._open_next()
        assert self._packed is not None
        self._packed.write(line + b"\n")
        self._text_bytes += text_bytes

    def _open_next(self) -> None:
        self.close()
        self._stem = f"{self._prefix}/{len(self.written):05d}"
        path = self._root / (self._stem + RECORDS)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("wb")
        self._packed = zstandard.ZstdCompressor(level=3).stream_writer(self._stream, closefd=False)
        self._text_bytes = 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish the open shard."""
        if self._packed is not None and self._stream is not None:
            self._packed.close()  # type: ignore[no-untyped-call]
            self._stream.close()
            sync_file(Path(self._stream.name))
            self.written.append((self._stem, self._text_bytes))
            self._packed = self._stream = None


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a zstd file written here."""
    with path.open("rb") as stream, zstandard.ZstdDecompressor().stream_reader(stream) as unpacked:
        for line in io.BufferedReader(unpacked, 1 << 20):
            yield line.rstrip(b"\n")


@contextmanager
def open_line_writer(path: Path) -> Iterator[zstandard.ZstdCompressionWriter]:
    """A zstd file that `read_lines` reads; whoever writes ends each line."""
    with path.open("wb") as stream, zstandard.ZstdCompressor(level=3).stream_writer(stream) as packed:
        yield packed


def batch_lines(lines: Iterable[bytes], limit: int) -> Iterator[list[bytes]]:
    """Batches that are closed as soon as they hold `limit` bytes; the last one may be smaller, none is empty."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= limit:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def tokenise_shard(target: str, stem: str, tokenizer_path: str) -> dict[str, Any]:
    """The records of one shard -> token ids and an index; reports counts per source and licence, and checksums."""
    start = time.perf_counter()
    root = Path(target) / "shards"
    table: dict[tuple[str, str], list[int]] = {}
    for record, text_bytes, tokens in _write_tokens(root, stem, _load_tokenizer(tokenizer_path)):
        row = table.setdefault((record["source"], record["license"]), [0, 0, 0, 0])
        train_tokens = tokens if record["rights"]["train"] else 0
        for column, amount in enumerate((1, text_bytes, tokens, train_tokens)):
            row[column] += amount
        tick(text_bytes)
    return {
        "table": [[*key, *row] for key, row in sorted(table.items())],
        "sha256": {suffix: file_sha256(root / (stem + suffix)) for suffix in (RECORDS, TOKENS, INDEX)},
        "seconds": time.perf_counter() - start,
    }


@cache
def _load_tokenizer(path: str) -> Tokenizer:
    return load_tokenizer(path)


def _write_tokens(root: Path, stem: str, tokenizer: Tokenizer) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Tokenise a shard; yields every record as it is done, with its text bytes and tokens (the first one included)."""
    entries: list[tuple[Any, ...]] = []
    dtype = token_dtype(tokenizer.vocabulary)
    begin = np.array([tokenizer.begin], dtype=dtype)
    offset = 0
    with (root / (stem + TOKENS)).open("wb") as stream:
        for lines in batch_lines(read_lines(root / (stem + RECORDS)), _BATCH_BYTES):
            records = [json.loads(line) for line in lines]
            for record, ids in zip(records, tokenizer.encode([item["text"] for item in records]), strict=True):
                stream.write(begin.tobytes() + ids.astype(dtype).tobytes())
                size = len(record["text"].encode())
                count = len(ids) + 1
                entries.append(_entry(record, offset, count, size))
                offset += count
                yield record, size, count
    np.save(root / (stem + INDEX), np.array(entries, dtype=ENTRY), allow_pickle=False)
    sync_file(root / (stem + TOKENS))
    sync_file(root / (stem + INDEX))


def _entry(record: dict[str, Any], offset: int, tokens: int, size: int) -> tuple[Any, ...]:
    rights = Rights(**record["rights"])
    return (bytes.fromhex(record["id"]), offset, tokens, size, rights.train, rights.store, rights.index, rights.quote)


@dataclass(frozen=True, slots=True)
class Shard:
    """An opened shard: one tier, one domain."""

    root: Path
    stem: str
    tier: Tier
    domain: str
    vocabulary: int

    def tokens(self) -> NDArray[np.unsignedinteger[Any]]:
        """All token ids, mapped from disk."""
        path = self.root / (self.stem + TOKENS)
        with self._report_damage(TOKENS):
            if path.stat().st_size == 0:
                return np.empty(0, dtype=token_dtype(self.vocabulary))
            return np.memmap(path, dtype=token_dtype(self.vocabulary), mode="r")

    def index(self) -> NDArray[np.void]:
        """One `ENTRY` per document, in the order of the tokens."""
        with self._report_damage(INDEX):
            index: NDArray[np.void] = np.load(self.root / (self.stem + INDEX), mmap_mode="r")
        if index.dtype != ENTRY:
            raise SiloError("corpus-damaged", f"{self.stem}{INDEX} has another layout than this version writes")
        return index

    def documents(self) -> Iterator[Document]:
        """The documents with their text."""
        with self._report_damage(RECORDS):
            for line in read_lines(self.root / (self.stem + RECORDS)):
                yield Document.from_json(json.loads(line))

    def document_tokens(self, entry: np.void) -> Ids:
        """The ids of one document of `index()`, its beginning-of-text token included."""
        start = int(entry["offset"])
        return np.asarray(self.tokens()[start : start + int(entry["tokens"])], dtype=np.uint32)

    @contextmanager
    def _report_damage(self, suffix: str) -> Iterator[None]:
        """Whatever a missing or broken file raises is damage of the corpus."""
        try:
            yield
        except (OSError, ValueError, zstandard.ZstdError) as error:
            raise SiloError("corpus-damaged", f"{self.stem}{suffix} cannot be read: {error}") from None
