"""Every parser of untrusted bytes, fed with mutations of sound input: only typed errors come out, in bounded memory.

Counts come from SILO_FUZZ (300 of each in `make test`, 100,000 in `make reliability`); the figures are printed.
"""

from __future__ import annotations

import json
import os
import random
import resource
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from silo.errors import SiloError
from silo.files import read_manifest, write_manifest
from silo.recipe import CorpusRecipe, Limits, SourceRecipe, TrainRecipe, parse_recipe
from silo.rights import classify, load_signals, read_header
from silo.sources import plan, read
from silo.store.bucket import Bucket
from silo.store.erasure.receipt import check_receipt, parse_receipt
from silo.store.policy import Policy
from silo.store.selector import Selector
from silo.store.store import Store
from silo.text.strict_json import parse_object
from silo.text.tokenizer import load_tokenizer
from tests.store.small import document, small_store

RUNS = int(os.environ.get("SILO_FUZZ", "300"))
MEGABYTES = 1500
"""What the process may grow by, all parsers together."""

_PIECES = [b"\0", b"\xff", b"{", b"[" * 40, b'"', b"\\u0000", b"\\ud800", b"9" * 40, b"-1", b"1e999", b"NaN", b"null"]
_PIECES += [b"\xef\xbb\xbf", b"\r\n", b"../", b"\x1b[2J", "\u202e".encode(), b"<!--", b"&#x110000;", b"'''", b"== "]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, removed, repeated, or something awkward put in."""
    content = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(content) + 1)
        end = min(len(content), at + rng.randint(1, 16))
        match rng.randrange(6):
            case 0:
                content[at:at] = rng.choice(_PIECES)
            case 1:
                del content[at:end]
            case 2:
                content[at:at] = content[at:end] * rng.randint(1, 8)
            case 3 if at < len(content):
                content[at] ^= 1 << rng.randrange(8)
            case 4:
                content[at:end] = rng.randbytes(end - at)
            case _:
                del content[rng.randrange(len(content) + 1) :]
    return bytes(content)


@pytest.fixture(scope="module")
def place(module_memory: Path) -> Path:
    return module_memory


@pytest.fixture(scope="module")
def store(place: Path) -> Store:
    made = small_store(place / "store")
    made.add([document(name, f"{name}: words of a text about the winter in the north", owner=name) for name in "abc"])
    made.erase(Selector(document="b"))
    return made


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


RECORD = json.dumps(
    {"id": "a", "text": "some text", "license": "MIT", "metadata": {"deep": [[1, {"x": None}]]}}
).encode()
TOKENIZER = json.dumps(
    {
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3}, "merges": ["a b"]},
    }
).encode()  # fmt: skip
POLICY = b"""tier <= "sw" and not (owner in ['A. Writer', "B"] or license == 'MIT')"""
CORPUS = b'tokenizer = ""\nmin_chars = 3\n[[source]]\nkind = "jsonl"\npaths = ["a.jsonl"]\n[dedup]\nthreshold = 0.5\n'
TRAINING = b'corpus = "c"\ntiers = ["pd"]\npreset = "demo"\nmax_tokens = 100\nlearning_rate = 1e-3\nshard = false\n'
ROBOTS = b"User-agent: GPTBot\nDisallow: /a\nContent-Signal: ai-train=no\nLicense: https://x.org/l.xml\n"
TDMREP = b'[{"location": "/a/", "tdm-reservation": 1, "tdm-policy": "https://x.org/p"}]'
RSL = b'<rsl><content url="/"><license><prohibits type="usage">ai-train</prohibits></license></content></rsl>'
CAWG = b'{"assertions": {"cawg.ai_training": {"use": "notAllowed"}}}'


def _recipe(data: bytes, kind: type[Any]) -> None:
    try:
        content = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return
    parse_recipe(content, kind, where="fuzz")


def _signals(folder: Path, name: str, data: bytes) -> None:
    folder.mkdir(exist_ok=True)
    _write(folder / name, data)
    load_signals(folder).evidence_for("/a/b.html")


def _parquet() -> bytes:
    table = pa.table({"id": ["a", "b"], "text": ["some text", "more"], "license": ["MIT", ""]})
    stream = pa.BufferOutputStream()
    pq.write_table(table, stream)
    return bytes(stream.getvalue())


def _read_source(path: Path, kind: str) -> None:
    for part in plan(SourceRecipe(kind, (path.name,)), path.parent):
        list(read(part, Limits()))


def _parsers(place: Path, store: Store) -> dict[str, tuple[bytes, Callable[[bytes], Any]]]:
    """Per parser a sound input and what reads it."""
    receipt = next(store.paths.receipts.iterdir()).read_bytes()
    bucket = next(store.paths.buckets.iterdir()).read_bytes()
    (place / "manifest").mkdir(exist_ok=True)
    write_manifest(place / "manifest", {"format": "x", "files": {"a": "b"}})
    manifest = (place / "manifest" / "manifest.json").read_bytes()

    def read_changed_manifest(data: bytes) -> None:
        _write(place / "manifest" / "manifest.json", data)
        read_manifest(place / "manifest", missing="not-a-store", damaged="store-damaged")

    return {
        "JSON line": (RECORD, lambda data: parse_object(data, 64)),
        "JSONL file": (RECORD * 3, lambda data: _read_source(_write(place / "a.jsonl", data), "jsonl")),
        "Parquet file": (_parquet(), lambda data: _read_source(_write(place / "a.parquet", data), "parquet")),
        "licence": (
            b"MIT OR (GPL-2.0-or-later AND CC-BY-4.0)",
            lambda data: classify(data.decode(errors="replace")),
        ),
        "licence header": (
            b"# SPDX-License-Identifier: MIT\n# Licensed under the Apache License, Version 2.0",
            lambda data: read_header(data.decode(errors="replace"), where="x"),
        ),
        "policy": (POLICY, lambda data: Policy.parse(data.decode(errors="replace"))),
        "corpus recipe": (CORPUS, lambda data: _recipe(data, CorpusRecipe)),
        "training recipe": (TRAINING, lambda data: _recipe(data, TrainRecipe)),
        "robots.txt": (ROBOTS, lambda data: _signals(place / "robots", "robots.txt", data)),
        "tdmrep.json": (TDMREP, lambda data: _signals(place / "tdmrep", "tdmrep.json", data)),
        "rsl.xml": (RSL, lambda data: _signals(place / "rsl", "rsl.xml", data)),
        "cawg.json": (CAWG, lambda data: _signals(place / "cawg", "cawg.json", data)),
        "receipt": (receipt, lambda data: check_receipt(parse_receipt(data))),
        "manifest": (manifest, read_changed_manifest),
        "bucket": (bucket, lambda data: Bucket("root", memoryview(data))),
        "tokenizer.json": (TOKENIZER, lambda data: load_tokenizer(str(_write(place / "tokenizer.json", data)))),
    }


PARSERS = (
    *("JSON line", "JSONL file", "Parquet file", "licence", "licence header", "policy", "corpus recipe"),
    *("training recipe", "robots.txt", "tdmrep.json", "rsl.xml", "cawg.json", "receipt", "manifest", "bucket"),
    "tokenizer.json",
)


@pytest.mark.parametrize("name", PARSERS)
def test_only_typed_errors_come_out(name: str, place: Path, store: Store) -> None:
    sound, parse = _parsers(place, store)[name]
    rng = random.Random(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    parse(sound)
    refused = 0
    for _ in range(RUNS):
        data = mutate(sound, rng)
        try:
            parse(data)
        except SiloError:
            refused += 1
        except BaseException as error:
            pytest.fail(f"{name}: {type(error).__name__}: {error} for {data[:2000]!r}")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(f"{name}: {RUNS:,} mutations, {refused:,} refused, none untyped, {grown} MB more memory")
    assert grown < MEGABYTES


def test_an_untyped_error_would_be_noticed() -> None:
    rng = random.Random(1)
    with pytest.raises((ValueError, KeyError)):
        for _ in range(1000):
            json.loads(mutate(RECORD, rng))["id"]
