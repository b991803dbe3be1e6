"""The verbatim guard: no output repeats more tokens in a row of a document than the guard and its `quote` right allow.

The stricter of the two counts: a document of which q tokens may be quoted is repeated for at most min(n, q) tokens in a
row, but for one at least, because a single token is a word and no quotation. Text that may be quoted without limit is
not guarded. Exact by the suffix search: after any text, the tokens that would make a run one too long are those that
follow its last tokens, as many as may be repeated, in a guarded document. They are taken out of the distribution before
a token is chosen, so that the choice falls on another continuation. Runs that begin in the prompt count. A request's
policy does not weaken the guard: it looks at every document of every store, and a store it cannot look into is refused
before the first token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.inference.mix import Floats
from silo.records import UNLIMITED
from silo.store.policy import Policy
from silo.store.store import Store
from silo.store.view import View


class Guard:
    """Bans continuations that would repeat more than `tokens` tokens of a document, or more than its right grants."""

    def __init__(self, tokens: int) -> None:
        if tokens < 1:
            raise SiloError("usage", "the guard lets at least one token be repeated")
        self.tokens = tokens

    def check(self, stores: Sequence[Store]) -> None:
        """Refuse stores that cannot be guarded. One of them that could not would be open to all its documents."""
        if not stores:
            raise SiloError("usage", "a guard needs a store: it protects the documents there")
        blind = [str(store.root) for store in stores if "ngram" not in store.config.searches]
        if blind:
            hint = "leave them out, or make them anew with `silo store create --search ngram` among their searches"
            raise SiloError("search-missing", f"the guard needs ngram, which is missing in {', '.join(blind)}", hint)

    def banned(self, ids: NDArray[Any], views: Sequence[View]) -> NDArray[np.int64]:
        """The tokens that must not come next."""
        banned = [np.empty(0, dtype=np.int64)]
        for view in views:
            for length, guarded in self._limits(view):
                if len(ids) >= length:
                    context = np.asarray(ids[len(ids) - length :], dtype=np.int64)
                    banned.append(view.followers(context, guarded).tokens.astype(np.int64))
        return np.concatenate(banned)

    def _limits(self, view: View) -> Iterator[tuple[int, Policy]]:
        """How many tokens may be repeated of which documents."""
        yield self.tokens, Policy.of_quote_rights(self.tokens, UNLIMITED)
        for quote in view.quotes:
            if quote < self.tokens:
                yield max(1, quote), Policy.of_quote_rights(quote, quote + 1)

    def apply(self, probabilities: Floats, ids: NDArray[Any], views: Sequence[View]) -> Floats:
        """The distribution without banned tokens; it sums to 0 if no continuation is left."""
        banned = self.banned(ids, views)
        if not len(banned):
            return probabilities
        left = probabilities.copy()
        left[banned] = 0.0
        return left / left.sum() if left.sum() > 0 else left
