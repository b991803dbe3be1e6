"""A process of one thread whose children put a codec into a model and are killed before every call to the disk.

`python -m tests.reliability.codec_nursery FOLDER` makes `FOLDER/<n>/model` for n = 1, 2, ... whose installation was
killed before call n, until one comes to its end, and prints per n whether it was `killed` or `done`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np

from silo.files import write_atomic, write_manifest
from silo.lm.codec import _install, _Sampled
from silo.lm.firewall import DOCUMENTS, WEIGHTS, seen_file, seen_rows
from silo.lm.manifest import FORMAT, file_checksums, open_manifest
from silo.records import document_id
from silo.search.knn.codec import Codec, CodecSettings
from silo.text.sketch import sketch
from tests.reliability.disk import kill_at, watched

ONE, TWO = document_id("s", "one"), document_id("s", "two")


def make_model(root: Path) -> Path:
    """A directory with everything but a network in it."""
    root.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        write_atomic(root / name, name.encode() * 50)
    write_atomic(root / DOCUMENTS, seen_file(seen_rows([(ONE, bytes(16))], WEIGHTS)))
    write_manifest(root, {"format": FORMAT, "files": file_checksums(root)})
    return root


def make_codec() -> Codec:
    keys = np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32)
    return Codec.learn(keys, CodecSettings(rotation="none", lists=2, code_bytes=2))


def install(model: Path, codec: Codec) -> None:
    """What `silo lm codec` does in the end."""
    _install(
        model, {**open_manifest(model), "codec_key": "final"}, codec, [_Sampled(TWO, bytes(16), sketch("some words"))]
    )


def main(folder: Path) -> None:
    codec, whole = make_codec(), make_model(folder / "whole")
    for number in range(1, 10_000):
        model = Path(shutil.copytree(whole, folder / str(number) / "model"))
        child = os.fork()
        if child == 0:
            _work(model, codec, number)
        _, status = os.waitpid(child, 0)
        print("killed" if os.WIFSIGNALED(status) else "done" if not status else "failed", flush=True)
        if not os.WIFSIGNALED(status):
            return


def _work(model: Path, codec: Codec, number: int) -> NoReturn:
    try:
        with watched(kill_at(number)):
            install(model, codec)
        os._exit(0)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
