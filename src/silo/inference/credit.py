"""Who contributed: for every token the LM's share and each document's share, which add up to 1 exactly.

Shares are multiples of 2**-40, so that adding them in any order is exact. Additive credit covers neighbours and exact
matches. A passage put before the text (RIC) acts through the language model: it is named as `context` with share 0.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np

from silo.datastore.view import Facts
from silo.inference.mix import Floats
from silo.inference.predictor import Prediction
from silo.inference.settings import level_weight
from silo.inference.sources import Ints, Sources

_UNIT = 2.0**-40
_ROW_BITS = 40


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


@dataclass(frozen=True, slots=True)
class TokenCredit:
    """The LM's share of a token and the documents', largest first."""

    lm_share: float
    credits: tuple[Credit, ...]


def credit(prediction: Prediction, token: int, sources: Sources | None) -> TokenCredit:
    """Split the probability of a token between the language model and the documents."""
    probability = float(prediction.probabilities[token])
    if sources is None or probability <= 0:
        return TokenCredit(1.0, ())
    held = [
        Credit(sources.views[store].facts(row), share, False, store)
        for store, row, share in _shares(_document_mass(prediction, token, sources), probability)
    ]
    held.sort(key=lambda item: (-item.share, item.facts.id))
    context = [
        Credit(sources.views[store].facts(passage.row), 0.0, True, store)
        for lead in prediction.leads
        for store, passage in lead.passages
    ]
    return TokenCredit(max(0.0, 1.0 - sum(item.share for item in held)), (*held, *context))


def _shares(mass: Sequence[tuple[Ints, Floats]], probability: float) -> Iterator[tuple[int, int, float]]:
    """Every document once, with its share in whole units, rounded down; those without a unit are left out."""
    if not mass:
        return
    places, held = _added_up(*(np.concatenate(column) for column in zip(*mass, strict=True)))
    shares = np.floor(held / probability / _UNIT) * _UNIT
    some = shares > 0
    for place, share in zip(places[some].tolist(), shares[some].tolist(), strict=True):
        yield place >> _ROW_BITS, place & ((1 << _ROW_BITS) - 1), share


@numba.njit(cache=True, nogil=True)
def _added_up(places: Ints, parts: Floats) -> tuple[Ints, Floats]:
    """The different places, ascending, and the sum of the parts of each, in the order they are given."""
    order = np.argsort(places, kind="mergesort")
    found, sums = np.empty_like(places), np.zeros_like(parts)
    made = 0
    for at in order:
        if made == 0 or found[made - 1] != places[at]:
            found[made] = places[at]
            made += 1
        sums[made - 1] += parts[at]
    return found[:made], sums[:made]


def _document_mass(prediction: Prediction, token: int, sources: Sources) -> list[tuple[Ints, Floats]]:
    """Documents, which may repeat, with the parts of the token's probability that come from them.

    A document is the number of its store and its row there in one number.
    """
    mass: list[tuple[Ints, Floats]] = []
    found = prediction.nearest
    if found is not None and prediction.neighbour_weights is not None:
        chosen = np.flatnonzero((found.values[0] == token) & (found.rows[0] >= 0))
        places = found.stores[0, chosen] << _ROW_BITS | found.rows[0, chosen]
        mass.append((places, prediction.neighbour_weights[0, chosen] * prediction.weights[1]))
    for level in prediction.levels:
        weight = level_weight(prediction.weights, level.length)
        at_token = np.searchsorted(level.tokens, token)
        if weight == 0 or at_token == len(level.tokens) or level.tokens[at_token] != token:
            continue
        pattern = np.append(prediction.prefix[len(prediction.prefix) - level.length :], token)
        for store, rows, counts in sources.holders(pattern):
            mass.append((store << _ROW_BITS | rows, counts.astype(np.float64) * (weight / level.total)))
    return mass


def roll_up(credits: Sequence[TokenCredit], by: str = "document") -> list[tuple[str, float]]:
    """Mean shares over some tokens by document, owner or license, largest first; what is not listed is the LM's."""
    totals: dict[str, float] = {}
    for token in credits:
        for item in token.credits:
            if not item.context:
                name = getattr(item, by)
                totals[name] = totals.get(name, 0.0) + item.share
    return sorted(
        ((name, total / len(credits)) for name, total in totals.items()), key=lambda pair: (-pair[1], pair[0])
    )


def by_sentence(texts: Iterable[str]) -> list[slice]:
    """Where sentences begin and end in a list of token texts."""
    spans, begin, at = [], 0, -1
    for at, text in enumerate(texts):
        if text.rstrip().endswith((".", "!", "?")) or "\n" in text:
            spans.append(slice(begin, at + 1))
            begin = at + 1
    return [*spans, slice(begin, at + 1)] if begin <= at else spans
