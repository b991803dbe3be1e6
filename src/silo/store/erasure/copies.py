"""Copies of a work: documents of a store that hold the same text, or nearly so, whoever owns them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silo.records import Document
from silo.text.normalise import text_hash
from silo.text.words import ngram_hashes

WORDS = 13
NEAR = 0.5
"""A document is a near copy if this share of the work's 13-word runs is in it, or of its own in the work."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A document that repeats a work: all of it (`exact`) or a share of its runs of words."""

    id: str
    external_id: str
    owner: str
    source: str
    exact: bool
    share: float

    def as_json(self) -> dict[str, str | bool | float]:
        return {name: getattr(self, name) for name in ("id", "external_id", "owner", "source", "exact", "share")}


def find_copies(works: Iterable[Document], documents: Iterable[Document]) -> list[Copy]:
    """The documents that repeat any of the works; the works themselves are left out."""
    given = list(works)
    known = {work.id for work in given}
    marks = {text_hash(work.text) for work in given}
    runs = [_runs(work.text) for work in given]
    copies = []
    for document in documents:
        if document.id in known:
            continue
        exact = text_hash(document.text) in marks
        share = 1.0 if exact else _share(_runs(document.text), runs)
        if share >= NEAR:
            copies.append(Copy(document.id, document.external_id, document.owner, document.source, exact, share))
    return copies


def _runs(text: str) -> NDArray[np.uint64]:
    return np.unique(ngram_hashes(text, WORDS))


def _share(runs: NDArray[np.uint64], works: list[NDArray[np.uint64]]) -> float:
    """The larger of: the share of a work that is in the document, the share of the document that is in a work."""
    best = 0.0
    for work in works:
        smaller = min(len(runs), len(work))
        if smaller:
            best = max(best, len(np.intersect1d(runs, work, assume_unique=True)) / smaller)
    return round(best, 4)
