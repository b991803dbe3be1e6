"""A process that forks whole commands of silo which are there to be killed: tune, generate, score, train.

Answers lines `folder job call seconds` as `nursery` does: the job is done in a child that kills itself before call
`call` (0: never) or is killed after so many seconds (0: never). `folder make 0 0` makes what the jobs need, here.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import torch

from silo.cli import main as silo
from silo.lm import network
from silo.lm.training.train import train
from silo.recipe import DedupRecipe
from tests.conftest import build_from, record, write_jsonl
from tests.evaluation.test_tune import VALIDATION
from tests.inference.world import make_model, make_store
from tests.lm.test_train import RECIPE, SENTENCES, TINY
from tests.reliability.disk import kill_at, watched
from tests.reliability.helper import end_of, serve

TRAINING = replace(RECIPE, max_tokens=32 * 8 * 12, checkpoint_every=32 * 8 * 2, evaluate_every=32 * 8 * 5)


def _tune(folder: Path) -> int:
    place = ["--model", str(folder / "model"), "--jsonl", str(folder / "validation.jsonl")]
    home = ["--save", "tuned", "--home", str(folder / "home"), "--k", "16"]
    return silo(["store", "tune", str(folder / "store"), *place, *home, "--quiet", "--json"])


def _generate(folder: Path) -> int:
    place = ["--model", str(folder / "model"), "--store", str(folder / "store")]
    return silo(["generate", "The quick", *place, "--ledger", "--max-tokens", "8", "--json"])


def _score(folder: Path) -> int:
    place = ["--model", str(folder / "model"), "--store", str(folder / "store")]
    return silo(["score", *place, "--jsonl", str(folder / "validation.jsonl"), "--quiet", "--json"])


def _train(folder: Path) -> int:
    train(TRAINING, folder / "trained", base=folder / "training")
    return 0


JOBS: dict[str, Callable[[Path], int]] = {"tune": _tune, "generate": _generate, "score": _score, "train": _train}


def main() -> None:
    torch.set_num_threads(1)
    network.PRESETS["tiny"] = TINY
    serve(lambda words: _answer(Path(words[0]), words[1], int(words[2]), float(words[3])))


def _answer(folder: Path, job: str, call: int, seconds: float) -> str:
    if job == "make":
        _make(folder)
        return "done"
    told = mmap.mmap(-1, 16)
    child = os.fork()
    if child == 0:
        _work(folder, job, call, told)
    return end_of(child, seconds, told)


def _work(folder: Path, job: str, call: int, told: mmap.mmap) -> NoReturn:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        with watched(kill_at(call)):
            if JOBS[job](folder) == 0:
                told[:4] = b"done"
    except BaseException as error:
        print(f"{job}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)


def _make(folder: Path) -> None:
    make_store(folder / "store", make_model(folder)).close()
    write_jsonl(folder / "validation.jsonl", [record(str(n), text) for n, text in enumerate(VALIDATION)])
    texts = (". ".join(SENTENCES[(n + k) % 2] for k in range(8)) for n in range(20))
    records = [record(f"p{n}", f"story {n}. {text}", license="CC0-1.0") for n, text in enumerate(texts)]
    place = folder / "training"
    build_from([write_jsonl(place / "in.jsonl", records)], place / "corpus", dedup=DedupRecipe(enabled=False))
    write_jsonl(place / "valid.jsonl", [record("v", ". ".join(SENTENCES * 4))])


if __name__ == "__main__":
    main()
