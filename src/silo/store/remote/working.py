"""A copy of a remote store on this machine: an ordinary store directory, with the signing key only where it belongs.

Everything of a store lies on the object store but its signing key, locks, and what is on its way in or out. The key
lies in `keys/` of the home, named after its public key; a machine without it reads and adds, and cannot erase.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from silo.errors import SiloError
from silo.files import (
    disk_errors,
    locked_directory,
    read_marked,
    remove_file,
    write_atomic,
    write_marked,
    write_private,
)
from silo.remote.cache import Cache
from silo.remote.head import Head
from silo.remote.place import anchors_folder, keys_folder
from silo.remote.publish import read_head
from silo.store.erasure.suppression import KEY_FILE
from silo.store.manifest import read_generation
from silo.store.paths import StorePaths

BUCKETS = "data/buckets"
MANIFEST_NAME = "data/manifest.json"
_FOLDERS_SENT = ("data/", "codec/", "receipts/", "suppression/")
_FILES_SENT = ("tokenizer.json", "store.json", "log.jsonl", "ledger.jsonl", "pending.json", "keys/receipts.pem.pub")
_SET_ASIDE = re.compile(r"\.damaged\d+(?=/|$)")
_LASTING = (f"{BUCKETS}/", "codec/", "receipts/", "tokenizer.json")


class WorkingCopy:
    """A store directory that was filled from a head, and is removed when it is closed."""

    fresh_seconds = 1.0
    """How long a reader goes by what it knows of the head. An erasure is accepted when that is over for everybody."""

    def __init__(self, cache: Cache, *, restored: bool = False) -> None:
        self.cache = cache
        self._restored = restored
        self.head = Head.first()
        self._copy = cache.new_copy()
        self.paths = StorePaths(self._copy.root)

    def follow(self) -> None:
        """Bring the directory to the newest head; what that does not name leaves the cache too.

        Objects that go while they are fetched belong to a head that is not the newest any more.
        """
        while True:
            head = read_head(self.cache.remote)
            if head is None:
                raise SiloError("not-a-store", f"there is no store at {self.cache.remote.url}")
            if head == self.head:
                return
            if own := sorted(filter(is_own, head.files)):
                what = f"{self.cache.remote.url} names {own[0]}, which no store sends"
                raise SiloError("remote-damaged", what)
            self.cache.require_newest(head)
            try:
                self._copy.fill(head, is_own=is_own, may_link=is_lasting, is_compared=is_bucket)
            except FileNotFoundError as error:
                if read_head(self.cache.remote) == head:
                    what = f"an object of {self.cache.remote.url} is missing: {error}"
                    raise SiloError("remote-damaged", what) from None
                continue
            if not self._restored and not log_goes_on(self.paths, self.cache.remote.url):
                if read_head(self.cache.remote) != head:  # somebody here has seen a newer one meanwhile
                    continue
                what = f"the log of {self.cache.remote.url} does not hold what this machine has seen of it"
                hint = f"an old copy was put back; to go on with it all the same, remove {anchors_folder()}"
                raise SiloError("remote-damaged", what, hint)
            self.head = head
            self.paths.buckets.mkdir(parents=True, exist_ok=True)  # object stores have no empty folders
            place_key(self.paths)
            self.cache.prune(head)
            return

    def refill(self) -> None:
        """Take everything anew from the cache and from where the store lies."""
        self.head = Head.first()
        self._copy.forget()
        self.follow()

    def drop_damaged(self) -> bool:
        """Remove what of the cache is not as it was fetched; true if there was any."""
        return self.cache.drop_damaged(self.head)

    def close(self) -> None:
        """Remove the directory."""
        self._copy.close()


def is_own(name: str) -> bool:
    """Whether a file of a copy, by its path in it, is of one process or machine alone: all but the parts of a store.

    Evidence that was set aside goes where its part goes, so that a signing key stays here under every name.
    """
    plain = _SET_ASIDE.sub("", name)
    return name.endswith(".partial") or not (plain in _FILES_SENT or plain.startswith(_FOLDERS_SENT))


def is_lasting(name: str) -> bool:
    """Whether a file never changes under its name."""
    return name.startswith(_LASTING)


def is_bucket(name: str) -> bool:
    """Whether a file is a bucket, which is compared with its checksum when it is opened."""
    return name.startswith(f"{BUCKETS}/")


def is_unfinished(name: str, paths: StorePaths) -> bool:
    """Whether a file is not part of the current state: its own, or of a bucket that no manifest names yet."""
    folder, _, file = name.rpartition("/")
    return is_own(name) or (folder == BUCKETS and file not in read_generation(paths).files().values())


def key_file(paths: StorePaths) -> Path:
    """Where the signing key of a store must lie on this machine."""
    name = hashlib.sha256(paths.public_key.read_bytes()).hexdigest()[:32]
    return keys_folder() / f"{name}.pem"


def keep_key(paths: StorePaths) -> None:
    """Keep the signing key of a store that was made here, before anything of the store is sent."""
    file = key_file(paths)
    if not file.exists():
        write_private(file, paths.signing_key.read_bytes())
        write_atomic(file.with_name(f"{file.name}.pub"), paths.public_key.read_bytes())


def place_key(paths: StorePaths) -> None:
    """Give a copy the signing key, if this machine has it, and let nobody else read the key of the list."""
    suppression_key = paths.suppression / KEY_FILE
    if suppression_key.exists():
        suppression_key.chmod(0o600)
    if not paths.public_key.exists():
        return
    file = key_file(paths)
    if not file.exists():
        remove_file(paths.signing_key)
        write_atomic(paths.key_elsewhere, b"")
    elif not paths.signing_key.exists():
        paths.signing_key.symlink_to(file)
        remove_file(paths.key_elsewhere)


def log_goes_on(paths: StorePaths, url: str) -> bool:
    """Whether the log of a store begins with all that was seen of it at a URL; if so, what it holds now is noted.

    That is kept in the home and not in the cache, and by the public key and not by the head, which whoever puts an
    older state back writes himself. A store that has lost its log is refused when it is opened.
    """
    if not (paths.log.exists() and paths.public_key.exists()):
        return True
    log, anchor = paths.log.read_bytes(), _anchor_file(paths, url)
    if anchor.exists():
        seen = read_marked(anchor, damaged="remote-damaged")
        if hashlib.sha256(log[: seen["bytes"]]).hexdigest() != seen["sha256"]:
            return False
        if len(log) == seen["bytes"]:
            return True
    note_log(paths, url)
    return True


def note_log(paths: StorePaths, url: str) -> None:
    """Keep how far the log of a store at a URL is now; whoever may not write in the home goes without."""
    if not (paths.log.exists() and paths.public_key.exists()):
        return
    log, anchor = paths.log.read_bytes(), _anchor_file(paths, url)
    try:
        with disk_errors(anchor):
            anchor.parent.mkdir(parents=True, exist_ok=True)
        with locked_directory(anchor.parent, wait=True):
            write_marked(anchor, {"url": url, "bytes": len(log), "sha256": hashlib.sha256(log).hexdigest()})
    except SiloError as error:
        if error.code != "not-writable":
            raise


def _anchor_file(paths: StorePaths, url: str) -> Path:
    name = hashlib.sha256(f"{url}\n".encode() + paths.public_key.read_bytes()).hexdigest()[:32]
    return anchors_folder() / f"{name}.json"


def require_key(paths: StorePaths) -> None:
    """Refuse to begin what ends with a signature on a machine that cannot sign."""
    if paths.key_elsewhere.exists():
        raise SiloError("key-missing", f"an erasure needs the store's signing key, which is not at {key_file(paths)}")
