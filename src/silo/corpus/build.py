"""`silo corpus build`: sources -> rights -> exact dedup -> decontamination -> near dedup -> masks -> tokens.

The corpus is a function of the set of input records alone: not of their order, of the number of workers, or of how
often the build was killed on the way. It grows in `<out>.building/` and is renamed when its manifest is written.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from silo import __version__
from silo.corpus.accounts import Reports, manifest_content, stage_times
from silo.corpus.corpus import Corpus
from silo.corpus.decontaminate import EvaluationText
from silo.corpus.exact import Summary, drop_repeats
from silo.corpus.runs import open_runs
from silo.corpus.shards import directory_name
from silo.corpus.stages import clean_domain, read_part, tokenise_shard
from silo.corpus.workers import Memory, Unit, run, wait_for_orphans
from silo.errors import SiloError
from silo.files import (
    MANIFEST,
    commit,
    exclusive,
    file_sha256,
    fingerprint,
    read_json,
    remove_tree,
    write_json,
    write_manifest,
)
from silo.progress import Advance
from silo.recipe import CorpusRecipe
from silo.records import Right
from silo.sources import SourcePart, plan
from silo.sources.evaluation import EvaluationRecord, read_evaluation
from silo.sources.reader.plan import expand
from silo.text.masks import check_kinds
from silo.text.tokenizer import load_tokenizer

_LOG = "build.json"
"""Times, memory and the key of the inputs: the one file that may differ between equal corpora."""


@dataclass(slots=True)
class _Build:
    """A build under way: where it lies and what it costs."""

    recipe: CorpusRecipe
    base: Path
    out: Path
    advance: Advance
    parts: list[SourcePart]
    evaluation: list[Path]
    memory: Memory = field(default_factory=Memory)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        return self.out.with_name(self.out.name + ".building")

    @property
    def guard(self) -> Path:
        return self.place / "workers.lock"

    @property
    def work(self) -> Path:
        return self.place / "work"

    @property
    def target(self) -> Path:
        return self.place / "corpus"


def build(
    recipe: CorpusRecipe, out: Path, *, base: Path, advance: Advance = lambda *_: None, force: bool = False
) -> dict[str, Any]:
    """Build a corpus at `out`, or go on with one that was interrupted; paths of the recipe are relative to `base`.

    Returns the summary that `silo corpus build --json` prints. A finished corpus from the same inputs is reused.
    """
    _check(recipe)
    recipe = _absolute(recipe, base)
    parts = [part for source in recipe.source for part in plan(source, base)]
    evaluation = sorted({path for pattern in recipe.decontaminate.files for path in expand(pattern, base)})
    job = _Build(recipe, base, out.absolute(), advance, parts, evaluation)
    key = _key(job)
    done = _finished(job.out, key, force=force)
    if done:
        remove_tree(job.place)
        return {**done, "reused": True}
    job.place.mkdir(parents=True, exist_ok=True)
    with exclusive(job.place / "lock"):
        wait_for_orphans(job.guard)
        _continue_or_restart(job, key)
        summary = _build(job, key)
        if job.out.exists():
            remove_tree(job.out)
        commit(job.target, job.out)
    remove_tree(job.place)
    return {**summary, "reused": False}


def _check(recipe: CorpusRecipe) -> None:
    check_kinds(recipe.pii.mask)
    grouped = [domain for domains in recipe.groups.values() for domain in domains]
    if twice := {domain for domain in grouped if grouped.count(domain) > 1}:
        raise SiloError("recipe-value", f"groups: {', '.join(sorted(twice))} must be in one group only")
    for source in recipe.source:
        for right in source.deny:
            if right not in list(Right):
                raise SiloError("recipe-value", f"deny: '{right}' is not one of {', '.join(Right)}")
    shares = {
        "dedup.threshold": recipe.dedup.threshold,
        "dedup.false_positive_rate": recipe.dedup.false_positive_rate,
        "decontaminate.threshold": recipe.decontaminate.threshold,
        "decontaminate.coverage": recipe.decontaminate.coverage,
    }
    for name, value in shares.items():
        if not 0 < value <= 1:
            raise SiloError("recipe-value", f"{name} must be above 0 and at most 1, not {value}")
    sizes = {
        "dedup.ngram": recipe.dedup.ngram,
        "dedup.bloom_mb": recipe.dedup.bloom_mb,
        "decontaminate.ngram": recipe.decontaminate.ngram,
        "shard_mb": recipe.shard_mb,
    }
    for name, size in sizes.items():
        if size < 1:
            raise SiloError("recipe-value", f"{name} must be at least 1, not {size}")


def _absolute(recipe: CorpusRecipe, base: Path) -> CorpusRecipe:
    workers = recipe.workers or len(os.sched_getaffinity(0))
    if not recipe.tokenizer or recipe.tokenizer == "bytes":
        return replace(recipe, workers=workers, tokenizer="")
    path = Path(recipe.tokenizer).expanduser()
    return replace(recipe, workers=workers, tokenizer=str(path if path.is_absolute() else base / path))


def _key(job: _Build) -> str:
    """Names recipe and inputs: a build goes on only if this has not changed."""
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in job.evaluation]
    recipe = asdict(replace(job.recipe, workers=0))
    tokenizer = load_tokenizer(job.recipe.tokenizer).fingerprint
    parts = [[part.path, part.label, part.stamp] for part in job.parts]
    return fingerprint([__version__, recipe, parts, files, tokenizer])


def _finished(out: Path, key: str, *, force: bool) -> dict[str, Any] | None:
    """The summary of a corpus that is already there and was made from the same inputs.

    With `force` a corpus may be replaced; what is not a corpus is never touched.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / MANIFEST).exists() or not (out / _LOG).exists():
        raise SiloError("out-exists", f"{out} is there and is not a corpus", "choose another --out")
    if force:
        return None
    log = read_json(out / _LOG)
    if log.get("key") != key:
        raise SiloError("out-exists", f"{out} holds a corpus made from other inputs or settings")
    Corpus.open(out)
    return dict(log["summary"])


def _continue_or_restart(job: _Build, key: str) -> None:
    mark = job.place / "key.json"
    if not mark.exists() or read_json(mark) != key:
        for path in (job.work, job.target):
            remove_tree(path)
        write_json(mark, key)
    for path in (job.work, job.target):
        path.mkdir(parents=True, exist_ok=True)


def _build(job: _Build, key: str) -> dict[str, Any]:
    start = time.perf_counter()
    read = _timed(job, "read", _read)
    if sum(report["read"] for report in read) == 0:
        raise SiloError("input-empty", "the sources hold no record at all")
    evaluated = _timed(job, "evaluation", _evaluation)
    exact = _timed(job, "exact", _exact)
    cleaned = _timed(job, "clean", lambda job: _clean(job, exact))
    tokenised = _timed(job, "tokens", lambda job: _tokenise(job, cleaned))
    _gather(job, exact)
    reports = Reports(read, cleaned, tokenised)
    content = manifest_content(
        job.recipe, reports, laundering=len(exact.laundering), evaluated=evaluated, files=_checksums(job, tokenised)
    )
    mark = write_manifest(job.target, content)
    summary = {
        **content["counts"],
        "fingerprint": mark,
        "out": str(job.out),
        "seconds": round(time.perf_counter() - start, 2),
        "peak_memory_mb": job.memory.total(),
        "workers": job.recipe.workers,
        "stages": stage_times(reports, job.seconds),
        "bloom": {report["domain"]: report["bloom"] for report in cleaned},
    }
    write_json(job.target / _LOG, {"key": key, "summary": summary})
    return summary


def _timed(job: _Build, stage: str, step: Any) -> Any:
    start = time.perf_counter()
    result = step(job)
    job.seconds[stage] = time.perf_counter() - start
    return result


def _run(job: _Build, stage: str, function: Any, units: list[Unit]) -> list[dict[str, Any]]:
    return run(
        stage,
        function,
        units,
        workers=job.recipe.workers,
        advance=job.advance,
        memory=job.memory,
        guard=job.guard,
    )


def _read(job: _Build) -> list[dict[str, Any]]:
    reports = job.work / "read"
    reports.mkdir(exist_ok=True)
    units = []
    for number, part in enumerate(job.parts):
        name = f"{number:06d}"
        arguments = (part, str(reports / name), job.recipe.limits)
        units.append(Unit(reports / f"{name}.json", arguments, part.bytes))
    return _run(job, "read", read_part, units)


def _evaluation(job: _Build) -> int:
    """Index the evaluation files; returns the number of evaluation documents."""
    if not job.evaluation:
        return 0
    mark = job.work / "evaluation.json"
    if not mark.exists():
        records = (item for path in job.evaluation for item in _shown(job, path))
        text = EvaluationText.build(job.recipe.decontaminate, records)
        text.save(job.work / "evaluation")
        write_json(mark, len(text.labels))
    return int(read_json(mark))


def _shown(job: _Build, path: Path) -> Iterable[EvaluationRecord]:
    job.advance("evaluation", job.evaluation.index(path), len(job.evaluation))
    yield from read_evaluation(path, job.recipe.limits)
    job.advance("evaluation", job.evaluation.index(path) + 1, len(job.evaluation))


def _exact(job: _Build) -> Summary:
    job.advance("exact", 0, 1)
    summary = drop_repeats(open_runs(job.work / "read"))
    job.advance("exact", 1, 1)
    return summary


def _clean(job: _Build, exact: Summary) -> list[dict[str, Any]]:
    reports = job.work / "clean"
    reports.mkdir(exist_ok=True)
    evaluation = str(job.work / "evaluation") if job.evaluation else ""
    units = []
    for domain, size in exact.domain_bytes.items():
        arguments = (job.recipe, domain, size, str(job.work / "read"), str(job.target), evaluation)
        units.append(Unit(reports / f"{directory_name(domain)}.json", arguments, size))
    return _run(job, "clean", clean_domain, units)


def _tokenise(job: _Build, cleaned: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokenise every shard; each report gains the shard's stem, tier and domain."""
    reports = job.work / "tokens"
    reports.mkdir(exist_ok=True)
    shards, units = [], []
    for report in cleaned:
        for tier, stem, size in report["shards"]:
            shards.append({"stem": stem, "tier": tier, "domain": report["domain"]})
            arguments = (str(job.target), stem, job.recipe.tokenizer)
            units.append(Unit(reports / f"{stem.replace('/', '-')}.json", arguments, size))
    done = _run(job, "tokens", tokenise_shard, units)
    return [{**shard, **report} for shard, report in zip(shards, done, strict=True)]


def _gather(job: _Build, exact: Summary) -> None:
    """Bring quarantined records and suspicious pairs into the corpus."""
    pieces = sorted((job.work / "read").glob("*/quarantined.zst"), key=file_sha256)
    with (job.target / "quarantined.jsonl.zst").open("wb") as stream:
        for piece in pieces:
            with piece.open("rb") as source:
                shutil.copyfileobj(source, stream)
    write_json(job.target / "laundering.json", exact.laundering)


def _checksums(job: _Build, tokenised: list[dict[str, Any]]) -> dict[str, str]:
    files = {
        f"shards/{shard['stem']}{suffix}": digest for shard in tokenised for suffix, digest in shard["sha256"].items()
    }
    others = [path for folder in ("rejected", "conflicts") for path in sorted((job.target / folder).glob("*"))]
    others += [job.target / "quarantined.jsonl.zst", job.target / "laundering.json"]
    return {**files, **{path.relative_to(job.target).as_posix(): file_sha256(path) for path in others}}
