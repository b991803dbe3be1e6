"""Who contributed: for every token the LM's share and each document's share, which add up to 1 exactly.

Shares are multiples of 2**-40, so that adding them in any order is exact. Additive credit covers neighbours and exact
matches. A passage put before the text (RIC) acts through the language model: it is named as `context` with share 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from silo.inference.predictor import Prediction
from silo.inference.settings import level_weight
from silo.inference.sources import Sources

_UNIT = 2.0**-40


@dataclass(frozen=True, slots=True)
class Credit:
    """One document's share in a token; `store` is the number of the store it is in."""

    document: str
    owner: str
    license: str
    share: float
    context: bool = False
    external_id: str = ""
    source: str = ""
    tier: str = ""
    store: int = 0

    def as_json(self) -> dict[str, Any]:
        """What `silo generate --json` prints."""
        plain = {"document": self.document, "owner": self.owner, "license": self.license, "share": self.share}
        extra = {"external_id": self.external_id, "source": self.source, "tier": self.tier}
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
    mass = _document_mass(prediction, token, sources)
    shares = {place: np.floor(held / probability / _UNIT) * _UNIT for place, held in mass.items()}
    held = [_credit(sources, place, share) for place, share in shares.items() if share > 0]
    held.sort(key=lambda item: (-item.share, item.document))
    context = [
        _credit(sources, (store, passage.row), 0.0, context=True)
        for lead in prediction.leads
        for store, passage in lead.passages
    ]
    return TokenCredit(max(0.0, 1.0 - sum(item.share for item in held)), (*held, *context))


def _document_mass(prediction: Prediction, token: int, sources: Sources) -> dict[tuple[int, int], float]:
    """Per (store, row) the part of the token's probability that comes from that document."""
    mass: dict[tuple[int, int], float] = {}
    found = prediction.nearest
    if found is not None and prediction.neighbour_weights is not None:
        chosen = np.flatnonzero((found.values[0] == token) & (found.rows[0] >= 0))
        held = prediction.neighbour_weights[0, chosen] * prediction.weights[1]
        for store, row, part in zip(
            found.stores[0, chosen].tolist(), found.rows[0, chosen].tolist(), held.tolist(), strict=True
        ):
            mass[store, row] = mass.get((store, row), 0.0) + part
    for level in prediction.levels:
        weight = level_weight(prediction.weights, level.length)
        at_token = np.searchsorted(level.tokens, token)
        if weight == 0 or at_token == len(level.tokens) or level.tokens[at_token] != token:
            continue
        pattern = np.append(prediction.prefix[len(prediction.prefix) - level.length :], token)
        for store, rows, counts in sources.holders(pattern):
            for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
                mass[store, row] = mass.get((store, row), 0.0) + weight * count / level.total
    return mass


def _credit(sources: Sources, place: tuple[int, int], share: float, *, context: bool = False) -> Credit:
    store, row = place
    facts = sources.views[store].facts(row)
    more = (facts.external_id, facts.source, facts.tier, store)
    return Credit(facts.id, facts.owner, facts.license, float(share), context, *more)


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
