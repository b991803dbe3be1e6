"""The Bloom filter's two promises: no member is missed, and strangers are taken for members as rarely as it says."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.corpus.bloom import Bloom


@settings(max_examples=25)
@given(st.integers(1, 5000), st.sampled_from([0.1, 0.01, 0.001]), st.integers(0, 2**32))
def test_bloom_never_misses_a_member(items: int, rate: float, seed: int) -> None:
    hashes = np.random.default_rng(seed).integers(0, 2**64, items, dtype=np.uint64)
    bloom = Bloom.sized(items, false_positive_rate=rate, max_bytes=1 << 20)
    bloom.insert(hashes)
    assert bloom.count_present(hashes) == items


def test_bloom_keeps_its_rate_and_tells_it() -> None:
    rng = np.random.default_rng(7)
    for rate in (0.05, 0.01, 0.001):
        bloom = Bloom.sized(200_000, false_positive_rate=rate, max_bytes=1 << 24)
        bloom.insert(rng.integers(0, 2**64, 200_000, dtype=np.uint64))
        strangers = bloom.count_present(rng.integers(0, 2**64, 400_000, dtype=np.uint64)) / 400_000
        assert strangers <= rate
        assert abs(bloom.false_positive_rate() - strangers) < 0.15 * rate + 1e-4


def test_bloom_stays_within_its_memory() -> None:
    bloom = Bloom.sized(10**9, false_positive_rate=1e-6, max_bytes=1 << 20)
    assert bloom.bits.nbytes <= 1 << 20
