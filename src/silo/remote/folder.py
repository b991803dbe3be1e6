"""Whole folders at a URL: made on this machine and published, fetched into a copy that lasts as long as the process.

For artefacts of which nearly nothing changes once they are made, as corpora. Stores have more to keep: `store/remote/`.
"""

from __future__ import annotations

import atexit
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from silo.errors import SiloError
from silo.files import remove_tree
from silo.remote.cache import Cache, Copy
from silo.remote.head import Head
from silo.remote.objects import Objects
from silo.remote.place import cache_folder, remote_url
from silo.remote.publish import Publisher, read_head, require_alone

Carry = Callable[[Path, Path], None]
"""Brings a file of an old folder, which holds nothing else, into the one that takes its place."""

_OPEN: dict[str, _Folder] = {}
"""The copies of this process, by URL."""


class _Folder:
    def __init__(self, url: str) -> None:
        self.objects = Objects.at(url)
        self.cache = Cache(self.objects)
        self.copy: Copy = self.cache.new_copy()
        self.head = Head.first()

    def follow(self) -> None:
        """Bring the copy to the newest head."""
        head = read_head(self.objects)
        if head is None:
            raise SiloError("input-missing", f"there is nothing at {self.objects.url}")
        if head != self.head:
            self.cache.require_newest(head)
            try:
                self.copy.fill(head, is_own=_is_partial, may_link=lambda _: True)
            except FileNotFoundError as error:
                raise SiloError("remote-damaged", f"an object of {self.objects.url} is missing: {error}") from None
            self.cache.prune(head)
            self.head = head


def fetched(path: Path) -> Path:
    """The folder that a path means: itself, or a copy on this machine of what lies at a URL now."""
    url = remote_url(path)
    if url is None:
        return path
    folder = _OPEN.get(url)
    if folder is None:
        folder = _OPEN[url] = _Folder(url)
        atexit.register(folder.copy.close)
    folder.follow()
    return folder.copy.root


def publish_changes(root: Path) -> None:
    """Publish what was changed in a folder that was `fetched`; nothing happens for any other."""
    for folder in _OPEN.values():
        if folder.copy.root == root:
            publisher = Publisher(folder.objects, folder.head)
            publisher.publish(root, is_own=_is_partial)
            publisher.remove_garbage()
            folder.head = publisher.head


@contextmanager
def made_at(path: Path, *, force: bool = False, carry: Mapping[str, Carry] = MappingProxyType({})) -> Iterator[Path]:
    """Where a folder is to be made that is meant for a path: there, or on this machine to be published at a URL.

    What lies at the URL already is refused, or replaced with `force`. What was made stays until it is published. Files
    in `carry` go on, each in its way: what was made at a path is for its maker to replace.
    """
    url = remote_url(path)
    if url is None:
        yield path
        return
    publisher = Publisher.begin(Objects.at(url))
    if publisher.head.number and not force:
        raise SiloError("out-exists", f"there is something at {url}")
    if not publisher.head.number:
        require_alone(publisher.objects)
    local = cache_folder() / "made" / hashlib.sha256(url.encode()).hexdigest()[:24]
    local.parent.mkdir(parents=True, exist_ok=True)
    yield local
    _carry_over(publisher, carry, local)
    publisher.publish(local, is_own=_is_partial)
    publisher.remove_garbage()
    remove_tree(local)


def _carry_over(publisher: Publisher, carry: Mapping[str, Carry], new: Path) -> None:
    """Bring files of what is replaced into a new folder; who changes them meanwhile lets the publishing fail."""
    for name in carry.keys() & publisher.head.files.keys():
        part = publisher.head.files[name]
        with TemporaryDirectory(dir=new.parent) as old:
            file = Path(old) / name
            try:
                actual = publisher.objects.get(part.object, file)
            except FileNotFoundError:
                actual = ""
            if actual != part.sha256:
                what = f"{publisher.objects.url}/{part.object} is missing or differs from its checksum"
                raise SiloError("remote-damaged", what, "restore it from a copy: what it says must not be lost")
            carry[name](Path(old), new)


def _is_partial(name: str) -> bool:
    return name.endswith(".partial")
