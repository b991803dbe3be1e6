"""Who contributed: for every token the LM's share and each document's share, which add up to 1 exactly.

Shares are multiples of 2**-40, so that adding them in any order is exact. Additive credit covers neighbours and exact
matches. A passage put before the text (RIC) acts through the language model: it is named as `context` with share 0.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from silo.inference.context import InContext
from silo.inference.mix import Floats
from silo.inference.predict import Predictions
from silo.inference.retrieval import Ints, Retriever
from silo.store.facts import Facts, FactTable

_UNIT = 2.0**-40
_SPARSE = 32
"""A table for all rows is worth making if it is at most so many times longer than the rows that are added up."""
_MOST_HELD = 1000
"""Tokens of the longest match that the stores look for."""


class Credit(NamedTuple):
    """One document's share in a token; `store` is the number of the store it is in."""

    facts: Facts
    share: float
    context: bool = False
    store: int = 0

    @property
    def document(self) -> str:
        return self.facts.id

    @property
    def owner(self) -> str:
        return self.facts.owner

    @property
    def license(self) -> str:
        return self.facts.license

    @property
    def external_id(self) -> str:
        return self.facts.external_id

    def as_json(self) -> dict[str, Any]:
        """What `silo generate --json` prints."""
        facts = self.facts
        plain = {"document": facts.id, "owner": facts.owner, "license": facts.license, "share": self.share}
        extra = {"external_id": facts.external_id, "source": facts.source, "tier": facts.tier}
        return {**plain, **extra, **({"context": True} if self.context else {})}


class _StoreCredits(NamedTuple):
    """Documents of one store, as rows, and their shares."""

    store: int
    facts: FactTable
    rows: Ints
    shares: Floats

    def credits(self) -> Iterator[Credit]:
        """The documents as objects."""
        for row, share in zip(self.rows.tolist(), self.shares.tolist(), strict=True):
            yield Credit(self.facts[row], share, False, self.store)

    def only(self, chosen: NDArray[np.bool_]) -> _StoreCredits:
        """Some of them."""
        return self._replace(rows=self.rows[chosen], shares=self.shares[chosen])


class Credits(Sequence[Credit]):
    """What a token is made of: the LM's share, and the documents, largest share first.

    A frequent token owes a little to thousands of documents: they stay numbers until somebody looks.
    """

    def __init__(self, parts: Sequence[_StoreCredits] = (), context: tuple[Credit, ...] = ()) -> None:
        self.parts = parts
        self.context = context
        self.lm_share = max(0.0, 1.0 - float(sum(part.shares.sum() for part in parts)))

    @cached_property
    def _made(self) -> tuple[Credit, ...]:
        held = sorted((item for part in self.parts for item in part.credits()), key=_largest_first)
        return (*held, *self.context)

    @property
    def largest(self) -> Credit | None:
        """The document with the largest share; the others are not looked at."""
        best = max((float(part.shares.max()) for part in self.parts), default=0.0)
        largest = [
            Credit(part.facts[row], best, False, part.store)
            for part in self.parts
            for row in part.rows[part.shares == best].tolist()
        ]
        return min(largest, key=_largest_first, default=None)

    def first(self, count: int) -> tuple[Credit, ...]:
        """The first so many, without looking at the others."""
        held = sum(len(part.rows) for part in self.parts)
        if held <= count:
            return self._made[:count]
        every = np.concatenate([part.shares for part in self.parts])
        least = np.partition(every, held - count)[held - count]
        near = (item for part in self.parts for item in part.only(part.shares >= least).credits())
        return tuple(sorted(near, key=_largest_first)[:count])

    def __len__(self) -> int:
        return sum(len(part.rows) for part in self.parts) + len(self.context)

    def __getitem__(self, at: Any) -> Any:
        return self._made[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Credits) and self._made == other._made

    def __hash__(self) -> int:
        return hash(self._made)


def _largest_first(item: Credit) -> tuple[float, str]:
    return -item.share, item.facts.id


def credit(predictions: Predictions, tokens: Sequence[int], retriever: Retriever | None) -> list[Credits]:
    """Split the probability of a token of each text between the language model and the documents.

    Of a text whose token is -1 nobody wants to know.
    """
    chosen = np.array(tokens, dtype=np.int64)
    probabilities = predictions.probabilities[np.arange(len(chosen)), chosen]
    chosen[probabilities <= 0] = -1
    if retriever is None or not (chosen >= 0).any():
        return [Credits() for _ in tokens]
    parts = [
        _store_parts(predictions, chosen, probabilities, retriever, store) for store in range(len(retriever.views))
    ]
    return [
        Credits([part for part in of_text if part is not None], _in_context(context, retriever))
        if token >= 0
        else Credits()
        for token, context, of_text in zip(chosen, predictions.contexts, zip(*parts, strict=True), strict=True)
    ]


def _in_context(context: Sequence[InContext], retriever: Retriever) -> tuple[Credit, ...]:
    return tuple(
        Credit(retriever.views[store].facts[passage.row], 0.0, True, store)
        for item in context
        for store, passage in item.passages
    )


def _store_parts(
    predictions: Predictions, tokens: Ints, probabilities: Floats, retriever: Retriever, store: int
) -> list[_StoreCredits | None]:
    """Of each text every document of a store once, with its share; None where there is none."""
    near, levels = predictions.near, predictions.levels
    counted = (levels.weights > 0) & (tokens[levels.texts] >= 0)
    level_ends = np.searchsorted(levels.texts[counted], np.arange(len(tokens)), side="right")
    sizes, weights = levels.lengths[counted] + 1, levels.weights[counted] / levels.totals[counted]
    texts = [np.concatenate((ids[-_MOST_HELD:], tokens[at : at + 1])) for at, ids in enumerate(predictions.prefixes)]
    held = retriever.holders(store, texts, level_ends, sizes, weights) if len(sizes) else _nothing_held(len(tokens))
    found = near.found
    rows, shares, ends = _share_out(
        tokens,
        probabilities,
        store,
        near.places,
        (found.values, found.stores, found.rows, near.shares, near.weights),
        held,
    )
    facts, cuts = retriever.views[store].facts, [0, *ends.tolist()]
    return [
        _StoreCredits(store, facts, rows[first:last].copy(), shares[first:last].copy()) if first < last else None
        for first, last in pairwise(cuts)
    ]


def _nothing_held(texts: int) -> tuple[Ints, Floats, Ints]:
    return np.empty(0, dtype=np.int64), np.empty(0), np.zeros(texts, dtype=np.int64)


@numba.njit(cache=True, nogil=True)
def _share_out(
    tokens: Ints, probabilities: Floats, store: int, places: Ints, near: Any, held: Any
) -> tuple[Ints, Floats, Ints]:
    """Of each text the rows of a store and their shares, all in a row, and where those of each text end.

    `places` says which row of `near` is a text's; it has none at -1.
    """
    values, stores, near_rows, near_shares, near_weights = near
    held_rows, held_sums, held_ends = held
    ends = np.empty(len(tokens), dtype=np.int64)
    rows, shares, filled = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64), 0
    none, nothing = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64)
    for text in range(len(tokens)):
        first, last, at = held_ends[text - 1] if text else 0, held_ends[text], places[text]
        documents, parts = none, nothing
        if tokens[text] >= 0 and at >= 0:
            documents, parts = _select_matches(
                values[at], stores[at], near_rows[at], near_shares[at], tokens[text], store, near_weights[at]
            )
        made, each = _shares(documents, parts, held_rows[first:last], held_sums[first:last], probabilities[text])
        if filled + len(made) > len(rows):
            rows = np.concatenate((rows[:filled], np.empty(filled + len(made), dtype=np.int64)))
            shares = np.concatenate((shares[:filled], np.empty(filled + len(made), dtype=np.float64)))
        rows[filled : filled + len(made)], shares[filled : filled + len(made)] = made, each
        filled += len(made)
        ends[text] = filled
    return rows, shares, ends


@numba.njit(nogil=True)
def _select_matches(
    values: Ints, stores: Ints, rows: Ints, weights: Floats, token: int, store: int, factor: float
) -> tuple[Ints, Floats]:
    """Rows of a store, which may repeat, and the parts of a token's probability that come from neighbours there."""
    documents, parts, made = np.empty_like(rows), np.empty_like(weights), 0
    for at in range(len(values)):
        if values[at] == token and stores[at] == store and rows[at] >= 0:
            documents[made], parts[made] = rows[at], weights[at] * factor
            made += 1
    return documents[:made], parts[:made]


@numba.njit(nogil=True)
def _shares(rows: Ints, parts: Floats, others: Ints, more: Floats, probability: float) -> tuple[Ints, Floats]:
    """Every row once, with its share of the probability in whole units, rounded down; without a unit it is left out."""
    documents, sums = _sum_by_row(np.concatenate((rows, others)), np.concatenate((parts, more)))
    kept = 0
    for at in range(len(documents)):
        share = np.floor(sums[at] / probability / _UNIT) * _UNIT
        if share > 0:
            documents[kept], sums[kept] = documents[at], share
            kept += 1
    return documents[:kept], sums[:kept]


@numba.njit(cache=True, nogil=True)
def _sum_by_row(rows: Ints, parts: Floats) -> tuple[Ints, Floats]:
    """The different rows and the sum of the parts of each, in the order they are given.

    Where a row went is looked up in a table for all rows, or by sorting where such a table would be mostly empty.
    """
    documents, sums, made = np.empty_like(rows), np.zeros_like(parts), 0
    if len(rows) and rows.max() < _SPARSE * len(rows):
        slots = np.zeros(rows.max() + 1, dtype=np.int32)
        for at in range(len(rows)):
            if slots[rows[at]] == 0:
                documents[made] = rows[at]
                made += 1
                slots[rows[at]] = made
            sums[slots[rows[at]] - 1] += parts[at]
        return documents[:made], sums[:made]
    for at in np.argsort(rows, kind="mergesort"):
        if made == 0 or documents[made - 1] != rows[at]:
            documents[made] = rows[at]
            made += 1
        sums[made - 1] += parts[at]
    return documents[:made], sums[:made]


class Totals:
    """The shares of documents in some tokens, added up; they too stay numbers until somebody looks."""

    def __init__(self, credits: Iterable[Credits]) -> None:
        parts: dict[tuple[int, FactTable], list[_StoreCredits]] = defaultdict(list)
        for token in credits:
            for part in token.parts:
                parts[part.store, part.facts].append(part)
        self._parts = []
        for (store, facts), held in parts.items():
            columns = (np.concatenate([part.rows for part in held]), np.concatenate([part.shares for part in held]))
            self._parts.append(_StoreCredits(store, facts, *_sum_by_row(*columns)))

    def documents(self, least: float = 0.0, most: int | None = None) -> list[Credit]:
        """Every document once, largest share first: at most so many, and none below `least`."""
        if len(self._parts) == 1:
            (part,) = self._parts
            if most is not None and len(part.rows) > most:
                least = max(least, float(np.partition(part.shares, -most)[-most]))
            return sorted(part.only(part.shares >= least).credits(), key=_largest_first)[:most]
        totals: dict[tuple[int, str], Credit] = {}
        for item in (item for part in self._parts for item in part.credits()):
            before = totals.get((item.store, item.document))
            totals[item.store, item.document] = item._replace(share=item.share + before.share) if before else item
        return sorted((item for item in totals.values() if item.share >= least), key=_largest_first)[:most]

    def shares_of(self, documents: Iterable[tuple[int, str]]) -> dict[tuple[int, str], float]:
        """The shares of some documents, each named by its store and its id."""
        shares = dict.fromkeys(documents, 0.0)
        for part in self._parts:
            held = dict(zip(part.rows.tolist(), part.shares.tolist(), strict=True))
            for store, name in shares:
                if store == part.store:
                    shares[store, name] += held.get(part.facts.find(name), 0.0)
        return shares


def roll_up(credits: Iterable[Credit], by: str = "document") -> list[tuple[str, float]]:
    """The shares by document, owner or license, largest first."""
    totals: dict[str, float] = {}
    for item in credits:
        name = getattr(item, by)
        totals[name] = totals.get(name, 0.0) + item.share
    return sorted(totals.items(), key=lambda pair: (-pair[1], pair[0]))


def by_sentence(texts: Iterable[str]) -> list[slice]:
    """Where sentences begin and end in a list of token texts."""
    spans, begin, at = [], 0, -1
    for at, text in enumerate(texts):
        if text.rstrip().endswith((".", "!", "?")) or "\n" in text:
            spans.append(slice(begin, at + 1))
            begin = at + 1
    return [*spans, slice(begin, at + 1)] if begin <= at else spans
