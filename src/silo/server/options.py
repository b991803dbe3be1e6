"""What requests may hold: OpenAI's fields, silo's own, and which of OpenAI's cannot be honoured here.

Fields that nobody knows are passed over, as OpenAI's own server does. A known one that would change the answer and has
no effect here is refused by name: a server that drops `echo` makes an evaluation score chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from silo.server.problems import Problem

HEADER = "x-silo-"
_SEEDS = 2**63
Ids = list[Annotated[int, Field(ge=0, lt=2**32)]]


def _split(given: Any) -> Any:
    """Names in a header are joined by commas."""
    return [name.strip() for name in given.split(",")] if isinstance(given, str) else given


class Body(BaseModel):
    """A JSON object: values are of the type they should be, and unknown names are passed over."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class SiloOptions(BaseModel):
    """How the stores are read for one request: as for `silo generate`. All of it may be given in headers instead."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    stores: Annotated[list[str], BeforeValidator(_split)] | None = Field(
        None, min_length=1, max_length=1000, description="those of the model's stores to read; all without it"
    )
    method: str | None = Field(None, max_length=100, description="lm, or knn, ngram and ric joined by +")
    settings: str | None = Field(None, max_length=100, description="settings saved by `silo store tune`")
    policy: str | None = Field(None, max_length=2000, description="narrows what the server and the key allow")
    guard: int | None = Field(None, ge=1, le=1_000_000, description="repeat at most so many tokens in a row")
    lam: float | None = Field(None, alias="lambda", ge=0, le=1, description="fixed weight of the neighbours")
    k: int | None = Field(None, ge=1, description="neighbours")
    tau: float | None = Field(None, gt=0, description="temperature of the neighbours' distances")
    probes: int | None = Field(None, ge=1, le=65_536, description="lists that a token search reads")
    neighbours: int = Field(0, ge=0, description="show the nearest places of every token; needs the permission text")
    ledger: bool = Field(False, description="note the documents' shares in the stores' ledgers")


class StreamOptions(Body):
    """What else a stream brings."""

    include_usage: bool = False


class GenerateRequest(Body):
    """What completions and chats share."""

    model: str = Field(max_length=200)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31, description="not of OpenAI: the likeliest tokens to choose from")
    n: int | None = Field(None, ge=1, le=10_000)
    stop: str | list[str] | None = None
    seed: int | None = Field(None, ge=0, lt=_SEEDS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    silo: SiloOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    def refuse_unkept(self) -> None:
        """Refuse what would change the answer and has no effect here."""
        for name in ("presence_penalty", "frequency_penalty", "logit_bias"):
            if getattr(self, name):
                raise unkept(name)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(GenerateRequest):
    """`POST /v1/completions`."""

    prompt: str | list[str] | Ids | list[Ids] = Field(description="text, texts, token ids, or lists of token ids")
    max_tokens: int | None = Field(None, ge=0, description="16 without it; 0 with echo only scores")
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def refuse_unkept(self) -> None:
        """Refuse also what only completions have."""
        super().refuse_unkept()
        if self.suffix:
            raise unkept("suffix")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise unkept("best_of")
        if self.max_tokens == 0 and not self.echo:
            raise Problem(400, "usage", "max_tokens may be 0 only with echo", param="max_tokens")

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one."""
        given: Any = self.prompt
        if isinstance(given, str):
            return [given]
        return [given] if given and isinstance(given[0], int) else list(given)


def unkept(name: str) -> Problem:
    """A field that OpenAI has and that is not honoured here."""
    return Problem(400, "unsupported", f"{name} has no effect here", param=name, hint="leave it out")


def header_options(headers: Mapping[str, str]) -> SiloOptions:
    """Options from headers such as `X-Silo-Policy`; unknown names are refused like wrong values."""
    named = [(name.removeprefix(HEADER), value) for name, value in headers.items() if name.startswith(HEADER)]
    given = dict(named)
    if len(given) < len(named):
        raise Problem(400, "usage", f"a header {HEADER}... is given twice", hint="a proxy may have added one")
    try:
        return SiloOptions.model_validate_strings(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        raise Problem(400, "usage", f"{HEADER}{name}: {first['msg']}", param=f"{HEADER}{name}") from None
