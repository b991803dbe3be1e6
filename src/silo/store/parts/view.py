"""A view whose searches are answered by searchers, bit for bit as it would answer them itself.

Each searcher has a part of the buckets: a range of document ids, so that rows of one part follow those of the part
before. Whatever depends on all of a store, which is how many lists are read, lengths of matches, frequencies of words,
is found out first and handed to every part; what the parts find is then put in the order that one search gives it.
The documents themselves, their names and their rights are looked up in the files, as by any reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from silo.search.knn.index import SearchTables
from silo.search.ngram.index import Holders, Ids, Levels, Match, NextTokens, add_levels, add_next_tokens
from silo.store.partition import part_of
from silo.store.parts.searcher import Question, State
from silo.store.policy import EVERYTHING, Policy
from silo.store.view import AllowedCounts, Continuations, Neighbours, Passage, View
from silo.text.words import terms

Ints = NDArray[np.int64]
_LONGEST = 1000
_OCCURRENCES = 64
"""Tokens of a prefix that a suffix search looks at, and occurrences that it names, where it is not told otherwise."""
_WORDS = 100_000
"""Words whose frequencies are remembered, for each policy."""


class AskParts(Protocol):
    """Puts a question to some parts of a store at a state; gives their answers in the order of the parts."""

    def __call__(self, state: State, question: Question, parts: Sequence[int]) -> list[Any]: ...


class DividedView(View):
    """Shows what another view shows, and has its questions answered by so many parts."""

    def __init__(self, view: View, parts: int, ask: AskParts) -> None:
        super().__init__(view.generation, view.buckets, view.dead, None, view.lock)
        self.state = State.of(view)
        owners = [part_of(bucket.prefix, parts) for bucket in view.buckets]
        self._parts = sorted(set(owners)) or [0]
        self._first_buckets = [owners.index(part) if owners else 0 for part in self._parts]
        self._first_rows = [int(self._starts[number]) for number in self._first_buckets]
        self._put = ask
        self._counts: dict[Policy, AllowedCounts] = {}
        self._frequencies: dict[Policy, dict[int, int]] = {}

    def _ask(self, search: str, policy: Policy, *arguments: Any, counted: bool = False) -> list[Any]:
        counts = self._count_whole(policy) if counted else None
        return self._put(self.state, Question(search, policy, arguments, counts), self._parts)

    def _count_whole(self, policy: Policy) -> AllowedCounts:
        """How much a policy allows in all parts."""
        if policy not in self._counts:
            self._counts[policy] = reduce(add, self._ask("count", policy))
        return self._counts[policy]

    def search(
        self,
        tables: SearchTables,  # noqa: ARG002  # every part has its own
        keys: ArrayLike,
        k: int,
        policy: Policy = EVERYTHING,
        *,
        probes: int,
        threads: int = 0,  # noqa: ARG002  # every part has its own
    ) -> Neighbours:
        found = self._ask("search", policy, np.asarray(keys), k, probes, counted=True)
        rows, positions, values, distances = (np.concatenate(columns, axis=1) for columns in zip(*found, strict=True))
        bases = np.repeat(self._first_rows, k)
        rows = np.where(rows >= 0, rows + bases, -1)
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]  # equal ones stay by part: by row and position
        return Neighbours(
            stores=np.zeros(order.shape, dtype=np.int64),
            rows=_take(rows, order).astype(np.int64),
            positions=_take(positions, order).astype(np.int64),
            values=_take(values, order).astype(np.int64),
            distances=_take(distances, order),
            ids=(self.ids,),
        )

    def continuations(self, prefix: Ids, policy: Policy = EVERYTHING, **limits: int) -> Continuations:
        last = _last(prefix, limits.get("longest", _LONGEST))
        length = self.longest(last, policy)
        parts: list[Continuations] = self._ask("continuations", policy, last, {**limits, "length": length})
        after = add_next_tokens([NextTokens(part.tokens, part.counts, part.total) for part in parts])
        first = slice(limits.get("limit", _OCCURRENCES))
        return Continuations(
            length,
            after.tokens,
            after.counts,
            after.total,
            ends=sum(part.ends for part in parts),
            rows=np.concatenate([part.rows + base for part, base in zip(parts, self._first_rows, strict=True)])[first],
            positions=np.concatenate([part.positions for part in parts])[first],
            values=np.concatenate([part.values for part in parts])[first],
            ids=self.ids,
        )

    def longest_of(self, prefixes: Sequence[Ids], policy: Policy = EVERYTHING) -> list[int]:
        parts = self._ask("longest", policy, [_last(prefix, _LONGEST) for prefix in prefixes])
        return [max(lengths) for lengths in zip(*parts, strict=True)]

    def longest_match(self, ids: Ids, policy: Policy = EVERYTHING) -> Match:
        parts: list[Match] = self._ask("longest_match", policy, _last(ids, _LONGEST))
        at = max(range(len(parts)), key=lambda number: (parts[number].length, -number))
        best = parts[at]
        return best._replace(bucket=best.bucket + self._first_buckets[at]) if best.length else best

    def levels(self, ids: Ids, start: int = 0, policy: Policy = EVERYTHING, *, orders: Sequence[int]) -> Levels:
        return add_levels(self._ask("levels", policy, np.asarray(ids), start, tuple(orders)))

    def _count_followers(self, contexts: Sequence[Ids], policy: Policy) -> list[NextTokens]:
        given = [np.asarray(context, dtype=np.int64) for context in contexts]
        return [add_next_tokens(parts) for parts in zip(*self._ask("followers", policy, given), strict=True)]

    def weigh_holders(
        self, texts: Sequence[Ids], ends: ArrayLike, sizes: ArrayLike, weights: ArrayLike, policy: Policy
    ) -> Holders:
        longest = max(np.asarray(sizes).tolist(), default=0)
        last = [_last(ids, longest) for ids in texts]
        parts: list[Holders] = self._ask("holders", policy, last, ends, sizes, weights)
        rows = np.concatenate([part.rows + base for part, base in zip(parts, self._first_rows, strict=True)])
        met = np.concatenate([np.repeat(np.arange(len(part.ends)), np.diff(part.ends, prepend=0)) for part in parts])
        order = np.argsort(met, kind="stable")  # those of one size by part, which is by bucket
        weighed = np.concatenate([part.weights for part in parts])
        return Holders(rows[order], weighed[order], np.sum([part.ends for part in parts], axis=0))

    def passages(self, text: str, k: int, policy: Policy = EVERYTHING) -> list[Passage]:
        words = np.unique(terms(text))
        parts = self._ask("passages", policy, text, k, words, self.count_terms(words, policy), counted=True)
        found = [
            replace(passage, row=passage.row + base)
            for part, base in zip(parts, self._first_rows, strict=True)
            for passage in part
        ]
        return sorted(found, key=lambda passage: -passage.score)[:k]  # equal ones stay by part: by row and place

    def count_passages(self, words: Sequence[str], policy: Policy = EVERYTHING) -> tuple[Ints, int]:
        hashes = np.concatenate([np.empty(0, dtype=np.uint64), *(terms(word)[:1] for word in words)])
        return self.count_terms(hashes, policy), self._count_whole(policy).passages

    def count_terms(self, words: NDArray[np.uint64], policy: Policy = EVERYTHING) -> Ints:
        known = self._frequencies.setdefault(policy, {})
        missing = np.array([word for word in words.tolist() if word not in known], dtype=np.uint64)
        if len(missing):
            if len(known) + len(missing) > _WORDS:
                known = self._frequencies[policy] = {}
                missing = words
            counts = np.sum(self._ask("count_terms", policy, missing), axis=0)
            known.update(zip(missing.tolist(), counts.tolist(), strict=True))
        return np.array([known[word] for word in words.tolist()], dtype=np.int64)


def _last(ids: Ids, longest: int) -> NDArray[np.int64]:
    """The last tokens: a question takes no more with it than it asks about."""
    return np.asarray(ids[max(0, len(ids) - max(longest, 0)) :], dtype=np.int64)


def _take(column: NDArray[Any], order: NDArray[np.intp]) -> NDArray[Any]:
    taken: NDArray[Any] = np.take_along_axis(column, order, axis=1)
    return taken
