"""Training by the workers of a cluster ends with the weights of as many processes of one machine, also after a loss."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from silo.cluster.train import train_on_cluster
from silo.errors import SiloError
from silo.recipe import DedupRecipe, TrainRecipe
from tests.byte_tokenizer import write_byte_tokenizer
from tests.conftest import build_from, record, words, write_jsonl

STEPS, CONTEXT = 24, 32
RECIPE = TrainRecipe(
    corpus="corpus",
    tiers=("pd",),
    preset="demo",
    context=CONTEXT,
    tokenizer="tokenizer.json",
    max_tokens=STEPS * 4 * CONTEXT,
    batch_tokens=4 * CONTEXT,
    micro_batch=2,
    checkpoint_every=4 * 4 * CONTEXT,
    dtype="float32",
    threads=1,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("train")
    records = [record(f"p{number}", words(number, 40), license="CC0-1.0") for number in range(20)]
    build_from([write_jsonl(root / "in.jsonl", records)], root / "corpus", dedup=DedupRecipe(enabled=False))
    write_byte_tokenizer(root / "tokenizer.json")
    settings = [f"{name} = {json.dumps(value)}\n" for name, value in asdict(RECIPE).items()]
    (root / "recipe.toml").write_text("".join(settings), encoding="utf-8")
    return root


def _train_processes(place: Path, out: Path) -> None:
    """Two processes of this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "silo"]
    command += ["lm", "train", str(place / "recipe.toml"), "--out", str(out), "--quiet"]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def _kill_a_worker(checkpoint: Path, killed: list[int]) -> None:
    """As soon as there is a checkpoint."""
    while not (checkpoint / "state.json").exists():
        time.sleep(0.01)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::") and b"TrainWorker" in title:
            os.kill(int(folder.name), signal.SIGKILL)
            killed.append(int(folder.name))
            return


def test_a_lost_worker_changes_nothing(cluster: Any, place: Path, tmp_path: Path) -> None:
    killed: list[int] = []
    said: list[str] = []
    shown: list[tuple[str, int, int]] = []
    checkpoint = tmp_path / "on-cluster.building" / "checkpoint"
    killer = threading.Thread(target=_kill_a_worker, args=(checkpoint, killed), daemon=True)
    killer.start()
    summary = train_on_cluster(
        RECIPE,
        tmp_path / "on-cluster",
        base=place,
        workers=2,
        talk=said.append,
        advance=lambda *told: shown.append(told),
    )
    killer.join()
    assert killed
    assert any("going on after step" in text for text in said)
    assert {stage.partition("\t")[0] for stage, done, total in shown if done == total == STEPS} == {"train"}
    assert summary["steps"] == STEPS
    _train_processes(place, tmp_path / "here")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("on-cluster", "here")]
    assert weights[0] == weights[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "on-cluster"]


def test_what_is_refused_is_refused_once(cluster: Any, place: Path, tmp_path: Path) -> None:
    with pytest.raises(SiloError) as caught:
        train_on_cluster(
            TrainRecipe(corpus="corpus", tiers=("restricted",), preset="demo"), tmp_path / "out", base=place, workers=1
        )
    assert caught.value.code == "training-refused"


def test_more_workers_than_there_is_room_for_are_refused(cluster: Any, place: Path, tmp_path: Path) -> None:
    with pytest.raises(SiloError) as caught:
        train_on_cluster(RECIPE, tmp_path / "out", base=place, workers=1000)
    assert caught.value.code == "usage"
