"""Stage 2 of a build: the documents of one domain, in order of risk -> shards of records, and a reason for every drop.

The result does not depend on how the work was divided: the same documents always give the same bytes.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import zstandard

from silo.corpus.decontaminate import EvaluationText
from silo.corpus.dedup import NearDuplicates
from silo.corpus.runs import KEPT, SAME_TEXT, Spooled, merge_runs, open_runs
from silo.corpus.shards import ShardWriter, directory_name, open_line_writer
from silo.corpus.workers import tick
from silo.files import remove_tree
from silo.recipe import MIB, CorpusRecipe
from silo.records import Tier
from silo.text.masks import mask_personal_data, masked_share


def clean_domain(
    recipe: CorpusRecipe, domain: str, text_bytes: int, runs: str, target: str, evaluation: str
) -> dict[str, Any]:
    """Clean one domain from the beginning and report counts; `evaluation` is empty if nothing is kept out."""
    start = time.perf_counter()
    cleaner = _Cleaner(recipe, domain, text_bytes, evaluation)
    reasons: Counter[str] = Counter()
    masked = read_bytes = 0
    with _DomainFiles(Path(target), domain, shard_bytes=recipe.shard_mb * MIB) as files:
        for item in merge_runs(open_runs(Path(runs)), domain):
            record = json.loads(item.line)
            size = len(record["text"].encode())
            read_bytes += size
            tick(size)
            reason, detail = cleaner.reject_reason(item, record)
            if reason:
                reasons[reason] += 1
                files.reject(record, reason, detail)
                continue
            text, replaced = cleaner.mask(record["text"])
            line = item.line
            if replaced:
                masked += replaced
                record["text"] = text
                line = json.dumps(record, ensure_ascii=False).encode()
            files.keep(record, line, size)
    return {
        "domain": domain,
        "reasons": dict(sorted(reasons.items())),
        "masked": masked,
        "conflicts": files.conflicts,
        "bloom": cleaner.bloom_report(),
        "bytes": read_bytes,
        "shards": files.shards(),
        "seconds": {**cleaner.seconds, "total": time.perf_counter() - start},
    }


class _Cleaner:
    """The rules a document must pass, in order; the first that fails names the reason. Keeps time per step."""

    def __init__(self, recipe: CorpusRecipe, domain: str, text_bytes: int, evaluation: str) -> None:
        self.seconds: dict[str, float] = {}
        self._recipe = recipe
        self._masks = recipe.pii.kinds(domain)
        self._near = NearDuplicates.for_text(recipe.dedup, text_bytes) if recipe.dedup.enabled else None
        self._evaluation = EvaluationText.open(Path(evaluation), recipe.decontaminate) if evaluation else None

    def reject_reason(self, item: Spooled, record: dict[str, Any]) -> tuple[str, str]:
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
        with self._time("decontaminate"):
            leak = self._evaluation.leak(text) if self._evaluation else None
        if leak:
            return "contaminated", leak.in_words()
        with self._time("dedup"):
            share = self._near.seen_share(text) if self._near else 0.0
        if self._near and self._near.is_duplicate(share):
            return "near-duplicate", f"{share:.2f} seen before"
        return "", ""

    def mask(self, text: str) -> tuple[str, int]:
        """The text with personal data masked, and how much was."""
        if not self._masks:
            return text, 0
        with self._time("mask"):
            return mask_personal_data(text, self._masks)

    def bloom_report(self) -> dict[str, Any]:
        """Size and present false-positive rate of the filter."""
        if not self._near:
            return {}
        bloom = self._near.bloom
        return {"megabytes": round(bloom.bits.nbytes / MIB, 2), "false_positive_rate": bloom.false_positive_rate()}

    @contextmanager
    def _time(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start


class _DomainFiles:
    """What cleaning leaves of one domain: shards by tier, `rejected/` and `conflicts/`. Begins from nothing."""

    def __init__(self, target: Path, domain: str, *, shard_bytes: int) -> None:
        self.conflicts = 0
        self._name = directory_name(domain)
        self._target = target
        self._writers = {tier: ShardWriter(target / "shards", tier, domain, shard_bytes=shard_bytes) for tier in Tier}
        self._stack = ExitStack()

    def __enter__(self) -> _DomainFiles:
        for tier in Tier:
            remove_tree(self._target / "shards" / tier / self._name)
        self._rejected, self._conflicts = (self._open(folder) for folder in ("rejected", "conflicts"))
        for writer in self._writers.values():
            self._stack.enter_context(writer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _open(self, folder: str) -> zstandard.ZstdCompressionWriter:
        (self._target / folder).mkdir(parents=True, exist_ok=True)
        return self._stack.enter_context(open_line_writer(self._target / folder / f"{self._name}.jsonl.zst"))

    def keep(self, record: dict[str, Any], line: bytes, text_bytes: int) -> None:
        """Write a document into the shard of its tier; one with disputed evidence is also listed."""
        self._writers[Tier(record["tier"])].add(line, text_bytes)
        if record["conflicts"]:
            self.conflicts += 1
            self._conflicts.write(_line({"kind": "evidence", **_facts(record), "conflicts": record["conflicts"]}))

    def reject(self, record: dict[str, Any], reason: str, detail: str) -> None:
        self._rejected.write(_line({**_facts(record), "reason": reason, "detail": detail}))

    def shards(self) -> list[list[Any]]:
        """Tier, stem and text bytes of every finished shard."""
        return [[str(tier), *shard] for tier, writer in self._writers.items() for shard in writer.written]


def _facts(record: dict[str, Any]) -> dict[str, Any]:
    return {key: record[key] for key in ("id", "external_id", "source", "domain", "license", "tier")}


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"
