"""Exact deduplication over all sources: one document per id, one per text; the lower tier wins, then the lower id.

Rows are looked at in slices by the first bits of the key and marked on disk, so memory is bounded by `_SLICE_ROWS`, not
by the corpus. The same text under two licences is reported: it may be laundered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.corpus.runs import KEPT, SAME_ID, SAME_TEXT, Run
from silo.records import Tier

_SLICE_ROWS = 4_000_000

Rows = NDArray[np.void]

_ENTRY = np.dtype(
    [
        ("id", "V16"),
        ("text", "V16"),
        ("record", "<u8"),
        ("tier", "u1"),
        ("license", "<u4"),
        ("run", "<u4"),
        ("row", "<u8"),
    ]
)


@dataclass(frozen=True, slots=True)
class ExactSummary:
    """What is left after exact deduplication: text bytes per domain, and suspicious pairs."""

    domain_bytes: dict[str, int]
    laundering: list[dict[str, Any]]


def drop_repeats(runs: list[Run]) -> ExactSummary:
    """Mark the repeats in every run, first by id and then by text."""
    everything = _AllRuns(
        runs, [run.new_drops() for run in runs], sorted({name for run in runs for name in run.licenses})
    )
    laundering = [
        pair for key in ("id", "text") for group in everything.groups(key) for pair in everything.drop(group, key)
    ]
    laundering.sort(key=lambda pair: (pair["kept"], pair["dropped"], pair["dropped_license"]))
    return ExactSummary(everything.domain_bytes(), laundering)


@dataclass(frozen=True, slots=True)
class _AllRuns:
    """All runs, the marks on their rows, and all licences by number."""

    runs: list[Run]
    drops: list[Rows]
    licenses: list[str]

    def groups(self, key: str) -> Iterator[Rows]:
        """Live rows that share a key with another row, sorted so that the winner of each group comes first."""
        slices = max(1, -(-sum(map(len, self.drops)) // _SLICE_ROWS))
        other = "text" if key == "id" else "id"
        for number in range(slices):
            parts = [self._entries(at, key, number, slices) for at in range(len(self.runs))]
            entries = np.concatenate([np.empty(0, dtype=_ENTRY), *parts])
            if not len(entries):
                continue
            order = [entries["record"], *_halves(entries[other]), entries["tier"], *_halves(entries[key])]
            entries = entries[np.lexsort(order)]
            same = entries[key][1:] == entries[key][:-1]
            yield entries[np.append(same, False) | np.append(False, same)]

    def _entries(self, at: int, key: str, number: int, slices: int) -> Rows:
        """The live rows of one run whose key falls into one slice."""
        run, rows = self.runs[at], self.runs[at].rows()
        leading = _halves(rows[key])[1] >> np.uint64(32)
        in_slice = (self.drops[at]["why"] == KEPT) & (leading * np.uint64(slices) >> np.uint64(32) == number)
        entries = np.empty(int(in_slice.sum()), dtype=_ENTRY)
        for name in ("id", "text", "record", "tier"):
            entries[name] = rows[name][in_slice]
        numbers = np.array([self.licenses.index(name) for name in run.licenses], dtype=np.uint32)
        entries["license"] = numbers[rows["license"][in_slice]]
        entries["run"], entries["row"] = at, np.flatnonzero(in_slice)
        return entries

    def drop(self, entries: Rows, key: str) -> list[dict[str, Any]]:
        """Mark all but the first of each group; returns pairs of one text under two licences."""
        if not len(entries):
            return []
        winners = entries[_heads(entries[key])]
        losers = (entries["run"] != winners["run"]) | (entries["row"] != winners["row"])
        same_text = entries["text"] == winners["text"]
        for at in np.unique(entries["run"][losers]).tolist():
            here = losers & (entries["run"] == at)
            rows = entries["row"][here]
            self.drops[at]["why"][rows] = np.where(same_text[here], SAME_TEXT, SAME_ID)
            self.drops[at]["winner"][rows] = winners["id"][here]
        odd = np.flatnonzero(same_text & (entries["license"] != winners["license"])).tolist()
        return [self._pair(winners[at], entries[at]) for at in odd]

    def _pair(self, winner: np.void, loser: np.void) -> dict[str, Any]:
        tiers = list(Tier)
        return {
            "kept": winner["id"].tobytes().hex(),
            "kept_license": self.licenses[winner["license"]],
            "kept_tier": str(tiers[winner["tier"]]),
            "dropped": loser["id"].tobytes().hex(),
            "dropped_license": self.licenses[loser["license"]],
            "dropped_tier": str(tiers[loser["tier"]]),
        }

    def domain_bytes(self) -> dict[str, int]:
        """Bytes of text that are still there, per domain."""
        sizes: dict[str, int] = {}
        for run, drop in zip(self.runs, self.drops, strict=True):
            rows, kept = run.rows(), drop["why"] == KEPT
            totals = np.bincount(rows["domain"][kept], rows["bytes"][kept], minlength=len(run.domains))
            for name, size in zip(run.domains, totals.tolist(), strict=True):
                sizes[name] = sizes.get(name, 0) + int(size)
        return dict(sorted(sizes.items()))


def _halves(column: Rows) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Low and high 64 bits of 16-byte keys, such that sorting by (high, low) is the order of the hex strings."""
    pairs = np.ascontiguousarray(column).view(">u8").reshape(-1, 2).astype(np.uint64)
    return pairs[:, 1], pairs[:, 0]


def _heads(keys: Rows) -> NDArray[np.intp]:
    """For every entry the position of its group's first entry."""
    starts: NDArray[np.intp] = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    return np.repeat(starts, np.diff(np.append(starts, len(keys))))
