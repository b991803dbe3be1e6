"""The verbatim guard: no output repeats more tokens in a row of a document than the guard and its `quote` right allow.

A document may be repeated for n tokens, or for as many as its `quote` right grants if that is more; one that may be
quoted without limit is not guarded. So no output shares more than n tokens in a row with a document whose right is
below n. Exact by the suffix search: after any text, the tokens that would make a run one too long are those that follow
its last n tokens in a guarded document. They are taken out of the distribution before a token is chosen, so that the
choice falls on another continuation. Runs that begin in the prompt count. A request's policy does not weaken the guard:
it looks at every document of the stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.inference.mix import Floats
from silo.inference.retrieval import Retriever
from silo.records import UNLIMITED
from silo.store.policy import Policy


class Guard:
    """Bans continuations that would repeat more than `tokens` tokens of a guarded document."""

    def __init__(self, tokens: int) -> None:
        if tokens < 1:
            raise SiloError("usage", "the guard lets at least one token be repeated")
        self.tokens = tokens

    def banned(self, ids: NDArray[Any], retriever: Retriever) -> NDArray[np.int64]:
        """The tokens that must not come next."""
        banned = [np.empty(0, dtype=np.int64)]
        for length, guarded in self._limits(retriever):
            if len(ids) >= length:
                everywhere = Retriever(retriever.stores, retriever.views, guarded)
                context = np.asarray(ids[len(ids) - length :], dtype=np.int64)
                banned.append(everywhere.next_tokens_after(context).tokens)
        return np.concatenate(banned)

    def _limits(self, retriever: Retriever) -> Iterator[tuple[int, Policy]]:
        """How many tokens may be repeated of which documents."""
        yield self.tokens, Policy.of_quote_rights(0, self.tokens)
        for quote in sorted({quote for view in retriever.views for quote in view.quotes}):
            if self.tokens <= quote < UNLIMITED:
                yield quote, Policy.of_quote_rights(quote, quote + 1)

    def apply(self, probabilities: Floats, ids: NDArray[Any], retriever: Retriever) -> Floats:
        """The distribution without banned tokens; it sums to 0 if no continuation is left."""
        banned = self.banned(ids, retriever)
        if not len(banned):
            return probabilities
        left = probabilities.copy()
        left[banned] = 0.0
        return left / left.sum() if left.sum() > 0 else left
