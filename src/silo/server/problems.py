"""Errors as OpenAI's clients read them: `{"error": {"message", "type", "param", "code", "hint"}}` and a status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from silo.errors import ExitStatus, SiloError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_STATUSES = {
    ExitStatus.USAGE: 400,
    ExitStatus.INPUT: 400,
    ExitStatus.REFUSED: 409,
    ExitStatus.MISSING: 501,
    ExitStatus.BUSY: 409,
    ExitStatus.RESOURCES: 503,
}
_SPECIAL = {"nothing-selected": 404, "input-missing": 404, "receipt-invalid": 400}
_RETRY = {409, 429, 503}


class Problem(Exception):
    """A request that is refused: HTTP status, a code, what is wrong, which parameter, and what to do."""

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param, self.hint = status, code, message, param, hint

    def as_json(self) -> dict[str, Any]:
        """The object that clients read."""
        kind = _TYPES.get(self.status, "server_error")
        fields = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": {**fields, "hint": self.hint} if self.hint else fields}

    def response(self) -> JSONResponse:
        """The same as a response; those worth repeating say when."""
        headers = {"retry-after": "1"} if self.status in _RETRY else {}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.as_json(), status_code=self.status, headers=headers)


def problem_of(error: Exception, param: str | None = None) -> Problem:
    """What a client is told of an error; of those that are bugs, nothing but that."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, SiloError):
        status = _SPECIAL.get(error.code) or _STATUSES.get(error.status, 500)
        return Problem(status, error.code, error.message, param=param, hint=error.hint)
    return Problem(500, "internal", "something went wrong in the server; its log says more")


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Say of an error which parameter it is about."""
    try:
        yield
    except SiloError as error:
        raise problem_of(error, param) from None


def missing(what: str) -> Problem:
    """What is not there, and what somebody else has: they look alike."""
    return Problem(404, "not-found", f"there is no such {what}")


async def answer_problem(_: Request, error: Exception) -> JSONResponse:
    """For errors that we raise ourselves."""
    return problem_of(error).response()


async def answer_invalid(_: Request, error: Exception) -> JSONResponse:
    """For bodies and queries of the wrong shape."""
    assert isinstance(error, RequestValidationError)
    first: Mapping[str, Any] = error.errors()[0]
    place = [str(part) for part in first["loc"][1:] if not _is_branch(part)]
    message = f"{'.'.join(place)}: {first['msg']}" if place else str(first["msg"])
    return Problem(400, "usage", message, param=".".join(place) or None).response()


def _is_branch(part: Any) -> bool:
    """Pydantic names the alternative of a union that it tried; a client never wrote that."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "float", "bool"))


async def answer_http(_: Request, error: Exception) -> JSONResponse:
    """For what the framework refuses: unknown paths, wrong methods, bodies that cannot be read."""
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, SiloError | Problem):
        return problem_of(error.__cause__).response()
    code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "usage")
    response = Problem(error.status_code, code, str(error.detail)).response()
    response.headers.update(error.headers or {})
    return response
