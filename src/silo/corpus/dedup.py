"""Near-duplicate removal at document level: the share of a document's n-grams that were seen in kept documents.

Feed documents from the lowest risk to the highest, and the lower-risk copy wins (the paper's Section 3 uses the same
kind of filter, within each domain).
"""

from __future__ import annotations

from dataclasses import dataclass

from silo.corpus.bloom import Bloom
from silo.recipe import MIB, DedupRecipe
from silo.text.words import ngram_hashes

_BYTES_PER_WORD = 5
"""English and code have five to seven bytes per word: the filter is sized on the safe side."""


@dataclass(frozen=True, slots=True)
class NearDuplicates:
    """The n-grams of all documents kept so far."""

    recipe: DedupRecipe
    bloom: Bloom

    @classmethod
    def for_text(cls, recipe: DedupRecipe, text_bytes: int) -> NearDuplicates:
        """A filter with room for `text_bytes` of text, as far as the recipe's memory goes."""
        bloom = Bloom.sized(
            text_bytes // _BYTES_PER_WORD,
            false_positive_rate=recipe.false_positive_rate,
            max_bytes=recipe.bloom_mb * MIB,
        )
        return cls(recipe, bloom)

    def seen_share(self, text: str) -> float:
        """Look at a document; keep its n-grams if it is new. Returns the share of n-grams that were known before."""
        grams = ngram_hashes(text, self.recipe.ngram)
        if len(grams) == 0:
            return 0.0
        share = self.bloom.count_present(grams) / len(grams)
        if share < self.recipe.threshold:
            self.bloom.insert(grams)
        return share

    def is_duplicate(self, share: float) -> bool:
        """True for a share that the recipe calls a copy."""
        return share >= self.recipe.threshold
