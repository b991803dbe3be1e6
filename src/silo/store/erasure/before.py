"""What an erasure takes away, kept until that was checked: a crash in between costs no check.

On disk a folder `erasing/`, made whole by one rename: `manifest.json` of the generation before, and those of its
buckets that hold documents which leave (second names of the files in `data/`). It goes before the receipt is signed.
"""

from __future__ import annotations

from dataclasses import dataclass

from silo.errors import SiloError
from silo.files import MANIFEST, commit, disk_errors, link_or_copy, remove_tree, sync_directory, write_durably
from silo.store.bucket import Bucket
from silo.store.manifest import Generation, generation_in
from silo.store.paths import StorePaths


@dataclass(frozen=True, slots=True)
class Before:
    """The generation that an erasure began with, and those of its buckets that hold documents which leave."""

    generation: Generation
    buckets: tuple[Bucket, ...]


def keep_before(paths: StorePaths, before: Before) -> None:
    """Keep the current generation, as far as it concerns an erasure, in place of what may lie there damaged."""
    partial = paths.erasing.with_name(paths.erasing.name + ".partial")
    files = before.generation.files()
    with disk_errors(partial):
        for place in (partial, paths.erasing):
            remove_tree(place)
        partial.mkdir()
        for bucket in before.buckets:
            link_or_copy(paths.buckets / files[bucket.prefix], partial / files[bucket.prefix])
        write_durably(partial / MANIFEST, paths.manifest.read_bytes())
        sync_directory(partial)
        remove_tree(paths.erasing)
    commit(partial, paths.erasing)


def read_before(paths: StorePaths, fingerprint: str) -> Before | None:
    """What was kept of the generation with this fingerprint; None if nothing was, or not as it was kept."""
    try:
        generation = generation_in(paths.erasing)
        if generation.fingerprint != fingerprint:
            return None
        kept = {prefix: paths.erasing / name for prefix, name in generation.files().items()}
        buckets = (
            Bucket.open(prefix, path, generation.buckets[prefix].sha256)
            for prefix, path in kept.items()
            if path.exists()
        )
        return Before(generation, tuple(buckets))
    except SiloError:
        return None


def forget_before(paths: StorePaths) -> None:
    """Remove what was kept, durably."""
    with disk_errors(paths.erasing):
        remove_tree(paths.erasing)
        sync_directory(paths.root)
