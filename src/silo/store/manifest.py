"""What a store is made for, what it holds, and how one generation follows another: old state or new, nothing between.

`data/manifest.json` holds the configuration (searches, and tokenizer, model and codec by fingerprint), the checksum
and counts of every bucket, the digest, and `logged`, always true: the store has a log that names this generation. A
change writes new bucket files, then the manifest in one rename, then
removes the old files. Files that the manifest does not name are removed when the store is opened for writing, never
adopted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from silo.errors import SiloError, did_you_mean
from silo.files import (
    disk_errors,
    fingerprint,
    read_manifest,
    remove_file,
    remove_tree,
    sync_directory,
    write_durably,
    write_manifest,
)
from silo.store.bucket import Bucket
from silo.store.erasure.digest import Digest
from silo.store.partition import bucket_file
from silo.store.paths import StorePaths

FORMAT = "silo-store-1"
SEARCHES = ("knn", "ngram", "bm25")
BUCKET_BYTES = 4 << 20

Announce = Callable[[str], None]
"""Is told the fingerprint of a generation before its manifest is written."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Everything beside the documents that shapes the bytes of a store.

    `model` and `codec` are "" without knn; `analysis` (how passages are cut into words) is "" without bm25.
    `encoded_on` names what made the keys: `engine`, or device and number format of torch; "" for torch on the processor
    in float32, and without knn.
    """

    searches: tuple[str, ...]
    tokenizer: str
    vocabulary: int
    begin: int
    model: str = ""
    codec: str = ""
    passage_tokens: int = 0
    passage_stride: int = 0
    analysis: str = ""
    bucket_bytes: int = BUCKET_BYTES
    encoded_on: str = ""

    @property
    def fingerprint(self) -> str:
        """Names the configuration."""
        return fingerprint(self.as_json())

    def as_json(self) -> dict[str, Any]:
        content = {"format": FORMAT, **asdict(self), "searches": list(self.searches)}
        if not self.encoded_on:
            del content["encoded_on"]
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> StoreConfig:
        """The inverse of `as_json`."""
        plain = dict(content)
        if plain.pop("format", None) != FORMAT:
            raise SiloError("not-a-store", f"the store has format {content.get('format')!r}, not {FORMAT!r}")
        return cls(**{**plain, "searches": tuple(plain["searches"])})

    def require(self, search: str) -> None:
        """Refuse a search that the store was not made for."""
        if search not in self.searches:
            raise SiloError("search-missing", f"this store has no {search} search, only {', '.join(self.searches)}")


def chosen_searches(names: Iterable[str]) -> tuple[str, ...]:
    """Some of the searches, in a fixed order."""
    wanted = set(names)
    if not wanted or wanted - set(SEARCHES):
        hint = did_you_mean(min(wanted - set(SEARCHES), default=""), SEARCHES)
        raise SiloError("usage", f"searches are {', '.join(SEARCHES)}, not '{', '.join(sorted(wanted))}'", hint)
    return tuple(name for name in SEARCHES if name in wanted)


@dataclass(frozen=True, slots=True)
class BucketEntry:
    """One bucket in the manifest."""

    sha256: str
    bytes: int
    documents: int
    tokens: int
    text_bytes: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A consistent state of a store: configuration, buckets by prefix, published digest.

    `logged` is false if it was written before the log named generations.
    """

    config: StoreConfig
    buckets: Mapping[str, BucketEntry] = field(default_factory=dict)
    digest: str = ""
    fingerprint: str = ""
    logged: bool = False

    @classmethod
    def of(cls, config: StoreConfig, buckets: Mapping[str, BucketEntry], digest: Digest) -> Generation:
        """The generation that names these buckets; `digest` is that of all their documents."""
        unnamed = cls(config, dict(sorted(buckets.items())), digest.published(config.fingerprint), logged=True)
        return replace(unnamed, fingerprint=fingerprint(unnamed.as_json()))

    def as_json(self) -> dict[str, Any]:
        """What a manifest says, without its fingerprint."""
        entries = {prefix: asdict(entry) for prefix, entry in self.buckets.items()}
        return {"config": self.config.as_json(), "buckets": entries, "digest": self.digest, "logged": self.logged}

    @property
    def totals(self) -> dict[str, int]:
        """Documents, tokens, bytes of text and bytes on disk."""
        names = ("documents", "tokens", "text_bytes", "bytes")
        return {name: sum(getattr(entry, name) for entry in self.buckets.values()) for name in names}

    def files(self) -> dict[str, str]:
        """The file of each bucket, by prefix."""
        return {prefix: bucket_file(prefix, entry.sha256) for prefix, entry in self.buckets.items()}


def read_generation(paths: StorePaths) -> Generation:
    """The current generation of a store."""
    return generation_in(paths.data)


def generation_in(folder: Path) -> Generation:
    """The generation whose manifest lies in a folder."""
    content = read_manifest(folder, missing="not-a-store", damaged="store-damaged")
    try:
        buckets = {prefix: BucketEntry(**entry) for prefix, entry in sorted(content["buckets"].items())}
        config = StoreConfig.from_json(content["config"])
    except (KeyError, TypeError, AttributeError):
        raise SiloError("not-a-store", f"{folder} is not the data of a store") from None
    return Generation(config, buckets, content["digest"], content["fingerprint"], content.get("logged") is True)


def write_generation(paths: StorePaths, generation: Generation, announce: Announce = lambda _: None) -> None:
    """Make a generation the current one; its bucket files must be on the disk already.

    `announce` is told its fingerprint before that.
    """
    announce(generation.fingerprint)
    write_manifest(paths.data, generation.as_json())


def write_bucket(paths: StorePaths, prefix: str, pieces: list[bytes]) -> BucketEntry:
    """Put the file of a bucket on the disk under the name its content gives it."""
    checksum = hashlib.sha256()
    for piece in pieces:
        checksum.update(piece)
    write_durably(paths.buckets / bucket_file(prefix, checksum.hexdigest()), *pieces)
    bucket = Bucket(prefix, memoryview(b"".join(pieces)))
    text_bytes = int(bucket.index["text_bytes"].sum(dtype="int64"))
    return BucketEntry(checksum.hexdigest(), sum(map(len, pieces)), len(bucket), len(bucket.tokens), text_bytes)


def sync_buckets(paths: StorePaths) -> None:
    """Make the names of new bucket files durable, before a manifest names them."""
    sync_directory(paths.buckets)


def remove_buckets(paths: StorePaths, names: Iterable[str]) -> None:
    """Remove bucket files that no manifest names any more."""
    for name in names:
        remove_file(paths.buckets / name)
    sync_directory(paths.buckets)


def stray_files(paths: StorePaths, generation: Generation) -> list[Path]:
    """Everything under `data` that the manifest does not name."""
    named = set(generation.files().values())
    strays = [path for path in paths.data.iterdir() if path not in (paths.manifest, paths.buckets)]
    return strays + [path for path in paths.buckets.iterdir() if path.name not in named]


def partial_files(paths: StorePaths) -> list[Path]:
    """What writes that were cut off left beside `data`; the ledger sees to its own, under a lock of its own."""
    own = paths.usage.with_name(paths.usage.name + ".partial")
    folders = (paths.root, paths.receipts, paths.signing_key.parent, paths.suppression)
    return [path for folder in folders for path in folder.glob("*.partial") if path != own]


def remove_partials(paths: StorePaths) -> None:
    """Remove what writes that were cut off left beside `data`; only for the one writer."""
    partials = partial_files(paths)
    for path in partials:
        remove_tree(path)
    for folder in {path.parent for path in partials}:
        with disk_errors(folder):
            sync_directory(folder)


def remove_strays(paths: StorePaths, generation: Generation) -> None:
    """Remove everything under `data` that the manifest does not name; nothing if any that it names is missing.

    Then the manifest is not the one of these files, and what it does not name may be all there is.
    """
    if not all((paths.buckets / name).exists() for name in generation.files().values()):
        return
    strays = stray_files(paths, generation)
    for path in strays:
        remove_file(path)
    if strays:
        sync_directory(paths.buckets)
        sync_directory(paths.data)
