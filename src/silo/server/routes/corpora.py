"""Corpora for the operator's eyes: what a build took in, what it left out and why, and what it found suspicious.

All of it is read from the corpus as it lies on the disk. No text of documents is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any

from fastapi import Query, Request

from silo.server.problems import missing
from silo.server.service import service_of

_COLUMNS = ("tier", "license", "source", "domain")
_PAGE = 100
_MOST_LISTED = 1000


def list_corpora(request: Request) -> dict[str, Any]:
    """The corpora that the server's TOML file names."""
    corpora = service_of(request).catalogue.corpora.items()
    return {"data": [{"corpus": name, "documents": corpus.manifest["counts"]["accepted"]} for name, corpus in corpora]}


def show_corpus(
    request: Request, corpus: str, limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = _PAGE
) -> dict[str, Any]:
    """One corpus: documents by tier, licence, source and domain, and the first of each list that its build wrote."""
    found = service_of(request).catalogue.corpora.get(corpus)
    if found is None:
        raise missing("corpus")
    counts, table = found.manifest["counts"], found.manifest["table"]
    return {
        "corpus": corpus,
        "counts": {name: counts[name] for name in ("read", "accepted", "rejected", "quarantined", "conflicts")},
        "reasons": counts["reasons"],
        "opted_out": len(found.opted_out()),
        **{column: _totals(table, column) for column in _COLUMNS},
        "laundering": {"total": counts["laundering"], "data": found.laundering()[:limit]},
        "conflicts": {"total": counts["conflicts"], "data": list(islice(found.conflicts(), limit))},
        "rejected": {"total": counts["rejected"], "data": list(islice(found.rejected(), limit))},
    }


def _totals(table: Iterable[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """Documents and tokens by one column, the largest first."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in table:
        sums[row[column]][0] += row["documents"]
        sums[row[column]][1] += row["tokens"]
    ordered = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))[:_MOST_LISTED]
    return [{"name": name, "documents": documents, "tokens": tokens} for name, (documents, tokens) in ordered]
