"""The same codes in an index of faiss, which the token search is compared with."""

from __future__ import annotations

import faiss
import numpy as np
from numpy.typing import NDArray

from silo.search.knn.codec import Codec, Encoded


def faiss_index(codec: Codec, *, precompute: bool = True) -> faiss.IndexPreTransform:
    """An empty index with exactly the codec's rotation, centroids and codebooks; fill it with `add_encoded`.

    `precompute` spends lists x code bytes x 1 KiB of memory on faster search.
    """
    arrays, settings = codec.arrays, codec.settings
    turn = faiss.LinearTransform(codec.width, codec.rotated_width, True)
    faiss.copy_array_to_vector(arrays.matrix.ravel(), turn.A)
    faiss.copy_array_to_vector(-(arrays.matrix @ arrays.mean), turn.b)
    turn.is_trained = True
    coarse = faiss.IndexFlatL2(codec.rotated_width)
    coarse.add(arrays.centroids)
    inner = faiss.IndexIVFPQ(coarse, codec.rotated_width, settings.lists, settings.code_bytes, 8)
    faiss.copy_array_to_vector(arrays.codebooks.ravel(), inner.pq.centroids)
    inner.is_trained = True
    inner.use_precomputed_table = 0 if precompute else -1
    inner.precompute_table()
    return faiss.IndexPreTransform(turn, inner)


def add_encoded(index: faiss.IndexPreTransform, encoded: Encoded, ids: NDArray[np.int64]) -> None:
    """Put codes under their ids into an index made by `faiss_index`, list by list; nothing is quantised again."""
    inner = faiss.extract_index_ivf(index)
    assert inner.invlists is not None
    order = np.argsort(encoded.lists, kind="stable")
    numbers, starts = np.unique(encoded.lists[order], return_index=True)
    for number, rows in zip(numbers, np.split(order, starts[1:]), strict=False):
        some, codes = np.ascontiguousarray(ids[rows]), np.ascontiguousarray(encoded.codes[rows])
        inner.invlists.add_entries(int(number), len(rows), faiss.swig_ptr(some), faiss.swig_ptr(codes))
    inner.ntotal += len(encoded)
    index.ntotal += len(encoded)
