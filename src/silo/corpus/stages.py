"""The three parallel stages of a build: read a part, clean a domain, tokenise a shard.

Each function takes plain values, writes its files, and returns a report of counts; none of them depends on how the
work was divided, so the same documents always give the same bytes.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import zstandard

from silo.corpus.decontaminate import EvaluationText
from silo.corpus.dedup import NearDuplicates
from silo.corpus.runs import KEPT, SAME_TEXT, RunWriter, Spooled, merged, open_runs
from silo.corpus.shards import INDEX, RECORDS, TOKENS, ShardWriter, directory_name, write_tokens
from silo.corpus.workers import tick
from silo.files import file_sha256, remove_tree
from silo.recipe import MIB, CorpusRecipe, Limits
from silo.records import Candidate, Right, Tier
from silo.sources import SourcePart, judge, read
from silo.text.masks import mask_personal_data, masked_share
from silo.text.tokenizer import Tokenizer, load_tokenizer

_TYPICAL_PACKING = 3.5
"""Text bytes per packed byte, to show progress inside a packed file; nothing else depends on it."""


@dataclass(slots=True)
class Clock:
    """Seconds spent per step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start


def read_part(part: SourcePart, directory: str, limits: Limits) -> dict[str, Any]:
    """Stage 1: records of one part -> documents with a verdict, in sorted runs; unreadable records set aside."""
    start = time.perf_counter()
    target = Path(directory)
    remove_tree(target)
    target.mkdir(parents=True)
    runs = RunWriter(target)
    count = text_bytes = shown = 0
    codes: Counter[str] = Counter()
    deny = tuple(map(Right, part.recipe.deny))
    packing = _TYPICAL_PACKING if Path(part.path).suffix in (".gz", ".zst", ".parquet") else 1.0
    with _packed_lines(target / "quarantined.zst") as quarantined:
        for item in read(part, limits):
            count += 1
            if isinstance(item, Candidate):
                text_bytes += runs.add(judge(item, deny))
            else:
                codes[item.code] += 1
                quarantined.write(json.dumps(item.as_json(), ensure_ascii=True).encode() + b"\n")
            guess = min(part.bytes, int(text_bytes / packing))
            tick(guess - shown)
            shown = guess
    runs.flush()
    tick(part.bytes - shown)
    return {
        "read": count,
        "quarantined": sum(codes.values()),
        "codes": dict(codes),
        "bytes": text_bytes,
        "seconds": time.perf_counter() - start,
    }


class _Cleaner:
    """The rules a document must pass, in order; the first that fails names the reason."""

    def __init__(self, recipe: CorpusRecipe, domain: str, text_bytes: int, evaluation: str) -> None:
        self.clock = Clock()
        self._recipe = recipe
        self._masks = recipe.pii.kinds(domain)
        self._near = NearDuplicates.for_text(recipe.dedup, text_bytes) if recipe.dedup.enabled else None
        self._evaluation = EvaluationText.open(Path(evaluation), recipe.decontaminate) if evaluation else None

    def reason(self, item: Spooled, record: dict[str, Any]) -> tuple[str, str]:
        """Why a document is rejected, and a detail; two empty strings if it is not."""
        text, rights = record["text"], record["rights"]
        if item.why != KEPT:
            return ("exact-duplicate" if item.why == SAME_TEXT else "duplicate-id"), f"of {item.winner}"
        if len(text) < self._recipe.min_chars:
            return "too-short", f"{len(text)} characters"
        if not (rights["train"] or rights["store"]):
            return "no-rights", "neither training nor storing is allowed"
        if (share := masked_share(text)) > self._recipe.pii.max_masked_share:
            return "mostly-masked", f"{share:.2f} of the words"
        with self.clock.time("decontaminate"):
            leak = self._evaluation.leak(text) if self._evaluation else None
        if leak:
            return "contaminated", f"{leak.share:.2f} of it in, {leak.coverage:.2f} of {leak.evaluation}"
        with self.clock.time("dedup"):
            share = self._near.seen_share(text) if self._near else 0.0
        if self._near and self._near.is_duplicate(share):
            return "near-duplicate", f"{share:.2f} seen before"
        return "", ""

    def mask(self, text: str) -> tuple[str, int]:
        """The text with personal data masked."""
        if not self._masks:
            return text, 0
        with self.clock.time("mask"):
            return mask_personal_data(text, self._masks)

    def bloom_report(self) -> dict[str, Any]:
        """Size and present false-positive rate of the filter."""
        if not self._near:
            return {}
        bloom = self._near.bloom
        return {"megabytes": round(bloom.bits.nbytes / MIB, 2), "false_positive_rate": bloom.false_positive_rate()}


def clean_domain(
    recipe: CorpusRecipe, domain: str, text_bytes: int, runs: str, target: str, evaluation: str
) -> dict[str, Any]:
    """Stage 2: all documents of one domain in order of risk -> shards of records, and a reason for every drop."""
    start = time.perf_counter()
    root, name = Path(target), directory_name(domain)
    for tier in Tier:
        remove_tree(root / "shards" / tier / name)
    cleaner = _Cleaner(recipe, domain, text_bytes, evaluation)
    reasons: Counter[str] = Counter()
    masked = seen_bytes = disputed = 0
    (root / "rejected").mkdir(parents=True, exist_ok=True)
    (root / "conflicts").mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        rejected = stack.enter_context(_packed_lines(root / "rejected" / f"{name}.jsonl.zst"))
        conflicts = stack.enter_context(_packed_lines(root / "conflicts" / f"{name}.jsonl.zst"))
        shards = partial(ShardWriter, root / "shards", domain=domain, shard_bytes=recipe.shard_mb * MIB)
        writers = {tier: stack.enter_context(shards(tier)) for tier in Tier}
        for item in merged(open_runs(Path(runs)), domain):
            record = json.loads(item.line)
            size = len(record["text"].encode())
            seen_bytes += size
            tick(size)
            reason, detail = cleaner.reason(item, record)
            if reason:
                reasons[reason] += 1
                rejected.write(_rejection(record, reason, detail))
                continue
            text, replaced = cleaner.mask(record["text"])
            line = item.line
            if replaced:
                masked += replaced
                record["text"] = text
                line = json.dumps(record, ensure_ascii=False).encode()
            writers[Tier(record["tier"])].add(line, size)
            if record["conflicts"]:
                disputed += 1
                conflicts.write(_conflict(record))
    seconds = {**cleaner.clock.seconds, "total": time.perf_counter() - start}
    return {
        "domain": domain,
        "reasons": dict(sorted(reasons.items())),
        "masked": masked,
        "conflicts": disputed,
        "bloom": cleaner.bloom_report(),
        "bytes": seen_bytes,
        "shards": [[str(tier), *shard] for tier, writer in writers.items() for shard in writer.written],
        "seconds": seconds,
    }


def tokenise_shard(target: str, stem: str, tokenizer_path: str) -> dict[str, Any]:
    """Stage 3: the records of one shard -> token ids and an index; returns counts and checksums."""
    start = time.perf_counter()
    root = Path(target) / "shards"
    table: dict[tuple[str, str], list[int]] = {}
    for written in write_tokens(root, stem, _tokenizer(tokenizer_path)):
        row = table.setdefault((written.source, written.license), [0, 0, 0, 0])
        for column, amount in enumerate((1, written.bytes, written.tokens, written.train_tokens)):
            row[column] += amount
        tick(written.bytes)
    return {
        "table": [[*key, *row] for key, row in sorted(table.items())],
        "sha256": {suffix: file_sha256(root / (stem + suffix)) for suffix in (RECORDS, TOKENS, INDEX)},
        "seconds": time.perf_counter() - start,
    }


@cache
def _tokenizer(path: str) -> Tokenizer:
    return load_tokenizer(path)


@contextmanager
def _packed_lines(path: Path) -> Iterator[zstandard.ZstdCompressionWriter]:
    with path.open("wb") as stream, zstandard.ZstdCompressor(level=3).stream_writer(stream) as packed:
        yield packed


def _rejection(record: dict[str, Any], reason: str, detail: str) -> bytes:
    kept = {key: record[key] for key in ("id", "external_id", "source", "domain", "license", "tier")}
    return json.dumps({**kept, "reason": reason, "detail": detail}, ensure_ascii=False).encode() + b"\n"


def _conflict(record: dict[str, Any]) -> bytes:
    kept = {key: record[key] for key in ("id", "external_id", "source", "domain", "license", "tier", "conflicts")}
    return json.dumps({"kind": "evidence", **kept}, ensure_ascii=False).encode() + b"\n"
