"""The near-duplicate filter decides as an exact set of n-grams would."""

from __future__ import annotations

import random

from silo.corpus.dedup import NearDuplicates
from silo.recipe import DedupRecipe
from tests.conftest import words
from tests.text.test_words import naive_ngrams


def _planted(rng: random.Random) -> list[str]:
    """Originals, and copies of them with some words replaced."""
    texts = [words(seed, rng.randint(5, 200)) for seed in range(60)]
    for original in rng.sample(texts, 40):
        copy = original.split()
        for at in rng.sample(range(len(copy)), int(len(copy) * rng.choice([0, 0.005, 0.01, 0.02, 0.1, 0.5]))):
            copy[at] = f"new{rng.random()}"
        texts.append(" ".join(copy))
    rng.shuffle(texts)
    return texts


def test_decisions_equal_those_of_an_exact_set() -> None:
    recipe = DedupRecipe(false_positive_rate=1e-6)
    for seed in range(5):
        texts = _planted(random.Random(seed))
        near = NearDuplicates.for_text(recipe, sum(map(len, texts)))
        kept: set[tuple[str, ...]] = set()
        for text in texts:
            grams = naive_ngrams(text, recipe.ngram)
            expected = sum(gram in kept for gram in grams) / len(grams)
            if expected < recipe.threshold:
                kept |= set(grams)
            assert near.seen_share(text) == expected


def test_a_dropped_document_leaves_no_trace() -> None:
    near = NearDuplicates.for_text(DedupRecipe(threshold=0.5), 10_000)
    near.seen_share(words(1, 100))
    before = near.bloom.bits.copy()
    assert near.is_duplicate(near.seen_share(words(1, 100) + " " + words(2, 20)))
    assert (near.bloom.bits == before).all()


def test_text_without_words_is_never_a_duplicate() -> None:
    near = NearDuplicates.for_text(DedupRecipe(), 100)
    assert near.seen_share("... !!!") == near.seen_share("... !!!") == 0.0
