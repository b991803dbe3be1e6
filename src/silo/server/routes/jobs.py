"""Long work and how far it is: one look, or a stream until it is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import islice
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from silo.server.answers.replies import DONE, event
from silo.server.jobs import Job
from silo.server.problems import missing
from silo.server.service import caller_of, service_of

_LOOK_SECONDS = 5.0


def list_jobs(request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> dict[str, Any]:
    """The last jobs, the newest first: those that this key began, or all of them for an operator."""
    caller = caller_of(request)
    jobs = (job for job in service_of(request).jobs.latest() if caller.sees_all_owners or job.caller == caller.id)
    return {"data": [job.as_json() for job in islice(jobs, limit)]}


async def show_job(request: Request, job: str) -> Response:
    """A job as it is now; as server-sent events until it is over for whoever accepts `text/event-stream`."""
    known, caller = service_of(request).jobs.find(job), caller_of(request)
    if known is None or not (caller.sees_all_owners or known.caller == caller.id):
        raise missing("job")
    if "text/event-stream" in request.headers.get("accept", ""):
        return StreamingResponse(_events(request, known), media_type="text/event-stream")
    return JSONResponse(known.as_json())


async def _events(request: Request, job: Job) -> AsyncIterator[bytes]:
    jobs = service_of(request).jobs
    yield event(job.as_json())
    while not job.is_over and not await request.is_disconnected():
        now = await jobs.changed(job, _LOOK_SECONDS)
        if now is None:
            break
        job = now
        yield event(job.as_json())
    yield DONE
