"""N-gram hashes against a naive reading of words, and the Bloom filter's two promises."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from silo.text.words import Bloom, ngram_hashes, word_hashes

TEXTS = st.text(alphabet=st.sampled_from("abcXYZ019 .,\n-é中文か한Ωß“’—。 ₀ꓐ"), max_size=80)


def naive_words(text: str) -> list[str]:
    text = re.sub("[\u0080-\u00bf\u2000-\u207f\u3000-\u303f]", " ", text)
    found = re.findall(r"[\u2e80-\ua4bf\uac00-\ud7ff]|[A-Za-z0-9\u0080-\u2e7f\ua4c0-\uabff\ud800-\U0010ffff]+", text)
    return [re.sub("[A-Z]", lambda letter: letter[0].lower(), word) for word in found]


def naive_ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    found = naive_words(text)
    width = min(n, len(found))
    return [tuple(found[at : at + width]) for at in range(len(found) - width + 1)] if found else []


@given(TEXTS)
def test_words_are_those_of_the_naive_reading(text: str) -> None:
    hashes, expected = word_hashes(text), naive_words(text)
    assert len(hashes) == len(expected)
    assert len(set(hashes.tolist())) == len(set(expected))


@given(TEXTS, TEXTS, st.integers(1, 5))
def test_ngrams_are_equal_exactly_where_their_words_are(one: str, other: str, n: int) -> None:
    pairs = list(zip(ngram_hashes(one, n).tolist(), naive_ngrams(one, n), strict=True))
    pairs += zip(ngram_hashes(other, n).tolist(), naive_ngrams(other, n), strict=True)
    assert len({mark for mark, _ in pairs}) == len({gram for _, gram in pairs}) == len(set(pairs))


def test_case_and_punctuation_do_not_matter() -> None:
    assert ngram_hashes("The cat, sat!", 3).tolist() == ngram_hashes("the CAT sat", 3).tolist()
    assert ngram_hashes("“The cat’s—sat…", 4).tolist() == ngram_hashes("the cat's sat", 4).tolist()


def test_text_without_spaces_has_many_ngrams() -> None:
    assert len(ngram_hashes("東京都は日本の首都である", 3)) == 10


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
