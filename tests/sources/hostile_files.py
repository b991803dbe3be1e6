"""Hostile files: damaged, packed, special and missing ones, and Parquet."""

from __future__ import annotations

import gzip
import io
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.sources.hostile_case import (
    AFTER,
    BEFORE,
    GOOD,
    Case,
    fifo,
    file,
    link,
    mode,
    random_bytes,
    record,
    then,
)


def packed(lines: int = 50) -> bytes:
    return b"".join(record(id=f"{at}", text=f"Text number {at}. " * 20) + b"\n" for at in range(lines))


def gzip_bomb() -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9, mtime=0) as stream:
        stream.write(GOOD + b"\n")
        for _ in range(150):
            stream.write(b"a" * (1 << 20))
    return out.getvalue()


def zstd_bomb() -> bytes:
    packer = zstandard.ZstdCompressor(level=3).compressobj()
    pieces = [packer.compress(GOOD + b"\n")]
    pieces += [packer.compress(b"a" * (1 << 20)) for _ in range(200)]
    return b"".join([*pieces, packer.flush()])


def zstd_window(log: int = 41) -> bytes:
    """A frame header that asks for a window of 2^41 bytes, and one small block."""
    return struct.pack("<IBB", 0xFD2FB528, 0, (log - 10) << 3) + struct.pack("<I", 1 | (2 << 3))[:3] + b"{}"


def parquet(columns: dict[str, Any], name: str = "in.parquet") -> Callable[[Path], None]:
    return lambda directory: pq.write_table(pa.table(columns), directory / name)


def parquet_cut(directory: Path) -> None:
    parquet({"id": ["a"], "text": ["x"]})(directory)
    path = directory / "in.parquet"
    path.write_bytes(path.read_bytes()[:-9] + b"\xff" * 5 + b"PAR1")


def parquet_broken_utf8(directory: Path) -> None:
    text = pa.array([b"good", b"\xff\xfe bad", b"good"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": text}), directory / "in.parquet")


AS_ROOT = os.geteuid() == 0

FILES: list[Case] = [
    # whole files
    Case("crlf", "jsonl", file(BEFORE + b"\r\n\r\n" + AFTER + b"\r\n"), (), 2),
    Case("bom", "jsonl", file(b"\xef\xbb\xbf" + BEFORE + b"\n" + AFTER), (), 2),
    Case("utf-16", "jsonl", file((GOOD.decode() + "\n" + GOOD.decode()).encode("utf-16")), ("utf8-invalid",), 0),
    Case("empty-file", "jsonl", file(b""), (), 0),
    Case("blank-lines-only", "jsonl", file(b"\n \r\n\t\n\n"), (), 0),
    Case("no-final-newline", "jsonl", file(BEFORE + b"\n" + AFTER), (), 2),
    Case("binary-as-jsonl", "jsonl", file(random_bytes(4000).replace(b"\n", b"")), ("utf8-invalid",), 0),
    Case("gzip-named-jsonl", "jsonl", file(gzip.compress(GOOD)), ("not-text",), 0),
    Case("gz-truncated", "jsonl", file(gzip.compress(packed(), mtime=0)[:-4], "in.jsonl.gz"), ("archive-damaged",), 50),
    Case("gz-not-gzip", "jsonl", file(GOOD, "in.jsonl.gz"), ("archive-damaged",), 0),
    Case(
        "gz-trailing-garbage",
        "jsonl",
        file(gzip.compress(GOOD + b"\n") + b"junk", "in.jsonl.gz"),
        ("archive-damaged",),
        1,
    ),
    Case("gz-zero-padding", "jsonl", file(gzip.compress(GOOD + b"\n") + bytes(4096), "in.jsonl.gz"), (), 1),
    Case("gz-two-members", "jsonl", file(gzip.compress(BEFORE + b"\n") + gzip.compress(AFTER), "in.jsonl.gz"), (), 2),
    Case("gz-empty-member", "jsonl", file(gzip.compress(b""), "in.jsonl.gz"), (), 0),
    Case("gz-empty-file", "jsonl", file(b"", "in.jsonl.gz"), (), 0),
    Case("gz-bomb", "jsonl", file(gzip_bomb, "in.jsonl.gz"), ("archive-bomb",), 1),
    Case("zst-truncated", "jsonl", file(zstandard.compress(packed())[:-12], "in.jsonl.zst"), ("archive-damaged",), 0),
    Case("zst-not-zstd", "jsonl", file(GOOD, "in.jsonl.zst"), ("archive-damaged",), 0),
    Case(
        "zst-two-frames",
        "jsonl",
        file(zstandard.compress(BEFORE + b"\n") + zstandard.compress(AFTER), "in.jsonl.zst"),
        (),
        2,
    ),
    Case(
        "zst-trailing-garbage",
        "jsonl",
        file(zstandard.compress(GOOD + b"\n") + b"junkjunk", "in.jsonl.zst"),
        ("archive-damaged",),
        1,
    ),
    Case("zst-bomb", "jsonl", file(zstd_bomb, "in.jsonl.zst"), ("archive-bomb",), 1),
    Case("zst-huge-window", "jsonl", file(zstd_window(), "in.jsonl.zst"), ("archive-bomb",), 0),
    Case("fifo", "jsonl", then(file(GOOD), fifo("in2.jsonl")), ("input-unreadable",), 1),
    Case("dangling-link", "jsonl", then(file(GOOD), link("in2.jsonl", "nowhere")), ("input-unreadable",), 1),
    Case("link-to-itself", "jsonl", then(file(GOOD), link("in2.jsonl", "in2.jsonl")), ("input-unreadable",), 1),
    Case(
        "no-permission",
        "jsonl",
        then(file(GOOD), mode("in.jsonl", 0)),
        () if AS_ROOT else ("input-unreadable",),
        int(AS_ROOT),
    ),
    Case("file-name-not-utf8", "jsonl", file(GOOD, os.fsdecode(b"in\xff.jsonl")), ("utf8-invalid",), 0),
    Case("nothing-there", "jsonl", lambda _: None, ("input-missing",), 0),
    Case("directory-for-a-file", "jsonl", lambda directory: (directory / "in").mkdir(), ("recipe-value",), 0),
    # Parquet
    Case("parquet-no-text", "parquet", parquet({"id": ["a"], "body": ["x"]}), ("parquet-invalid",), 0),
    Case("parquet-no-id", "parquet", parquet({"text": ["x", "y"]}), (), 2),
    Case("parquet-number-text", "parquet", parquet({"id": ["a"], "text": [1.5]}), ("field-type",), 0),
    Case("parquet-null-text", "parquet", parquet({"id": ["a", "b"], "text": [None, "x"]}), ("field-missing",), 1),
    Case(
        "parquet-list-license",
        "parquet",
        parquet({"id": ["a"], "text": ["x"], "license": [["MIT"]]}),
        ("field-type",),
        0,
    ),
    Case("parquet-nul", "parquet", parquet({"id": ["a", "b"], "text": ["x\0", "y"]}), ("nul-byte",), 1),
    Case("parquet-corrupt-footer", "parquet", parquet_cut, ("parquet-invalid",), 0),
    Case("parquet-broken-utf8", "parquet", parquet_broken_utf8, ("utf8-invalid",), 2),
    Case("parquet-not-parquet", "parquet", file(b"no", "in.parquet"), ("parquet-invalid",), 0),
    Case("lines-named-parquet", "parquet", file(GOOD, "in.parquet"), (), 1),
    Case("parquet-named-jsonl", "jsonl", parquet({"id": ["a"], "text": ["x"]}, "in.jsonl"), (), 1),
    Case("parquet-cut-named-jsonl", "jsonl", file(b"PAR1" + bytes(200) + b"PAR1"), ("parquet-invalid",), 0),
    Case("pdf-as-jsonl", "jsonl", file(b"%PDF-1.7\n{}\n"), ("not-text",), 0),
    Case("list-as-jsonl", "jsonl", file(b"[" + GOOD + b",\n " + GOOD + b"]\n"), ("not-records",), 0),
    Case("table-as-jsonl", "jsonl", file(b"id,text\n" + b"1,x\n" * 1000), ("not-records",), 0),
    Case("text-as-jsonl", "jsonl", file(b"Once upon a time\nthere was a line.\n" * 9000), ("not-records",), 0),
    Case("parquet-empty-file", "parquet", file(b"", "in.parquet"), ("parquet-invalid",), 0),
]
