"""The stores of a prediction as one, each held at one generation: every answer comes from allowed documents.

Neighbours of several stores are merged by distance, counts are added up, passages are merged by score. A store without
a search has no part in it; one store at least must have it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.inference.settings import ORDERS, level_column
from silo.search.ngram.index import Levels, NextTokens, add_levels, add_next_tokens
from silo.store.policy import Policy
from silo.store.store import Store
from silo.store.view import Neighbours, Passage, View

Ints = NDArray[np.int64]
Found = tuple[int, Passage]
"""The number of a store, and a passage of it."""

CANDIDATES = 8
"""Passages looked at for each that is wanted: some overlap a better one, and of long ones only a part may count."""
_ROWS_TOGETHER = 1024
"""Tokens of a text whose contexts are looked up at once, each context once."""


class NgramLevel(NamedTuple):
    """The tokens that follow a context of some length, with their counts; read-only."""

    length: int
    tokens: NDArray[np.uint32]
    counts: Ints
    total: int


class Retriever:
    """Views of the stores, under one policy."""

    def __init__(self, stores: Sequence[Store], views: Sequence[View], policy: Policy) -> None:
        self.stores = stores
        self.views = views
        self.policy = policy

    def _with(self, search: str) -> list[int]:
        offering = [at for at, store in enumerate(self.stores) if search in store.config.searches]
        if not offering:
            raise SiloError("search-missing", f"no store offers {search}")
        return offering

    def neighbours(self, keys: NDArray[np.float32], k: int, probes: int, *, threads: int = 0) -> Neighbours:
        """The nearest rows of all stores; `threads` is 0 for all there are."""
        ids = tuple(view.ids for view in self.views)
        parts: dict[int, Neighbours] = {}
        for at in self._with("knn"):
            tables = self.stores[at].tested_tables()
            part = self.views[at].search(tables, keys, k, self.policy, probes=probes, threads=threads)
            if len(self.views) == 1:
                return part
            parts[at] = replace(part, stores=np.full_like(part.stores, at), ids=ids)
        return parts[at] if len(parts) == 1 else _merge(parts, k)

    def levels(self, ids: NDArray[Any], start: int = 0) -> Levels:
        """Counts before each of `ids[start:]`, added up over the stores."""
        return add_levels([self.views[at].levels(ids, start, self.policy, orders=ORDERS) for at in self._with("ngram")])

    def known_levels(self, ids: Ints) -> tuple[Levels, Ints]:
        """The counts before each token of a text, and how many different tokens follow each of their contexts."""
        levels = self.levels(ids)
        kinds = np.zeros_like(levels.totals)
        for first in range(0, len(ids), _ROWS_TOGETHER):
            places: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
            for row, longest in enumerate(levels.lengths[first : first + _ROWS_TOGETHER].tolist(), first):
                for size in _level_lengths(longest):
                    places[ids[row - size : row].tobytes()].append((row, level_column(size)))
            following = self._followers([np.frombuffer(context, dtype=np.int64) for context in places])
            for where, found in zip(places.values(), following, strict=True):
                rows, columns = zip(*where, strict=True)
                kinds[rows, columns] = len(found.tokens)
        return levels, kinds

    def next_tokens(self, prefixes: Sequence[Ints]) -> list[list[NgramLevel]]:
        """What follows each prefix's last tokens, for every order that occurs and the longest match, short to long."""
        views = [self.views[at] for at in self._with("ngram")]
        longest = map(max, zip(*(view.longest_of(prefixes, self.policy) for view in views), strict=True))
        lengths = [_level_lengths(length) for length in longest]
        contexts = [ids[len(ids) - size :] for ids, sizes in zip(prefixes, lengths, strict=True) for size in sizes]
        following = self._followers(contexts)
        return [[NgramLevel(length, *next(following)) for length in sizes] for sizes in lengths]

    def _followers(self, contexts: Sequence[Ints]) -> Iterator[NextTokens]:
        """What follows all of each context in all stores."""
        found = [self.views[at].followers_of(contexts, self.policy) for at in self._with("ngram")]
        return map(add_next_tokens, zip(*found, strict=True))

    def continue_match(self, prefix: Ints, count: int, *, least: int) -> Ints:
        """The tokens after the longest match of the prefix, in a document that has it; at most so many.

        None after a match of fewer than `least` tokens.
        """
        nothing = np.empty(0, dtype=np.int64)
        views = [self.views[at] for at in self._with("ngram")]
        longest, view = max(((view.longest(prefix, self.policy), view) for view in views), key=itemgetter(0))
        if longest < least:
            return nothing
        found = view.continuations(prefix, self.policy, limit=1)
        first = int(found.positions[0]) - 1
        return view.document_tokens(int(found.rows[0]))[first : first + count].astype(np.int64)

    def holders(
        self, store: int, texts: Sequence[Ints], ends: Ints, sizes: Ints, weights: NDArray[np.float64]
    ) -> tuple[Ints, NDArray[np.float64], Ints]:
        """Rows of a store's documents that hold the last tokens of each text, as `View.holders_of` says."""
        if "ngram" not in self.stores[store].config.searches:
            return np.empty(0, dtype=np.int64), np.empty(0), np.zeros(len(texts), dtype=np.int64)
        return self.views[store].holders_of(texts, ends, sizes, weights, self.policy)

    def passages(self, text: str, k: int) -> list[Found]:
        """The best passages of all stores."""
        every = [(at, item) for at in self._with("bm25") for item in self.views[at].passages(text, k, self.policy)]
        return sorted(every, key=lambda pair: (-pair[1].score, pair[1].document, pair[1].first))[:k]

    def count_passages(self, words: Sequence[str]) -> tuple[Ints, int]:
        """How many passages of all stores hold each of some words, and how many there are."""
        parts = [self.views[at].count_passages(words, self.policy) for at in self._with("bm25")]
        return np.sum([counts for counts, _ in parts], axis=0), sum(total for _, total in parts)

    def passages_apart(self, text: str, k: int) -> list[Found]:
        """The best passages that do not overlap."""
        return leave_out_overlaps(self.passages(text, CANDIDATES * k), k)

    @property
    def content(self) -> tuple[tuple[str, frozenset[bytes]], ...]:
        """Names what the stores hold at this moment, erasures under way included."""
        return tuple((view.generation.fingerprint, view.dead) for view in self.views)


def _level_lengths(longest: int) -> list[int]:
    """The lengths of the contexts that are looked at where the longest match has so many tokens."""
    return [*(order for order in ORDERS if order <= longest), *([longest] if longest > ORDERS[-1] else [])]


def leave_out_overlaps(passages: Iterable[Found], most: int) -> list[Found]:
    """The first passages that overlap none before them: a text that stands there twice is repeated again and again."""
    kept: list[Found] = []
    for store, one in passages:
        if not any(one.overlaps(other) for _, other in kept):
            kept.append((store, one))
        if len(kept) == most:
            break
    return kept


def _merge(parts: Mapping[int, Neighbours], k: int) -> Neighbours:
    """The k nearest of several stores, sorted as one store sorts them: by distance, document and position."""
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts.values()], axis=1)
        for name in ("stores", "rows", "positions", "values", "distances")
    }
    id_halves = [_id_halves(part.ids[store])[part.rows] for store, part in parts.items()]
    high, low = (np.concatenate([halves[..., at] for halves in id_halves], axis=1) for at in (0, 1))
    order = np.lexsort((columns["positions"], low, high, columns["distances"]))[:, :k]
    in_order = {name: np.take_along_axis(column, order, axis=1) for name, column in columns.items()}
    return Neighbours(**in_order, ids=next(iter(parts.values())).ids)


def _id_halves(ids: NDArray[np.void]) -> NDArray[np.uint64]:
    """Ids as pairs of numbers that sort like them [ids + 1, 2]; the last one is for row -1, which is nobody's."""
    return np.concatenate([ids.view(">u8").reshape(-1, 2), np.zeros((1, 2), dtype=">u8")])


@contextmanager
def reading(stores: Sequence[Store], policy: Policy) -> Iterator[Retriever]:
    """Hold every store at its latest generation."""
    with ExitStack() as stack:
        yield Retriever(stores, [stack.enter_context(store.searching()) for store in stores], policy)
