"""The paper's zero-shot table: accuracy on classification tasks of a model alone and with a store, task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from silo.errors import SiloError
from silo.evaluation import intervals
from silo.evaluation.tasks.evaluate import METHODS, TaskOptions, TaskResult, evaluate_tasks
from silo.evaluation.tasks.task import Task, load_tasks
from silo.experiments.harness.lab import Lab
from silo.experiments.harness.result import ACCENTS, Result, Table, draw_estimates, figure_png, show_estimate
from silo.files import file_sha256, fingerprint
from silo.inference.predict import open_predictor
from silo.inference.settings import Settings

PAPER = {
    "agn": ("63.3", "79.5", "71.2", "Wikipedia, 0.8, 1024, 3"),
    "dbpedia": ("36.9", "41.3", "39.1", "Amazon, 0.9, 4096, 3"),
    "sst2": ("57.1", "74.4", "79.7", "IMDB, 0.9, 8192, 3"),
    "mr": ("55.1", "79.0", "79.9", "IMDB, 0.9, 8192, 3"),
    "rt": ("55.3", "67.9", "80.4", "IMDB, 0.9, 8192, 3"),
    "cr": ("64.6", "83.1", "80.3", "Amazon, 0.7, 1024, 1"),
    "yelp": ("62.8", "84.5", "84.7", "IMDB, 0.9, 8192, 3"),
    "amazon": ("60.4", "82.9", "80.3", "IMDB, 0.9, 8192, 3"),
    "rte": ("56.0", "55.2", "53.7", "Amazon, 0.9, 1024, 3"),
    "hyp": ("58.5", "63.1", "58.5", "CC News, 0.1, 1024, 1"),
    "mean": ("57.0", "71.1", "70.8", ""),
}
"""Accuracy of the paper's LM, kNN-LM and Pythia; its store, lambda, k and tau."""

LM_ROWS = ("plain", "pmi")
"""Rows of the model alone that stand beside the one with word sets."""

DIFFERENCES = """Small models and stores, and at most some hundred examples of a task: look at the intervals. Stores
hold no text that shares 13-grams with an example; the paper says nothing of that. All methods have the same word sets
and PMI, the language model too, so that a gain is the store's: the paper gives word sets to kNN-LM alone. `amazon` is
another set of reviews, `yelp` is lower-cased, `dbpedia` has abstracts only, `cr` and `hyp` are reported on validation
examples, each half with the settings of the other."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`tasks` is a folder of task folders, seen from the data folder; `stores` says which domain a task reads.

    `limits` (examples of each split) and `store_tokens` are by model, 0 for all there are.
    """

    question: str
    paper: str
    tasks: str
    models: tuple[str, ...]
    methods: tuple[str, ...]
    stores: dict[str, str]
    neighbours: int = 1024
    limits: dict[str, int] = field(default_factory=dict)
    store_tokens: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Figures:
    """What a model got right in one task, by row; vectors of all rows share their draws."""

    found: Mapping[str, Any]
    draws: intervals.Resamples

    @classmethod
    def of(cls, found: Mapping[str, Any], seed: int) -> _Figures:
        right = next(iter(found["rows"].values()))["right"]
        return cls(found, intervals.Resamples(len(right), seed=seed))

    def accuracy(self, row: str) -> intervals.Floats:
        return self.draws.mean(np.array(self.found["rows"][row]["right"], dtype=np.float64))


def run(lab: Lab, name: str) -> Result:
    """Every model on every task of the recipe that is there."""
    recipe = lab.recipe(name, Recipe)
    folder = lab.data / recipe.tasks
    tasks = [task for task in load_tasks([folder]) if task.name in recipe.stores and _store_domain(lab, recipe, task)]
    if not tasks:
        raise SiloError("input-empty", f"{folder} has no task that the recipe names a store for")
    figures = {
        model: {task.name: _Figures.of(measure(lab, recipe, model, task), at) for at, task in enumerate(tasks)}
        for model in recipe.models
    }
    return Result(
        name,
        recipe.question,
        _answer(figures),
        recipe.paper,
        DIFFERENCES,
        (*(_accuracies(model, items) for model, items in figures.items()), _settings(figures)),
        {"recipe": asdict(recipe), "models": {model: _facts(items) for model, items in figures.items()}},
        _plot(figures),
    )


def _store_domain(lab: Lab, recipe: Recipe, task: Task) -> str:
    domain = recipe.stores[task.name]
    return domain if domain in lab.sizes else ""


def measure(lab: Lab, recipe: Recipe, model: str, task: Task) -> dict[str, Any]:
    """One model on one task with its store, which holds no text of any task."""
    folder = lab.data / recipe.tasks
    files = sorted(folder.glob("*/*.jsonl"))
    domain = recipe.stores[task.name]
    marks = fingerprint([file_sha256(file) for file in files])
    store = lab.store(
        model, domain, recipe.store_tokens.get(model, 0), variant=f"tasks-{marks[:8]}", keep_out=_texts(files)
    )
    options = TaskOptions(methods=recipe.methods, limit=recipe.limits.get(model, 0))
    key = {
        "task": task.name,
        "files": {file.name: file_sha256(file) for file in sorted((folder / task.name).iterdir())},
        "model": lab.fingerprint(model),
        "store": store.digest,
        "methods": list(recipe.methods),
        "neighbours": recipe.neighbours,
        "limit": options.limit,
    }

    def evaluate() -> dict[str, Any]:
        parts = {part for method in recipe.methods for part in method.split("+")} - {"lm"}
        predictor = open_predictor(
            lab.model(model),
            [store.fill()],
            method="+".join(sorted(parts)),
            settings=Settings(k=recipe.neighbours),
        )
        (result,) = evaluate_tasks(predictor, [task], options, advance=lab.advance)
        return {**_plain(result), "store": domain}

    return lab.cell("task", key, evaluate)


def _texts(files: Sequence[Path]) -> list[Path]:
    return [file for file in files if file.stem in ("validation", "test")]


def _plain(result: TaskResult) -> dict[str, Any]:
    """A task's result as plain values: the rows of the model alone, and the headline row of every method."""
    rows = {method: (method, result.headline) for method in result.rows}
    rows |= {f"lm, {row}": ("lm", row) for row in LM_ROWS if row in result.rows["lm"]}
    found = {}
    for name, (method, variant) in rows.items():
        row = result.rows[method][variant]
        found[name] = {
            "right": row.right.astype(int).tolist(),
            "settings": [choice.facts for choice in row.choices],
            "settings_from": row.settings_from,
        }
    facts = {"split": result.split, "headline": result.headline, "majority": result.majority}
    return {**facts, "marks": list(result.marks), "rows": found}


def _rows(items: Mapping[str, _Figures]) -> list[str]:
    """Rows that every task has: the model alone first."""
    every = [set(item.found["rows"]) for item in items.values()]
    order = [*(f"lm, {row}" for row in LM_ROWS), *METHODS]
    return [row for row in order if all(row in rows for rows in every)]


def _mean(items: Mapping[str, _Figures], row: str) -> intervals.Floats:
    mean: intervals.Floats = np.mean([item.accuracy(row) for item in items.values()], axis=0)
    return mean


def _estimate(figure: intervals.Floats) -> dict[str, Any]:
    return intervals.Estimate.of(figure).as_json()


def _facts(items: Mapping[str, _Figures]) -> dict[str, Any]:
    tasks = {}
    for name, item in items.items():
        rows = {
            row: {
                "accuracy": _estimate(item.accuracy(row)),
                "difference_to_lm": _estimate(item.accuracy(row) - item.accuracy("lm")),
                **{part: found[part] for part in ("settings", "settings_from")},
            }
            for row, found in item.found["rows"].items()
        }
        tasks[name] = {**item.found, "rows": rows}
    average = {row: _estimate(_mean(items, row)) for row in _rows(items)}
    gains = {row: _estimate(_mean(items, row) - _mean(items, "lm")) for row in _rows(items) if row != "lm"}
    return {"tasks": tasks, "average": average, "average_difference_to_lm": gains}


def _accuracies(model: str, items: Mapping[str, _Figures]) -> Table:
    rows = _rows(items)
    lines = [
        (
            name,
            str(len(next(iter(item.found["rows"].values()))["right"])),
            f"{100 * item.found['majority']:.0f}",
            *(show_estimate(_estimate(item.accuracy(row)), 1, 100) for row in rows),
            *PAPER.get(name, ("", "", ""))[:3],
        )
        for name, item in items.items()
    ]
    mean = (show_estimate(_estimate(_mean(items, row)), 1, 100) for row in rows)
    lines.append(("mean", "", "", *mean, *PAPER["mean"][:3]))
    names = [f"{row}, pmi and word sets" if row == "lm" else row for row in rows]
    columns = ("task", "examples", "always the same label", *names, "paper: LM", "paper: kNN-LM", "paper: Pythia")
    return Table(f"Accuracy in per cent, {model} (95 % interval over examples)", columns, tuple(lines))


def _settings(figures: Mapping[str, Mapping[str, _Figures]]) -> Table:
    """tab:knn-prompt-statistics: what validation examples chose."""
    lines = []
    for model, items in figures.items():
        for name, item in items.items():
            chosen = item.found["rows"].get("knn", {}).get("settings", [])
            shown = ("; ".join(str(one.get(part, "")) for one in chosen) for part in ("lambda", "k", "tau"))
            lines.append((name, model, item.found["store"], *shown, PAPER.get(name, ("",))[-1]))
    columns = ("task", "model", "store", "lambda", "k", "tau", "paper: store, lambda, k, tau")
    return Table("Store and settings of knn, chosen on validation examples", columns, tuple(lines))


def _answer(figures: Mapping[str, Mapping[str, _Figures]]) -> str:
    parts = []
    for model, items in figures.items():
        alone = show_estimate(_estimate(_mean(items, "lm")), 1, 100)
        gains = [
            f"{row} {show_estimate(_estimate(_mean(items, row) - _mean(items, 'lm')), 1, 100)}"
            for row in _rows(items)
            if not row.startswith("lm")
        ]
        parts.append(f"{model} alone is right in {alone} % of the cases; points added by {', '.join(gains)}")
    return "; ".join(parts) + "."


def _plot(figures: Mapping[str, Mapping[str, _Figures]]) -> bytes:
    """Accuracy of every row, task by task."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6 * len(figures)), layout="constrained")
    for axes, (model, items) in zip(figure.subplots(len(figures), squeeze=False)[:, 0], figures.items(), strict=True):
        rows = _rows(items)
        for at, row in enumerate(rows):
            found = [_estimate(one) for one in (*(item.accuracy(row) for item in items.values()), _mean(items, row))]
            places = [place + 0.8 * (at + 0.5 - len(rows) / 2) / len(rows) for place in range(len(found))]
            draw_estimates(axes, places, found, label=row, color=ACCENTS[at % len(ACCENTS)])
        for at, item in enumerate(items.values()):
            label = "always the same label" if at == 0 else None
            axes.hlines(item.found["majority"], at - 0.45, at + 0.45, color="#999999", linestyle="--", label=label)
        axes.set_xticks(range(len(items) + 1), [*items, "mean"])
        axes.set_ylabel("accuracy")
        axes.set_title(model, loc="left")
        axes.legend(frameon=False, ncols=len(rows) + 1, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1))
        axes.grid(alpha=0.3)
    return figure_png(figure)
