"""Units of work: each is done by one process alone, leaves a report when it is finished, and is never done twice.

A unit without a report did not happen: it is started again from nothing. That is all there is to resuming.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.files import exclusive, hold_shared, read_json, write_json

Advance = Callable[[str, int, int], None]
"""Called with the stage, what is done of it and its total; the command line draws a bar from it."""

Job = Callable[..., dict[str, Any]]

_REDRAW_SECONDS = 0.2
_ORPHAN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Unit:
    """One call of a stage's function, the file its report goes to, and how much work it is."""

    report: Path
    arguments: tuple[Any, ...]
    size: int


@dataclass(slots=True)
class Memory:
    """Peak resident memory in MB of every process of every stage."""

    peaks: dict[str, dict[int, float]] = field(default_factory=dict)

    def note(self, stage: str, process: int, peak: float) -> None:
        """Remember the highest peak of one process in one stage."""
        of_stage = self.peaks.setdefault(stage, {})
        of_stage[process] = max(peak, of_stage.get(process, 0.0))

    def total(self) -> float:
        """An upper bound for what was held at once: this process and all workers of the hungriest stage."""
        workers = [
            sum(peak for process, peak in stage.items() if process != os.getpid()) for stage in self.peaks.values()
        ]
        return round(peak_memory_mb() + max(workers, default=0.0), 1)


@dataclass(slots=True)
class _Here:
    """What this process does with progress: workers count it, the process that draws also shows it now and then."""

    counter: Synchronized[int] | None = None
    show: Callable[[], None] | None = None
    shown: float = 0.0


_here = _Here()


def tick(amount: int) -> None:
    """Called inside a unit: so much more is done."""
    if _here.counter is None:
        return
    with _here.counter.get_lock():
        _here.counter.value += amount
    if _here.show and time.monotonic() - _here.shown > _REDRAW_SECONDS:
        _here.shown = time.monotonic()
        _here.show()


def run(
    stage: str,
    job: Job,
    units: Sequence[Unit],
    *,
    workers: int,
    advance: Advance,
    memory: Memory,
    guard: Path | None = None,
) -> list[Any]:
    """Do the units that have no report yet; returns all reports in the order of the units.

    Workers hold the lock file `guard` while they live, and do not outlive this process: see `wait_for_orphans`.
    """
    total = sum(unit.size for unit in units)
    open_units = [unit for unit in units if not unit.report.exists()]
    before = total - sum(unit.size for unit in open_units)
    counter = multiprocessing.get_context("spawn").Value("q", 0)

    def show() -> None:
        advance(stage, min(total, before + counter.value), total)

    show()
    if workers == 1 or len(open_units) <= 1:
        _here.counter, _here.show = counter, show
        for unit in open_units:
            memory.note(stage, *_perform(job, unit))
            show()
    else:
        crew = _Crew(min(workers, len(open_units)), counter, guard)
        crew.work(job, open_units, show, partial(memory.note, stage))
    advance(stage, total, total)
    return [read_json(unit.report) for unit in units]


def wait_for_orphans(guard: Path) -> None:
    """Wait until no worker of an earlier, killed run is left; they notice within a second that they are orphans."""
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while True:
        try:
            with exclusive(guard):
                return
        except SiloError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class _Crew:
    """Worker processes that take units, largest first."""

    workers: int
    counter: Synchronized[int]
    guard: Path | None

    def work(self, job: Job, units: list[Unit], show: Callable[[], None], note: Callable[[int, float], None]) -> None:
        """Do all units; if one fails or this process is interrupted, the others are stopped: they can be redone."""
        pool = ProcessPoolExecutor(
            self.workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_enter,
            initargs=(self.counter, os.getpid(), self.guard),
        )
        strangers = set(multiprocessing.active_children())
        try:
            largest_first = sorted(units, key=lambda unit: -unit.size)
            waiting: set[Future[tuple[int, float]]] = {pool.submit(_perform, job, unit) for unit in largest_first}
            while waiting:
                finished, waiting = wait(waiting, timeout=_REDRAW_SECONDS, return_when=FIRST_COMPLETED)
                for future in finished:
                    note(*future.result())
                show()
        except BaseException as error:
            for child in set(multiprocessing.active_children()) - strangers:
                child.kill()
            if isinstance(error, BrokenProcessPool):
                raise SiloError("worker-died", "a worker process was killed before it finished") from None
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _enter(counter: Synchronized[int], parent: int, guard: Path | None) -> None:
    """The first thing a worker does: hold the guard, and make sure it ends when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _here.counter = counter
    if guard:
        hold_shared(guard)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _perform(job: Job, unit: Unit) -> tuple[int, float]:
    try:
        report = job(*unit.arguments)
    except MemoryError:
        raise SiloError("out-of-memory", f"not enough memory for {unit.report.stem}") from None
    write_json(unit.report, report)
    return os.getpid(), peak_memory_mb()


def peak_memory_mb() -> float:
    """The high-water mark of this process's resident memory."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(found[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
