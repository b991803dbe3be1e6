"""The n-gram overlap of training domains with evaluation domains, as in the paper's "Additional Data Analysis".

From every domain up to `sample_tokens` words are taken, stopwords are dropped, and the unigrams and bigrams of what is
left are kept if at least `min_documents` documents hold them. A cell's `coverage` is the share of the evaluation
domain's kept n-grams that the training domain keeps too; `jaccard` is their share of both domains' n-grams together. A
domain that keeps none at all has 0 in its cells, and does not count in means. Coverage grows with the
training sample: compare only what was made with the same settings.

A word is what `silo.text.words` calls a word. N-grams are compared by 64-bit hashes.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from silo.corpus.corpus import Corpus
from silo.corpus.workers import Memory, Processes, Task, run_tasks, tick
from silo.errors import SiloError
from silo.progress import Advance
from silo.records import TRAINING_SETS, Tier
from silo.sources.evaluation import read_evaluation
from silo.text.normalise import normalise
from silo.text.words import Hashes, word_hashes

_PAIR = np.uint64(0x9E3779B97F4A7C15)
"""Two words hash to `first * _PAIR + second`: their order counts, and n-grams clash as rarely as words do."""

_BYTES_PER_WORD = 6

Matrix = tuple[tuple[float, ...], ...]
Texts = Callable[..., Iterator[str]]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How n-grams are taken from a domain."""

    sample_tokens: int
    min_documents: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What was taken from one domain: documents, their words, and the n-grams that were kept."""

    documents: int
    words: int
    ngrams: int


@dataclass(frozen=True, slots=True)
class Maximum:
    """The training domain that covers most of one evaluation domain; none does if the coverage is 0."""

    row: str | None
    coverage: float


@dataclass(frozen=True, slots=True)
class Overlap:
    """The matrix: one row per training domain, one column per evaluation domain, both sorted by name."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    coverage: Matrix
    jaccard: Matrix
    row_samples: tuple[Sample, ...]
    column_samples: tuple[Sample, ...]
    sampling: Sampling
    tiers: tuple[Tier, ...]

    def maximum(self) -> dict[str, Maximum]:
        """Per evaluation domain the best covering training domain, the first by name if several are equal."""
        values = np.array(self.coverage)
        best = values.argmax(axis=0)
        return {
            column: Maximum(self.rows[row] if values[row, at] else None, float(values[row, at]))
            for at, (column, row) in enumerate(zip(self.columns, best, strict=True))
        }

    def measured_coverage(self) -> dict[str, float]:
        """The maximum coverage of every evaluation domain that has any n-grams."""
        maximum = self.maximum()
        kept = zip(self.columns, self.column_samples, strict=True)
        return {column: maximum[column].coverage for column, sample in kept if sample.ngrams}

    def mean_maximum(self) -> float:
        """The paper's figure: 0.17 for its corpus, 0.28 for the Pile's training text."""
        values = list(self.measured_coverage().values())
        return float(np.mean(values)) if values else 0.0

    def std_maximum(self) -> float:
        """Standard deviation over the evaluation domains, taken as the whole population."""
        values = list(self.measured_coverage().values())
        return float(np.std(values)) if values else 0.0

    def as_json(self) -> dict[str, Any]:
        """A plain mapping."""
        rows = dict(zip(self.rows, self.row_samples, strict=True))
        columns = dict(zip(self.columns, self.column_samples, strict=True))
        sides = {"rows": rows, "columns": columns}
        return {
            "rows": list(self.rows),
            "columns": list(self.columns),
            "coverage": [list(row) for row in self.coverage],
            "jaccard": [list(row) for row in self.jaccard],
            "maximum": {column: asdict(best) for column, best in self.maximum().items()},
            "mean_maximum": self.mean_maximum(),
            "std_maximum": self.std_maximum(),
            "settings": {
                **asdict(self.sampling),
                "tiers": [str(tier) for tier in self.tiers],
                "ngrams": [1, 2],
                "stopwords": len(stopwords()),
            },
            "ngrams": {side: {name: item.ngrams for name, item in named.items()} for side, named in sides.items()},
            "samples": {side: {name: asdict(item) for name, item in named.items()} for side, named in sides.items()},
        }


def overlap_matrix(
    corpus: Corpus,
    against: Sequence[Path],
    *,
    sample_tokens: int = 10_000_000,
    min_documents: int = 3,
    tiers: Iterable[Tier] = TRAINING_SETS["pdswby"],
    workers: int = 2,
    advance: Advance = lambda *_: None,
) -> Overlap:
    """Compare every domain of some tiers of a corpus with every domain of the evaluation files.

    An evaluation record belongs to the domain it names, or else to one called like its file.
    """
    sampling = Sampling(sample_tokens, min_documents)
    _check_sampling(sampling)
    chosen = tuple(sorted(set(map(Tier, tiers))))
    row_bytes = _domain_bytes(corpus, chosen)
    column_files = _domain_files(against)
    with tempfile.TemporaryDirectory(prefix="silo-overlap-") as name:
        rows = [
            _task(Path(name, f"row-{at}"), _row_texts, (corpus.root, domain, chosen), size, sampling)
            for at, (domain, size) in enumerate(row_bytes.items())
        ]
        columns = [
            _task(Path(name, f"column-{at}"), _column_texts, (files, domain), _size(files), sampling)
            for at, (domain, files) in enumerate(column_files.items())
        ]
        reports = run_tasks(
            "overlap", _sample_domain, [*rows, *columns], run=Processes(workers), advance=advance, memory=Memory()
        )
        samples = [Sample(**report) for report in reports]
        coverage, jaccard = _compare([_load_ngrams(task) for task in rows], [_load_ngrams(task) for task in columns])
    return Overlap(
        rows=tuple(row_bytes),
        columns=tuple(column_files),
        coverage=coverage,
        jaccard=jaccard,
        row_samples=tuple(samples[: len(rows)]),
        column_samples=tuple(samples[len(rows) :]),
        sampling=sampling,
        tiers=chosen,
    )


def _check_sampling(sampling: Sampling) -> None:
    for name, value in asdict(sampling).items():
        if value < 1:
            raise SiloError("recipe-value", f"{name} must be at least 1, not {value}")


def _domain_bytes(corpus: Corpus, tiers: tuple[Tier, ...]) -> dict[str, int]:
    """The domains that hold documents of some tiers, and how much text."""
    sizes: dict[str, int] = {}
    for shard in corpus.manifest["shards"]:
        if shard["tier"] in tiers:
            sizes[shard["domain"]] = sizes.get(shard["domain"], 0) + shard["bytes"]
    if not sizes:
        raise SiloError("input-empty", f"{corpus.root} holds no document of the tiers {', '.join(tiers) or '(none)'}")
    return dict(sorted(sizes.items()))


def _domain_files(against: Sequence[Path]) -> dict[str, tuple[Path, ...]]:
    """Which evaluation files speak of which domain; every record is read once to find out."""
    files: dict[str, dict[Path, None]] = {}
    for path in sorted({path.absolute() for path in against}):
        for record in read_evaluation(path):
            files.setdefault(record.domain, {})[path] = None
    if not files:
        raise SiloError("input-empty", "the evaluation files hold no record")
    return {domain: tuple(paths) for domain, paths in sorted(files.items())}


def _size(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _task(out: Path, texts: Texts, arguments: tuple[Any, ...], size: int, sampling: Sampling) -> Task:
    most = _BYTES_PER_WORD * sampling.sample_tokens
    return Task(out.with_suffix(".json"), (texts, arguments, sampling, out.with_suffix(".npy")), min(size, most))


def _sample_domain(texts: Texts, arguments: tuple[Any, ...], sampling: Sampling, out: Path) -> dict[str, Any]:
    """Sample one domain, leave its n-grams in a file and report how many there are."""
    sample, ngrams = sample_ngrams(texts(*arguments), sampling)
    np.save(out, ngrams, allow_pickle=False)
    return asdict(sample)


def _load_ngrams(task: Task) -> Hashes:
    ngrams: Hashes = np.load(task.report.with_suffix(".npy"), mmap_mode="r")
    return ngrams


def _row_texts(root: Path, domain: str, tiers: tuple[Tier, ...]) -> Iterator[str]:
    """The texts of a domain in the order of their ids, which are hashes: its beginning is a random sample."""
    corpus = Corpus.open(root)
    views = [corpus.documents(tiers=(tier,), domains=(domain,)) for tier in tiers]
    for document in heapq.merge(*views, key=lambda document: document.id):
        yield document.text


def _column_texts(files: tuple[Path, ...], domain: str) -> Iterator[str]:
    for path in files:
        for record in read_evaluation(path):
            if record.domain == domain:
                yield normalise(record.text)


def sample_ngrams(texts: Iterable[str], sampling: Sampling) -> tuple[Sample, Hashes]:
    """Read texts until there are enough words; returns the sorted n-grams that enough documents hold."""
    per_document: list[Hashes] = []
    words = 0
    for text in texts:
        taken = word_hashes(text)[: sampling.sample_tokens - words]
        words += len(taken)
        per_document.append(_document_ngrams(taken))
        tick(len(text))
        if words == sampling.sample_tokens:
            break
    documents = len(per_document)
    ngrams = _frequent_ngrams(per_document, sampling.min_documents)
    return Sample(documents, words, len(ngrams)), ngrams


def _document_ngrams(words: Hashes) -> Hashes:
    """The different unigrams and bigrams of one document's words without stopwords."""
    stops = _stopword_hashes()
    place = np.minimum(np.searchsorted(stops, words), len(stops) - 1)
    content = words[stops[place] != words]
    grams = np.concatenate([content, content[:-1] * _PAIR + content[1:]])
    grams.sort()
    return np.compress(_first_of_run(grams), grams)


def _first_of_run(items: Hashes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    first = np.ones(len(items), dtype=np.bool_)
    np.not_equal(items[1:], items[:-1], out=first[1:])
    return first


def _frequent_ngrams(per_document: list[Hashes], min_documents: int) -> Hashes:
    """The n-grams in at least so many of the lists; none of them repeats one. Empties `per_document`."""
    if not per_document:
        return np.empty(0, dtype=np.uint64)
    grams = np.concatenate(per_document)
    per_document.clear()
    grams.sort()
    begins = len(grams) - min_documents + 1
    if begins <= 0:
        return np.empty(0, dtype=np.uint64)
    long_enough = grams[:begins] == grams[min_documents - 1 :]
    return np.compress(long_enough & _first_of_run(grams)[:begins], grams[:begins])


def _compare(rows: list[Hashes], columns: list[Hashes]) -> tuple[Matrix, Matrix]:
    shared = [[_count_shared(row, column) for column in columns] for row in rows]
    coverage = tuple(
        tuple(both / max(len(column), 1) for both, column in zip(line, columns, strict=True)) for line in shared
    )
    jaccard = tuple(
        tuple(both / max(len(row) + len(column) - both, 1) for both, column in zip(line, columns, strict=True))
        for row, line in zip(rows, shared, strict=True)
    )
    return coverage, jaccard


def _count_shared(left: Hashes, right: Hashes) -> int:
    """How many items two sorted arrays without repeats have in common."""
    short, long = sorted((left, right), key=len)
    if len(short) == 0:
        return 0
    place = np.minimum(np.searchsorted(long, short), len(long) - 1)
    return int(np.count_nonzero(long[place] == short))


@cache
def stopwords() -> tuple[str, ...]:
    """The words that are left out, from `stopwords.txt`."""
    text = resources.files("silo.corpus.report").joinpath("stopwords.txt").read_text(encoding="utf-8")
    return tuple(sorted(line for line in text.split("\n") if line and not line.startswith("#")))


@cache
def _stopword_hashes() -> Hashes:
    return np.sort(word_hashes("\n".join(stopwords())))
