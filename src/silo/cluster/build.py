"""Corpora and stores made by the workers of a cluster: the bytes are those that one machine makes.

A corpus is made on a file system that all machines share: every task of a build writes files of its own there, and
holds a lock meanwhile, so that one whose worker only seemed to be lost is never done by two at once. Of a store the
machines share nothing but the model: documents go to the workers, buckets come back, and the command alone writes them.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo import __version__
from silo.cluster.connect import import_ray
from silo.cluster.tasks import (
    RETRIES,
    cancelled_after,
    receive,
    require_same_version,
    room_for,
    start_beside,
    unseen,
)
from silo.corpus.workers import Note, Show, Task, TaskFunction, perform_task, telling
from silo.errors import SiloError
from silo.files import SharedLock, exclusive
from silo.store.encode import DocumentPipeline, Encoder
from silo.store.store import Store
from silo.store.write import BucketBuilder, BuiltBucket, PlannedBucket

if TYPE_CHECKING:
    from silo.search.knn.codec import Codec

_REDRAW_SECONDS = 0.5
_LOCK_SECONDS = 0.5


def run_on_cluster(function: TaskFunction, tasks: Sequence[Task], *, show: Show, note: Note, lock: Path | None) -> None:
    """Do the tasks of a corpus build on the cluster that was joined, largest first; a `RunTasks`."""
    ray = import_ray()
    room_for("CPU")
    tally = start_beside(_Tally, max_restarts=-1, max_task_retries=-1)  # a build does not fail for want of a bar
    perform = ray.remote(num_cpus=1, max_retries=RETRIES)(_perform_alone)
    numbers = {
        perform.remote(function, tasks[number], number, tally, lock, __version__): number
        for number in sorted(range(len(tasks)), key=lambda number: -tasks[number].size)
    }
    finished_bytes = shown = 0
    with cancelled_after(numbers):
        while numbers:
            ready, _ = ray.wait(list(numbers), timeout=_REDRAW_SECONDS)
            for reference in ready:
                note(*receive(reference))
                finished_bytes += tasks[numbers.pop(reference)].size
            amounts = receive(tally.read.remote())
            begun = sum(min(amounts.get(number, 0), tasks[number].size) for number in numbers.values())
            show(finished_bytes + begun - shown)
            shown = finished_bytes + begun


class _Tally:
    """How far the tasks that are being done have come, as they tell it; one that is done again begins anew."""

    def __init__(self) -> None:
        self._amounts: dict[int, int] = {}

    def begin(self, task: int) -> None:
        self._amounts[task] = 0

    def add(self, task: int, amount: int) -> None:
        self._amounts[task] = self._amounts.get(task, 0) + amount

    def read(self) -> dict[int, int]:
        return self._amounts


def _perform_alone(
    function: TaskFunction, task: Task, number: int, tally: Any, lock: Path | None, version: str
) -> tuple[int, float]:
    """In a worker: do a task that has no report yet; gives this process and its peak memory."""
    require_same_version(version)
    if not task.report.parent.is_dir():
        raise unseen(str(task.report.parent))
    tally.begin.remote(number)
    with _holding(lock), _alone_with(task.report), telling(lambda amount: tally.add.remote(number, amount)):
        process, peak = (os.getpid(), 0.0) if task.report.exists() else perform_task(function, task)
    return uuid.getnode() << 32 | process, peak


@contextmanager
def _holding(lock: Path | None) -> Iterator[None]:
    """Let the next run of the command see that somebody still works for this one."""
    if lock is None:
        yield
    else:
        with closing(SharedLock(lock)):
            yield


@contextmanager
def _alone_with(report: Path) -> Iterator[None]:
    """Wait for whoever is doing the same task: a worker that was given up as lost may be alive."""
    with ExitStack() as held:
        while not _take(held, report.with_suffix(".lock")):
            time.sleep(_LOCK_SECONDS)
        yield


def _take(held: ExitStack, lock: Path) -> bool:
    try:
        held.enter_context(exclusive(lock))
    except SiloError as error:
        if error.code != "busy":
            raise
        return False
    return True


def build_elsewhere(store: Store) -> None:
    """Have the buckets of a store, opened with its model, made by the cluster that was joined, wherever it is added to.

    Keys are made where the store says: by workers with a GPU if its keys come from one.
    """
    resource = "GPU" if store.config.encoded_on.startswith("cuda") else "CPU"
    if store.load_encoder is None:
        raise SiloError("store-mismatch", f"{store.root} is open without its model", "open it with its model")
    setup = _Setup(store.load_encoder, store.builder(), store.codec)
    store.build_buckets = partial(_build_buckets, setup, resource, room_for(resource))


@dataclass(frozen=True, slots=True)
class _Setup:
    """What a worker needs to make buckets of a store."""

    load_encoder: Callable[[], Encoder]
    builder: BucketBuilder
    codec: Codec | None


def _build_buckets(setup: _Setup, resource: str, workers: int, plans: Iterator[PlannedBucket]) -> Iterator[BuiltBucket]:
    """The buckets in their order; twice as many as there are workers are under way."""
    ray = import_ray()
    share = {"num_gpus": 1} if resource == "GPU" else {"num_cpus": 1}
    make = ray.remote(max_retries=RETRIES, **share)(_make_bucket)
    shared = ray.put(setup)
    under_way: deque[Any] = deque()
    with cancelled_after(under_way):
        for plan in plans:
            under_way.append(make.remote([shared], plan, __version__))
            if len(under_way) >= 2 * workers:
                yield receive(under_way.popleft())
        while under_way:
            yield receive(under_way.popleft())


def _make_bucket(shared: list[Any], plan: PlannedBucket, version: str) -> BuiltBucket:
    """In a worker: make one bucket."""
    require_same_version(version)
    builder, pipeline = _open_setup(shared[0])
    return builder.build_planned(plan, pipeline.encode)


@lru_cache(maxsize=1)
def _open_setup(shared: Any) -> tuple[BucketBuilder, DocumentPipeline]:
    """The model is loaded once by every worker, and must be the one of the store."""
    setup: _Setup = import_ray().get(shared)
    try:
        encoder = setup.load_encoder()
    except (SiloError, OSError) as error:
        raise SiloError(
            "cluster-unfit", f"the store's model cannot be opened on a machine of the cluster: {error}"
        ) from None
    config = setup.builder.config
    if encoder.tokenizer.fingerprint != config.tokenizer or (config.model and encoder.fingerprint != config.model):
        raise SiloError("store-mismatch", "a machine of the cluster has another model at the place of the store's")
    return setup.builder, DocumentPipeline(encoder, setup.codec)
