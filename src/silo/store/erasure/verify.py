"""Is a store what it claims to be? Checksums, layout, digest, every bucket made again, and search against the truth."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.files import MANIFEST, file_sha256
from silo.progress import Advance
from silo.search.knn.codec import Encoded
from silo.search.knn.index import KeyRows, KnnIndex
from silo.store.add import encode
from silo.store.bucket import Bucket
from silo.store.erasure.digest import Digest
from silo.store.erasure.log import Journal
from silo.store.generation import BUCKETS, LOG, Generation
from silo.store.partition import leaves, sizes_of
from silo.store.sections import key_rows
from silo.store.spool import Waiting

if TYPE_CHECKING:
    from silo.store.store import Store

_TEST_ROWS, _TEST_KEYS, _TEST_NEIGHBOURS = 20_000, 16, 64
RECALL_BAR = 0.5
_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Verified:
    """What was checked, and what was wrong in words (nothing, if `problems` is empty)."""

    buckets: int
    documents: int
    tokens: int
    digest: str
    log_entries: int
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        names = ("buckets", "documents", "tokens", "digest", "log_entries")
        return {**{name: getattr(self, name) for name in names}, "problems": list(self.problems)}


def verify(store: Store, *, keys: bool, advance: Advance) -> Verified:
    """Read every byte again; with `keys`, also encode every document again."""
    problems: list[str] = []
    with store.reading() as view:
        generation = view.generation
        problems += _file_problems(store.root / "data", generation)
        total = Digest.of()
        for at, bucket in enumerate(view.buckets):
            parts = list(bucket.parts())
            total += Digest.of(part.element for part in parts)
            mark = hashlib.sha256(b"".join(store.workshop().build(parts))).hexdigest()
            if mark != generation.buckets[bucket.prefix].sha256:
                problems.append(f"bucket {bucket.prefix or 'root'} is not what its documents make")
            if keys and not _same_keys(store, bucket):
                problems.append(f"bucket {bucket.prefix or 'root'} has other keys than its documents give")
            advance("verify", at + 1, len(view.buckets))
        if total.published(store.config.fingerprint) != generation.digest:
            problems.append("the digest is not that of the documents")
        wanted = leaves(sizes_of(bucket.index for bucket in view.buckets), store.config.bucket_bytes)
        if wanted != [bucket.prefix for bucket in view.buckets]:
            problems.append("the buckets are not those its documents make: run `silo store compact`")
        log = store.root / LOG
        entries = len(Journal.open(log, read_only=True).entries) if log.exists() else 0
        totals = generation.totals
    return Verified(
        len(view.buckets), totals["documents"], totals["tokens"], generation.digest, entries, tuple(problems)
    )


def _file_problems(data: Path, generation: Generation) -> list[str]:
    files = generation.files()
    found = {path.name for path in (data / BUCKETS).iterdir()}
    problems = [f"{name} is in no manifest" for name in sorted(found - set(files.values()))]
    problems += [f"{path.name} does not belong here" for path in data.iterdir() if path.name not in (MANIFEST, BUCKETS)]
    for prefix, name in files.items():
        if name not in found:
            problems.append(f"{name} is missing")
        elif file_sha256(data / BUCKETS / name) != generation.buckets[prefix].sha256:
            problems.append(f"{name} differs from the manifest")
    return problems


def _same_keys(store: Store, bucket: Bucket) -> bool:
    if store.encoder is None:
        raise SiloError("store-mismatch", "encoding again needs the model the store was made with")
    held = list(bucket.parts())
    waiting = [Waiting(part.id, part.mark, part.text_bytes, part.frame) for part in held]
    again = encode(store, waiting)
    return all(old.element == new.element for old, new in zip(held, again, strict=True))


def self_test(store: Store) -> dict[str, float]:
    """Search for sampled rows of one bucket: distances against exact ones, and recall with the usual probes."""
    tables = store.search_tables()
    with store.reading() as view:
        if not view.buckets:
            return {"rows": 0, "recall": 1.0, "distance_error": 0.0}
        rows, codes = _sample(key_rows(max(view.buckets, key=lambda bucket: len(bucket.tokens))))
        search = KnnIndex(tables, [rows])
        exact = tables.codec.reconstruct(codes)
        rng = np.random.default_rng(0)
        chosen = rng.permutation(len(rows))[:_TEST_KEYS]
        keys = tables.codec.decode(Encoded(codes.lists[chosen], codes.codes[chosen]))
        k = min(_TEST_NEIGHBOURS, len(rows))
        truth = _exact_distances(tables.codec.transform(keys), exact)
        everything = search.search(keys, k, probes=tables.codec.settings.lists)
        usual = search.search(keys, k, probes=8)
        wanted = np.sort(truth, axis=1)[:, :k]
        error = float(np.abs(everything.distances - wanted).max() / max(1e-9, float(wanted.max())))
        pairs = zip(everything.places, usual.places, strict=True)
        recall = float(np.mean([len(set(one) & set(other)) / k for one, other in pairs]))
    if error > _TOLERANCE:
        raise SiloError("search-unfit", f"distances are off by {error:.1e}: the search kernel does not work here")
    if recall < RECALL_BAR:
        raise SiloError("search-unfit", f"token search finds only {recall:.2f} of the nearest rows")
    return {"rows": len(rows), "recall": recall, "distance_error": error}


def _sample(rows: KeyRows) -> tuple[KeyRows, Encoded]:
    """Some rows of a bucket, evenly spread, with their lists."""
    step = max(1, len(rows) // _TEST_ROWS)
    lists = np.repeat(np.arange(len(rows.offsets) - 1, dtype=np.int32), rows.offsets[1:] - rows.offsets[:-1])[::step]
    codes = np.ascontiguousarray(rows.codes[::step])
    offsets = np.searchsorted(lists, np.arange(len(rows.offsets))).astype(np.uint32)
    return KeyRows(offsets, codes, np.ascontiguousarray(rows.places[::step])), Encoded(lists, codes)


def _exact_distances(keys: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float64]:
    one, other = keys.astype(np.float64), rows.astype(np.float64)
    squares: NDArray[np.float64] = (one**2).sum(1)[:, None] - 2 * one @ other.T + (other**2).sum(1)[None, :]
    return np.maximum(squares, 0.0)
