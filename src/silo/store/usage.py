"""The usage ledger of a store: which documents had what share in which request, never a word of text.

On disk `ledger.jsonl`, made by the first request that is noted: each line is the canonical JSON of `time` (UTC),
`tokens` (of the request), `shares` (document id -> owner, licence, share in 2**-40 of a token) and `check` (the first
16 digits of the SHA-256 of the rest). What no document has is the language model's, or that of other stores. Documents
that were erased have the id "" and neither owner nor licence, all of a request in one entry: their totals stay.

Any number of processes append, one at a time (`ledger.lock`). What was appended is on the disk before `append_usage`
returns; a last line without newline was never acknowledged: readers pass over it, the next append cuts it off.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.files import (
    append_durably,
    append_line,
    canonical_json,
    commit,
    exclusive,
    fingerprint,
    remove_file,
    whole_lines,
    whole_size,
    write_durably,
)
from silo.store.paths import StorePaths

Held = Callable[[Iterable[str]], AbstractSet[str]]
"""Those of some documents that the store holds now, and that are not being erased."""

UNITS = 1 << 40
"""Parts of a token; every share is a whole number of them, so that sums are exact in any order."""
WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.002
_BLOCK = 1 << 22
_ID = re.compile(r"[0-9a-f]{32}")
_NAMED = re.compile(rb'"([0-9a-f]{32})":\[')
_UNREADABLE = b"a damaged line named an erased document\n"

Shares = dict[str, list[Any]]
"""The shares of one line: document id -> [owner, licence, units]."""


@dataclass(frozen=True, slots=True)
class Share:
    """One document's share in a request, in tokens: a multiple of 2**-40."""

    owner: str
    license: str
    tokens: float

    @property
    def units(self) -> int:
        """The share as a whole number."""
        return int(self.tokens * UNITS)


@dataclass(frozen=True, slots=True)
class Usage:
    """One request: when, how many tokens, and the documents' shares in them by document id."""

    time: datetime
    tokens: int
    shares: Mapping[str, Share]

    def __post_init__(self) -> None:
        if self.time.utcoffset() is None:
            raise ValueError("the time of a request needs its zone")
        if not all(map(_ID.fullmatch, self.shares)):
            raise ValueError("shares are by document id")
        if not all(_is_share(item.tokens) for item in self.shares.values()):
            raise ValueError("a share is a multiple of 2**-40 and not negative")
        if math.fsum(item.tokens for item in self.shares.values()) > self.tokens * (1 + 2.0**-30):
            raise ValueError("documents cannot have more than all tokens")


def _is_share(tokens: float) -> bool:
    return math.isfinite(tokens) and tokens >= 0 and (tokens * UNITS).is_integer()


@dataclass(frozen=True, slots=True)
class Statement:
    """What somebody has of a period; `share` is of all its tokens, `documents` is None where it cannot be told."""

    owner: str
    requests: int
    tokens: float
    documents: int | None
    share: float


@dataclass(frozen=True, slots=True)
class Statements:
    """A period: its totals, who has which part (the largest first), what erased documents and no document have."""

    requests: int
    tokens: int
    owners: tuple[Statement, ...]
    erased: Statement
    language_model: Statement


@dataclass(frozen=True, slots=True)
class Use:
    """One request in which a document had a part: when, how many tokens it had, and how many were the document's."""

    time: str
    tokens: int
    document_tokens: float


@dataclass(frozen=True, slots=True)
class DocumentUses:
    """Where a document was used: in how many requests, with how many tokens, and the last of them, newest first."""

    requests: int
    tokens: float
    last: tuple[Use, ...]


def append_usage(paths: StorePaths, usage: Usage, *, held: Held) -> None:
    """Note a request durably, whole or not at all.

    `held` is asked while nobody else can append or redact: a document that left the store before is not named, and
    an erasure that comes after finds the line.
    """
    with _locked(paths.usage_lock):
        shares = {name: [item.owner, item.license, item.units] for name, item in usage.shares.items()}
        named = _without(shares, shares.keys() - held(shares))
        line = _line(usage.time.astimezone(UTC).isoformat(timespec="microseconds"), usage.tokens, named)
        append_line(paths.usage, line)


def redact_usage(paths: StorePaths, names: frozenset[bytes]) -> None:
    """Take the identity of documents out of every line; all totals stay, other lines keep their bytes."""
    path, partial = paths.usage, paths.usage.with_name(paths.usage.name + ".partial")
    gone = {name.hex() for name in names}
    with _locked(paths.usage_lock):
        remove_file(partial)
        if not path.exists() or (whole_size(path) == path.stat().st_size and not any(_named(path, gone))):
            return
        write_durably(partial)
        for block in _blocks(_redacted(line, gone) for line in whole_lines(path)):
            append_durably(partial, block)
        commit(partial, path)


def statements(paths: StorePaths, begin: datetime | None = None, end: datetime | None = None) -> Statements:
    """Who had which part of the requests from `begin` up to, not including, `end`.

    Lines are read one by one: memory grows with the documents they name, not with the requests.
    """
    owners: dict[str, _Sum] = {}
    erased = _Sum()
    requests = tokens = 0
    for line in _usages(paths):
        when = datetime.fromisoformat(line["time"])
        if (begin and when < begin) or (end and when >= end):
            continue
        requests, tokens = requests + 1, tokens + line["tokens"]
        for name, (owner, _license, units) in line["shares"].items():
            (owners.setdefault(owner, _Sum()) if name else erased).add(requests, name, units)
    per_owner = [total.statement(owner, tokens) for owner, total in owners.items()]
    rest = tokens * UNITS - sum(total.units for total in (*owners.values(), erased))
    return Statements(
        requests,
        tokens,
        tuple(sorted(per_owner, key=lambda item: (-item.tokens, item.owner))),
        erased.statement("", tokens),
        _Sum(requests, rest).statement("", tokens),
    )


def document_uses(paths: StorePaths, document: str, most: int) -> DocumentUses:
    """Where a document was used, with the last `most` requests; nowhere where nothing was ever noted."""
    requests = units = 0
    last: deque[Use] = deque(maxlen=most)
    for line in _usages(paths, document) if paths.usage.exists() else ():
        own = line["shares"][document][2]
        requests, units = requests + 1, units + own
        last.append(Use(line["time"], line["tokens"], own / UNITS))
    return DocumentUses(requests, units / UNITS, tuple(reversed(last)))


@dataclass(slots=True)
class _Sum:
    """What adds up for one owner."""

    requests: int = 0
    units: int = 0
    documents: set[str] = field(default_factory=set)
    _last: int = 0

    def add(self, request: int, document: str, units: int) -> None:
        self.requests += request != self._last
        self.units += units
        self._last = request
        if document:
            self.documents.add(document)

    def statement(self, owner: str, tokens: int) -> Statement:
        share = self.units / (tokens * UNITS) if tokens else 0.0
        return Statement(owner, self.requests, self.units / UNITS, len(self.documents) or None, share)


def _usages(paths: StorePaths, document: str = "") -> Iterator[dict[str, Any]]:
    """The fields of every whole line, or of those that name a document: the others are not even parsed."""
    path = paths.usage
    if not path.exists():
        raise SiloError("input-missing", f"{paths.root} has no ledger yet", "`silo generate --ledger` makes one")
    for number, line in enumerate(whole_lines(path), start=1):
        if document and document not in _names(line):
            continue
        try:
            yield _fields(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            what = f"{path}: line {number} is not as it was written"
            raise SiloError("store-damaged", what, "restore the ledger from a copy") from None


def _line(when: str, tokens: int, shares: Shares) -> bytes:
    rest = {"time": when, "tokens": tokens, "shares": shares}
    return canonical_json({**rest, "check": fingerprint(rest)[:16]}) + b"\n"


def _fields(line: bytes) -> dict[str, Any]:
    """What a line says, which must be byte for byte what `_line` makes of it."""
    fields: dict[str, Any] = json.loads(line)
    if _line(fields["time"], fields["tokens"], fields["shares"]) != line:
        raise ValueError("not canonical, or changed")
    return fields


def _without(shares: Shares, gone: set[str]) -> Shares:
    """The same total with these documents, and those that had lost their names before, as one nameless entry."""
    kept = {name: share for name, share in shares.items() if name and name not in gone}
    lost = sum(share[2] for name, share in shares.items() if name not in kept)
    return {**kept, "": ["", "", lost]} if lost else kept


def _redacted(line: bytes, gone: set[str]) -> bytes:
    """The line without these documents. A damaged one that names any of them goes as a whole, and stays damaged."""
    if not _names(line) & gone:
        return line
    try:
        fields = _fields(line)
    except (ValueError, KeyError, TypeError, RecursionError):
        return _UNREADABLE
    return _line(fields["time"], fields["tokens"], _without(fields["shares"], gone))


def _named(path: Path, gone: set[str]) -> Iterator[set[str]]:
    """Those of some documents that each line names."""
    return (_names(line) & gone for line in whole_lines(path))


def _names(line: bytes) -> set[str]:
    return {name.decode() for name in _NAMED.findall(line)}


def _blocks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines joined to pieces of some megabytes."""
    held = bytearray()
    for line in lines:
        held += line
        if len(held) >= _BLOCK:
            yield bytes(held)
            held.clear()
    yield bytes(held)


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Wait until nobody else writes the ledger; everybody is quick, so after a minute something is wrong."""
    end = time.monotonic() + WAIT_SECONDS
    with ExitStack() as stack:
        while not _try_lock(stack, lock, last=time.monotonic() > end):
            time.sleep(_POLL_SECONDS)
        yield


def _try_lock(stack: ExitStack, lock: Path, *, last: bool) -> bool:
    try:
        stack.enter_context(exclusive(lock))
    except SiloError as error:
        if last or error.code != "busy":  # waiting helps against another writer only
            raise
        return False
    return True
