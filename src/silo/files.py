"""The only place that fsyncs, renames, locks, checksums and fingerprints; manifests live here too.

A directory artefact is built under a temporary name, its `manifest.json` is written last and the directory is then
renamed: a directory that has a manifest is whole.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from silo.errors import SiloError, did_you_mean

MANIFEST = "manifest.json"
_CHUNK = 1 << 20
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)
"""What a file system answers that cannot link a file."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def canonical_json(value: Any) -> bytes:
    """The one byte form of a JSON value: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def fingerprint(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def file_stamp(path: str) -> tuple[int, int, int] | None:
    """Tells one state of a file that is replaced, never changed, from another; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116  # asked at every token: making a Path of it takes longer than the answer
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that after a crash it holds either all of `data` or what it held before."""
    partial = path.with_name(path.name + ".partial")
    write_durably(partial, data)
    commit(partial, path)


def write_durably(path: Path, *pieces: bytes | memoryview) -> None:
    """Write a file from the beginning; its bytes are on the disk when this returns, its name is not yet."""
    _write(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, pieces)


def write_private(path: Path, data: bytes) -> None:
    """Write a file whole and durably that nobody but its owner may ever read."""
    partial = path.with_name(path.name + ".partial")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    write_durably(partial, data)
    commit(partial, path)


def append_durably(path: Path, data: bytes) -> None:
    """Add to the end of a file; its bytes are on the disk when this returns."""
    _write(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, (data,))


def append_line(path: Path, line: bytes) -> int:
    """Add a line, which ends with a newline, durably and whole or not at all; returns the size the file then has.

    What a crash or a full disk left of an earlier line, which nobody was told of, goes first.
    """
    size = cut_torn_line(path)
    try:
        append_durably(path, line)
    except BaseException:
        with suppress(OSError):
            os.truncate(path, size)
        raise
    return size + len(line)


def cut_torn_line(path: Path) -> int:
    """Make a missing file of JSON lines, or cut off a torn last one, durably; returns the size."""
    if not path.exists():
        write_atomic(path, b"")
    size = whole_size(path)
    if size < path.stat().st_size:
        with path.open("rb") as stream:
            stream.seek(size)
            require_torn(path, stream.read())
        with disk_errors(path):
            os.truncate(path, size)
        sync_file(path)
    return size


def require_torn(path: Path, tail: bytes) -> None:
    """Refuse what follows the last whole line unless a crash may have left it."""
    if not _is_torn(tail):
        raise SiloError("store-damaged", f"{path}: the end of the last line was changed", "restore it from a copy")


def _is_torn(tail: bytes) -> bool:
    """Is it the beginning of a JSON line? A whole object with something behind it is not: that is damage."""
    text = tail.decode("utf-8", "replace")
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return True
    return end == len(text)


def whole_lines(path: Path) -> Iterator[bytes]:
    """Every JSON line that is not torn: a last one whose end was changed is for the reader to refuse."""
    with path.open("rb") as stream:
        yield from (line for line in stream if line.endswith(b"\n") or not _is_torn(line))


def whole_size(path: Path) -> int:
    """The bytes up to the end of the last whole line."""
    with path.open("rb") as stream:
        end = stream.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _CHUNK)
            stream.seek(begin)
            if at := stream.read(end - begin).rfind(b"\n") + 1:
                return begin + at
            end = begin
    return 0


def _write(path: Path, flags: int, pieces: tuple[bytes | memoryview, ...]) -> None:
    with disk_errors(path):
        handle = os.open(path, flags, 0o644)
        try:
            for piece in pieces:
                _write_all(handle, piece)
            os.fsync(handle)
        finally:
            os.close(handle)


def _write_all(handle: int, data: bytes | memoryview) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(handle, rest) :]


def copy_file(path: Path, other: Path) -> str:
    """Copy a file with its permissions; returns the SHA-256 of its bytes. `sync_tree` makes the copy durable."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        with disk_errors(other):
            handle = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with disk_errors(other):
                os.fchmod(handle, stat.S_IMODE(os.fstat(stream.fileno()).st_mode))
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                with disk_errors(other):
                    _write_all(handle, chunk)
        finally:
            os.close(handle)
    return digest.hexdigest()


def link_or_copy(path: Path, other: Path) -> None:
    """Give a file that is on the disk a second name, or make a durable copy where the file system has no links."""
    with disk_errors(other):
        try:
            os.link(path, other)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            write_durably(other, path.read_bytes())


def remove_file(path: Path) -> None:
    """Remove a file if it is there."""
    with disk_errors(path):
        path.unlink(missing_ok=True)


def commit(partial: Path, final: Path) -> None:
    """Rename a finished file or directory to its final name, durably."""
    with disk_errors(final):
        partial.rename(final)
        sync_directory(final.parent)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    with disk_errors(path), path.open("rb") as stream:
        os.fsync(stream.fileno())


def sync_tree(root: Path) -> None:
    """Make every file and every name under a directory durable."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            sync_file(Path(folder) / name)
        sync_directory(Path(folder))


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk and missing permissions into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise SiloError("disk-full", f"no space left while writing {path}") from error
        if error.errno in _NOT_ALLOWED:
            raise SiloError("not-writable", f"not allowed to write {path}: {error.strerror}") from error
        if error.errno == errno.EIO:
            raise SiloError("disk-failed", f"the disk failed while writing {path}") from error
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a small JSON file atomically, indented for people, with sorted keys."""
    write_atomic(path, _indented(value))


def _indented(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def nearest_path(path: Path) -> str:
    """A hint for a path that is not there: names beside it that may have been meant, nothing if there are none."""
    try:
        beside = [item.name for item in path.parent.iterdir()]
    except OSError:
        return ""
    return did_you_mean(path.name, beside)


def read_json(path: Path) -> Any:
    """Read a JSON file this package wrote."""
    return json.loads(path.read_bytes())


def write_manifest(directory: Path, content: dict[str, Any]) -> str:
    """Write a manifest that carries its own fingerprint, and return that fingerprint."""
    return write_marked(directory / MANIFEST, content)


def read_manifest(directory: Path, *, missing: str, damaged: str) -> dict[str, Any]:
    """Read and check a manifest, every byte of it; the caller names the errors for none and for a changed one."""
    try:
        return read_marked(directory / MANIFEST, damaged=damaged)
    except (FileNotFoundError, NotADirectoryError):
        raise SiloError(missing, f"{directory} has no {MANIFEST}") from None


def write_marked(path: Path, content: dict[str, Any]) -> str:
    """Write a small JSON file that carries its own fingerprint, and return that fingerprint."""
    mark = fingerprint(content)
    write_json(path, {**content, "fingerprint": mark})
    return mark


def read_marked(path: Path, *, damaged: str) -> dict[str, Any]:
    """Read what `write_marked` wrote and check every byte of it; the caller names the error for a changed one."""
    data = path.read_bytes()
    try:
        content = json.loads(data)
        unchanged = _indented(content) == data
    except (ValueError, RecursionError):
        raise SiloError(damaged, f"{path} is not valid JSON") from None
    mark = content.pop("fingerprint", None) if isinstance(content, dict) else None
    if not unchanged or mark is None or mark != fingerprint(content):
        raise SiloError(damaged, f"{path} does not match its own fingerprint")
    return {**content, "fingerprint": mark}


def remove_tree(path: Path) -> None:
    """Remove a directory if it is there."""
    with disk_errors(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file; a second holder gets the error `busy` at once. The lock ends with the process."""
    with disk_errors(path):
        handle = _open_lock(path)
    try:
        _take(handle, path)
        yield
    finally:
        os.close(handle)


@contextmanager
def locked_directory(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock on a directory itself; a second holder waits for it or gets the error `busy` at once."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise SiloError("busy", f"{path} is being written by another process") from None
        yield
    finally:
        os.close(handle)


def _open_lock(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _take(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SiloError("busy", f"{path.parent} is being written by another process") from None


class SharedLock:
    """A lock file held together with others until `close` or the end of the process.

    Where nothing can be written (no right to, no space) the file is held if it is there already, and otherwise nothing.
    """

    def __init__(self, path: Path) -> None:
        self._handle = _lock_shared(path)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _lock_shared(path: Path) -> int:
    """A lock file that is held with others; -1 where it can neither be made nor found."""
    while True:
        try:
            handle = _open_lock(path)
        except OSError as error:
            if error.errno not in (*_NOT_ALLOWED, *_FULL, errno.EIO):
                raise
            handle = _open_existing(path)
            if handle < 0:
                return handle
        fcntl.flock(handle, fcntl.LOCK_SH)
        if _is_same_file(handle, path):
            return handle
        os.close(handle)  # removed before it was locked: nobody would see this lock


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _open_existing(path: Path) -> int:
    """A lock file that is there, -1 if it is not; a lock needs no right to write."""
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return -1


def is_held(path: Path) -> bool:
    """True while anybody holds the lock file; one that is not there is held by nobody."""
    handle = _open_existing(path)
    if handle < 0:
        return path.exists()
    try:
        _take(handle, path)
    except SiloError:
        return True
    finally:
        os.close(handle)
    return False


def hold_shared(path: Path) -> None:
    """Hold a lock file together with others until this process ends; `exclusive` waits for all of them to go."""
    fcntl.flock(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), fcntl.LOCK_SH)
