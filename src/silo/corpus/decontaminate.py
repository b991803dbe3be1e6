"""Which training documents give away evaluation text, and which evaluation document each of them gives away.

Every evaluation n-gram is filed in a hash table under the first evaluation document that holds it. An n-gram found in
more than `common` evaluation documents is boilerplate (a licence header, a form) and identifies none. A training
document is contaminated if a large share of its n-grams are evaluation n-grams, or if it holds a large share of the
identifying n-grams of one evaluation document, however long the rest of it is. By the strict rule one n-gram that is
anywhere in the evaluation text is enough, boilerplate too.

On disk: `keys.npy` (u64), `owners.npy` (i32), `sizes.npy` (i32) and `labels.json` in one directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import NDArray

from silo.files import file_sha256, read_json, write_json
from silo.progress import Advance
from silo.recipe import DecontaminationRecipe, Limits
from silo.sources.evaluation import EvaluationRecord, read_evaluation
from silo.sources.reader.plan import expand
from silo.text.normalise import normalise, text_hash
from silo.text.words import Hashes, ngram_hashes

_MIN_IDENTIFYING = 8
_ANY_SHARE = 1e-12
_ALL_DOCUMENTS = (1 << 31) - 1

Ints = NDArray[np.int32]
Rule = Literal["default", "strict"]


def apply_rule(recipe: DecontaminationRecipe, rule: Rule) -> DecontaminationRecipe:
    """The recipe as it is, or so that any shared n-gram makes a document contaminated."""
    return recipe if rule == "default" else replace(recipe, threshold=_ANY_SHARE, common=_ALL_DOCUMENTS)


def evaluation_files(recipe: DecontaminationRecipe, base: Path) -> list[Path]:
    """The files that a recipe names, relative to `base`."""
    return sorted({path for pattern in recipe.files for path in expand(pattern, base)})


@dataclass(frozen=True, slots=True)
class Leak:
    """Why a document is contaminated: the evaluation document it shares most with, and how much is shared."""

    evaluation: str
    share: float
    coverage: float

    def in_words(self) -> str:
        return f"{self.share:.2f} of it in, {self.coverage:.2f} of {self.evaluation}"


@dataclass(frozen=True, slots=True)
class EvaluationText:
    """All n-grams of the evaluation files. `owners` is -1 for boilerplate, `files` the SHA-256 of files read here."""

    recipe: DecontaminationRecipe
    keys: Hashes
    owners: Ints
    sizes: Ints
    labels: list[str]
    files: tuple[str, ...] = ()

    @classmethod
    def read(
        cls,
        recipe: DecontaminationRecipe,
        files: Sequence[Path],
        *,
        limits: Limits | None = None,
        advance: Advance = lambda *_: None,
    ) -> EvaluationText:
        """Index evaluation files: JSON lines with a `text` (also packed) or plain text."""

        def records() -> Iterator[EvaluationRecord]:
            for number, path in enumerate(files):
                advance("evaluation", number, len(files))
                yield from read_evaluation(path, limits)
                advance("evaluation", number + 1, len(files))

        return replace(cls.build(recipe, records()), files=tuple(sorted(map(file_sha256, files))))

    @classmethod
    def build(cls, recipe: DecontaminationRecipe, records: Iterable[EvaluationRecord]) -> EvaluationText:
        """Index evaluation records; repeats of one text count once."""
        labels: list[str] = []
        grams: list[Hashes] = []
        seen: set[bytes] = set()
        for record in records:
            text = normalise(record.text)
            mark = text_hash(text)
            if mark in seen:
                continue
            seen.add(mark)
            labels.append(record.label)
            grams.append(ngram_hashes(text, recipe.ngram))
        slots = 1 << max(10, (2 * sum(map(len, grams))).bit_length())
        keys = np.zeros(slots, dtype=np.uint64)
        owners, last, count = (np.zeros(slots, dtype=np.int32) for _ in range(3))
        for number, items in enumerate(grams):
            _insert(keys, owners, last, count, items, number)
        owners[count > recipe.common] = -1
        identifying = owners[(keys != 0) & (owners >= 0)]
        sizes = np.bincount(identifying, minlength=len(labels)).astype(np.int32)
        return cls(recipe, keys, owners, sizes, labels)

    def save(self, directory: Path) -> None:
        """Write the table so that several processes can map it."""
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("keys", "owners", "sizes"):
            np.save(directory / f"{name}.npy", getattr(self, name), allow_pickle=False)
        write_json(directory / "labels.json", self.labels)

    @classmethod
    def open(cls, directory: Path, recipe: DecontaminationRecipe) -> EvaluationText:
        """Map a saved table."""
        keys, owners, sizes = (
            np.load(directory / f"{name}.npy", mmap_mode="r") for name in ("keys", "owners", "sizes")
        )
        return cls(recipe, keys, owners, sizes, read_json(directory / "labels.json"))

    def as_json(self) -> dict[str, Any]:
        """The rule, its numbers as text, and the files: what a log should know."""
        rule = {name: str(value) for name, value in asdict(self.recipe).items()}
        return {**rule, "files": list(self.files)}

    def leak(self, text: str) -> Leak | None:
        """What a document gives away, if it is contaminated."""
        grams = ngram_hashes(text, self.recipe.ngram)
        if len(grams) == 0:
            return None
        owners = np.empty(len(grams), dtype=np.int32)
        hits = int(_look_up(self.keys, self.owners, grams, owners))
        if hits == 0:
            return None
        share = hits / len(grams)
        best, coverage = self._best_coverage(grams, np.bincount(owners[:hits]))
        if share < self.recipe.threshold and coverage < self.recipe.coverage:
            return None
        return Leak(self.labels[best], round(share, 4), round(coverage, 4))

    def _best_coverage(self, grams: Hashes, counts: NDArray[np.intp]) -> tuple[int, float]:
        """The evaluation document of which most is there, and how much of it.

        `counts` has hits per evaluation document, repeated n-grams every time, which is an upper bound; only if that
        reaches the bar are the distinct ones counted.
        """
        numbers = np.flatnonzero(counts)
        sizes = self.sizes[numbers]
        upper = np.where(sizes >= _MIN_IDENTIFYING, np.minimum(counts[numbers] / np.maximum(sizes, 1), 1.0), 0.0)
        if upper.max() < self.recipe.coverage:
            return int(numbers[np.argmax(counts[numbers])]), float(upper.max())
        unique = np.unique(grams)
        distinct = np.empty(len(unique), dtype=np.int32)
        hits = int(_look_up(self.keys, self.owners, unique, distinct))
        exact = np.bincount(distinct[:hits], minlength=len(counts))[numbers]
        covered = np.where(sizes >= _MIN_IDENTIFYING, exact / np.maximum(sizes, 1), 0.0)
        best = int(np.argmax(covered))
        return int(numbers[best]), float(covered[best])


@numba.njit(cache=True, nogil=True)
def _insert(keys: Hashes, owners: Ints, last: Ints, count: Ints, items: Hashes, document: int) -> None:
    """Put items into the open-addressing table; `count` is the number of documents that hold an item."""
    mask = np.uint64(len(keys) - 1)
    for item in items:
        item = max(item, np.uint64(1))
        slot = item & mask
        while keys[slot] != 0 and keys[slot] != item:
            slot = (slot + np.uint64(1)) & mask
        if keys[slot] == 0:
            keys[slot] = item
            owners[slot] = document
            last[slot] = document
            count[slot] = 1
        elif last[slot] != document:
            last[slot] = document
            count[slot] += 1


@numba.njit(cache=True, nogil=True)
def _look_up(keys: Hashes, owners: Ints, items: Hashes, out: Ints) -> int:
    """The owners of those items that identify an evaluation document; returns how many there are."""
    mask = np.uint64(len(keys) - 1)
    hits = 0
    for item in items:
        item = max(item, np.uint64(1))
        slot = item & mask
        while keys[slot] != 0 and keys[slot] != item:
            slot = (slot + np.uint64(1)) & mask
        if keys[slot] == item and owners[slot] >= 0:
            out[hits] = owners[slot]
            hits += 1
    return hits
