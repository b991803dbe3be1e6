"""The paper's attribution table for one token: the nearest places of the stores, with the text around them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from silo.inference.predict import Prediction
from silo.inference.retrieval import Retriever
from silo.text.tokenizer import Tokenizer

_LEFT, _RIGHT = 24, 12


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A place in a document: what stands before it and what follows, its distance and its weight in P_kNN.

    Both texts are empty where a guard is on.
    """

    document: str
    left: str
    continuation: str
    distance: float
    weight: float

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def top_neighbours(
    prediction: Prediction, retriever: Retriever | None, tokenizer: Tokenizer, count: int, *, with_text: bool = True
) -> tuple[Neighbour, ...]:
    """The nearest places behind a prediction, nearest first.

    `with_text` is false under a guard: from one token to the next the places around it would tell whole documents.
    """
    neighbours = prediction.neighbours if count else None
    if retriever is None or neighbours is None:
        return ()
    shares = prediction.neighbour_shares
    top = []
    for at in np.flatnonzero(neighbours.rows[0, :count] >= 0).tolist():
        view, row = retriever.views[int(neighbours.stores[0, at])], int(neighbours.rows[0, at])
        tokens = view.document_tokens(row) if with_text else np.empty(0, dtype=np.uint32)
        place = int(neighbours.positions[0, at]) - 1
        left = tokenizer.decode(tokens[max(0, place - _LEFT) : place])
        right = tokenizer.decode(tokens[place : place + _RIGHT])
        distance, weight = float(neighbours.distances[0, at]), float(shares[at])
        top.append(Neighbour(view.facts[row].id, left, right, distance, weight))
    return tuple(top)
