"""`silo eval tasks`: which examples of classification tasks every method gets right.

Settings come from the validation split, the test split is scored once. A task that has no test split is reported on its
validation split: each half with the settings that the other half chose. Without a validation split, settings are the
defaults.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silo.evaluation.tasks.choose import Choice, Labelled, Method, choose, default_choice
from silo.evaluation.tasks.classify import Layout, Variant, headline, make_prompts, variants
from silo.evaluation.tasks.task import Example, Task
from silo.evaluation.tasks.verbalise import verbalise
from silo.inference.predict import Predictor
from silo.inference.prompts.observe import observe_prompts
from silo.inference.settings import Settings
from silo.progress import Advance

METHODS = ("lm", "knn", "ngram", "knn+ngram", "ric")

Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """`split`: which one is reported, test where there is one without it. `limit`: at most so many examples of each
    split, drawn by `seed`; 0 for all. `settings`: those to use as they are, by method; chosen if there are none.
    """

    methods: tuple[str, ...] = METHODS
    split: str = ""
    limit: int = 0
    seed: int = 0
    expand: bool = False
    settings: Callable[[Method], Settings] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One way of scoring: the label that each example got and the right one, its settings, and their origin."""

    predicted: Labels
    labels: Labels
    choices: tuple[Choice, ...]
    settings_from: str

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which examples got their label."""
        right: NDArray[np.bool_] = self.predicted == self.labels
        return right


@dataclass(frozen=True, slots=True, eq=False)
class TaskResult:
    """The rows of a task by method and variant; `marks` are what a reader of the figures must know.

    `examples` are those that were labelled, in the order of the rows.
    """

    task: Task
    split: str
    examples: Sequence[Example]
    headline: str
    majority: float
    rows: Mapping[str, Mapping[str, Row]]
    marks: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.task.name


def evaluate_tasks(
    predictor: Predictor, tasks: Sequence[Task], options: TaskOptions, *, advance: Advance = lambda *_: None
) -> Iterator[TaskResult]:
    """Every task, one after the other; the predictor has the searches of all methods."""
    for task in tasks:
        yield _Evaluation(predictor, task, options, advance).result()


class _Evaluation:
    """One task: what is observed once, and every method on it."""

    def __init__(self, predictor: Predictor, task: Task, options: TaskOptions, advance: Advance) -> None:
        self._predictor, self._task, self._options, self._advance = predictor, task, options, advance
        self._verbaliser = verbalise(task, predictor.opened, expand=options.expand)
        self._layout = Layout.of(self._verbaliser)
        self._rng = np.random.default_rng([options.seed, zlib.crc32(task.name.encode())])
        self._split = options.split or ("test" if "test" in task.splits else "validation")
        self._samples = {split: self._sample(task.splits[split]) for split in sorted(task.splits)}

    def _sample(self, examples: Sequence[Example]) -> list[Example]:
        limit = self._options.limit or len(examples)
        chosen = np.sort(self._rng.permutation(len(examples))[:limit])
        return [examples[at] for at in chosen]

    def result(self) -> TaskResult:
        methods = [_searches(method) for method in self._options.methods]
        tuned = [method for method in methods if method & {"knn", "ngram"}]
        reported = self._observe(self._split, passages=any("ric" in method for method in methods))
        chosen_on = None
        if self._split == "test" and self._chooses:
            chosen_on = self._observe("validation", passages=any("ric" in method for method in tuned))
        rows = {method: self._rows(reported, chosen_on, _searches(method)) for method in self._options.methods}
        majority = float(np.bincount(reported.labels).max() / len(reported.labels))
        name = headline(self._task, self._verbaliser).name
        examples = self._samples[self._split]
        return TaskResult(self._task, self._split, examples, name, majority, rows, tuple(self._marks()))

    @property
    def _chooses(self) -> bool:
        """Is anything chosen on validation examples?"""
        needs = any({"knn", "ngram"} & _searches(method) for method in self._options.methods)
        return needs and self._options.settings is None and "validation" in self._task.splits

    def _observe(self, split: str, *, passages: bool) -> Labelled:
        examples = self._samples[split]
        prompts = make_prompts(self._task, examples, self._layout, self._predictor.tokenizer)
        stage = f"{self._task.name} {split}"
        observed = observe_prompts(
            self._predictor,
            prompts,
            passages=passages,
            advance=lambda part, done, total: self._advance(f"{stage}: {part}", done, total),
        )
        labels = np.array([example.label for example in examples])
        return Labelled(observed, labels, self._layout, self._task.premise is not None)

    def _rows(self, reported: Labelled, chosen_on: Labelled | None, method: Method) -> dict[str, Row]:
        """All ways of scoring one method."""
        ways = variants(self._task, self._verbaliser)
        named = self._options.settings
        base = self._predictor.with_tau(named(method)) if named else self._predictor.settings
        if not method & {"knn", "ngram"}:
            return _scored(reported, method, dict.fromkeys(ways, Choice(base)), "none needed")
        if named:
            return _scored(reported, method, dict.fromkeys(ways, Choice(base)), "named")
        if chosen_on is not None:
            every = np.ones(len(chosen_on.labels), dtype=np.bool_)
            choices = {way: found[0] for way, found in choose(chosen_on, [every], method, ways, base).items()}
            return _scored(reported, method, choices, "validation")
        if self._split == "test" or len(reported.labels) < 2:
            return _scored(reported, method, dict.fromkeys(ways, default_choice(reported, method, base)), "defaults")
        return self._cross_fitted(reported, method, ways, base)

    def _cross_fitted(self, data: Labelled, method: Method, ways: Sequence[Variant], base: Settings) -> dict[str, Row]:
        """Each half of the examples with the settings of the other."""
        order = np.random.default_rng(self._options.seed).permutation(len(data.labels))
        half = np.zeros(len(order), dtype=np.bool_)
        half[order[: len(order) // 2]] = True
        rows = {}
        for way, choices in choose(data, [~half, half], method, ways, base).items():
            first, second = (data.predicted(method, choice.settings, way) for choice in choices)
            predicted = np.where(half, first, second)
            rows[way.name] = Row(predicted, data.labels, tuple(choices), "the other half of validation")
        return rows

    def _marks(self) -> Iterator[str]:
        yield from self._verbaliser.notes
        if self._split == "validation":
            yield "reported on validation"
        if self._chooses and self._split == "validation":
            yield "settings of each half come from the other half"
        if "validation" not in self._task.splits and self._options.settings is None:
            yield "no validation split: default settings"
        if self._task.premise is None:
            yield "no domain_premise, and none in the template: no PMI"
        for split, sample in self._samples.items():
            if len(sample) < len(self._task.splits[split]):
                yield f"{len(sample)} of {len(self._task.splits[split])} examples of {split}"


def _searches(method: str) -> Method:
    return frozenset(method.split("+")) - {"lm"}


def _scored(data: Labelled, method: Method, choices: Mapping[Variant, Choice], settings_from: str) -> dict[str, Row]:
    return {
        way.name: Row(data.predicted(method, choice.settings, way), data.labels, (choice,), settings_from)
        for way, choice in choices.items()
    }
