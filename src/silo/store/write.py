"""Changes to the buckets of a store: documents that come, documents that go, and the layout that follows.

Every change goes the same way: the documents decide the buckets, buckets that differ are written anew from their
documents, and a group of buckets that belong together is exchanged by one manifest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from silo.files import disk_errors, remove_tree
from silo.records import Document
from silo.store.bucket import Bucket, EncodedDocument, assemble, pack
from silo.store.erasure.digest import Digest
from silo.store.manifest import (
    Announce,
    BucketEntry,
    Generation,
    StoreConfig,
    remove_buckets,
    sync_buckets,
    write_bucket,
    write_generation,
)
from silo.store.partition import DEPTH, Group, Sizes, any_under, bits_of, groups, leaves, no_sizes, sizes_of, slot
from silo.store.paths import StorePaths
from silo.store.sections import search_sections
from silo.text.tokenizer import Tokenizer

_MEMORY_BYTES = 64 << 20
"""Packed records beyond this go to the disk."""

_HEAD = struct.Struct("<16s16sII")


@dataclass(frozen=True, slots=True)
class SpooledDocument:
    """A document on its way: its id, the hash of its text, the size of its text and its packed record."""

    id: bytes
    text_hash: bytes
    text_bytes: int
    record: bytes


class Spool:
    """Documents on their way into a store, by the first byte of their id, in memory while they are few.

    On disk: `<byte>.spool` files of heads and packed records in a folder outside the store's data, removed when the
    work is done or, after a crash, when the store is next opened. Nothing is read from a spool of an earlier process.
    `sizes` says how much text falls under each prefix.
    """

    def __init__(self, folder: Path) -> None:
        self.sizes: Sizes = no_sizes()
        self.count = 0
        self.text_bytes = 0
        self._folder = folder
        self._in_memory: dict[int, list[SpooledDocument]] = {}
        self._memory_bytes = 0
        self._flushed: set[int] = set()

    def add(self, document: Document, text_hash: bytes) -> None:
        """Take a document."""
        name, size = bytes.fromhex(document.id), max(1, len(document.text.encode()))
        spooled = SpooledDocument(name, text_hash, size, pack(document))
        self._in_memory.setdefault(name[0], []).append(spooled)
        self._memory_bytes += len(spooled.record)
        self.sizes[slot(name)] += size
        self.count += 1
        self.text_bytes += size
        if self._memory_bytes > _MEMORY_BYTES:
            self._flush()

    def _flush(self) -> None:
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for first_byte, documents in self._in_memory.items():
                self._flushed.add(first_byte)
                with (self._folder / f"{first_byte:02x}.spool").open("ab") as stream:
                    for item in documents:
                        head = _HEAD.pack(item.id, item.text_hash, item.text_bytes, len(item.record))
                        stream.write(head + item.record)
        self._in_memory, self._memory_bytes = {}, 0

    def under(self, prefix: str) -> list[SpooledDocument]:
        """The documents under a prefix, in the order of their ids."""
        near = (item for first_byte in range(256) if _meets(first_byte, prefix) for item in self._read(first_byte))
        return sorted((item for item in near if bits_of(item.id).startswith(prefix)), key=lambda item: item.id)

    def _read(self, first_byte: int) -> Iterator[SpooledDocument]:
        if first_byte in self._flushed:
            with (self._folder / f"{first_byte:02x}.spool").open("rb") as stream:
                while head := stream.read(_HEAD.size):
                    name, text_hash, size, length = _HEAD.unpack(head)
                    yield SpooledDocument(name, text_hash, size, stream.read(length))
        yield from self._in_memory.get(first_byte, ())

    def close(self) -> None:
        """Forget everything."""
        self._in_memory = {}
        remove_tree(self._folder)


def _meets(first_byte: int, prefix: str) -> bool:
    bits = f"{first_byte:08b}"
    return bits.startswith(prefix[:8]) or prefix.startswith(bits)


EncodeDocuments = Callable[[Sequence[SpooledDocument]], list[EncodedDocument]]


@dataclass(frozen=True, slots=True)
class PlannedBucket:
    """The documents of a bucket that is to be made: those that stay in the store, and those that come."""

    staying: Sequence[EncodedDocument]
    coming: Sequence[SpooledDocument]


@dataclass(frozen=True, slots=True)
class BuiltBucket:
    """The bytes of a bucket, its digest, and the elements of the documents that came, by id, as they were encoded."""

    pieces: list[bytes]
    digest: Digest
    coming: dict[bytes, bytes]


BuildBuckets = Callable[[Iterator[PlannedBucket]], Iterator[BuiltBucket]]
"""Makes buckets in the order of their plans; it may look ahead, and let others make several at a time."""


@dataclass(slots=True)
class Change:
    """What is to become of a store: `coming` documents are encoded by `encode`, `leaving` ones are left out.

    Or `build` makes the buckets elsewhere. `announce` is told of every generation before it is current, `note` of the
    elements of documents that came, bucket by bucket.
    """

    coming: Spool | None = None
    leaving: frozenset[bytes] = frozenset()
    encode: EncodeDocuments = field(default=lambda _: [])
    build: BuildBuckets | None = None
    announce: Announce = field(default=lambda _: None)
    note: Callable[[Mapping[bytes, bytes]], None] = field(default=lambda _: None)
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BucketBuilder:
    """Makes the bytes of buckets; `lists` is the codec's number of lists, 0 without token search."""

    config: StoreConfig
    tokenizer: Tokenizer
    lists: int

    def build(self, documents: Sequence[EncodedDocument]) -> list[bytes]:
        """The bytes of a bucket with these documents, which must be in the order of their ids."""
        return assemble(documents, search_sections(documents, self.config, self.tokenizer, self.lists))

    def build_planned(self, plan: PlannedBucket, encode: EncodeDocuments) -> BuiltBucket:
        """A bucket with the documents of a plan, of which those that come are encoded first."""
        encoded = encode(plan.coming)
        documents = _merge(plan.staying, encoded)
        digest = Digest.of(document.element for document in documents)
        return BuiltBucket(self.build(documents), digest, {document.id: document.element for document in encoded})


def _merge(staying: Sequence[EncodedDocument], coming: Sequence[EncodedDocument]) -> list[EncodedDocument]:
    """In the order of their ids."""
    return sorted([*staying, *coming], key=lambda document: document.id)


def apply_change(
    paths: StorePaths, builder: BucketBuilder, now: Generation, buckets: Sequence[Bucket], change: Change
) -> Generation:
    """Carry out a change, one group of buckets after the other; returns the generation it ends with.

    A group that stays as it is costs nothing.
    """
    draft, current = _Draft.of(now, buckets), now
    for group, built in _build_groups(builder, buckets, change):
        _write_group(paths, group, built, change, draft)
        before, current = current, draft.generation(builder.config)
        exchange(paths, before, current, change.announce)
    return current


def prepare_change(
    paths: StorePaths, builder: BucketBuilder, now: Generation, buckets: Sequence[Bucket], change: Change
) -> Generation:
    """Put every bucket of a change on the disk; returns the generation that names them, for `exchange`.

    Until then nothing has changed, and whoever opens the store after a crash removes the new files.
    """
    draft = _Draft.of(now, buckets)
    for group, built in _build_groups(builder, buckets, change):
        _write_group(paths, group, built, change, draft)
    return draft.generation(builder.config)


def exchange(paths: StorePaths, before: Generation, after: Generation, announce: Announce) -> None:
    """Put one generation in the place of another, in one instant, and remove what only the old one names."""
    write_generation(paths, after, announce)
    remove_buckets(paths, set(before.files().values()) - set(after.files().values()))


@dataclass(slots=True)
class _Draft:
    """A generation in the making: its buckets as entries of a manifest, and their digests."""

    entries: dict[str, BucketEntry]
    digests: dict[str, Digest]

    @classmethod
    def of(cls, now: Generation, buckets: Sequence[Bucket]) -> _Draft:
        return cls(dict(now.buckets), {bucket.prefix: bucket.digest for bucket in buckets})

    def generation(self, config: StoreConfig) -> Generation:
        return Generation.of(config, self.entries, sum(self.digests.values(), Digest.of()))


def _build_groups(
    builder: BucketBuilder, buckets: Sequence[Bucket], change: Change
) -> Iterator[tuple[Group, Iterator[BuiltBucket]]]:
    """Every group that differs after the change, with its new buckets, which must be taken before the next group."""
    changed, read = _changed_groups(builder.config, buckets, change), {bucket.prefix: bucket for bucket in buckets}
    plans = (
        _plan_bucket(prefix, [read[old] for old in group.old], change) for group in changed for prefix in group.new
    )
    built = change.build(plans) if change.build else (builder.build_planned(plan, change.encode) for plan in plans)
    for group in changed:
        yield group, islice(built, len(group.new))


def _write_group(paths: StorePaths, group: Group, built: Iterator[BuiltBucket], change: Change, draft: _Draft) -> None:
    """Put the new buckets of a group on the disk and into the draft, in place of the old ones."""
    for prefix in set(group.old) - set(group.new):
        del draft.entries[prefix], draft.digests[prefix]
    for prefix, bucket in zip(group.new, built, strict=True):
        draft.entries[prefix] = write_bucket(paths, prefix, bucket.pieces)
        draft.digests[prefix] = bucket.digest
        change.note(bucket.coming)
        change.written_bytes += draft.entries[prefix].bytes
    if group.new:
        sync_buckets(paths)


def _changed_groups(config: StoreConfig, buckets: Sequence[Bucket], change: Change) -> list[Group]:
    """The groups of buckets that differ after the change."""
    sizes = sizes_of(bucket.index for bucket in buckets)
    touched: set[int] = set()
    for bucket in buckets:
        for row in map(bucket.find, change.leaving):
            if row >= 0:
                entry = bucket.index[row]
                place = slot(entry["id"].tobytes())
                sizes[place] -= max(1, int(entry["text_bytes"]))
                touched.add(place)
    if change.coming is not None:
        sizes += change.coming.sizes
        touched |= set(change.coming.sizes.nonzero()[0].tolist())
    touched_bits = sorted(f"{place:0{DEPTH}b}" for place in touched)
    every = groups((bucket.prefix for bucket in buckets), leaves(sizes, config.bucket_bytes))
    return [group for group in every if group.old != group.new or any_under(group.prefix, touched_bits)]


def _plan_bucket(prefix: str, old: Sequence[Bucket], change: Change) -> PlannedBucket:
    """What a bucket holds after the change."""
    staying = [
        document
        for bucket in old
        for document in bucket.encoded_documents()
        if bits_of(document.id).startswith(prefix) and document.id not in change.leaving
    ]
    return PlannedBucket(staying, change.coming.under(prefix) if change.coming is not None else [])
