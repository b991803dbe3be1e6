"""The verbatim guard: no output shares more than n tokens in a row with a document whose `quote` right is below n.

Exact by the suffix search: after any text, the tokens that would make a run of n + 1 are those that follow its last n
tokens in a protected document. They are taken out of the distribution before a token is chosen, so that the choice
falls on another continuation. Runs that begin in the prompt count. A request's policy does not weaken the guard: it
looks at every document of the stores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.datastore.selection import Policy, QuoteBelow
from silo.errors import SiloError
from silo.inference.mix import Floats
from silo.inference.sources import Sources


class Guard:
    """Bans continuations that would repeat more than `tokens` tokens of a protected document."""

    def __init__(self, tokens: int) -> None:
        if tokens < 1:
            raise SiloError("usage", "the guard lets at least one token be repeated")
        self.tokens = tokens
        self._protected = Policy(QuoteBelow(tokens))

    def banned(self, ids: NDArray[Any], sources: Sources) -> NDArray[np.int64]:
        """The tokens that must not come next."""
        if len(ids) < self.tokens:
            return np.empty(0, dtype=np.int64)
        everywhere = Sources(sources.stores, sources.views, self._protected)
        return everywhere.followers_of(np.asarray(ids[len(ids) - self.tokens :], dtype=np.int64)).tokens

    def apply(self, probabilities: Floats, ids: NDArray[Any], sources: Sources) -> Floats:
        """The distribution without banned tokens; it sums to 0 if no continuation is left."""
        banned = self.banned(ids, sources)
        if not len(banned):
            return probabilities
        left = probabilities.copy()
        left[banned] = 0.0
        return left / left.sum() if left.sum() > 0 else left
