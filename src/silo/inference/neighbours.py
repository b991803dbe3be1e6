"""The paper's attribution table for one token: the nearest places of the stores, with the text around them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from silo.inference.predict import Prediction
from silo.inference.retrieval import Sources
from silo.text.tokenizer import Tokenizer

_LEFT, _RIGHT = 24, 12


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A place in a document: what stands before it and what follows, its distance and its weight in P_kNN."""

    document: str
    left: str
    continuation: str
    distance: float
    weight: float

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def top_neighbours(
    prediction: Prediction, sources: Sources | None, tokenizer: Tokenizer, count: int
) -> tuple[Neighbour, ...]:
    """The nearest places, nearest first."""
    found, weights = prediction.nearest, prediction.neighbour_weights
    if not count or sources is None or found is None or weights is None:
        return ()
    shown = []
    for at in np.flatnonzero(found.rows[0, :count] >= 0).tolist():
        view, row = sources.views[int(found.stores[0, at])], int(found.rows[0, at])
        tokens = view.document_tokens(row)
        place = int(found.positions[0, at]) - 1
        left = tokenizer.decode(tokens[max(0, place - _LEFT) : place])
        right = tokenizer.decode(tokens[place : place + _RIGHT])
        distance, weight = float(found.distances[0, at]), float(weights[0, at])
        shown.append(Neighbour(view.facts[row].id, left, right, distance, weight))
    return tuple(shown)
