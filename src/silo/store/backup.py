"""Online backups: a complete copy of a store, made while others write to it, and put back without what was erased.

A backup is a store: a directory with data, codec, tokenizer, evidence and keys of one moment, with their permissions.
It is made without the writers' lock as long as they pause now and then. Bucket files never change, so they are copied
one by one; when all that the manifest names are there, the rest is copied, and that counts if manifest and log stayed
as they were meanwhile and no erasure was under way. While it copies a generation it holds the lock of a reader, and
drops what the next generation does not name before it lets go: an erasure waits for that.

`restore` makes the whole store anew beside the old one: data of the backup, evidence of today, erasures replayed. Only
then does it take the old one's place.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from silo.errors import SiloError
from silo.files import (
    SharedLock,
    commit,
    copy_file,
    cut_torn_line,
    disk_errors,
    exclusive,
    locked_directory,
    remove_file,
    remove_tree,
    sync_file,
    sync_tree,
    whole_size,
)
from silo.progress import Advance
from silo.store.erasure.erase import Erased, ListModels
from silo.store.erasure.evidence import lost_evidence, promise_of, read_log, require_whole
from silo.store.erasure.log import AuditLog, Entry
from silo.store.manifest import Generation, read_generation
from silo.store.paths import StorePaths
from silo.store.store import Store
from silo.store.usage import statements

PATIENCE_SECONDS = 60.0
"""How long a backup waits for a moment in which the store stands still, with all data copied."""
_NOTE_SECONDS = 5.0
_FREE_SECONDS = 1.0
"""How long it looks for a moment by itself before it asks writers to wait."""
_POLL_SECONDS = 0.005
_TURN_SECONDS, _TURN_POLL_SECONDS = 2.0, 0.0005


Whose = Literal["given", "store", "backup"]


@dataclass(frozen=True, slots=True)
class BackedUp:
    """What a backup holds; it is `noted` if the log of the store says that it was begun."""

    documents: int
    bytes: int
    digest: str
    noted: bool


@dataclass(frozen=True, slots=True)
class Restored:
    """A store that was put back: what it holds, whose evidence it goes on with, and what was erased again."""

    documents: int
    digest: str
    evidence: Whose
    erased: tuple[Erased, ...]


def back_up(store: Store, place: Path, *, advance: Advance = lambda *_: None) -> BackedUp:
    """Make a copy of a store in a folder that is not there or empty; it appears there whole or not at all."""
    place = place.absolute()
    _require_apart(place, store.root.absolute())
    _require_free(place)
    noted = _note(store)
    with _made_beside(place, ".backing-up") as fresh:
        generation = _copy_moment(store, StorePaths(fresh), advance)
        sync_tree(fresh)
        _require_free(place)
        commit(fresh, place)
    totals = generation.totals
    return BackedUp(totals["documents"], totals["bytes"], generation.digest, noted)


def _require_apart(one: Path, other: Path) -> None:
    one, other = one.resolve(), other.resolve()
    if one.is_relative_to(other) or other.is_relative_to(one):
        raise SiloError("usage", f"a backup and its store cannot lie in each other: {one}, {other}")


def _require_free(place: Path) -> None:
    if place.is_mount():
        raise SiloError("usage", f"{place} is a whole file system", "give a folder below it")
    if place.is_symlink() or (place.exists() and not (place.is_dir() and not any(place.iterdir()))):
        raise SiloError("out-exists", f"{place} is there already", "choose another path: a backup replaces nothing")


def _note(store: Store) -> bool:
    """Say in the log that a backup begins, so that receipts can name it; not if nothing can be written there."""
    end = time.monotonic() + _NOTE_SECONDS
    while True:
        try:
            store.note_backup()
            return True
        except SiloError as error:
            if error.code not in ("busy", "not-writable", "disk-full"):
                raise
            if error.code != "busy" or time.monotonic() > end:
                return False
        time.sleep(_POLL_SECONDS)


@contextmanager
def _made_beside(place: Path, suffix: str) -> Iterator[Path]:
    """An empty folder in which something is made; what a killed process left there goes, after an error so does this.

    One process at a time.
    """
    fresh = place.with_name(place.name + suffix)
    with disk_errors(fresh):
        fresh.mkdir(parents=True, exist_ok=True)
    with locked_directory(fresh):
        try:
            for left in fresh.iterdir():
                remove_tree(left)
            yield fresh
        except BaseException:
            remove_tree(fresh)
            raise


class _Moment(NamedTuple):
    """What no change to a store leaves as it was."""

    generation: str
    log_bytes: int
    erasing: bool


def _moment(paths: StorePaths) -> _Moment:
    log_bytes = whole_size(paths.log) if paths.log.exists() else 0
    return _Moment(read_generation(paths).fingerprint, log_bytes, paths.pending.exists())


def _copy_moment(store: Store, copy: StorePaths, advance: Advance) -> Generation:
    """Copy until all is of one moment in which no erasure was under way.

    Where somebody writes without a pause there is no such moment: after a while it is made, with the writers' lock.
    """
    paths = store.paths
    copy.buckets.mkdir(parents=True)
    begun = time.monotonic()
    end = begun + PATIENCE_SECONDS
    while True:
        if time.monotonic() > begun + _FREE_SECONDS and (found := _copy_locked(store, copy, advance)):
            return found
        before, generation = _moment(paths), read_generation(paths)
        lock = SharedLock(paths.reader_lock(generation.fingerprint))
        try:
            if _copy_data(paths, copy, generation, advance):
                end = time.monotonic() + PATIENCE_SECONDS
            if not before.erasing and _copy_rest(paths, copy, before):
                return generation
            _drop_buckets(copy, read_generation(paths))
        except SiloError:
            if _moment(paths) == before:
                raise
            _drop_buckets(copy, read_generation(paths))
        finally:
            lock.close()
        if time.monotonic() > end:
            what = "an erasure is not finished" if before.erasing else "it changes all the time"
            raise SiloError("busy", f"{paths.root} cannot be backed up: {what}", "run the same command again later")
        time.sleep(_POLL_SECONDS)


def _copy_locked(store: Store, copy: StorePaths, advance: Advance) -> Generation | None:
    """Copy what is missing while nobody writes; None if nobody stops for a moment, or nobody may write."""
    try:
        with _taking_turn(store):
            generation = read_generation(store.paths)
            _drop_buckets(copy, generation)
            _copy_data(store.paths, copy, generation, advance)
            return generation if _copy_rest(store.paths, copy, _moment(store.paths)) else None
    except SiloError as error:
        if error.code not in ("busy", "not-writable", "disk-full"):
            raise
        return None


@contextmanager
def _taking_turn(store: Store) -> Iterator[None]:
    """Be the one writer after the one who is; between two writes of somebody in a hurry there is a millisecond."""
    end = time.monotonic() + _TURN_SECONDS
    with ExitStack() as turn:
        while True:
            try:
                turn.enter_context(store.writing())
                break
            except SiloError as error:
                if error.code != "busy" or time.monotonic() > end:
                    raise
            time.sleep(_TURN_POLL_SECONDS)
        yield


def _copy_data(paths: StorePaths, copy: StorePaths, generation: Generation, advance: Advance) -> int:
    """Copy the buckets of a generation that are not there yet; ends early with the generation. Gives their number."""
    missing, total, manifest = _missing(copy, generation), len(generation.buckets), _stamp(paths.manifest)
    for at, (prefix, name) in enumerate(missing.items(), start=1):
        _copy_bucket(paths, copy, name, generation.buckets[prefix].sha256)
        advance("copy", total - len(missing) + at, total)
        if _stamp(paths.manifest) != manifest:
            break
    _copy(paths.manifest, copy.manifest)
    return len(missing)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


def _missing(copy: StorePaths, generation: Generation) -> dict[str, str]:
    held = {path.name for path in copy.buckets.iterdir()}
    return {prefix: name for prefix, name in generation.files().items() if name not in held}


def _drop_buckets(copy: StorePaths, generation: Generation) -> None:
    """Remove what a generation does not name: it may hold what was erased."""
    named = set(generation.files().values())
    for path in copy.buckets.iterdir():
        if path.name not in named:
            remove_file(path)


def _copy_bucket(paths: StorePaths, copy: StorePaths, name: str, sha256: str) -> None:
    if _copy(paths.buckets / name, copy.buckets / name) != sha256:
        remove_file(copy.buckets / name)
        raise SiloError("store-damaged", f"{paths.buckets / name} differs from the manifest")
    sync_file(copy.buckets / name)  # at once: the end of a backup must not be far from its moment


def _copy_rest(paths: StorePaths, copy: StorePaths, before: _Moment) -> bool:
    """Copy everything beside the data, what never changes only once; true if all is still of the moment before."""
    copy.root.chmod(_mode(paths.root))
    for path in paths.lasting():
        if not (copy.root / path.name).exists():
            _copy_tree(path, copy.root / path.name)
    for path in paths.evidence():
        if path not in (paths.pending, paths.erasing):  # an erasure may begin meanwhile; then this copy does not count
            _copy_tree(path, copy.root / path.name, again=path != paths.receipts)  # no receipt is ever changed
    for lines in (copy.log, copy.usage):
        if lines.exists():
            cut_torn_line(lines)
    if _moment(paths) != before:
        return False
    _require_whole(copy)
    return True


def _copy_tree(path: Path, other: Path, *, again: bool = True) -> None:
    """Copy a file or a folder, if it is there, with permissions; over what lies there, if it is to be copied again."""
    if path.is_dir():
        with disk_errors(other):
            other.mkdir(exist_ok=True)
            other.chmod(_mode(path))
        for inner in path.iterdir():
            if inner.suffix != ".partial":
                _copy_tree(inner, other / inner.name, again=again)
    elif path.exists() and (again or not other.exists()):
        _copy(path, other)


def _mode(folder: Path) -> int:
    """The permissions of a folder, as far as whoever fills a copy of it can have them."""
    return stat.S_IMODE(folder.stat().st_mode) | 0o700


def _copy(path: Path, other: Path) -> str:
    """Copy a file; gives its SHA-256."""
    try:
        return copy_file(path, other)
    except FileNotFoundError:
        raise SiloError("store-damaged", f"{path} is missing") from None
    except OSError as error:
        raise SiloError("input-unreadable", f"{path} cannot be read: {error.strerror}") from error


def _require_whole(paths: StorePaths) -> None:
    """Refuse a copy whose parts do not belong together."""
    log = read_log(paths, read_generation(paths))
    if log is not None:
        require_whole(paths, log)


def restore(
    backup: Path,
    root: Path,
    *,
    evidence: Path | None = None,
    force: bool = False,
    accept_loss: bool = False,
    list_models: ListModels = lambda *_: (),
    advance: Advance = lambda *_: None,
) -> Restored:
    """Put a store back from a backup, without what was erased since.

    The erasures are known by the newest of the logs and lists in `evidence`, in what is left of the store at `root`
    and in the backup; with the last alone, those made after it are not. A store that is whole is replaced with `force`
    only. `accept_loss` is as for `Store.replay`. Until the end nothing changes at `root`.
    """
    source, target = StorePaths(backup.absolute()), StorePaths(root.absolute())
    _require_apart(source.root, target.root)
    with ExitStack() as stack:
        fresh = StorePaths(stack.enter_context(_made_beside(target.root, ".restoring")))
        _finish_exchange(target)
        _require_replaceable(target, force=force)
        _require_undamaged(source)
        if target.root.exists():
            stack.enter_context(exclusive(target.lock))
        given: dict[Whose, StorePaths] = {"given": StorePaths(evidence)} if evidence else {}
        places: dict[Whose, StorePaths] = {**given, "store": target, "backup": source}
        newest = _newest(places)
        _fill(fresh, source, places[newest], advance)
        store = Store.open(fresh.root, list_models=list_models, restored=True)
        erased = store.replay(accept_loss=accept_loss)
        generation = read_generation(fresh)
        store.close()
        _exchange(fresh, target)
    moved = tuple(replace(item, receipt=target.receipts / item.receipt.name) for item in erased if item.receipt)
    return Restored(generation.totals["documents"], generation.digest, newest, moved)


def _require_undamaged(backup: StorePaths) -> None:
    """Refuse a backup of which anything but the buckets, which are checked as they are copied, is damaged."""
    _require_whole(backup)
    if losses := lost_evidence(backup):
        raise losses[0].error()


def _require_replaceable(target: StorePaths, *, force: bool) -> None:
    """Refuse to replace something that is no store, and without `force` a store that lacks nothing."""
    if target.root.is_symlink() or target.root.is_mount():
        raise SiloError("usage", f"{target.root} cannot be exchanged", "give the path of an ordinary folder")
    if not target.root.exists():
        return
    if not target.root.is_dir() or (any(target.root.iterdir()) and not _is_store(target)):
        raise SiloError("out-exists", f"{target.root} is there and no store", "choose another path")
    if not force and _is_whole(target):
        hint = "what was added since the backup would be lost: pass --force if that is meant"
        raise SiloError("out-exists", f"{target.root} is a store without any damage", hint)


def _is_store(paths: StorePaths) -> bool:
    return paths.data.is_dir() or any(path.exists() for path in paths.evidence())


def _is_whole(paths: StorePaths) -> bool:
    try:
        _require_whole(paths)
        store = Store.open(paths.root, restored=True)
        with closing(store), store.reading() as view:
            view.require_sound()
    except (SiloError, OSError):
        return False
    return True


def _newest(places: Mapping[Whose, StorePaths]) -> Whose:
    """Of several places the first that has evidence of a store, unless the log of another one goes on where it ends."""
    found = [whose for whose, place in places.items() if place.log.exists() or place.suppression.exists()]
    chosen, *others = found or ["backup"]
    entries = _entries(places[chosen])
    for whose in others:
        more = _entries(places[whose])
        if not (entries and more):
            continue
        if more[0] != entries[0]:
            what = f"{places[chosen].root} and {places[whose].root} are of different stores"
            raise SiloError("store-mismatch", what, "a backup is put back where it was made, or where nothing is")
        if len(more) > len(entries) and more[: len(entries)] == entries:
            chosen, entries = whose, more
    return chosen


def _entries(paths: StorePaths) -> Sequence[Entry]:
    """The log; nothing where it is missing or damaged, which `Store.replay` will not pass over."""
    try:
        return AuditLog.open(paths.log, read_only=True).entries
    except SiloError:
        return ()


def _fill(fresh: StorePaths, source: StorePaths, known: StorePaths, advance: Advance) -> None:
    """Bring data from a backup and evidence from where it is newest together; parts that it lacks from the backup."""
    generation = read_generation(source)
    fresh.buckets.mkdir(parents=True)
    _copy_data(source, fresh, generation, advance)
    for path in source.lasting():
        _copy_tree(path, fresh.root / path.name)
    for path in known.evidence():
        _copy_tree(path, fresh.root / path.name)
    for path in (source.suppression, source.signing_key.parent, source.usage):
        if not (fresh.root / path.name).exists():
            _copy_tree(path, fresh.root / path.name)
    for name in _named_receipts(known):
        if (source.receipts / name).exists() and not (fresh.receipts / name).exists():
            fresh.receipts.mkdir(exist_ok=True)
            _copy(source.receipts / name, fresh.receipts / name)
    if fresh.usage.exists() and not known.usage.exists():
        statements(fresh)  # it was not read yet, and each of its lines has a checksum
    sync_tree(fresh.root)


def _named_receipts(paths: StorePaths) -> Sequence[str]:
    promise = promise_of(_entries(paths))
    return sorted(promise.receipts) if promise else ()


def _replaced(target: StorePaths) -> StorePaths:
    return StorePaths(target.root.with_name(target.root.name + ".before-restore"))


def _exchange(fresh: StorePaths, target: StorePaths) -> None:
    """Put a finished store in the place of the old one, which goes last, under the name of what is being made."""
    old = _replaced(target)
    if target.root.exists():
        commit(target.root, old.root)
    commit(fresh.root, target.root)
    _remove_replaced(old, fresh)


def _remove_replaced(old: StorePaths, fresh: StorePaths) -> None:
    if old.root.exists():
        commit(old.root, fresh.root)
        remove_tree(fresh.root)


def _finish_exchange(target: StorePaths) -> None:
    """Go on where a killed `restore` was: put back what it had moved away, or remove what it had replaced."""
    old = _replaced(target)
    if not old.root.exists():
        return
    if not target.root.exists():
        commit(old.root, target.root)
        return
    entries = _entries(old)
    if not entries or _entries(target)[: len(entries)] != entries:
        what = f"{old.root} is left of a restore that was cut off, and {target.root} does not go on where it ends"
        raise SiloError("out-exists", what, "keep one of the two under that name, and the other one elsewhere")
    remove_tree(old.root)
