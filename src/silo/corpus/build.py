"""`silo corpus build`: sources -> rights -> exact dedup -> decontamination -> near dedup -> masks -> tokens.

The corpus is a function of the set of input records alone: not of their order, of the number of workers, or of how
often the build was killed on the way. It grows in `<out>.building/` and is renamed when its manifest is written.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from silo import __version__
from silo.corpus.clean import clean_domain
from silo.corpus.corpus import OPT_OUTS, Corpus
from silo.corpus.decontaminate import EvaluationText, evaluation_files
from silo.corpus.exact import ExactSummary, drop_repeats
from silo.corpus.manifest import Reports, add_up, manifest_content, stage_times
from silo.corpus.read import QUARANTINED, read_part
from silo.corpus.runs import open_runs
from silo.corpus.shards import directory_name, read_lines, tokenise_shard
from silo.corpus.workers import Memory, Processes, RunTasks, Task, TaskFunction, run_tasks, wait_for_orphans
from silo.errors import CODES, SiloError
from silo.files import (
    MANIFEST,
    commit,
    exclusive,
    file_sha256,
    fingerprint,
    locked_directory,
    read_json,
    remove_tree,
    write_json,
    write_manifest,
)
from silo.progress import Advance
from silo.recipe import CorpusRecipe
from silo.records import Right
from silo.sources import SourcePart, plan
from silo.sources.reader.skipped import skipped_facts
from silo.text.masks import check_kinds
from silo.text.tokenizer import load_tokenizer

_LOG = "build.json"
"""Times, memory and the key of the inputs: the one file that may differ between equal corpora."""


@dataclass(slots=True)
class _Build:
    """A build under way: where it lies and what it costs."""

    recipe: CorpusRecipe
    out: Path
    advance: Advance
    parts: list[SourcePart]
    evaluation: list[Path]
    run_tasks: RunTasks
    memory: Memory = field(default_factory=Memory)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.out.with_name(self.out.name + ".building")

    @property
    def workers_lock(self) -> Path:
        return self.workspace / "workers.lock"

    @property
    def scratch(self) -> Path:
        return self.workspace / "work"

    @property
    def target(self) -> Path:
        return self.workspace / "corpus"

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - start

    def run(self, stage: str, function: TaskFunction, tasks: list[Task]) -> list[dict[str, Any]]:
        """The reports of all tasks of a stage."""
        return run_tasks(
            stage,
            function,
            tasks,
            run=self.run_tasks,
            advance=self.advance,
            memory=self.memory,
            lock=self.workers_lock,
        )


def build(
    recipe: CorpusRecipe,
    out: Path,
    *,
    base: Path,
    advance: Advance = lambda *_: None,
    force: bool = False,
    run_tasks: RunTasks | None = None,
) -> dict[str, Any]:
    """Build a corpus at `out`, or go on with one that was interrupted; paths of the recipe are relative to `base`.

    Returns the summary that `silo corpus build --json` prints. A finished corpus from the same inputs is reused. Tasks
    are done by `run_tasks`, by processes of this machine without it.
    """
    _check_recipe(recipe)
    recipe = _complete_recipe(recipe, base)
    parts = [part for source in recipe.source for part in plan(source, base)]
    evaluation = evaluation_files(recipe.decontaminate, base)
    job = _Build(recipe, out.absolute(), advance, parts, evaluation, run_tasks or Processes(recipe.workers))
    key = _inputs_key(job)
    finished = _finished_summary(job.out, key, force=force)
    if finished:
        remove_tree(job.workspace)
        return {**finished, "reused": True}
    job.workspace.mkdir(parents=True, exist_ok=True)
    with exclusive(job.workspace / "lock"):
        wait_for_orphans(job.workers_lock)
        _continue_or_restart(job, key)
        summary = _run_stages(job, key)
        if job.out.exists():
            _replace(job)
        commit(job.target, job.out)
    remove_tree(job.workspace)
    return {**summary, "reused": False}


def _replace(job: _Build) -> None:
    """Remove the corpus that was there; who opted out of it has opted out of the new one."""
    with locked_directory(job.out, wait=True):
        if (job.out / OPT_OUTS).exists():
            carry_opt_outs(job.out, job.target)
        remove_tree(job.out)


def carry_opt_outs(old: Path, new: Path) -> None:
    """Let those who opted out of a corpus have opted out of the one that takes its place."""
    Corpus(new, {}).opt_out(Corpus(old, {}).opted_out())


def _check_recipe(recipe: CorpusRecipe) -> None:
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
        "decontaminate.common": recipe.decontaminate.common,
        "shard_mb": recipe.shard_mb,
    }
    for name, size in sizes.items():
        if size < 1:
            raise SiloError("recipe-value", f"{name} must be at least 1, not {size}")


def _complete_recipe(recipe: CorpusRecipe, base: Path) -> CorpusRecipe:
    """The recipe with the number of workers and an absolute path of the tokenizer."""
    workers = recipe.workers or len(os.sched_getaffinity(0))
    if not recipe.tokenizer or recipe.tokenizer == "bytes":
        return replace(recipe, workers=workers, tokenizer="")
    path = Path(recipe.tokenizer).expanduser()
    return replace(recipe, workers=workers, tokenizer=str(path if path.is_absolute() else base / path))


def _inputs_key(job: _Build) -> str:
    """Names recipe and inputs: a build goes on only if this has not changed."""
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in job.evaluation]
    recipe = asdict(replace(job.recipe, workers=0))
    tokenizer = load_tokenizer(job.recipe.tokenizer).fingerprint
    parts = [[part.path, part.label, part.stamp] for part in job.parts]
    return fingerprint([__version__, recipe, parts, files, tokenizer])


def _finished_summary(out: Path, key: str, *, force: bool) -> dict[str, Any] | None:
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
    key_file = job.workspace / "key.json"
    if not key_file.exists() or read_json(key_file) != key:
        for path in (job.scratch, job.target):
            remove_tree(path)
        write_json(key_file, key)
    for path in (job.scratch, job.target):
        path.mkdir(parents=True, exist_ok=True)


def _run_stages(job: _Build, key: str) -> dict[str, Any]:
    """Every stage in order, then the manifest; returns the summary."""
    start = time.perf_counter()
    with job.time("read"):
        read = _read_parts(job)
    _require_readable(job, read)
    with job.time("evaluation"):
        evaluation_documents = _index_evaluation(job)
    with job.time("exact"):
        exact = _drop_exact_repeats(job)
    with job.time("clean"):
        cleaned = _clean_domains(job, exact)
    with job.time("tokens"):
        tokenised = _tokenise_shards(job, cleaned)
    _gather(job, exact)
    reports = Reports(read, cleaned, tokenised)
    content = manifest_content(
        job.recipe,
        reports,
        laundering=len(exact.laundering),
        evaluation_documents=evaluation_documents,
        files=_checksums(job, tokenised),
    )
    _require_accepted(content["counts"])
    corpus_fingerprint = write_manifest(job.target, content)
    summary = {
        **content["counts"],
        "derived_ids": sum(report["derived_ids"] for report in read),
        **skipped_facts(item for part in job.parts for item in part.skipped),
        "fingerprint": corpus_fingerprint,
        "out": str(job.out),
        "seconds": round(time.perf_counter() - start, 2),
        "peak_memory_mb": job.memory.total(),
        "workers": job.recipe.workers,
        "stages": stage_times(reports, job.seconds),
        "bloom": {report["domain"]: report["bloom"] for report in cleaned},
    }
    write_json(job.target / _LOG, {"key": key, "summary": summary})
    return summary


def _read_parts(job: _Build) -> list[dict[str, Any]]:
    folder = job.scratch / "read"
    folder.mkdir(exist_ok=True)
    tasks = []
    for number, part in enumerate(job.parts):
        name = f"{number:06d}"
        tasks.append(Task(folder / f"{name}.json", (part, str(folder / name), job.recipe.limits), part.bytes))
    return job.run("read", read_part, tasks)


def _require_readable(job: _Build, read: list[dict[str, Any]]) -> None:
    """Refuse sources of which nothing can be read, and say what most of their records suffer from."""
    records, codes = sum(report["read"] for report in read), add_up(report["codes"] for report in read)
    if records == 0:
        raise SiloError("input-empty", "the sources hold no record at all")
    if codes.total() < records:
        return
    often = codes.most_common(3)
    reasons = ", ".join(f"{code} ({count:,})" for code, count in often)
    lines = (line for path in sorted(job.scratch.glob(f"read/*/{QUARANTINED}")) for line in read_lines(path))
    first = next(item for item in map(json.loads, lines) if item["code"] == often[0][0])
    what = f"none of {records:,} records can be read: {reasons}; for example {first['where']}: {first['message']}"
    raise SiloError("input-empty", what[:600], CODES[often[0][0]].hint)


def _require_accepted(counts: Mapping[str, Any]) -> None:
    """Refuse to call nothing a corpus."""
    if counts["accepted"] == 0:
        reasons = ", ".join(f"{reason} ({count:,})" for reason, count in counts["reasons"].items())
        raise SiloError("input-empty", f"none of {counts['read']:,} records is left: {reasons}"[:600])


def _index_evaluation(job: _Build) -> int:
    """Index the evaluation files; returns the number of evaluation documents."""
    if not job.evaluation:
        return 0
    count_file = job.scratch / "evaluation.json"
    if not count_file.exists():
        recipe = job.recipe
        text = EvaluationText.read(recipe.decontaminate, job.evaluation, limits=recipe.limits, advance=job.advance)
        text.save(job.scratch / "evaluation")
        write_json(count_file, len(text.labels))
    return int(read_json(count_file))


def _drop_exact_repeats(job: _Build) -> ExactSummary:
    job.advance("exact", 0, 1)
    summary = drop_repeats(open_runs(job.scratch / "read"))
    job.advance("exact", 1, 1)
    return summary


def _clean_domains(job: _Build, exact: ExactSummary) -> list[dict[str, Any]]:
    folder = job.scratch / "clean"
    folder.mkdir(exist_ok=True)
    evaluation = str(job.scratch / "evaluation") if job.evaluation else ""
    tasks = []
    for domain, size in exact.domain_bytes.items():
        arguments = (job.recipe, domain, size, str(job.scratch / "read"), str(job.target), evaluation)
        tasks.append(Task(folder / f"{directory_name(domain)}.json", arguments, size))
    return job.run("clean", clean_domain, tasks)


def _tokenise_shards(job: _Build, cleaned: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokenise every shard; each report gains the shard's stem, tier and domain."""
    folder = job.scratch / "tokens"
    folder.mkdir(exist_ok=True)
    shards, tasks = [], []
    for report in cleaned:
        for tier, stem, size in report["shards"]:
            shards.append({"stem": stem, "tier": tier, "domain": report["domain"]})
            arguments = (str(job.target), stem, job.recipe.tokenizer)
            tasks.append(Task(folder / f"{stem.replace('/', '-')}.json", arguments, size))
    reports = job.run("tokens", tokenise_shard, tasks)
    return [{**shard, **report} for shard, report in zip(shards, reports, strict=True)]


def _gather(job: _Build, exact: ExactSummary) -> None:
    """Bring quarantined records and suspicious pairs into the corpus."""
    pieces = sorted((job.scratch / "read").glob(f"*/{QUARANTINED}"), key=file_sha256)
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
