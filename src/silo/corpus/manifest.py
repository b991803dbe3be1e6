"""What a build adds up to: the manifest's counts and tables, and where the time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from silo import __version__
from silo.corpus.corpus import FORMAT
from silo.corpus.weights import domain_weights
from silo.errors import SiloError
from silo.recipe import CorpusRecipe
from silo.records import Tier
from silo.text.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of all tasks of the three parallel stages."""

    read: list[dict[str, Any]]
    cleaned: list[dict[str, Any]]
    tokenised: list[dict[str, Any]]


def manifest_content(
    recipe: CorpusRecipe, reports: Reports, *, laundering: int, evaluation_documents: int, files: dict[str, str]
) -> dict[str, Any]:
    """Everything about the corpus that does not depend on when and where it was built."""
    tokenizer = load_tokenizer(recipe.tokenizer)
    table = _table(reports.tokenised)
    return {
        "format": FORMAT,
        "version": __version__,
        "recipe": _portable_settings(recipe),
        "tokenizer": {"name": tokenizer.name, "fingerprint": tokenizer.fingerprint, "begin": tokenizer.begin},
        "vocabulary": tokenizer.vocabulary,
        "counts": _counts(reports, table) | {"laundering": laundering, "evaluation_documents": evaluation_documents},
        "table": table,
        "weights": domain_weights(table, recipe.weights),
        "shards": _shard_rows(reports.tokenised),
        "files": files,
    }


def _counts(reports: Reports, table: list[dict[str, Any]]) -> dict[str, Any]:
    """Read = accepted + rejected + quarantined, to the record."""
    reasons = add_up(report["reasons"] for report in reports.cleaned)
    codes = add_up(report["codes"] for report in reports.read)
    counts = {
        "read": sum(report["read"] for report in reports.read),
        "accepted": sum(row["documents"] for row in table),
        "rejected": reasons.total(),
        "quarantined": codes.total(),
        "tokens": sum(row["tokens"] for row in table),
        "bytes": sum(row["bytes"] for row in table),
        "tiers": {str(tier): sum(row["documents"] for row in table if row["tier"] == tier) for tier in Tier},
        "reasons": dict(sorted(reasons.items())),
        "quarantine_codes": dict(sorted(codes.items())),
        "masked": sum(report["masked"] for report in reports.cleaned),
        "conflicts": sum(report["conflicts"] for report in reports.cleaned),
    }
    if counts["read"] != counts["accepted"] + counts["rejected"] + counts["quarantined"]:
        raise SiloError("internal", f"the books do not balance: {counts}")
    return counts


def add_up(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """The sum of several counts by name."""
    total: Counter[str] = Counter()
    for part in counts:
        total.update(part)
    return total


def _portable_settings(recipe: CorpusRecipe) -> dict[str, Any]:
    """The settings that shape the corpus; where the inputs lay and how many workers ran do not."""
    settings = asdict(replace(recipe, workers=0, tokenizer="", source=()))
    del settings["source"], settings["workers"], settings["tokenizer"]
    settings["decontaminate"]["files"] = sorted(Path(name).name for name in recipe.decontaminate.files)
    return settings


def _table(tokenised: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Documents, bytes and tokens per (tier, domain, source, licence)."""
    rows: dict[tuple[str, str, str, str], list[int]] = {}
    for shard in tokenised:
        for source, terms, *amounts in shard["table"]:
            row = rows.setdefault((shard["tier"], shard["domain"], source, terms), [0, 0, 0, 0])
            for column, amount in enumerate(amounts):
                row[column] += amount
    names = ("tier", "domain", "source", "license", "documents", "bytes", "tokens", "train_tokens")
    return [dict(zip(names, (*key, *row), strict=True)) for key, row in sorted(rows.items())]


def _shard_rows(tokenised: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for shard in tokenised:
        documents, size, tokens = (sum(row[column] for row in shard["table"]) for column in (2, 3, 4))
        rows.append(
            {
                "stem": shard["stem"],
                "tier": shard["tier"],
                "domain": shard["domain"],
                "documents": documents,
                "bytes": size,
                "tokens": tokens,
            }
        )
    return sorted(rows, key=lambda row: row["stem"])


def stage_times(reports: Reports, wall: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Per stage: wall seconds of this run, core seconds of all runs, megabytes of text, megabytes per core second."""
    read_mb = sum(report["bytes"] for report in reports.read) / 1e6
    clean_mb = sum(report["bytes"] for report in reports.cleaned) / 1e6
    token_mb = sum(row[3] for shard in reports.tokenised for row in shard["table"]) / 1e6
    work: dict[str, tuple[float, float]] = {
        "read": (sum(report["seconds"] for report in reports.read), read_mb),
        "clean": (sum(report["seconds"]["total"] for report in reports.cleaned), clean_mb),
        "tokens": (sum(report["seconds"] for report in reports.tokenised), token_mb),
    }
    for step in ("decontaminate", "dedup", "mask"):
        seconds = sum(report["seconds"].get(step, 0.0) for report in reports.cleaned)
        work[f"clean/{step}"] = (seconds, clean_mb if seconds > 0.05 else 0.0)
    order = ("read", "evaluation", "exact", "clean", "clean/decontaminate", "clean/dedup", "clean/mask", "tokens")
    return {stage: _stage_row(wall.get(stage), *work.get(stage, (0.0, 0.0))) for stage in order}


def _stage_row(wall: float | None, seconds: float, megabytes: float) -> dict[str, float]:
    row = {} if wall is None else {"seconds": round(wall, 2)}
    if megabytes:
        row |= {"core_seconds": round(seconds, 2), "megabytes": round(megabytes, 1)}
        row["mb_per_core_second"] = round(megabytes / seconds, 1)
    return row
