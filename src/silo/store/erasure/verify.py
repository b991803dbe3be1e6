"""Is a store what it claims to be? Checksums, layout, digest, every bucket made again, and search against the truth."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.files import file_sha256, is_held
from silo.progress import Advance
from silo.search.knn.codec import Encoded
from silo.search.knn.index import KeyRows, KnnIndex, SearchTables
from silo.store.bucket import EncodedDocument
from silo.store.encode import DocumentPipeline
from silo.store.erasure.digest import Digest
from silo.store.erasure.evidence import anchor_problem, read_log, settled_losses, unreadable
from silo.store.manifest import Generation, read_generation, stray_files
from silo.store.partition import leaves, sizes_of
from silo.store.paths import StorePaths
from silo.store.sections import key_rows
from silo.store.view import PROBES, ROWS_PER_NEIGHBOUR, View
from silo.store.write import BucketBuilder, SpooledDocument

_TEST_ROWS, _TEST_KEYS, _TEST_NEIGHBOURS = 20_000, 16, 64
AGREEMENT_BAR = 0.9
"""Lists whose distances are equal to the last bits may be read in another order: that costs a key or two, not more."""
_TOLERANCE, _ROUNDING = 1e-3, 1e-2
"""What distances may be off by, relative to the largest and, where all are near 0, to the squared length of a key."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What was checked, and what was wrong in words (nothing, if `problems` is empty).

    `unchecked` are parts that only the owner of the store may read.
    """

    buckets: int
    documents: int
    tokens: int
    digest: str
    log_entries: int
    unchecked: tuple[str, ...]
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        names = ("buckets", "documents", "tokens", "digest", "log_entries")
        plain = {name: getattr(self, name) for name in names}
        return {**plain, "unchecked": list(self.unchecked), "problems": list(self.problems)}


def verify(
    view: View,
    *,
    paths: StorePaths,
    builder: BucketBuilder,
    pipeline: DocumentPipeline | None,
    anchors: Sequence[str],
    advance: Advance,
) -> Verified:
    """Read every byte again; with a `pipeline`, also encode every document again.

    Somebody else may write meanwhile: what is checked is the state of `view`, and of the rest whatever is settled.
    """
    generation, config = view.generation, view.generation.config
    problems, damaged = _file_problems(paths, generation), False
    total = Digest.of()
    for at, bucket in enumerate(view.buckets):
        if bucket.sha256() != generation.buckets[bucket.prefix].sha256:
            problems.append(f"bucket {bucket.prefix or 'root'} differs from the manifest")
            damaged = True
            continue  # nothing can be made of it
        documents = list(bucket.encoded_documents())
        total += Digest.of(document.element for document in documents)
        checksum = hashlib.sha256(b"".join(builder.build(documents))).hexdigest()
        if checksum != generation.buckets[bucket.prefix].sha256:
            problems.append(f"bucket {bucket.prefix or 'root'} is not what its documents make")
        if pipeline is not None and not _encode_alike(documents, pipeline):
            problems.append(f"bucket {bucket.prefix or 'root'} has other keys than its documents give")
        advance("verify", at + 1, len(view.buckets))
    if not damaged and total.published(config.fingerprint) != generation.digest:
        problems.append("the digest is not that of the documents")
    layout = leaves(sizes_of(bucket.index for bucket in view.buckets), config.bucket_bytes) if not damaged else []
    if not damaged and layout != [bucket.prefix for bucket in view.buckets]:
        problems.append("the buckets are not those its documents make: run `silo store compact`")
    log = read_log(paths, generation)
    problems += [loss.what for loss in settled_losses(paths, log)] if log else []
    entries = log.entries if log else ()
    problems += filter(None, (anchor_problem(line, entries) for line in anchors))
    totals = generation.totals
    return Verified(
        len(view.buckets),
        totals["documents"],
        totals["tokens"],
        generation.digest,
        len(entries),
        unreadable(paths),
        tuple(problems),
    )


def _file_problems(paths: StorePaths, generation: Generation) -> list[str]:
    problems = [
        f"{path.name} is in no manifest" if path.parent == paths.buckets else f"{path.name} does not belong here"
        for path in sorted(_strays(paths))
    ]
    for prefix, name in generation.files().items():
        try:
            if file_sha256(paths.buckets / name) != generation.buckets[prefix].sha256:
                problems.append(f"{name} differs from the manifest")
        except FileNotFoundError:
            if name in read_generation(paths).files().values():  # a change that came since removes what it replaces
                problems.append(f"{name} is missing")
    return problems


def _strays(paths: StorePaths) -> list[Path]:
    """Files that no manifest names; while somebody writes they are that one's, who sees to them."""
    while True:
        generation = read_generation(paths)
        strays = stray_files(paths, generation)
        if not strays or is_held(paths.lock):
            return []
        if (read_generation(paths).fingerprint, stray_files(paths, generation)) == (generation.fingerprint, strays):
            return strays


def _encode_alike(documents: Sequence[EncodedDocument], pipeline: DocumentPipeline) -> bool:
    spooled = [SpooledDocument(item.id, item.text_hash, item.text_bytes, item.record) for item in documents]
    return all(old.element == new.element for old, new in zip(documents, pipeline.encode(spooled), strict=True))


def self_test(view: View, tables: SearchTables) -> dict[str, float]:
    """Search for sampled rows of one bucket as a store does, and compare with the same search written down plainly.

    `recall` is the share of the nearest rows of all that this search finds. It says how good probing is for these rows
    and nothing about whether the search works: codes of any codec are near each other in its own space.
    """
    if tables.codec.fingerprint != view.generation.config.codec:
        raise SiloError("search-unfit", "the codec of the search is not the one the store was made with")
    if not view.buckets:
        return {"rows": 0, "recall": 1.0, "distance_error": 0.0}
    rows, codes = _sample(key_rows(max(view.buckets, key=lambda bucket: len(bucket.tokens))))
    index, lists = KnnIndex(tables, [rows]), tables.codec.settings.lists
    chosen = np.random.default_rng(0).permutation(len(rows))[:_TEST_KEYS]
    keys = tables.codec.decode(Encoded(codes.lists[chosen], codes.codes[chosen]))
    k = min(_TEST_NEIGHBOURS, len(rows))
    wanted = ROWS_PER_NEIGHBOUR * k
    everything = index.search(keys, k, probes=lists).distances
    usual = index.search(keys, k, probes=PROBES, rows_wanted=wanted).distances
    queries = tables.codec.transform(keys)
    exact = _exact_distances(queries, tables.codec.reconstruct(codes))
    probed = _probed_lists(_exact_distances(queries, tables.codec.arrays.centroids), rows.offsets, wanted)
    nearest, expected = (
        np.sort(distances, axis=1)[:, :k] for distances in (exact, np.where(probed[:, codes.lists], exact, np.inf))
    )
    scale = float(nearest.max()) + _ROUNDING * float((queries.astype(np.float64) ** 2).sum(1).max())
    error = float(np.abs(everything - nearest).max()) / (scale or 1.0)
    if error > _TOLERANCE:
        raise SiloError("search-unfit", f"distances are off by {error:.1e}: the search kernel does not work here")
    slack = _TOLERANCE * scale
    agreement = float((np.abs(usual - expected) <= slack).mean())
    if agreement < AGREEMENT_BAR:
        raise SiloError("search-unfit", f"token search finds only {agreement:.2f} of the rows it should find")
    recall = float((usual <= nearest[:, -1:] + slack).mean())
    return {"rows": len(rows), "recall": recall, "distance_error": error}


def _probed_lists(distances: NDArray[np.float64], offsets: NDArray[np.uint32], wanted: int) -> NDArray[np.bool_]:
    """Which lists [keys, lists] a search reads: the nearest ones, until there were enough of them and of rows."""
    order = np.argsort(distances, axis=1, kind="stable")
    sizes = np.diff(offsets.astype(np.int64))[order]
    read = (np.arange(distances.shape[1]) < PROBES) | (np.cumsum(sizes, axis=1) - sizes < wanted)
    probed = np.zeros(distances.shape, dtype=np.bool_)
    np.put_along_axis(probed, order, read, axis=1)
    return probed


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
