"""Exact deduplication over all sources: one document per id, one per text; the lower tier wins, then the lower id.

Rows are looked at in slices by the first bits of the key, so memory is bounded by `_SLICE_ROWS`, not by the corpus.
The same text under two licences is reported: it may be laundered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.corpus.spool import DROP, KEPT, SAME_ID, SAME_TEXT, Run
from silo.records import Tier

_SLICE_ROWS = 4_000_000

_ENTRY = np.dtype(
    [
        ("key", "V16"),
        ("tier", "u1"),
        ("other", "V16"),
        ("run", "<u4"),
        ("row", "<u8"),
        ("license", "<u4"),
        ("record", "<u8"),
    ]
)


@dataclass(frozen=True, slots=True)
class Summary:
    """What is left after exact deduplication: text bytes and documents per domain, and suspicious pairs."""

    domain_bytes: dict[str, int]
    laundering: list[dict[str, Any]]


def drop_repeats(runs: list[Run]) -> Summary:
    """Write the drops of every run."""
    drops = [np.zeros(len(run.rows()), dtype=DROP) for run in runs]
    for entries in _groups(runs, drops, key="id", other="text"):
        _drop_losers(entries, drops, SAME_ID)
    laundering: list[dict[str, Any]] = []
    licenses = sorted({name for run in runs for name in run.licenses})
    for entries in _groups(runs, drops, key="text", other="id"):
        laundering += _laundering(entries, licenses)
        _drop_losers(entries, drops, SAME_TEXT)
    domain_bytes: dict[str, int] = {}
    for run, drop in zip(runs, drops, strict=True):
        run.write_drops(drop)
        rows = run.rows()
        kept = drop["why"] == KEPT
        for number, name in enumerate(run.domains):
            size = int(rows["bytes"][kept & (rows["domain"] == number)].sum())
            domain_bytes[name] = domain_bytes.get(name, 0) + size
    laundering.sort(key=lambda item: (item["kept"], item["dropped"]))
    return Summary(dict(sorted(domain_bytes.items())), laundering)


def _groups(runs: list[Run], drops: list[NDArray[np.void]], *, key: str, other: str) -> Iterator[NDArray[np.void]]:
    """Live rows that share a key with another row, sorted so that the winner of each group comes first."""
    total = sum(map(len, drops))
    slices = max(1, -(-total // _SLICE_ROWS))
    licenses = {name: at for at, name in enumerate(sorted({name for run in runs for name in run.licenses}))}
    for number in range(slices):
        parts = [
            _entries(run, drop, at, number, slices, key, other, licenses)
            for at, (run, drop) in enumerate(zip(runs, drops, strict=True))
        ]
        entries = np.concatenate(parts) if parts else np.empty(0, dtype=_ENTRY)
        columns = [entries["record"], *_halves(entries["other"]), entries["tier"], *_halves(entries["key"])]
        entries = entries[np.lexsort(columns)]
        same = entries["key"][1:] == entries["key"][:-1]
        shared = np.zeros(len(entries), dtype=bool)
        shared[1:] |= same
        shared[:-1] |= same
        yield entries[shared]


def _entries(
    run: Run,
    drop: NDArray[np.void],
    at: int,
    number: int,
    slices: int,
    key: str,
    other: str,
    licenses: dict[str, int],
) -> NDArray[np.void]:
    rows = run.rows()
    leading = _halves(rows[key])[1] >> np.uint64(32)
    mine = (drop["why"] == KEPT) & (leading * np.uint64(slices) >> np.uint64(32) == number)
    entries = np.empty(int(mine.sum()), dtype=_ENTRY)
    entries["key"], entries["other"] = rows[key][mine], rows[other][mine]
    entries["tier"], entries["record"] = rows["tier"][mine], rows["record"][mine]
    entries["run"], entries["row"] = at, np.flatnonzero(mine)
    numbers = np.array([licenses[name] for name in run.licenses], dtype=np.uint32)
    entries["license"] = numbers[rows["license"][mine]]
    return entries


def _halves(column: NDArray[np.void]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Low and high 64 bits of 16-byte keys, such that sorting by (high, low) is the order of the hex strings."""
    pairs = np.ascontiguousarray(column).view(">u8").reshape(-1, 2).astype(np.uint64)
    return pairs[:, 1], pairs[:, 0]


def _heads(entries: NDArray[np.void]) -> NDArray[np.intp]:
    """For every entry the position of its group's first entry."""
    first = np.ones(len(entries), dtype=bool)
    first[1:] = entries["key"][1:] != entries["key"][:-1]
    starts: NDArray[np.intp] = np.flatnonzero(first)
    return np.asarray(starts[np.cumsum(first) - 1])


def _drop_losers(entries: NDArray[np.void], drops: list[NDArray[np.void]], why: int) -> None:
    heads = _heads(entries) if len(entries) else np.empty(0, dtype=np.intp)
    for at, head in enumerate(heads.tolist()):
        if at == head:
            continue
        loser, winner = entries[at], entries[head]
        mark = drops[int(loser["run"])][int(loser["row"])]
        same_text = why == SAME_TEXT or loser["other"] == winner["other"]
        mark["why"] = SAME_TEXT if same_text else SAME_ID
        mark["winner"] = winner["other"] if why == SAME_TEXT else winner["key"]


def _laundering(entries: NDArray[np.void], licenses: list[str]) -> list[dict[str, Any]]:
    if not len(entries):
        return []
    heads = _heads(entries)
    odd = np.flatnonzero(entries["license"] != entries["license"][heads])
    tiers = list(Tier)
    return [
        {
            "kind": "laundering",
            "kept": entries["other"][heads[at]].tobytes().hex(),
            "kept_license": licenses[entries["license"][heads[at]]],
            "kept_tier": str(tiers[entries["tier"][heads[at]]]),
            "dropped": entries["other"][at].tobytes().hex(),
            "dropped_license": licenses[entries["license"][at]],
            "dropped_tier": str(tiers[entries["tier"][at]]),
        }
        for at in odd.tolist()
    ]
