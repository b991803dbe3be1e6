"""What a codec consists of: the arrays that are learned once and then never change."""

from __future__ import annotations

from dataclasses import dataclass

from silo.search.dtypes import Float32s

CODEWORDS = 256
"""Entries of one codebook: a code is a byte."""


@dataclass(frozen=True, slots=True)
class CodecArrays:
    """Axes: out = dimensions padded to a multiple of the code bytes, part = out / code bytes."""

    mean: Float32s  # [in]
    matrix: Float32s  # [out, in]
    centroids: Float32s  # [lists, out]
    codebooks: Float32s  # [code bytes, 256, part]
