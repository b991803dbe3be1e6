"""The arrays of a codec, learned from sample keys: the same keys, machine and threads give the same bits.

Order: subtract the mean; keep the directions of largest variance if fewer dimensions are asked for; cluster; turn what
the clusters leave over so that short codes fit it; learn one codebook per part. Distances are those of the keys: no
step rescales them. faiss runs on one thread here, since the last bits of its sums depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import faiss
import numpy as np

from silo.progress import Advance
from silo.search.dtypes import Float32s, Float64s, Int64s
from silo.search.knn.arrays import CODEWORDS, CodecArrays

POINTS_PER_CENTROID = 256
"""Clustering draws at most this many samples per centroid; more cost time and change little."""

_CHUNK = 16_384
"""Keys handled at a time in double precision; it bounds memory and is part of the bits of a codec."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Run faiss on one thread and give back the number it had."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def learn_arrays(
    keys: Float32s,
    *,
    rotation: str,
    dimensions: int,
    lists: int,
    code_bytes: int,
    iterations: int,
    seed: int,
    advance: Advance,
) -> CodecArrays:
    """Learn from at least 256 finite keys of `dimensions` or more dimensions."""
    with one_thread():
        mean = keys.mean(axis=0, dtype=np.float64)
        basis = _reduction(keys, mean, dimensions)
        rng = np.random.default_rng(seed)
        points = _project(_draw(keys, POINTS_PER_CENTROID * max(lists, CODEWORDS), rng), mean, basis)
        centroids = _cluster(points, lists, iterations, seed=seed, step=lambda n: advance("lists", n, iterations))
        residuals = _residuals(_draw(points, POINTS_PER_CENTROID * CODEWORDS, rng), centroids)
        advance("rotation", 0, 1)
        turn = _turn(residuals, rotation, code_bytes, iterations)
        advance("rotation", 1, 1)
        matrix = (turn.astype(np.float64) @ basis).astype(np.float32)
        parts = (residuals @ turn.T).reshape(len(residuals), code_bytes, -1)
        codebooks = _codebooks(parts, iterations, seed=seed, advance=advance)
    return CodecArrays(mean.astype(np.float32), matrix, centroids @ turn.T, codebooks)


def _draw(rows: Float32s, count: int, rng: np.random.Generator) -> Float32s:
    """At most `count` rows, in their order."""
    if len(rows) <= count:
        return rows
    return rows[np.sort(rng.choice(len(rows), size=count, replace=False))]


def _covariance(rows: Float32s, mean: Float64s) -> Float64s:
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK] - mean
        total += chunk.T @ chunk
    return total / len(rows)


def _directions(covariance: Float64s) -> tuple[Float64s, Float64s]:
    """Variances from large to small and their directions as rows, each with its largest entry positive."""
    values, vectors = np.linalg.eigh(covariance)
    directions = vectors.T[::-1]
    largest = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(len(directions)), largest])
    return values[::-1], directions * signs[:, None]


def _reduction(keys: Float32s, mean: Float64s, dimensions: int) -> Float64s:
    """The directions to keep, as orthonormal rows."""
    if dimensions == keys.shape[1]:
        return np.eye(dimensions)
    return _directions(_covariance(keys, mean))[1][:dimensions]


def _project(keys: Float32s, mean: Float64s, basis: Float64s) -> Float32s:
    """Centred keys along the rows of a basis, chunk by chunk."""
    points = np.empty((len(keys), len(basis)), dtype=np.float32)
    for start in range(0, len(keys), _CHUNK):
        points[start : start + _CHUNK] = (keys[start : start + _CHUNK] - mean) @ basis.T
    return points


def _cluster(points: Float32s, count: int, iterations: int, *, seed: int, step: Callable[[int], None]) -> Float32s:
    """Centroids by k-means, one round at a time so that progress can be shown."""
    parameters = faiss.ClusteringParameters()
    parameters.niter, parameters.seed = 1, seed + 1
    parameters.min_points_per_centroid, parameters.max_points_per_centroid = 1, len(points) + 1
    clustering = faiss.Clustering(points.shape[1], count, parameters)
    index = faiss.IndexFlatL2(points.shape[1])
    contiguous = np.ascontiguousarray(points)
    for number in range(iterations):
        clustering.train(contiguous, index)
        step(number + 1)
    return faiss.vector_to_array(clustering.centroids).reshape(count, -1).astype(np.float32)


def _residuals(points: Float32s, centroids: Float32s) -> Float32s:
    """What the nearest centroid leaves over."""
    index = faiss.IndexFlatL2(points.shape[1])
    index.add(centroids)
    nearest = index.search(np.ascontiguousarray(points), 1)[1][:, 0]
    return points - centroids[nearest]


def _turn(residuals: Float32s, rotation: str, parts: int, iterations: int) -> Float32s:
    """An isometry [out, in] that spreads the residuals over the parts; out is in, padded to a multiple of parts."""
    width = residuals.shape[1]
    out = -(-width // parts) * parts
    if rotation == "none":
        return np.eye(out, width, dtype=np.float32)
    start = np.zeros((out, width))
    variances, directions = _directions(_covariance(residuals, np.zeros(width)))
    start[_places(variances, parts, out // parts)] = directions
    if rotation == "pca":
        return start.astype(np.float32)
    return _optimised(residuals, start, parts, iterations)


def _places(variances: Float64s, parts: int, size: int) -> Int64s:
    """Where each direction goes: always to the part with room whose product of variances is smallest.

    This is the eigenvalue allocation of Ge et al., Optimized Product Quantization (2013).
    """
    logs = np.log(np.maximum(variances, variances[0] * 1e-12 + 1e-300))
    logs -= logs.min()
    filled = np.zeros(parts, dtype=np.int64)
    loads = np.zeros(parts)
    places = np.empty(len(variances), dtype=np.int64)
    for number, log in enumerate(logs):
        part = int(np.argmin(np.where(filled < size, loads, np.inf)))
        places[number] = part * size + filled[part]
        filled[part] += 1
        loads[part] += log
    return places


def _optimised(residuals: Float32s, start: Float64s, parts: int, iterations: int) -> Float32s:
    """Optimised product quantisation by faiss, begun from the allocation of variances."""
    out, width = start.shape
    solver = faiss.OPQMatrix(out, parts)
    solver.niter, solver.verbose = iterations, False
    frame = np.linalg.qr(start, mode="complete")[0] if out > width else start
    if out > width:
        frame = np.hstack([start, frame[:, width:]])
    faiss.copy_array_to_vector(np.ascontiguousarray(frame, dtype=np.float32).ravel(), solver.A)
    padded = np.zeros((len(residuals), out), dtype=np.float32)
    padded[:, :width] = residuals
    solver.train(padded)
    return faiss.vector_to_array(solver.A).reshape(out, out)[:, :width].copy()


def _codebooks(parts: Float32s, iterations: int, *, seed: int, advance: Advance) -> Float32s:
    """256 codewords for each part of the residuals [rows, parts, part]."""
    count = parts.shape[1]
    books = np.empty((count, CODEWORDS, parts.shape[2]), dtype=np.float32)
    for number in range(count):
        books[number] = _cluster(parts[:, number], CODEWORDS, iterations, seed=seed, step=lambda _: None)
        advance("codebooks", number + 1, count)
    return books
