"""The objects under one URL: read, written, listed, removed, and the head swapped by one conditional write.

This is the only module that uses `fsspec`. On S3 the head is written with `If-Match` or `If-None-Match`; in a local
directory under a lock of the operating system; everywhere else while holding a lock object that is created exclusively.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from silo.errors import SiloError
from silo.files import exclusive, sync_directory, sync_file, write_atomic
from silo.remote.head import FORMAT, HEAD
from silo.remote.place import remote_url

_LOCK = "head.lock"
_CHUNK = 1 << 20
_REFUSED = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
_EXTRAS = {"s3": "s3"}


class HeadFile(NamedTuple):
    """The head as it lies there; the tag changes whenever it does."""

    data: bytes
    tag: str


class Objects:
    """The objects under a URL."""

    def __init__(self, url: str, system: Any, root: str) -> None:
        self.url = url
        self._system = system
        self._root = root.rstrip("/")
        known = system.protocol
        self._protocols = {known} if isinstance(known, str) else set(known)
        self._is_s3, self._is_directory = "s3" in self._protocols, "file" in self._protocols

    @classmethod
    def at(cls, url: str) -> Objects:
        """The objects under a URL; nothing is asked of it yet."""
        import fsspec  # where it is needed: everything that may lie at a URL comes by here

        url = remote_url(url) or url
        protocol = url.split(":", 1)[0]
        options = ({"auto_mkdir": True},) if protocol == "file" else ({"use_listings_cache": False}, {})
        try:
            system, root = _file_system(fsspec.url_to_fs, url, options)
        except ImportError as error:
            extra = _EXTRAS.get(protocol)
            what = f"silo-lm[{extra}]" if extra else f"the fsspec package for {protocol}:"
            raise SiloError("extra-missing", f"{url} needs {what}", f"install {what}") from error
        except ValueError as error:
            raise SiloError("usage", f"{url}: {error}", "give a URL such as s3://bucket/x") from None
        except Exception as error:  # each file system raises errors of its own kinds
            what = f"cannot reach {url}: {_in_one_line(error)}"
            raise SiloError("remote-failed", what[:500]) from error
        return cls(url, system, root)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    # the head

    def read_head(self) -> HeadFile | None:
        """The head as it lies there, None where there is none."""
        with self._errors("read"):
            while True:
                try:
                    before = self._tag()
                    data = bytes(self._system.cat_file(self._path(HEAD)))
                    if self._tag() == before:
                        return HeadFile(data, before)
                except FileNotFoundError:
                    return None

    def head_tag(self) -> str | None:
        """The tag of the head, for the price of one small question; None where there is none."""
        with self._errors("read"):
            try:
                return self._tag()
            except FileNotFoundError:
                return None

    def _tag(self) -> str:
        facts = self._system.info(self._path(HEAD))
        if self._is_s3:
            return str(facts["ETag"])
        known = ("etag", "generation", "mtime", "created", "last_modified", "ino", "size")
        return "/".join(str(facts[name]) for name in known if name in facts)

    def swap_head(self, data: bytes, expected: HeadFile | None) -> None:
        """Put a head in the place of the `expected` one, or of none; the error is `remote-conflict` if it is another.

        An answer that was lost on its way is no failure: what lies there afterwards decides.
        """
        try:
            with self._errors("write"):
                if self._is_s3:
                    swapped = self._swap_on_s3(data, expected)
                elif self._is_directory:
                    swapped = self._swap_in_directory(data, expected)
                else:
                    swapped = self._swap_with_lock(data, expected)
        except SiloError as error:
            if error.code != "remote-failed" or not self._holds_head(data):
                raise
            swapped = True
        if not swapped and not self._holds_head(data):
            raise SiloError("remote-conflict", f"somebody else has written to {self.url} meanwhile")

    def _holds_head(self, data: bytes) -> bool:
        try:
            found = self.read_head()
        except SiloError:
            return False
        return found is not None and found.data == data

    def _swap_on_s3(self, data: bytes, expected: HeadFile | None) -> bool:
        bucket, _, key = self._path(HEAD).partition("/")
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected.tag}
        try:
            self._system.call_s3("put_object", Bucket=bucket, Key=key, Body=data, **condition)
        except OSError as error:
            if _was_refused(error):
                return False
            raise
        return True

    def _swap_in_directory(self, data: bytes, expected: HeadFile | None) -> bool:
        path = Path(self._path(HEAD))
        path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(path.with_name(_LOCK)):
            if (path.read_bytes() if path.exists() else None) != (expected and expected.data):
                return False
            write_atomic(path, data)
        return True

    def _swap_with_lock(self, data: bytes, expected: HeadFile | None) -> bool:
        lock = self._path(_LOCK)
        try:
            self._system.pipe_file(lock, b"", mode="create")
        except FileExistsError:
            hint = f"wait for it; if it was killed in that instant, remove {self.url}/{_LOCK}"
            raise SiloError("busy", f"another process is writing the head of {self.url}", hint) from None
        try:
            found = self.read_head()
            if (found and found.data) != (expected and expected.data):
                return False
            self._system.pipe_file(self._path(HEAD), data)
        finally:
            self._system.rm_file(lock)
        return True

    # all other objects

    def put(self, name: str, file: Path) -> None:
        """Send a file."""
        with self._errors("write"):
            self._system.put_file(str(file), self._path(name))
            if self._is_directory:
                sync_file(Path(self._path(name)))
                sync_directory(Path(self._path(name)).parent)

    def get(self, name: str, file: Path) -> str:
        """Fetch an object into a file; gives the SHA-256 of its bytes. One that is gone is a `FileNotFoundError`."""
        with self._errors("read"):
            self._system.get_file(self._path(name), str(file))
        return _sha256(file)

    def checksum(self, name: str) -> str:
        """The SHA-256 of an object's bytes, which are read and not kept. One that is gone is a `FileNotFoundError`."""
        digest = hashlib.sha256()
        with self._errors("read"), self._system.open(self._path(name), "rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()

    def names(self) -> list[str]:
        """Every object but the head and its lock; a folder that cannot be listed is an error."""
        with self._errors("list"):
            found = self._find()
        names = (path[len(self._root) :].lstrip("/") for path in found)
        return sorted(name for name in names if name not in (HEAD, _LOCK) and not name.startswith(f"{HEAD}."))

    def _find(self) -> list[str]:
        """Every path. S3 lists all keys at once; elsewhere `find` passes over folders whose listing fails."""
        if self._is_s3:
            return [str(path) for path in self._system.find(self._root)]
        found, folders = list[str](), [self._root]
        while folders:
            folder = folders.pop()
            with suppress(FileNotFoundError):  # what is gone has nothing in it
                for facts in self._system.ls(folder, detail=True):
                    path = str(facts["name"]).rstrip("/")
                    if path != folder:  # some name the folder itself
                        (folders if facts["type"] == "directory" else found).append(path)
        return found

    def heads_above(self) -> list[str]:
        """Heads of artefacts that this URL lies in; one that nobody may read from here is not seen."""
        found, folder = [], self._root
        while folder := folder.rpartition("/")[0]:
            with suppress(Exception):  # none there is the rule, and each file system says so in its own way
                if FORMAT.encode() in self._system.cat_file(f"{folder}/{HEAD}"):
                    found.append(f"{folder}/{HEAD}")
        return found

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, those that are gone already too."""
        for name in names:
            with self._errors("remove"), suppress(FileNotFoundError):
                self._system.rm_file(self._path(name))

    def keeps_versions(self) -> bool | None:
        """Whether removed objects are kept as older versions; None if that cannot be seen."""
        if not self._is_s3:
            return False if self._protocols & {"file", "memory"} else None
        try:
            answer = self._system.call_s3("get_bucket_versioning", Bucket=self._root.partition("/")[0])
        except Exception:  # whatever it is, such as no right to ask: it was not seen
            return None
        return "Status" in answer

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Every kind of failure as one that says what to do; a missing object stays a `FileNotFoundError`."""
        try:
            yield
        except (SiloError, FileNotFoundError):
            raise
        except Exception as error:  # each file system raises errors of its own kinds
            what = f"cannot {verb} {self.url}: {_in_one_line(error)}"
            raise SiloError("remote-failed", what[:500]) from error


def _file_system(
    find: Callable[..., tuple[Any, str]], url: str, options: Sequence[Mapping[str, bool]]
) -> tuple[Any, str]:
    """A file system and the path in it; with the first options that it takes, for not every one takes any."""
    for option in options[:-1]:
        with suppress(TypeError):
            return find(url, **option)
    return find(url, **options[-1])


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _was_refused(error: OSError) -> bool:
    """Whether a conditional write found another head; S3 answers so too while two such writes meet."""
    code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code", "")
    return isinstance(error, FileExistsError) or code in (
        "PreconditionFailed",
        "ConditionalRequestConflict",
        "412",
        "409",
    )


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
