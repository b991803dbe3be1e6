"""`silo lm train --ray`: Ray Train starts the processes of a training run, and starts them again when one is lost.

What they do is what processes of `torchrun` do, with the same weights in the end: the run grows in `<out>.building/`,
on a file system that all machines share, and goes on from its last checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from silo import __version__
from silo.cluster.connect import import_ray
from silo.cluster.tasks import receive, require_same_version, room_for, start_beside, unseen
from silo.errors import SiloError
from silo.files import remove_tree
from silo.placement import Placement, ask_for, asked
from silo.progress import Advance, Talk
from silo.recipe import TrainRecipe

_MOST_LOSSES = 20
"""How often workers may be lost in one run of the command; each time, training goes on from the checkpoint."""

_REDRAW_SECONDS = 0.5


def train_on_cluster(
    recipe: TrainRecipe,
    out: Path,
    *,
    base: Path,
    workers: int | None = None,
    talk: Talk = lambda _: None,
    advance: Advance = lambda *_: None,
) -> dict[str, Any]:
    """Train a model at `out` with so many workers of the cluster that was joined, or go on with such a run.

    Without `workers` it is one for each GPU where the run was asked to be on GPUs, and else one for each machine.
    """
    on_gpu = asked().device.startswith("cuda")
    room = room_for("GPU" if on_gpu else "CPU")
    count = workers or (room if on_gpu else min(room, _machines()))
    if count > room:
        raise SiloError("usage", f"the cluster has room for {room} workers, not for {count}", "give fewer --workers")
    relay = start_beside(_Relay)
    out = out.absolute()
    work = _Work(recipe, str(out), str(base.absolute()), asked(), __version__)
    with _passing_on(relay, talk, advance):
        reason = _fit(partial(_train_worker, work, relay), out, count, on_gpu=on_gpu)
    error, summary = receive(relay.ending.remote())
    if error is not None:
        raise error
    if summary is None:
        message = f"training was given up after {_MOST_LOSSES} losses of workers: {reason}"
        raise SiloError("worker-died", message[:600], "look at the reason, then run again: it resumes")
    return dict(summary)


@dataclass(frozen=True, slots=True)
class _Work:
    """What all workers of a run are told."""

    recipe: TrainRecipe
    out: str
    base: str
    placement: Placement
    version: str


def _fit(train_worker: Any, out: Path, workers: int, *, on_gpu: bool) -> str:
    """Run the workers until all have ended, or too many were lost; gives what went wrong then.

    What Ray notes meanwhile is removed.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchTrainer

    notes = out.with_name(out.name + ".ray")
    trainer = TorchTrainer(
        lambda _: train_worker(),
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=on_gpu, resources_per_worker=_share(on_gpu=on_gpu)),
        run_config=RunConfig(
            name="train", storage_path=str(notes), failure_config=FailureConfig(max_failures=_MOST_LOSSES)
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        return " ".join(str(error).split())
    finally:
        remove_tree(notes)
    return ""


def _share(*, on_gpu: bool) -> dict[str, float]:
    return {"CPU": 1, "GPU": 1} if on_gpu else {"CPU": 1}


def _machines() -> int:
    return sum(bool(node["Alive"]) for node in import_ray().nodes())


class _Relay:
    """What workers have to say to the command: how far they are, how it ended."""

    def __init__(self) -> None:
        self._stages: dict[str, tuple[str, int, int]] = {}
        self._words: list[str] = []
        self._error: SiloError | None = None
        self._summary: dict[str, Any] | None = None

    def advance(self, stage: str, done: int, total: int) -> None:
        self._stages[stage.partition("\t")[0]] = (stage, done, total)

    def talk(self, text: str) -> None:
        self._words.append(text)

    def fail(self, error: SiloError) -> None:
        self._error = self._error or error

    def finish(self, summary: dict[str, Any]) -> None:
        self._summary = summary

    def news(self) -> tuple[list[tuple[str, int, int]], list[str]]:
        """What came since somebody last asked; of every stage how far it is now."""
        stages, words = list(self._stages.values()), self._words
        self._stages, self._words = {}, []
        return stages, words

    def ending(self) -> tuple[SiloError | None, dict[str, Any] | None]:
        return self._error, self._summary


@contextmanager
def _passing_on(relay: Any, talk: Talk, advance: Advance) -> Iterator[None]:
    """Meanwhile whoever waits is told what the workers say."""
    over = threading.Event()

    def tell() -> None:
        stages, words = receive(relay.news.remote())
        for stage, done, total in stages:
            advance(stage, done, total)
        for text in words:
            talk(text)

    def pass_on() -> None:
        while not over.wait(_REDRAW_SECONDS):
            tell()
        tell()

    thread = threading.Thread(target=pass_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _train_worker(work: _Work, relay: Any) -> None:
    """In a worker: train together with the others. An error that would come again ends the run for all of them."""
    error, summary = receive(relay.ending.remote())
    if error is not None or summary is not None:
        return
    try:
        summary = _train(work, relay)
    except SiloError as refusal:
        receive(relay.fail.remote(refusal))
        raise
    if summary:
        receive(relay.finish.remote(summary))


def _train(work: _Work, relay: Any) -> dict[str, Any]:
    from silo.lm.training.distributed import rank
    from silo.lm.training.train import train

    require_same_version(work.version)
    if not Path(work.base).is_dir():
        raise unseen(work.base)
    ask_for(work.placement)
    recipe, out, base = work.recipe, Path(work.out), Path(work.base)
    if rank() != 0:
        return train(recipe, out, base=base)
    return train(recipe, out, base=base, talk=relay.talk.remote, advance=relay.advance.remote)
