"""Long work under an id: it outlives the request that began it, and a server that is started again goes on with it.

On disk, under the server's home: `jobs/ID.json` with what is to be done, by whom and how far it is, and beside it
`jobs/ID.jsonl` with documents on their way into a store, which goes when the job ends. A job is noted there before
anybody is told of it. One that was under way when the server stopped is begun again: adding passes over what is there
already, erasing what is gone. One whose documents are lost is reported as failed.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from silo.errors import SiloError
from silo.files import read_json, remove_file, write_private
from silo.progress import Advance

State = Literal["queued", "running", "done", "failed"]
_KEPT = 1000
_SAVED_SECONDS = 2.0
_PASSING = ("documents", "salts", "copies", "rejected_documents")


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


Work = Callable[[Job, Path, Advance], dict[str, Any]]
"""Does a job; the path is where its documents lie."""


@dataclass
class Jobs:
    """The jobs of a server, carried out one after the other: a store has one writer anyway."""

    folder: Path
    work: Work
    _known: dict[str, Job] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _saved: float = 0.0

    def start(self) -> None:
        """Take up what an earlier server left, oldest first."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="silo-jobs")
        for file in sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            try:
                job = Job(**read_json(file))
            except (OSError, ValueError, TypeError, RecursionError):
                continue
            self._known[job.id] = job
            if not job.is_over:
                self._begin(replace(job, state="queued", resumed=True))

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

    def has_receipt(self, receipt: str, owner: str) -> bool:
        """Is this the receipt of an erasure that this owner asked for?"""
        jobs = list(self._known.values())
        return any(job.owner == owner and job.result and job.result.get("receipt") == receipt for job in jobs)

    def wait(self, job: Job, seconds: float) -> Job:
        """The job as it is once it has changed, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._known[job.id] != job, seconds)
            return self._known[job.id]

    def close(self) -> None:
        """Begin no more jobs; the one under way is finished, those that wait are there at the next start."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self, job: Job) -> None:
        self._save(job)
        self._pool.submit(self._run, job)

    def _run(self, job: Job) -> None:
        job = replace(job, state="running")
        self._save(job)

        def advance(stage: str, done: int, total: int) -> None:
            nonlocal job
            job = replace(job, stage=stage, done=done, total=total)
            self._save(job, lasting=False)

        try:
            result = self.work(job, self._documents(job), advance)
            job = replace(job, state="done", result=result)
        except SiloError as error:
            job = replace(job, state="failed", error=error.as_json())
        except Exception as error:  # whatever it is, the job says so and the next one begins
            failed = SiloError("internal", f"{type(error).__name__}")
            job = replace(job, state="failed", error=failed.as_json())
        self._save(replace(job, ended=datetime.now(UTC).isoformat(timespec="seconds")))
        remove_file(self._documents(job))

    def _save(self, job: Job, *, lasting: bool = True) -> None:
        """Note a job; how far it is goes to the disk every few seconds only."""
        now = time.monotonic()
        if lasting or now - self._saved > _SAVED_SECONDS:
            self._saved = now
            self.folder.mkdir(parents=True, exist_ok=True)
            write_private(self.folder / f"{job.id}.json", json.dumps(_lasting(job)).encode())
        with self._changed:
            self._known[job.id] = job
            self._changed.notify_all()
        self._forget_old()

    def _forget_old(self) -> None:
        over = [job for job in self._known.values() if job.is_over]
        for job in over[: max(0, len(over) - _KEPT)]:
            del self._known[job.id]
            remove_file(self.folder / f"{job.id}.json")

    def _documents(self, job: Job) -> Path:
        return self.folder / f"{job.id}.jsonl"


def _lasting(job: Job) -> dict[str, Any]:
    """What the disk holds of a job: once it is over, neither what was asked for nor which documents it was about."""
    if not job.is_over:
        return asdict(job)
    result = {name: value for name, value in (job.result or {}).items() if name not in _PASSING}
    return {**asdict(job), "input": {}, "result": result if job.result is not None else None}
