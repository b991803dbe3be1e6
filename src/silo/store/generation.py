"""The manifest of a store and how one generation follows another: old state or new state, nothing between.

`data/manifest.json` holds the configuration, the checksum and counts of every bucket, and the digest. A change writes
new bucket files, then the manifest in one rename, then removes the old files. Files that the manifest does not name
are removed when the store is opened for writing, never adopted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.files import (
    MANIFEST,
    read_manifest,
    remove_file,
    sync_directory,
    write_durably,
    write_manifest,
)
from silo.store.bucket import Bucket
from silo.store.config import StoreConfig
from silo.store.erasure.digest import Digest
from silo.store.partition import bucket_file

BUCKETS = "buckets"
LOG = "log.jsonl"
READERS = "readers"


@dataclass(frozen=True, slots=True)
class Entry:
    """One bucket in the manifest."""

    sha256: str
    bytes: int
    documents: int
    tokens: int
    text_bytes: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A consistent state of a store: configuration, buckets by prefix, published digest."""

    config: StoreConfig
    buckets: Mapping[str, Entry] = field(default_factory=dict)
    digest: str = ""
    fingerprint: str = ""

    @property
    def totals(self) -> dict[str, int]:
        """Documents, tokens, bytes of text and bytes on disk."""
        names = ("documents", "tokens", "text_bytes", "bytes")
        return {name: sum(getattr(entry, name) for entry in self.buckets.values()) for name in names}

    def files(self) -> dict[str, str]:
        """The file of each bucket, by prefix."""
        return {prefix: bucket_file(prefix, entry.sha256) for prefix, entry in self.buckets.items()}


def read_generation(data: Path) -> Generation:
    """The generation whose manifest lies in `data`."""
    try:
        content = read_manifest(data, "not-a-store")
    except SiloError as error:
        code = "store-damaged" if error.code == "corpus-damaged" else error.code
        raise SiloError(code, error.message) from None
    try:
        buckets = {prefix: Entry(**entry) for prefix, entry in sorted(content["buckets"].items())}
        config = StoreConfig.from_json(content["config"])
    except (KeyError, TypeError, AttributeError):
        raise SiloError("not-a-store", f"{data} is not the data of a store") from None
    return Generation(config, buckets, content["digest"], content["fingerprint"])


def write_generation(data: Path, config: StoreConfig, buckets: Mapping[str, Entry], digest: Digest) -> Generation:
    """Make a generation the current one; its bucket files must be on the disk already."""
    entries = {prefix: asdict(entry) for prefix, entry in sorted(buckets.items())}
    published = digest.published(config.fingerprint)
    content: dict[str, Any] = {"config": config.as_json(), "buckets": entries, "digest": published}
    mark = write_manifest(data, content)
    return Generation(config, dict(sorted(buckets.items())), published, mark)


def write_bucket(data: Path, prefix: str, pieces: list[bytes]) -> Entry:
    """Put the file of a bucket on the disk under the name its content gives it."""
    mark = hashlib.sha256()
    for piece in pieces:
        mark.update(piece)
    path = data / BUCKETS / bucket_file(prefix, mark.hexdigest())
    write_durably(path, *pieces)
    bucket = Bucket(prefix, memoryview(b"".join(pieces)))
    text_bytes = int(bucket.index["text_bytes"].sum(dtype="int64"))
    return Entry(mark.hexdigest(), sum(map(len, pieces)), len(bucket), len(bucket.tokens), text_bytes)


def sync_buckets(data: Path) -> None:
    """Make the names of new bucket files durable, before a manifest names them."""
    sync_directory(data / BUCKETS)


def remove_buckets(data: Path, names: Iterable[str]) -> None:
    """Remove bucket files that no manifest names any more."""
    for name in names:
        remove_file(data / BUCKETS / name)
    sync_directory(data / BUCKETS)


def remove_strays(data: Path, generation: Generation) -> list[str]:
    """Remove everything under `data` that the manifest does not name, and say what it was."""
    named = set(generation.files().values())
    strays = [path for path in data.iterdir() if path.name not in (MANIFEST, BUCKETS)]
    strays += [path for path in (data / BUCKETS).iterdir() if path.name not in named]
    for path in strays:
        remove_file(path)
    if strays:
        sync_directory(data / BUCKETS)
        sync_directory(data)
    return sorted(path.name for path in strays)
