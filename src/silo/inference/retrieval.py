"""The stores of a prediction as one source, each held at one generation: every answer comes from allowed documents.

Neighbours of several stores are merged by distance, counts are added up, passages are merged by score. A store without
a search has no part in it; one store at least must have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.inference.settings import ORDERS
from silo.search.ngram.index import Levels
from silo.store.policy import Policy
from silo.store.store import Store
from silo.store.view import Passage, View

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Nearest:
    """Neighbours [positions, k], nearest first: the number of the store, row and position there, next token, distance.

    Row -1 and distance inf where none is left.
    """

    stores: Ints
    rows: Ints
    positions: Ints
    values: Ints
    distances: NDArray[np.float32]

    @property
    def closest(self) -> NDArray[np.float64]:
        """The distance of the nearest of each position."""
        return self.distances[:, 0].astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Followers:
    """The tokens that follow a context of some length, with their counts."""

    length: int
    tokens: NDArray[np.int64]
    counts: Ints
    total: int


class Sources:
    """Views of the stores, under one policy."""

    def __init__(self, stores: Sequence[Store], views: Sequence[View], policy: Policy) -> None:
        self.stores = stores
        self.views = views
        self.policy = policy

    def _with(self, search: str) -> list[int]:
        found = [at for at, store in enumerate(self.stores) if search in store.config.searches]
        if not found:
            raise SiloError("search-missing", f"no store offers {search}")
        return found

    def nearest(self, keys: NDArray[np.float32], k: int, probes: int, *, threads: int = 0) -> Nearest:
        """The nearest rows of all stores; `threads` is 0 for all there are."""
        parts, names = [], []
        for at in self._with("knn"):
            tables = self.stores[at].tested_tables()
            found = self.views[at].search(tables, keys, k, self.policy, probes=probes, threads=threads)
            stores = np.full(found.rows.shape, at, dtype=np.int64)
            parts.append(Nearest(stores, found.rows, found.positions, found.values, found.distances))
            names.append(found.names)
        return parts[0] if len(parts) == 1 else _merged(parts, names, k)

    def levels(self, ids: NDArray[Any], start: int = 0) -> Levels:
        """Counts before each of `ids[start:]`, added up over the stores."""
        parts = [self.views[at].levels(ids, start, self.policy, orders=ORDERS) for at in self._with("ngram")]
        lengths = np.max([part.lengths for part in parts], axis=0)
        for part in parts:
            shorter = part.lengths < lengths
            part.totals[shorter, -1] = 0
            part.hits[shorter, -1] = 0
        totals, hits = np.sum([part.totals for part in parts], axis=0), np.sum([part.hits for part in parts], axis=0)
        return Levels(lengths, totals, hits)

    def followers(self, prefix: NDArray[Any]) -> list[Followers]:
        """What follows the prefix's last tokens, for every order that occurs and the longest match, short to long."""
        longest = max(self.views[at].longest(prefix, self.policy) for at in self._with("ngram"))
        lengths = [order for order in ORDERS if order <= longest]
        lengths += [longest] if longest > ORDERS[-1] else []
        return [self.followers_of(prefix[len(prefix) - length :]) for length in lengths]

    def followers_of(self, context: NDArray[Any]) -> Followers:
        """What follows exactly these tokens."""
        parts = [self.views[at].followers(context, self.policy) for at in self._with("ngram")]
        tokens = np.concatenate([part.tokens for part in parts]).astype(np.int64)
        counts = np.concatenate([part.counts for part in parts])
        if len(parts) > 1:
            tokens, where = np.unique(tokens, return_inverse=True)
            counts = np.bincount(where, weights=counts, minlength=len(tokens)).astype(np.int64)
        return Followers(len(context), tokens, counts, sum(part.total for part in parts))

    def holders(
        self, store: int, ids: NDArray[Any], sizes: Sequence[int], weights: Sequence[float]
    ) -> tuple[Ints, NDArray[np.float64]]:
        """Rows of a store's documents that hold the last tokens of `ids`, and the weight of the occurrences."""
        if "ngram" not in self.stores[store].config.searches:
            return np.empty(0, dtype=np.int64), np.empty(0)
        return self.views[store].holders(ids, sizes, weights, self.policy)

    def passages(self, text: str, k: int) -> list[tuple[int, Passage]]:
        """The best passages of all stores."""
        found = [(at, item) for at in self._with("bm25") for item in self.views[at].passages(text, k, self.policy)]
        return sorted(found, key=lambda pair: (-pair[1].score, pair[1].document, pair[1].first))[:k]

    @property
    def content(self) -> tuple[tuple[str, frozenset[bytes]], ...]:
        """Names what the stores hold at this moment, erasures under way included."""
        return tuple((view.generation.fingerprint, view.dead) for view in self.views)


def _merged(parts: Sequence[Nearest], names: Sequence[NDArray[np.void]], k: int) -> Nearest:
    """The k nearest of several stores, sorted as one store sorts them: by distance, document and position."""
    ids = [name.view(">u8").reshape(-1, 2)[part.rows] for part, name in zip(parts, names, strict=True)]
    high, low = (np.concatenate([found[..., half] for found in ids], axis=1) for half in (0, 1))
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=1)
        for name in ("stores", "rows", "positions", "values", "distances")
    }
    order = np.lexsort((columns["positions"], low, high, columns["distances"]))[:, :k]
    return Nearest(**{name: np.take_along_axis(column, order, axis=1) for name, column in columns.items()})


@contextmanager
def reading(stores: Sequence[Store], policy: Policy) -> Iterator[Sources]:
    """Hold every store at its latest generation."""
    with ExitStack() as stack:
        yield Sources(stores, [stack.enter_context(store.reading()) for store in stores], policy)
