"""Long work under an id: it outlives the request that began it, and a server that is started again goes on with it.

On disk, under the server's home: `jobs/ID.json` with what is to be done, by whom and how far it is, and beside it
`jobs/ID.jsonl` with documents on their way into a store, which goes when the job ends. A job is noted there before
anybody is told of it. One that was under way when the server stopped is begun again: adding passes over what is there
already, erasing what is gone. One whose documents are lost is reported as failed. Of a job that is over the disk names
the documents that were refused, with the reason, as long as the store does not hold them; never those that it held then
or before.

Every store has a thread for its jobs, since it has one writer anyway. Erasures come first there: adding that is under
way gives way to them where it next says how far it is, and goes on afterwards from what is in the store by then. It
gives way to the end of the server too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from silo.errors import SiloError
from silo.files import exclusive, read_json, remove_file, write_private
from silo.progress import Advance

FOLDER = "jobs"
"""Of a home."""
WAITING = "waiting"
"""The stage of a job that cannot go on yet: it may be interrupted there."""
Result = TypeVar("Result")
State = Literal["queued", "running", "done", "failed"]
_KEPT = 1000
_SAVED_SECONDS = 2.0
_NICENESS = 5
"""Of adding: it gets a quarter of a core for which a text competes, and all of one for which nobody does."""
_LOOK_SECONDS = 0.05
_FIRST = "erase"
"""The kind of jobs that others give way to."""
_PASSING = ("documents", "salts", "copies")
_REFUSED = "rejected_documents"
_HELD = ("suppressed", "other-record", "other-evidence", "contaminated-stored")
"""Reasons to refuse a document that is or was in a store: its name is kept in memory only."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done, for whom, and how far it is. `input` names no text; `result` is there when it is done."""

    id: str
    kind: str
    store: str
    caller: str
    owner: str
    input: dict[str, Any]
    state: State = "queued"
    stage: str = ""
    done: int = 0
    total: int = 0
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    created: str = ""
    ended: str = ""
    resumed: bool = False

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed")

    def as_json(self) -> dict[str, Any]:
        """What whoever began it may see."""
        return {name: value for name, value in asdict(self).items() if name not in ("caller", "owner")}


@contextmanager
def taking_up_jobs(home: Path) -> Iterator[None]:
    """Be the one server that takes up the jobs of a home: two would do them twice. One without rights has none."""
    with ExitStack() as held:
        try:
            held.enter_context(exclusive(home / FOLDER / "lock"))
        except SiloError as error:
            if error.code == "busy":
                hint = "give this one a home of its own with --home"
                raise SiloError("busy", f"another server has the home {home}", hint) from None
            if error.code != "not-writable":
                raise
        yield


def give_way(work: Callable[[], Result]) -> Result:
    """What some work gives, done by a thread that others of this process come before.

    Threads that it starts are like it: encoding takes every core there is, and texts that are written meanwhile need
    theirs at once. A thread cannot take its rank back, so it is one of its own.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="silo-add", initializer=_step_back) as pool:
        return pool.submit(work).result()


def _step_back() -> None:
    thread = threading.get_native_id()
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS))


Work = Callable[[Job, Path, Advance], dict[str, Any]]
"""Does a job; the path is where its documents lie."""
Holds = Callable[[str, str], bool]
"""Does a store, given by name, hold the document of an id?"""


class _GivesWayError(Exception):
    """Ends a job that waits again, for its next turn."""


@dataclass
class Jobs:
    """The jobs of a server: those of each store one after the other, erasures first."""

    folder: Path
    work: Work
    holds: Holds = lambda *_: False
    _known: dict[str, Job] = field(default_factory=dict)
    _waiting: dict[str, list[Job]] = field(default_factory=dict)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    _closing: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _saved: float = 0.0

    def start(self) -> None:
        """Take up what an earlier server left, oldest first; documents that no job waits for go."""
        self._known = {job.id: job for job in self._left()}
        waiting = [job for job in self._known.values() if not job.is_over]
        wanted = {self._documents(job) for job in waiting}
        for file in (*self.folder.glob("*.jsonl"), *self.folder.glob("*.partial")):
            if file not in wanted:
                remove_file(file)
        for job in waiting:
            self._begin(replace(job, state="queued", resumed=True))

    def _left(self) -> Iterator[Job]:
        for file in sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            with suppress(OSError, ValueError, TypeError, RecursionError):
                yield Job(**read_json(file))

    def create(
        self, kind: str, store: str, *, caller: str, owner: str, given: Mapping[str, Any], lines: bytes = b""
    ) -> Job:
        """Note a job and begin it; `lines` are its documents. When this returns it survives the end of the server."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        job = Job(secrets.token_hex(12), kind, store, caller, owner, dict(given), created=now)
        self.folder.mkdir(parents=True, exist_ok=True)
        if lines:
            write_private(self._documents(job), lines)
        self._begin(job)
        return job

    def find(self, name: str) -> Job | None:
        """The job of an id."""
        return self._known.get(name)

    def latest(self) -> list[Job]:
        """All that are known, the newest first."""
        return sorted(self._known.values(), key=lambda job: (job.created, job.id), reverse=True)

    def waiting(self, caller: str) -> int:
        """How many jobs that somebody began have no turn yet."""
        with self._changed:
            return sum(job.caller == caller for jobs in self._waiting.values() for job in jobs)

    def has_receipt(self, receipt: str, owner: str) -> bool:
        """Is this the receipt of an erasure that this owner asked for?"""
        jobs = list(self._known.values())
        return any(job.owner == owner and job.result and job.result.get("receipt") == receipt for job in jobs)

    async def changed(self, job: Job, seconds: float) -> Job | None:
        """The job once it has changed, or after so many seconds; None if it is forgotten. No thread waits for it."""
        end = time.monotonic() + seconds
        while (now := self._known.get(job.id)) == job and time.monotonic() < end:
            await asyncio.sleep(_LOOK_SECONDS)
        return now

    def close(self) -> None:
        """Begin no more jobs. An erasure under way is finished; all others are there at the next start."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads.values():
            thread.join()

    def _begin(self, job: Job) -> None:
        self._save(job)
        with self._changed:
            self._waiting.setdefault(job.store, []).append(job)
            if job.store not in self._threads:
                thread = threading.Thread(target=self._run_all, args=[job.store], name="silo-jobs", daemon=True)
                self._threads[job.store] = thread
                thread.start()
            self._changed.notify_all()

    def _run_all(self, store: str) -> None:
        """The jobs of one store, for as long as the server runs."""
        while (job := self._next(store)) is not None:
            self._run(job)

    def _next(self, store: str) -> Job | None:
        """The job whose turn it is, once there is one; None at the end of the server."""
        waiting = self._waiting[store]
        with self._changed:
            self._changed.wait_for(lambda: self._closing or waiting)
            if self._closing:
                return None
            first = min(waiting, key=lambda job: job.kind != _FIRST)
            waiting.remove(first)
            return first

    def _must_give_way(self, job: Job) -> bool:
        """May a job not go on now? An erasure that was accepted always may."""
        if job.kind == _FIRST:
            return self._closing and job.stage == WAITING
        with self._changed:
            return self._closing or any(other.kind == _FIRST for other in self._waiting[job.store])

    def _run(self, job: Job) -> None:
        job = replace(job, state="running")
        self._save(job)

        def advance(stage: str, done: int, total: int) -> None:
            nonlocal job
            job = replace(job, stage=stage, done=done, total=total)
            self._save(job, lasting=False)
            if self._must_give_way(job):
                raise _GivesWayError

        try:
            result = self.work(job, self._documents(job), advance)
            job = replace(job, state="done", result=result)
        except _GivesWayError:
            self._begin(replace(job, state="queued", stage=WAITING, done=0, total=0))
            return
        except SiloError as error:
            job = replace(job, state="failed", error=error.as_json())
        except Exception as error:  # whatever it is, the job says so and the next one begins
            failed = SiloError("internal", f"{type(error).__name__}")
            job = replace(job, state="failed", error=failed.as_json())
        erased = frozenset((job.result or {}).get("documents", ()))
        for other in [item for item in self._known.values() if item.store == job.store and item.is_over]:
            if (kept := self._still_refused(other, erased)) != other:
                self._save(kept)
        ended = replace(job, ended=datetime.now(UTC).isoformat(timespec="seconds"))
        self._save(self._still_refused(ended, erased))  # last: a job that is cut off before forgets again
        self._remove(self._documents(job))

    def _still_refused(self, job: Job, erased: frozenset[str]) -> Job:
        """The job without the names of refused documents that have come in since, or were erased."""
        refused = (job.result or {}).get(_REFUSED)
        if not refused:
            return job
        left = [
            item
            for item in refused
            if item["id"] not in erased and (item["reason"] in _HELD or not self.holds(job.store, item["id"]))
        ]
        return replace(job, result={**(job.result or {}), _REFUSED: left})

    def _save(self, job: Job, *, lasting: bool = True) -> None:
        """Note a job; how far it is goes to the disk every few seconds only.

        A disk that fails keeps a job from being created, and none that was from being done.
        """
        now = time.monotonic()
        if lasting or now - self._saved > _SAVED_SECONDS:
            self._saved = now
            try:
                write_private(self.folder / f"{job.id}.json", json.dumps(_lasting(job)).encode())
            except (SiloError, OSError) as error:
                if job.id not in self._known:
                    raise
                _LOG.warning("warning: a job's state is not on the disk: %s", error)
        with self._changed:
            self._known[job.id] = job
            over = [item for item in self._known.values() if item.is_over]
            old = over[: max(0, len(over) - _KEPT)]
            for item in old:
                del self._known[item.id]
            self._changed.notify_all()
        for item in old:
            self._remove(self.folder / f"{item.id}.json")

    def _remove(self, file: Path) -> None:
        try:
            remove_file(file)
        except (SiloError, OSError) as error:
            _LOG.warning("warning: %s of a job is still there: %s", file, error)

    def _documents(self, job: Job) -> Path:
        return self.folder / f"{job.id}.jsonl"


def _lasting(job: Job) -> dict[str, Any]:
    """What the disk holds of a job: once it is over, neither what was asked for nor which documents it was about."""
    if not job.is_over:
        return asdict(job)
    result = {name: value for name, value in (job.result or {}).items() if name not in _PASSING}
    if _REFUSED in result:
        nameless = {"id": "", "external_id": ""}
        result[_REFUSED] = [item | nameless if item["reason"] in _HELD else item for item in result[_REFUSED]]
    return {**asdict(job), "input": {}, "result": result if job.result is not None else None}
