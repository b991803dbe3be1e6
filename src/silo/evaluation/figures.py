"""Figures of a domain with their intervals: perplexity, bits per byte, gaps; by document and by the longest match."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.evaluation.intervals import Estimate, Floats, Resamples, gap_closed, perplexity
from silo.evaluation.scoring import PLAIN, REFERENCE, UNKNOWN, DomainScores, log_probabilities
from silo.evaluation.texts import DomainText

MATCHES = {"0": (0, 0), "1-4": (1, 4), "5-8": (5, 8), "9-12": (9, 12), "13+": (13, 10**9)}
"""Tokens by the longest stretch before them that the store holds, in tokens."""
CLEAN = ("0", "1-4", "5-8", "9-12")
ANY = "any"


@dataclass(frozen=True, slots=True, eq=False)
class DomainSums:
    """What every figure of a domain comes from: sums by document, and by the longest match where there is a store.

    `tokens` and the `logs` of every row are [kinds of match, documents]; `sizes` are the bytes of the documents.
    """

    domain: str
    mark: str
    labels: tuple[str, ...]
    matches: tuple[str, ...]
    tokens: Floats
    sizes: Floats
    logs: dict[str, Floats]
    notes: dict[str, Any]
    seconds: dict[str, float]

    @classmethod
    def of(cls, scores: DomainScores) -> DomainSums:
        """Add up the tokens that count."""
        text, counted = scores.text, scores.text.counted
        known = (scores.matches >= 0).any()
        bounds = MATCHES if known else {ANY: (-1, 10**9)}
        chosen = [counted & (scores.matches >= low) & (scores.matches <= high) for low, high in bounds.values()]

        def add_up(values: NDArray[Any], some: NDArray[np.bool_]) -> Floats:
            sums = np.bincount(text.documents[some], weights=values[some], minlength=len(text.labels))
            return sums.astype(np.float64)

        def by_match(values: NDArray[Any]) -> Floats:
            return np.stack([add_up(values, some) for some in chosen])

        return cls(
            text.domain,
            scores.mark,
            text.labels,
            tuple(bounds),
            by_match(np.ones(len(counted))),
            add_up(text.stream.sizes, counted),
            {row: by_match(logs) for row, logs in scores.logs.items()},
            scores.notes,
            {name: round(value, 2) for name, value in scores.seconds.items()},
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values; `rows` keeps the order of the rows, which a file of JSON need not."""
        plain = {name: getattr(self, name) for name in ("domain", "mark", "notes", "seconds")}
        lists = {"rows": list(self.logs), **{name: list(getattr(self, name)) for name in ("labels", "matches")}}
        logs = {row: values.tolist() for row, values in self.logs.items()}
        return {**plain, **lists, "tokens": self.tokens.tolist(), "sizes": self.sizes.tolist(), "logs": logs}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> DomainSums:
        """The inverse of `as_json`."""
        return cls(
            content["domain"],
            content["mark"],
            tuple(content["labels"]),
            tuple(content["matches"]),
            np.array(content["tokens"], dtype=np.float64),
            np.array(content["sizes"], dtype=np.float64),
            {row: np.array(content["logs"][row], dtype=np.float64) for row in content["rows"]},
            content["notes"],
            content["seconds"],
        )


def sum_rows(text: DomainText, probabilities: Mapping[str, Floats]) -> DomainSums:
    """Rows that were scored elsewhere: the probability of every token of a text."""
    matches = np.full(len(text.documents), -1, dtype=np.int64)
    return DomainSums.of(
        DomainScores(text, UNKNOWN, matches, {row: log_probabilities(found) for row, found in probabilities.items()})
    )


class DomainFigures:
    """Figures of the rows of one domain; all vectors share the draws of documents."""

    def __init__(self, sums: DomainSums, *, seed: int = 0) -> None:
        self.sums = sums
        self._resamples = Resamples(len(sums.labels), seed=seed)

    @property
    def rows(self) -> list[str]:
        return list(self.sums.logs)

    def perplexity(self, row: str, matches: Sequence[str] = ()) -> Floats:
        """Of all tokens, or of those of some kinds of match."""
        return perplexity(*(self._total(values, matches) for values in (self.sums.logs[row], self.sums.tokens)))

    def bits_per_byte(self, row: str) -> Floats:
        sizes = np.maximum(self._resamples.total(self.sums.sizes), 1)
        figure: Floats = -self._total(self.sums.logs[row], ()) / math.log(2) / sizes
        return figure

    def mean(self, sums: Floats) -> Floats:
        """Of anything that was added up over the tokens of every document: its mean over tokens."""
        figure: Floats = self._resamples.total(sums) / np.maximum(self._total(self.sums.tokens, ()), 1)
        return figure

    def ratio(self, row: str, matches: Sequence[str] = ()) -> Floats:
        """To the perplexity of the language model alone."""
        figure: Floats = self.perplexity(row, matches) / self.perplexity(PLAIN, matches)
        return figure

    def gap_closed(self, row: str, reference: str, matches: Sequence[str] = ()) -> Floats:
        return gap_closed(*(self.perplexity(name, matches) for name in (PLAIN, row, reference)))

    def _total(self, values: Floats, matches: Sequence[str]) -> Floats:
        kept = [at for at, name in enumerate(self.sums.matches) if not matches or name in matches]
        return self._resamples.total(values[kept].sum(axis=0))

    def as_json(self) -> dict[str, Any]:
        """Every figure of every row with its interval."""
        sums = self.sums
        counts = {name: int(count) for name, count in zip(sums.matches, sums.tokens.sum(axis=1), strict=True)}
        return {
            "mark": sums.mark,
            "documents": len(sums.labels),
            "tokens": int(sums.tokens.sum()),
            "bytes": int(sums.sizes.sum()),
            "matches": {} if ANY in counts else counts,
            "rows": {row: self._row(row, counts) for row in self.rows},
            "notes": sums.notes,
            "seconds": sums.seconds,
        }

    def _row(self, row: str, counts: Mapping[str, int]) -> dict[str, Any]:
        figures: dict[str, Floats] = {"perplexity": self.perplexity(row), "bits_per_byte": self.bits_per_byte(row)}
        compared = REFERENCE in self.rows and row not in (PLAIN, REFERENCE)
        if row != PLAIN:
            difference = figures["perplexity"] - self.perplexity(PLAIN)
            figures |= {"ratio_to_lm": self.ratio(row), "difference_to_lm": difference}
        if compared:
            figures["gap_closed"] = self.gap_closed(row, REFERENCE)
        by_match = {}
        if ANY not in counts:
            by_match = {name: self.perplexity(row, [name]) for name, count in counts.items() if count}
            figures["clean"] = self.perplexity(row, CLEAN)
            if compared:
                figures["clean_gap_closed"] = self.gap_closed(row, REFERENCE, CLEAN)
        plain_figures = {name: Estimate.of(figure).as_json() for name, figure in figures.items()}
        return {**plain_figures, "by_match": {name: Estimate.of(item).as_json() for name, item in by_match.items()}}

    def by_document(self) -> list[dict[str, Any]]:
        """Of every document its tokens, bytes, share of long matches and perplexity in every row."""
        sums = self.sums
        tokens = sums.tokens.sum(axis=0)
        clean = sums.tokens[[at for at, name in enumerate(sums.matches) if name in CLEAN]].sum(axis=0)
        means = {
            row: np.exp(np.minimum(-logs.sum(axis=0) / np.maximum(tokens, 1), 700)) for row, logs in sums.logs.items()
        }
        return [
            {
                "document": label,
                "tokens": int(tokens[at]),
                "bytes": int(sums.sizes[at]),
                "long_matches": None if ANY in sums.matches else float(1 - clean[at] / tokens[at]),
                "perplexity": {row: float(values[at]) for row, values in means.items()},
            }
            for at, label in enumerate(sums.labels)
            if tokens[at]
        ]


def average_gap_closed(figures: Sequence[DomainFigures], row: str, *, clean: bool = False) -> Estimate:
    """How much a row closes of the gap between the domains' mean perplexities, of all tokens or of those without a long
    match.

    Reckoned as in the paper: of a mean of gaps, a domain that has next to none would decide. The domains' draws are
    independent.
    """
    matches, names = CLEAN if clean else (), (PLAIN, row, REFERENCE)
    means = (np.mean([item.perplexity(name, matches) for item in figures], axis=0) for name in names)
    return Estimate.of(gap_closed(*means))


def average_ratio(figures: Sequence[DomainFigures], row: str, *, clean: bool = False) -> Estimate:
    """The geometric mean over domains of a row's perplexity over that of the language model alone, drawn likewise."""
    matches = CLEAN if clean else ()
    return Estimate.of(np.exp(np.mean([np.log(item.ratio(row, matches)) for item in figures], axis=0)))
