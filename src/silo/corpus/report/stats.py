"""The paper's two corpus tables for any corpus, read from its manifest alone: no document is opened.

`overview` is the paper's tab:data: what each domain is made of. `distribution` is its tab:data-distribution: how the
domains share out each training set, beside a reference. Both speak of groups: the paper's domains are coarser than
ours, and the recipe's `groups` says which domains belong together; a domain named by no group is a group of its own.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from silo.corpus.corpus import Corpus
from silo.corpus.weights import SETS, set_tokens
from silo.errors import SiloError, did_you_mean
from silo.files import nearest_path
from silo.records import Tier

COLUMNS = ("tier", "domain", "source", "license")
"""What documents are counted by."""

_LISTED = 5


@dataclass(frozen=True, slots=True)
class Reference:
    """Another corpus to compare with: tokens per group."""

    name: str
    tokens: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Count:
    """What all documents of one name come to; `share` is that of the tokens of the corpus."""

    name: str
    documents: int
    bytes: int
    tokens: int
    share: float


@dataclass(frozen=True, slots=True)
class Holding:
    """One row of the overview: a group's documents of one tier, its sources and licences from large to small."""

    group: str
    tier: Tier
    sources: tuple[str, ...]
    licenses: tuple[str, ...]
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Amount:
    """Tokens of one group in one set, and their share of that set."""

    tokens: float
    share: float


@dataclass(frozen=True, slots=True)
class Spread:
    """One row of the distribution: `sets` has an amount for each of `SETS`. A group the reference lacks is 0 there."""

    group: str
    sets: Mapping[str, Amount]
    reference: Amount | None


@dataclass(frozen=True, slots=True)
class CorpusStats:
    """All numbers about one corpus. `counts` are those of the build; `weights` those that training uses."""

    fingerprint: str
    totals: Count
    counts: Mapping[str, Any]
    by: Mapping[str, tuple[Count, ...]]
    overview: tuple[Holding, ...]
    distribution: tuple[Spread, ...]
    weights: Mapping[str, Mapping[str, float]]
    reference: str | None

    def as_json(self) -> dict[str, Any]:
        """A plain mapping."""
        plain = asdict(self)
        del plain["totals"]["name"], plain["totals"]["share"]
        return dict(json.loads(json.dumps(plain)))


def corpus_stats(corpus: Corpus, *, reference: Reference | None = None) -> CorpusStats:
    """Count a corpus by tier, domain, source and licence, and lay its groups beside a reference."""
    table: list[dict[str, Any]] = corpus.manifest["table"]
    group_of = _grouping(corpus.manifest)
    return CorpusStats(
        fingerprint=corpus.fingerprint,
        totals=_count("total", table, sum(row["tokens"] for row in table)),
        counts=corpus.manifest["counts"],
        by={column: _count_by(table, column) for column in COLUMNS},
        overview=_overview(table, group_of),
        distribution=_distribution(table, group_of, reference),
        weights=corpus.manifest["weights"],
        reference=reference.name if reference else None,
    )


def _grouping(manifest: Mapping[str, Any]) -> Callable[[str], str]:
    """From a domain to its group."""
    group_of: dict[str, str] = {}
    for group, domains in manifest["recipe"].get("groups", {}).items():
        for domain in domains:
            if group_of.setdefault(domain, group) != group:
                raise SiloError("recipe-value", f"groups: '{domain}' is in both '{group_of[domain]}' and '{group}'")
    return lambda domain: group_of.get(domain, domain)


def _count(name: str, rows: Iterable[Mapping[str, Any]], everything: int) -> Count:
    documents, size, tokens = (sum(row[unit] for row in rows) for unit in ("documents", "bytes", "tokens"))
    return Count(name, documents, size, tokens, _share(tokens, everything))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _group_rows(
    rows: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], Any]
) -> dict[Any, list[dict[str, Any]]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _count_by(table: list[dict[str, Any]], column: str) -> tuple[Count, ...]:
    """Documents, bytes and tokens per value of a column, the most tokens first."""
    everything = sum(row["tokens"] for row in table)
    counts = [_count(name, rows, everything) for name, rows in _group_rows(table, lambda row: row[column]).items()]
    return tuple(sorted(counts, key=lambda count: (-count.tokens, count.name)))


def _tokens_per_group(
    table: Iterable[Mapping[str, Any]], group_of: Callable[[str], str], name: str = "all"
) -> Counter[str]:
    totals: Counter[str] = Counter()
    for domain, tokens in set_tokens(table, name).items():
        totals[group_of(domain)] += tokens
    return totals


def _overview(table: list[dict[str, Any]], group_of: Callable[[str], str]) -> tuple[Holding, ...]:
    """The largest group first; within a group the tiers by risk."""
    totals = _tokens_per_group(table, group_of)
    parts = _group_rows(table, lambda row: (group_of(row["domain"]), Tier(row["tier"])))
    holdings = [_holding(group, tier, rows) for (group, tier), rows in parts.items()]
    return tuple(sorted(holdings, key=lambda item: (-totals[item.group], item.group, item.tier.rank)))


def _holding(group: str, tier: Tier, rows: list[dict[str, Any]]) -> Holding:
    return Holding(
        group=group,
        tier=tier,
        sources=_shorten([count.name for count in _count_by(rows, "source")]),
        licenses=_shorten([count.name for count in _count_by(rows, "license")]),
        documents=sum(row["documents"] for row in rows),
        tokens=sum(row["tokens"] for row in rows),
    )


def _shorten(names: list[str]) -> tuple[str, ...]:
    if len(names) <= _LISTED:
        return tuple(names)
    first = _LISTED - 1
    return (*names[:first], f"and {len(names) - first} more")


def _distribution(
    table: list[dict[str, Any]], group_of: Callable[[str], str], reference: Reference | None
) -> tuple[Spread, ...]:
    """One row per group of the corpus or the reference; the largest of the corpus first."""
    sets = {name: _tokens_per_group(table, group_of, name) for name in SETS}
    other = reference.tokens if reference else {}
    groups = sorted(
        sets["all"].keys() | other.keys(), key=lambda group: (-sets["all"][group], -other.get(group, 0), group)
    )
    return tuple(
        Spread(
            group=group,
            sets={name: _amount(tokens, group) for name, tokens in sets.items()},
            reference=_amount(other, group) if reference else None,
        )
        for group in groups
    )


def _amount(tokens: Mapping[str, float], group: str) -> Amount:
    count = tokens.get(group, 0)
    return Amount(count, _share(count, sum(tokens.values())))


def load_reference(name_or_path: str | Path) -> Reference:
    """A reference by name (`pile`), from a corpus directory, or from a JSON or TOML file of tokens per group."""
    known = tomllib.loads(resources.files("silo.corpus.report").joinpath("references.toml").read_text(encoding="utf-8"))
    if str(name_or_path) in known:
        billions = known[str(name_or_path)]
        return Reference(str(name_or_path), {group: count * 1e9 for group, count in billions.items()})
    path = Path(name_or_path)
    if path.is_dir():
        return _corpus_reference(path)
    if not path.is_file():
        message = f"the reference '{path}' is neither a path nor one of: {', '.join(known)}"
        raise SiloError("input-missing", message, did_you_mean(str(path), known) or nearest_path(path))
    return Reference(path.stem, _check_reference(_parse_reference(path), path.name))


def _corpus_reference(path: Path) -> Reference:
    manifest = Corpus.open(path).manifest
    return Reference(path.resolve().name, _tokens_per_group(manifest["table"], _grouping(manifest)))


def _parse_reference(path: Path) -> Any:
    parsers: dict[str, Callable[[str], Any]] = {".json": json.loads, ".toml": tomllib.loads}
    if path.suffix not in parsers:
        raise SiloError("recipe-value", f"a reference is a .json or .toml file or a corpus, not {path.name}")
    try:
        return parsers[path.suffix](path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SiloError("recipe-value", f"{path.name} cannot be read: {error}") from None
    except OSError as error:
        raise SiloError("input-unreadable", f"{path.name} cannot be read: {error.strerror}") from None


def _check_reference(content: Any, where: str) -> dict[str, float]:
    if not isinstance(content, dict) or not content:
        raise SiloError("recipe-value", f"{where} must name at least one group and its tokens")
    for group, tokens in content.items():
        number = isinstance(tokens, int | float) and not isinstance(tokens, bool)
        if not number or not math.isfinite(tokens) or tokens < 0:
            raise SiloError("recipe-value", f"{where}: the tokens of '{group}' must be a number of 0 or more")
    if not any(content.values()):
        raise SiloError("recipe-value", f"{where} holds no tokens at all")
    return content
