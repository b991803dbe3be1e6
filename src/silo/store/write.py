"""Changes to the buckets of a store: documents that come, documents that go, and the layout that follows.

Every change goes the same way: the documents decide the buckets, buckets that differ are written anew from their
parts, and a group of buckets that belong together is exchanged by one manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from silo.store.bucket import Bucket, Part, assemble
from silo.store.config import StoreConfig
from silo.store.erasure.digest import Digest
from silo.store.generation import (
    Entry,
    Generation,
    remove_buckets,
    sync_buckets,
    write_bucket,
    write_generation,
)
from silo.store.partition import DEPTH, Group, any_under, bits_of, groups, leaves, sizes_of, slot
from silo.store.sections import search_sections
from silo.store.spool import Spool, Waiting
from silo.text.tokenizer import Tokenizer

Encode = Callable[[Sequence[Waiting]], list[Part]]


@dataclass(slots=True)
class Change:
    """What is to become of a store: `coming` documents are encoded by `encode`, `leaving` ones are left out."""

    coming: Spool | None = None
    leaving: frozenset[bytes] = frozenset()
    encode: Encode = field(default=lambda _: [])
    written: int = 0


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where and how buckets are made."""

    data: Path
    config: StoreConfig
    tokenizer: Tokenizer
    lists: int

    def build(self, parts: Sequence[Part]) -> list[bytes]:
        """The bytes of a bucket with these documents, which must be in the order of their ids."""
        return assemble(parts, search_sections(parts, self.config, self.tokenizer, self.lists))


def apply(shop: Workshop, now: Generation, buckets: Sequence[Bucket], change: Change) -> Iterator[Generation]:
    """Carry out a change; yields each generation as it becomes the current one.

    A group of buckets that stays as it is costs nothing.
    """
    opened = {bucket.prefix: bucket for bucket in buckets}
    digests = {prefix: bucket.digest for prefix, bucket in opened.items()}
    entries = dict(now.buckets)
    for group in _groups(shop, buckets, change):
        made: dict[str, tuple[Entry, Digest]] = {}
        for prefix in group.new:
            parts = _parts(prefix, [opened[old] for old in group.old], change)
            pieces = shop.build(parts)
            made[prefix] = write_bucket(shop.data, prefix, pieces), Digest.of(part.element for part in parts)
            change.written += made[prefix][0].bytes
        gone = [now.files()[prefix] for prefix in group.old]
        for prefix in group.old:
            del entries[prefix], digests[prefix]
        entries |= {prefix: entry for prefix, (entry, _) in made.items()}
        digests |= {prefix: digest for prefix, (_, digest) in made.items()}
        if made:
            sync_buckets(shop.data)
        fresh = write_generation(shop.data, shop.config, entries, sum(digests.values(), Digest.of()))
        remove_buckets(shop.data, set(gone) - set(fresh.files().values()))
        yield fresh


def _groups(shop: Workshop, buckets: Sequence[Bucket], change: Change) -> list[Group]:
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
    marks = sorted(f"{place:0{DEPTH}b}" for place in touched)
    found = groups((bucket.prefix for bucket in buckets), leaves(sizes, shop.config.bucket_bytes))
    return [group for group in found if group.old != group.new or any_under(group.prefix, marks)]


def _parts(prefix: str, old: Sequence[Bucket], change: Change) -> list[Part]:
    """The documents of a bucket after the change, in the order of their ids."""
    kept = [
        part
        for bucket in old
        for part in bucket.parts()
        if bits_of(part.id).startswith(prefix) and part.id not in change.leaving
    ]
    waiting = change.coming.under(prefix) if change.coming is not None else []
    return sorted([*kept, *change.encode(waiting)], key=lambda part: part.id)
