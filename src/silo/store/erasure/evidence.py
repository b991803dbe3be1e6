"""Data, log, suppression list, receipts and signing key are one artefact: what is missing, older or altered is noticed.

`data/` must not know its history, so the log holds everything together. An entry `sealed` names the state after a
change: `generation` (fingerprint of the manifest), `suppression` (a keyed hash of the list), `signing_key` (SHA-256 of
the public key) and the `receipts` that no entry named before (file -> SHA-256). A change is announced before it is made
(an entry `announced` with the new generation or list) and sealed when it is complete. A process that is killed between
therefore leaves what was announced last or what came right before it, and the next one seals that; anything else was
put back from a copy. `replayed` says that restored data was gone through, and what was `lost` for good;
`backup-begun` that there are copies elsewhere.

Who replaces the whole directory by an older one replaces the log too: only an anchor, the number and hash of the last
entry kept elsewhere, tells that. A store made before there were seals is sealed when it is next written to.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from silo.errors import SiloError
from silo.files import commit, file_sha256
from silo.signing import load_or_make_key, require_key_pair
from silo.store.erasure.log import NOTHING_BEFORE, AuditLog, Entry, Head
from silo.store.erasure.suppression import LIST_FILE, Suppression, list_mark
from silo.store.manifest import Generation, read_generation
from silo.store.paths import StorePaths

ANCHOR = "silo-anchor-1"
DATA = "data"
_BACKUP_BEGUN = "backup-begun"
_REPLAY = "run `silo store replay STORE`: it erases again what came back, then the store opens"
_RESTORE = "put it back from a copy; if there is none, `silo store replay STORE --accept-loss` goes on without it"


@dataclass(slots=True)
class Promise:
    """What the log says must be there: of data and list the sealed state and what was announced since, in order."""

    generations: list[str]
    suppressions: list[str]
    signing_key: str
    receipts: dict[str, str]
    accepted: bool = False
    closed: bool = True
    former: dict[str, int] = field(default_factory=dict)


class Loss(NamedTuple):
    """Evidence that is not as the log says: which part, the error's words, and the way out."""

    part: str
    what: str
    hint: str

    def error(self) -> SiloError:
        return SiloError("store-damaged", self.what, self.hint)


def promise_of(entries: Sequence[Entry]) -> Promise | None:
    """What a log promises; None if it was never sealed."""
    promise: Promise | None = None
    for entry in entries:
        content = entry.content
        if entry.kind == "sealed":
            promise = _sealed(promise, content)
            promise.former[content["generation"]] = entry.n
        elif promise is not None:
            promise.closed = False
            _follow(promise, entry.kind, content)
    return promise


def _sealed(before: Promise | None, content: Mapping[str, Any]) -> Promise:
    receipts = {**(before.receipts if before else {}), **content["receipts"]}
    former = before.former if before else {}
    return Promise([content["generation"]], [content["suppression"]], content["signing_key"], receipts, former=former)


def _follow(promise: Promise, kind: str, content: Mapping[str, Any]) -> None:
    if kind == "announced":
        for states, name in ((promise.generations, "generation"), (promise.suppressions, "suppression")):
            if name in content and content[name] != states[-1]:  # who recovers announces the same once more
                states.append(content[name])
    elif kind in ("erase-accepted", "replace-accepted"):
        promise.accepted = True
    elif kind in ("erased", "replaced", "replace-cancelled"):
        promise.accepted = False
    elif kind == "replayed":
        promise.accepted = False
        for name in content["lost"]:
            promise.receipts.pop(name, None)


def read_log(paths: StorePaths, generation: Generation) -> AuditLog | None:
    """The log for reading; None for a store that never had one."""
    if paths.log.exists():
        log = AuditLog.open(paths.log, read_only=True)
        if generation.logged and promise_of(log.entries) is None:
            raise SiloError("store-damaged", f"{paths.log} is not the log of this store: it holds no seal", _RESTORE)
        return log
    if generation.logged or any(path.exists() for path in (paths.receipts, paths.signing_key, paths.suppression)):
        raise SiloError("store-damaged", f"{paths.log} is missing", _RESTORE)
    return None


def require_generation(promise: Promise | None, generation: str, paths: StorePaths) -> None:
    """Refuse data that the log does not know as current."""
    if promise is not None and (loss := _data_loss(promise, generation, paths)):
        raise loss.error()


def require_whole(paths: StorePaths, log: AuditLog) -> Promise | None:
    """Refuse a store of which any part is missing or not the current one, as far as that is cheap to see."""
    if losses := _settled(paths, log, cheap_losses):
        raise losses[0].error()
    return promise_of(log.entries)


def settled_losses(paths: StorePaths, log: AuditLog) -> list[Loss]:
    """Everything that is missing, altered or not current, whatever somebody else writes meanwhile."""
    return _settled(paths, log, all_losses)


def _settled(
    paths: StorePaths, log: AuditLog, losses_of: Callable[[StorePaths, Promise, _State], Iterable[Loss]]
) -> list[Loss]:
    """What is lost. Data and list are read before the log, and what changed between is looked at again."""
    while True:
        state = _state(paths)
        log.follow()
        head, promise = log.head(), promise_of(log.entries)
        losses = list(losses_of(paths, promise, state)) if promise else []
        if not losses:
            return []
        log.follow()
        if (log.head(), _state(paths)) == (head, state):
            return losses


class _State(NamedTuple):
    """The parts of a store that a change replaces; None where nobody but the owner may look."""

    generation: str
    suppression: str | None
    signing_key: str | None
    receipts: frozenset[str] | None
    pending: bool


def _state(paths: StorePaths) -> _State:
    return _State(
        read_generation(paths).fingerprint,
        _if_allowed(list_mark, paths.suppression),
        _if_allowed(_public_mark if paths.key_elsewhere.exists() else _key_mark, paths.signing_key),
        _receipts(paths),
        paths.pending.exists(),
    )


def _key_mark(path: Path) -> str:
    path.stat()
    return _public_mark(path)


def _public_mark(path: Path) -> str:
    return file_sha256(path.with_name(path.name + ".pub"))


def _receipts(paths: StorePaths) -> frozenset[str] | None:
    try:
        return frozenset(path.name for path in paths.receipts.iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        return frozenset()
    except PermissionError:
        return None


def _if_allowed(mark: Callable[[Path], str], path: Path) -> str | None:
    """The mark of something, "" if it is missing, None if we may not read it."""
    try:
        return mark(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except PermissionError:
        return None


def cheap_losses(paths: StorePaths, promise: Promise, state: _State) -> Iterator[Loss]:
    """What is missing or not current, without reading every receipt."""
    if loss := _data_loss(promise, state.generation, paths):
        yield loss
    if promise.accepted and not state.pending:
        what = f"an erasure was accepted, and {paths.pending} is missing: what it named may still be here"
        yield Loss(paths.pending.name, what, f"{_RESTORE}; then erase it again")
    if state.suppression is not None and state.suppression not in promise.suppressions[-2:]:
        what = f"{paths.suppression} is {'not the current list' if state.suppression else 'missing'}"
        yield Loss(paths.suppression.name, f"{what}: erased works could return", _RESTORE)
    if state.signing_key is not None and state.signing_key != promise.signing_key:
        what = f"{paths.signing_key} is {'not the key of this log' if state.signing_key else 'missing, or its .pub'}"
        yield Loss(paths.public_key.parent.name, what, _RESTORE)
    for name in sorted(promise.receipts.keys() - state.receipts) if state.receipts is not None else ():
        yield Loss(name, f"the receipt {paths.receipts / name} is missing", _RESTORE)


def _data_loss(promise: Promise, generation: str, paths: StorePaths) -> Loss | None:
    if generation in promise.generations[-2:]:
        return None
    if n := promise.former.get(generation):
        return Loss(DATA, f"{paths.data} is older than the log: it is the data of entry {n}", _REPLAY)
    what = f"{paths.data} is in no state that {paths.log.name} names: an old copy of one of them was put back"
    return Loss(DATA, what, f"if the log is old, put today's back; if the data is, {_REPLAY}")


def all_losses(paths: StorePaths, promise: Promise, state: _State) -> list[Loss]:
    """Everything that is missing, altered or not current."""
    losses, receipts = list(cheap_losses(paths, promise, state)), state.receipts or frozenset()
    named = {loss.part for loss in losses}
    losses += [loss for loss in _broken_parts(paths) if loss.part not in named]
    for name in sorted(promise.receipts.keys() & receipts):
        if _if_allowed(file_sha256, paths.receipts / name) not in (promise.receipts[name], None):
            losses.append(Loss(name, f"the receipt {name} was altered", _RESTORE))
    if promise.closed:
        unknown = sorted(receipts - promise.receipts.keys())
        losses += [Loss(name, f"the receipt {name} is in no log entry", "it is not of this store") for name in unknown]
    return losses


def lost_evidence(paths: StorePaths) -> list[Loss]:
    """Everything but the data that is missing, altered or not current, the log itself included."""
    try:
        log = read_log(paths, read_generation(paths))
    except SiloError as error:
        gone = [path for path in (paths.suppression, paths.signing_key.parent) if not path.exists()]
        lost = [Loss(path.name, f"{path} is missing", _RESTORE) for path in gone]
        return [Loss(paths.log.name, error.message, error.hint), *lost, *_broken_parts(paths)]
    promise = promise_of(log.entries) if log else None
    if promise is None:
        return list(_broken_parts(paths))
    return [loss for loss in all_losses(paths, promise, _state(paths)) if loss.part != DATA]


def _broken_parts(paths: StorePaths) -> Iterator[Loss]:
    """List and key, where they are there and not usable."""
    if what := _told(lambda: Suppression.open(paths.suppression)):
        yield Loss(paths.suppression.name, what, _RESTORE)
    if paths.signing_key.parent.exists() and (what := _key_problem(paths)):
        yield Loss(paths.signing_key.parent.name, what, _RESTORE)


def _key_problem(paths: StorePaths) -> str:
    return "" if paths.key_elsewhere.exists() else _told(lambda: require_key_pair(paths.signing_key))


def _told(look: Callable[[], object]) -> str:
    """What is wrong in words; nothing is if only the owner may look."""
    try:
        look()
    except SiloError as error:
        return "" if error.code == "input-unreadable" else error.message
    return ""


def require_readable_key(paths: StorePaths) -> None:
    """Refuse a signing key that was altered; whoever may not read it is not asked to."""
    if what := _key_problem(paths):
        raise Loss(paths.signing_key.parent.name, what, _RESTORE).error()


def unreadable(paths: StorePaths) -> tuple[str, ...]:
    """The parts that only the owner may look at, which are left out where somebody else checks."""
    parts = {paths.suppression.name: paths.suppression / LIST_FILE, paths.signing_key.parent.name: paths.signing_key}
    return tuple(name for name, path in parts.items() if _if_allowed(file_sha256, path) is None)


def make_parts(paths: StorePaths) -> None:
    """Make the key and the empty list that every sealed store has, if they are not there."""
    load_or_make_key(paths.signing_key)
    Suppression.make(paths.suppression)


def begin_log(paths: StorePaths) -> None:
    """Seal a store that has no seal yet: one just made, or one made before there were seals."""
    make_parts(paths)
    seal(paths, AuditLog.open(paths.log))


def announce_generation(log: AuditLog, generation: str) -> None:
    """Say which generation comes, before its manifest is written."""
    log.append("announced", {"generation": generation})


def announce_suppression(log: AuditLog, checksum: str) -> None:
    """Say which list comes, before it is written."""
    log.append("announced", {"suppression": checksum})


def note_backup(log: AuditLog, at: datetime) -> None:
    """Say that a backup begins: also one that is cut off leaves copies somewhere."""
    log.append(_BACKUP_BEGUN, {"at": at.isoformat(timespec="seconds")})


def noted_backups(log: AuditLog) -> list[str]:
    """When each backup that the log knows of was begun."""
    return [entry.content["at"] for entry in log.entries if entry.kind == _BACKUP_BEGUN]


def seal(paths: StorePaths, log: AuditLog) -> None:
    """Name the state that a change has led to."""
    state, promise = _state(paths), promise_of(log.entries)
    new = (state.receipts or frozenset()) - (promise.receipts.keys() if promise else set())
    log.append(
        "sealed",
        {
            "generation": state.generation,
            "suppression": state.suppression,
            "signing_key": state.signing_key,
            "receipts": {name: file_sha256(paths.receipts / name) for name in sorted(new)},
        },
    )


def set_aside(paths: StorePaths, losses: Sequence[Loss]) -> None:
    """Keep what is left of lost evidence under another name, where it convinces nobody."""
    for loss in losses:
        path = paths.receipts / loss.part if loss.part.endswith(".json") else paths.root / loss.part
        if loss.part != paths.pending.name and path.exists():
            commit(path, next(name for name in _other_names(path) if not name.exists()))


def _other_names(path: Path) -> Iterator[Path]:
    return (path.with_name(f"{path.name}.damaged{number}") for number in itertools.count(1))


def anchor_line(head: Head) -> str:
    """One line to keep elsewhere."""
    return f"{ANCHOR} {head.n} {head.hash}"


def anchor_problem(line: str, entries: Sequence[Entry]) -> str | None:
    """Why a log does not hold the entry that an anchor names, None if it does."""
    match line.split():
        case [kind, n, mark] if kind == ANCHOR and n.isdecimal() and len(n) < 16 and len(mark) == len(NOTHING_BEFORE):
            number = int(n)
        case _:
            raise SiloError("usage", f"{line[:80]!r} is not an anchor", "give a line that `silo store anchor` printed")
    if number > len(entries):
        return f"the log ends with entry {len(entries)}, the anchor names entry {number}: the store is an older copy"
    if number and entries[number - 1].hash != mark:
        return f"entry {number} of the log is not the one that the anchor names: the log is another one"
    return None
