"""Units of work: each is done by one process alone, leaves a report when it is finished, and is never done twice.

A unit without a report did not happen: it is started again from nothing. That is all there is to resuming.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.files import read_json, write_json

Advance = Callable[[str, int, int], None]
"""Called with the stage, what is done of it and its total; the command line draws a bar from it."""

Job = Callable[..., dict[str, Any]]


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


_done: Synchronized[int] | None = None


def tick(amount: int) -> None:
    """Called inside a unit: so much more is done."""
    if _done is not None:
        with _done.get_lock():
            _done.value += amount


def _enter(counter: Synchronized[int]) -> None:
    global _done  # one counter per worker process, set once when it starts
    _done = counter


def run(stage: str, job: Job, units: Sequence[Unit], *, workers: int, advance: Advance, memory: Memory) -> list[Any]:
    """Do the units that have no report yet; returns all reports in the order of the units."""
    total = sum(unit.size for unit in units)
    open_units = [unit for unit in units if not unit.report.exists()]
    before = total - sum(unit.size for unit in open_units)
    counter = multiprocessing.get_context("spawn").Value("q", 0)

    def show() -> None:
        advance(stage, min(total, before + counter.value), total)

    show()
    if workers == 1 or len(open_units) <= 1:
        _enter(counter)
        for unit in open_units:
            memory.note(stage, *_perform(job, unit))
            show()
    else:
        note = partial(memory.note, stage)
        _run_in_processes(job, open_units, min(workers, len(open_units)), counter, show, note)
    advance(stage, total, total)
    return [read_json(unit.report) for unit in units]


def _run_in_processes(
    job: Job,
    units: list[Unit],
    workers: int,
    counter: Synchronized[int],
    show: Callable[[], None],
    note: Callable[[int, float], None],
) -> None:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_enter, initargs=(counter,))
    try:
        largest_first = sorted(units, key=lambda unit: -unit.size)
        waiting: set[Future[tuple[int, float]]] = {pool.submit(_perform, job, unit) for unit in largest_first}
        while waiting:
            finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in finished:
                note(*future.result())
            show()
    except BrokenProcessPool:
        raise SiloError("worker-died", "a worker process was killed before it finished") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


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
