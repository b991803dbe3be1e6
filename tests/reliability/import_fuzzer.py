"""Changes models at random and imports them: whatever a file holds, the answer is a model or a typed error.

Kinds that end with `-file` are read only, without making a network of what was read, which is a hundred times faster.

`python -m tests.reliability.import_fuzzer FOLDER KIND,... COUNT SEED` prints one JSON object for each kind: how many
mutations gave a model, which codes the others, what was raised that is no error of ours, and by how many MiB the memory
grew at most.
"""

from __future__ import annotations

import copy
import json
import random
import re
import resource
import shutil
import struct
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from silo.errors import SiloError
from silo.lm.importers.gguf import read_gguf
from silo.lm.importers.import_model import import_model
from silo.lm.importers.openlm import read_checkpoint
from silo.lm.network import make_network
from tests.byte_tokenizer import write_byte_tokenizer
from tests.lm.test_importers import write_gguf
from tests.lm.test_model import TINY

MEMORY = 4 << 30
"""Bytes of address space that an import may take beyond what the process has."""

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1 << 31,
    1 << 62,
    10**400,
    1e308,
    "",
    "x" * 1000,
    [],
    {},
    [[]],
    {"a": {}},
    "\ud800",
]


ODD_FACTS: list[tuple[int, bytes]] = [
    (4, struct.pack("<I", 0)),
    (4, struct.pack("<I", 0xFFFFFFFF)),
    (5, struct.pack("<i", -1)),
    (6, struct.pack("<f", float("nan"))),
    (6, struct.pack("<f", float("inf"))),
    (7, b"\x01"),
    (8, struct.pack("<Q", 0)),
    (8, struct.pack("<Q", 3) + b"two"),
    (9, struct.pack("<IQ", 4, 0)),
    (9, struct.pack("<IQi", 5, 1, -1)),
    (9, struct.pack("<IQQ", 8, 1, 0)),
    (9, struct.pack("<IQQ", 8, 1, 3) + b"a b"),
    (9, struct.pack("<IQQ", 8, 1, 4) + "\U0001f600".encode()),
    (10, struct.pack("<Q", 1 << 63)),
    (11, struct.pack("<q", -(1 << 62))),
    (12, struct.pack("<d", 1e300)),
]
"""(type, bytes) of values that no file of a model has there."""


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flipped bits, cuts, repeats, runs of one value, and numbers at the edge of their range."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if not out:  # a cut took everything
            break
        at = rng.randrange(len(out)) if rng.random() < 0.3 else rng.randrange(min(len(out), 6000))
        kind = rng.randrange(6)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at : at + 8] = rng.choice(
                (b"\xff" * 8, bytes(8), b"\xff" * 7 + b"\x7f", (1 << 40).to_bytes(8, "little"))
            )
        elif kind == 2:
            out[at : at + 4] = rng.choice((b"\xff" * 4, bytes(4), (9).to_bytes(4, "little"), (8).to_bytes(4, "little")))
        elif kind == 3:
            out[at:at] = out[at : at + rng.randrange(1, 64)]
        elif kind == 4:
            del out[at : at + rng.randrange(1, 64)]
        else:
            del out[max(1, at) :]
    return bytes(out) or b"\0"


def change_json(content: Any, rng: random.Random) -> bytes:
    """Odd values in odd places, missing and repeated keys, nesting without end, broken syntax."""
    content = json.loads(json.dumps(content))
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = content
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.7:
                place = place[key]
                continue
            if isinstance(place, dict) and rng.random() < 0.3:
                del place[key]
            else:
                place[key] = copy.deepcopy(rng.choice(ODD))
            break
    data = json.dumps(content).encode()
    kind = rng.randrange(12)
    if kind == 0:
        depth = rng.choice((500, 50_000, 1_000_000))
        return data.replace(b":", b":" + b"[" * depth + b"]" * depth + b",", 1)
    if kind == 1:
        return data.replace(b":", b':{"a":' * rng.choice((500, 200_000)), 1)
    if kind == 2:
        return data.replace(b"0", b"9" * rng.choice((400, 5000, 100_000)), 1)
    return change_bytes(data, rng) if kind == 3 else data


def change_safetensors(data: bytes, rng: random.Random) -> bytes:
    """A changed header with a right length, or changed bytes."""
    size = int.from_bytes(data[:8], "little")
    if rng.random() < 0.3:
        return change_bytes(data, rng)
    head = change_json(json.loads(data[8 : 8 + size]), rng)
    return len(head).to_bytes(8, "little") + head + data[8 + size :]


def change_facts(data: bytes, rng: random.Random) -> bytes:
    """A GGUF file with a fact of another type, value or name put before one of the same name, or in its place."""
    names: list[bytes] = re.findall(rb"(?:general|llama|tokenizer)\.[a-z_.]+", data[:20_000])
    name = rng.choice(names)
    kind, value = rng.choice(ODD_FACTS)
    fact = len(name).to_bytes(8, "little") + name + struct.pack("<I", kind) + value
    hidden = data.replace(name, name[:-1] + b"~", 1) if rng.random() < 0.8 else data
    (count,) = struct.unpack_from("<Q", hidden, 16)
    # the weights must stay where they are: facts before them move in steps of the alignment
    filler = b"general.filler"
    size = -(len(fact) + 8 + len(filler) + 12) % 32
    pad = len(filler).to_bytes(8, "little") + filler + struct.pack("<IQ", 8, size) + b"x" * size
    return hidden[:16] + struct.pack("<Q", count + 2) + fact + pad + hidden[24:]


def make_sources(folder: Path) -> dict[str, Callable[[random.Random], Path]]:
    """By kind, a function that writes a changed model and returns its path."""
    tokenizer = write_byte_tokenizer(folder / "tokenizer")
    network: Any = make_network(replace(TINY, tied=False), vocabulary=258, begin=257, seed=4)
    write_gguf(folder / "model.gguf", network, tokenizer)
    network.save_pretrained(folder / "whole")
    shutil.copyfile(tokenizer, folder / "whole" / "tokenizer.json")
    gguf = (folder / "model.gguf").read_bytes()

    def changed_gguf(rng: random.Random) -> Path:
        (folder / "bad.gguf").write_bytes(change_facts(gguf, rng) if rng.random() < 0.5 else change_bytes(gguf, rng))
        return folder / "bad.gguf"

    weights = (folder / "whole" / "model.safetensors").read_bytes()

    def changed_safetensors(rng: random.Random) -> Path:
        (folder / "bad.safetensors").write_bytes(change_safetensors(weights, rng))
        return folder / "bad.safetensors"

    def changed(name: str, change: Callable[[bytes, random.Random], bytes]) -> Callable[[random.Random], Path]:
        data = (folder / "whole" / name).read_bytes()

        def write(rng: random.Random) -> Path:
            shutil.rmtree(folder / "bad", ignore_errors=True)
            shutil.copytree(folder / "whole", folder / "bad")
            (folder / "bad" / name).write_bytes(change(data, rng))
            return folder / "bad"

        return write

    def as_json(data: bytes, rng: random.Random) -> bytes:
        return change_json(json.loads(data), rng)

    return {
        "gguf": changed_gguf,
        "config": changed("config.json", as_json),
        "tokenizer": changed("tokenizer.json", as_json),
        "safetensors": changed("model.safetensors", change_safetensors),
        "gguf-file": changed_gguf,
        "safetensors-file": changed_safetensors,
    }


def _reader(kind: str, out: Path) -> Callable[[Path], object]:
    """What reads or imports a changed model of a kind."""
    readers: dict[str, Callable[[Path], object]] = {"gguf-file": read_gguf, "safetensors-file": read_checkpoint}
    return readers.get(kind, lambda source: import_model(str(source), out))


def main(folder: Path, kinds: Sequence[str], count: int, seed: int) -> None:
    torch.set_num_threads(1)
    logging.set_verbosity(50)  # critical
    for kind in kinds:
        (folder / kind).mkdir()
        print(json.dumps({"kind": kind, **_fuzz(folder / kind, kind, count, seed)}))


def _fuzz(folder: Path, kind: str, count: int, seed: int) -> dict[str, Any]:
    write = make_sources(folder)[kind]
    import_model(str(folder / ("model.gguf" if kind.startswith("gguf") else "whole")), folder / "warm")
    read = _reader(kind, folder / "out")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))
    codes: Counter[str] = Counter()
    raw: Counter[str] = Counter()
    for number in range(count):
        source = write(random.Random(f"{seed} {number}"))
        try:
            read(source)
            codes["model"] += 1
        except SiloError as error:
            codes[error.code] += 1
        except BaseException as error:
            raw[f"{type(error).__name__}: {str(error)[:200]}"] += 1
            traceback.print_exc()
        for left in (folder / "out", folder / "out.saving"):
            shutil.rmtree(left, ignore_errors=True)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    return {"codes": codes, "raw": raw, "grown_mib": round(grown)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4]))
