"""Tasks: each is done by one process alone, leaves a report when it is finished, and is never done twice.

A task without a report did not happen: it is started again from nothing. That is all there is to resuming.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from silo.errors import SiloError
from silo.files import exclusive, hold_shared, read_json, write_json
from silo.progress import Advance

TaskFunction = Callable[..., dict[str, Any]]
Show = Callable[[int], None]
"""Told how much more is done."""
Note = Callable[[int, float], None]
"""Told a process and its peak memory in MB."""
Link = connection.Connection

_REDRAW_SECONDS = 0.2
_ORPHAN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Task:
    """One call of a stage's function, the file its report goes to, and how much work it is."""

    report: Path
    arguments: tuple[Any, ...]
    size: int


class RunTasks(Protocol):
    """Does tasks until each has its report; on an error it ends those that are under way.

    Whoever does one holds the file `lock` meanwhile, together with others: see `wait_for_orphans`.
    """

    def __call__(
        self, function: TaskFunction, tasks: Sequence[Task], *, show: Show, note: Note, lock: Path | None
    ) -> None: ...


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
class _Progress:
    """Where progress of this process goes: to `show`, now and then; `pending` is what it has not been told yet."""

    show: Show | None = None
    pending: int = 0
    last_shown: float = 0.0


_progress = _Progress()


def tick(amount: int) -> None:
    """Called inside a task: so much more is done."""
    _progress.pending += amount
    if _progress.show and time.monotonic() - _progress.last_shown > _REDRAW_SECONDS:
        _progress.show(_progress.pending)
        _progress.pending, _progress.last_shown = 0, time.monotonic()


def run_tasks(
    stage: str,
    function: TaskFunction,
    tasks: Sequence[Task],
    *,
    run: RunTasks,
    advance: Advance,
    memory: Memory,
    lock: Path | None = None,
) -> list[Any]:
    """Let `run` do the tasks that have no report yet; returns all reports in the order of the tasks."""
    total = sum(task.size for task in tasks)
    open_tasks = [task for task in tasks if not task.report.exists()]
    done = total - sum(task.size for task in open_tasks)

    def show(amount: int) -> None:
        nonlocal done
        done += amount
        advance(stage, min(total, done), total)

    show(0)
    if open_tasks:
        run(function, open_tasks, show=show, note=partial(memory.note, stage), lock=lock)
    advance(stage, total, total)
    return [read_json(task.report) for task in tasks]


@dataclass(frozen=True, slots=True)
class Processes:
    """Does tasks in so many processes of this machine; in this one if one is enough. None outlives this process."""

    workers: int

    def __call__(
        self, function: TaskFunction, tasks: Sequence[Task], *, show: Show, note: Note, lock: Path | None
    ) -> None:
        if self.workers == 1 or len(tasks) == 1:
            with telling(show):
                for task in tasks:
                    note(*perform_task(function, task))
        else:
            _run_in_workers(function, tasks, min(self.workers, len(tasks)), show=show, note=note, lock=lock)


@contextlib.contextmanager
def telling(show: Show) -> Iterator[None]:
    """Meanwhile `tick` of this process tells `show`, now and then."""
    _progress.show, _progress.pending = show, 0
    try:
        yield
    finally:
        _progress.show = None


def wait_for_orphans(lock: Path) -> None:
    """Wait until no worker of an earlier, killed run is left; they notice within a second that they are orphans."""
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while True:
        try:
            with exclusive(lock):
                return
        except SiloError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _run_in_workers(
    function: TaskFunction,
    tasks: Sequence[Task],
    workers: int,
    *,
    show: Show,
    note: Note,
    lock: Path | None,
) -> None:
    """Let worker processes take tasks, largest first.

    Each worker has a pipe of its own and shares nothing else, so that killing one can block nobody. If a task fails or
    this process is interrupted, the workers are killed: what they were doing will be done again.
    """
    waiting = sorted(tasks, key=lambda task: task.size)
    started: list[tuple[Link, BaseProcess]] = []
    try:
        while len(started) < workers:
            started.append(_start_worker(function, lock))
        busy = [link for link, _ in started]
        for link in busy:
            link.send(waiting.pop())
        while busy:
            ready: list[Any] = connection.wait(busy, timeout=_REDRAW_SECONDS)
            for link in ready:
                answer = _receive(link)
                if isinstance(answer, int):
                    show(answer)
                    continue
                note(*answer)
                if waiting:
                    link.send(waiting.pop())
                else:
                    busy.remove(link)
            show(0)
    finally:
        for link, process in started:
            link.close()
            process.kill()
            process.join()


def _start_worker(function: TaskFunction, lock: Path | None) -> tuple[Link, BaseProcess]:
    """A new worker process and the link to it.

    An interrupt meanwhile waits: a worker that has not come as far as ignoring it would die with a traceback. Python's
    resource tracker, which the first worker brings with it, is started before: its start lets interrupts through again.
    """
    resource_tracker.ensure_running()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, function, os.getpid(), lock), daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return ours, process


def _receive(link: Link) -> Any:
    """Progress (a number) or the end of a task (process and peak memory); an error of the task is raised here."""
    try:
        answer = link.recv()
    except (EOFError, ConnectionResetError):
        hint = "lack of memory? run again with fewer workers; in a script, build under `if __name__ == '__main__':`"
        raise SiloError("worker-died", "a worker process was killed before it finished", hint) from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _work(link: Link, function: TaskFunction, parent: int, lock: Path | None) -> None:
    """A worker: take tasks until the link closes; it holds the lock, and ends when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if lock:
        hold_shared(lock)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _progress.show = link.send
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            link.send(answer_task(function, link.recv()))


def answer_task(function: TaskFunction, task: Task) -> tuple[int, float] | Exception:
    """Do one task: this process and its peak memory, or an error to be raised where the user can see it."""
    try:
        return perform_task(function, task)
    except SiloError as error:
        return error
    except Exception as error:
        return RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def perform_task(function: TaskFunction, task: Task) -> tuple[int, float]:
    """Do one task and leave its report; returns this process and its peak memory."""
    try:
        report = function(*task.arguments)
    except MemoryError:
        raise SiloError("out-of-memory", f"not enough memory for {task.report.stem}") from None
    write_json(task.report, report)
    return os.getpid(), peak_memory_mb()


def peak_memory_mb() -> float:
    """The high-water mark of this process's resident memory."""
    status = Path("/proc/self/status")
    if status.exists() and (peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(peak[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
