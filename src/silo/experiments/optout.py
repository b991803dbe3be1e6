"""The paper's opt-out table: what other volumes of a series in the store tell of a volume; erasing undoes it.

A copy of a background store gets volumes and loses them again by the same `erase` that answers an owner. A book is one
document, so intervals are over its stretches of `block_tokens` tokens: they say how sure the figure of this book is.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from silo.errors import SiloError
from silo.evaluation import intervals
from silo.evaluation.figures import DomainFigures, DomainSums
from silo.evaluation.scoring import PLAIN, REFERENCE, Contestants, score_domain
from silo.evaluation.texts import TextLimits, read_domains
from silo.experiments.harness.lab import Lab, LabStore
from silo.experiments.harness.result import ACCENTS, Result, Table, draw_estimates, figure_png, show_estimate
from silo.files import file_sha256, remove_tree
from silo.inference.settings import Settings
from silo.lm.engine.decoder import DecodingModel
from silo.pairing import find_key_encoder, open_store
from silo.recipe import SourceRecipe
from silo.records import Document
from silo.sources import read_documents
from silo.store.selector import Selector
from silo.store.store import Store

PAPER = {"lm": 17.4, "without": 16.5, "others": 12.9, "reference": 10.1}
"""The paper's means over seven books: LM, kNN-LM without and with the other six, Pythia."""

STATES = {"without": "without the series", "others": "with the other volumes", "all": "with the volume itself too"}

DIFFERENCES = """Seven volumes of another series (Oz, public domain, playing high-risk text), a background of about a
million tokens instead of a billion. The paper builds two stores; here one store gets the volumes and loses them by
erasure. Settings are those of the background store, from validation text of the background, for every column: the
store's content is all that differs. The volume itself in the store is a bound the paper lacks. The reference has read
neither the series nor the background, while Pythia had read the books."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`series` is a file of the data folder with one record per volume, `background` the domain of the other text.

    `background_tokens` are by model, 0 for all there is. Of every volume the first `volume_tokens` are scored.
    """

    question: str
    paper: str
    models: tuple[str, ...]
    reference: str
    series: str
    background: str
    methods: tuple[str, ...]
    neighbours: int = 1024
    volume_tokens: int = 20_000
    validation_tokens: int = 40_000
    block_tokens: int = 1_000
    background_tokens: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One model with a store that volumes come into and leave."""

    lab: Lab
    recipe: Recipe
    model: str
    volumes: tuple[Document, ...]
    background: LabStore

    @classmethod
    def open(cls, lab: Lab, recipe: Recipe, model: str) -> Series:
        volumes = _volumes(lab, recipe)  # data without a series are refused before anything is trained
        background = lab.store(model, recipe.background, recipe.background_tokens.get(model, 0))
        return cls(lab, recipe, model, volumes, background)

    def copy(self) -> Path:
        """A copy of the background store, which the volumes come into."""
        return _copy_of(self.background.fill())

    def key(self, held: Sequence[Document]) -> dict[str, Any]:
        """All that a score depends on besides the volume."""
        recipe = self.recipe
        return {
            "model": self.lab.fingerprint(self.model),
            "background": self.background.digest,
            "series": file_sha256(self.lab.data / recipe.series),
            "held": [volume.external_id for volume in held],
            "reference": recipe.reference,
            "methods": list(recipe.methods),
            "neighbours": recipe.neighbours,
            "tokens": [recipe.volume_tokens, recipe.validation_tokens, recipe.block_tokens],
        }

    def score(self, volume: Document, held: Sequence[Document]) -> DomainSums:
        """Perplexity of one volume while the store holds some."""

        def measure() -> dict[str, Any]:
            store = open_store(self.copy(), encoding=True)
            hold(store, self.volumes, held)
            found = DomainSums.of(self._scores(store, volume)).as_json()
            store.close()
            return found

        found = self.lab.cell("optout", {**self.key(held), "volume": volume.external_id}, measure)
        return _over_all_matches(DomainSums.from_json(found))

    def settings(self) -> dict[str, Settings]:
        """Those of the background store, whatever volumes are with it."""
        recipe, limits = self.recipe, TextLimits(self.recipe.validation_tokens)
        return self.lab.settings(
            self.model, recipe.background, self.background, neighbours=recipe.neighbours, limits=limits
        )

    def _scores(self, store: Store, volume: Document) -> Any:
        recipe, model = self.recipe, DecodingModel.open(self.lab.model(self.model))
        references = {}
        if recipe.reference:
            reference = DecodingModel.open(self.lab.model(recipe.reference))
            if reference.tokenizer.fingerprint == model.tokenizer.fingerprint:
                references[REFERENCE] = reference
        contestants = Contestants(
            model,
            [store],
            find_key_encoder(model, [store], None),
            recipe.methods,
            references,
            settings=self.settings(),
            neighbours=recipe.neighbours,
        )
        return score_domain(contestants, self.text(model, volume), None, advance=self.lab.advance)

    def text(self, model: DecodingModel, volume: Document) -> Any:
        """The beginning of a volume, its stretches standing where a text has its documents."""
        recipe = self.recipe
        limits = TextLimits(document_tokens=recipe.volume_tokens)
        (every,) = read_domains([self.lab.data / recipe.series], model.tokenizer, limits).values()
        (number,) = [at for at, label in enumerate(every.labels) if label.endswith(f"#{volume.external_id}")]
        its = every.documents == number
        stream = replace(
            every.stream, ids=every.stream.ids[its], scored=every.stream.scored[its], sizes=every.stream.sizes[its]
        )
        blocks = np.arange(len(stream.ids)) // recipe.block_tokens
        labels = tuple(f"{volume.external_id}, stretch {block}" for block in range(int(blocks[-1]) + 1))
        return replace(every, stream=stream, documents=blocks, labels=labels)

    def erasure(self) -> dict[str, Any]:
        """All volumes in, the whole series out by one erasure: is the store what it was before?"""

        def measure() -> dict[str, Any]:
            store = open_store(self.copy(), encoding=True)
            hold(store, self.volumes, self.volumes)
            with_series = store.digest()
            gone = store.erase(Selector(domain=self.volumes[0].domain), suppress=False)
            before = self.score(self.volumes[0], ())
            after = _over_all_matches(DomainSums.of(self._scores(store, self.volumes[0])))
            return {
                "documents": len(gone.documents),
                "receipt": gone.receipt.name if gone.receipt else None,
                "failed_checks": gone.failed_checks,
                "accepted_ms": gone.accepted_ms,
                "done_ms": gone.done_ms,
                "digest_changed_by_adding": with_series != self.background.digest,
                "digest_as_before": store.digest() == self.background.digest,
                "scores_as_before": all(np.array_equal(before.logs[row], after.logs[row]) for row in before.logs),
            }

        return self.lab.cell("optout-erasure", self.key(self.volumes), measure)


def hold(store: Store, volumes: Sequence[Document], wanted: Sequence[Document]) -> None:
    """Erase the volumes that are not wanted and add those that are missing."""
    names = {volume.id for volume in wanted}
    for volume in volumes:
        if volume.id not in names and store.holds(volume.id):
            gone = store.erase(Selector(document=f"id:{volume.id}"), suppress=False)
            if gone.failed_checks:
                raise SiloError("check-failed", f"erasing {volume.external_id}: {', '.join(gone.failed_checks)}")
    store.add(volume for volume in wanted if not store.holds(volume.id))


def _volumes(lab: Lab, recipe: Recipe) -> tuple[Document, ...]:
    path = lab.data / recipe.series
    if not path.exists():
        raise SiloError("input-missing", f"the data has no {recipe.series}", "one record for each volume of a series")
    source = SourceRecipe("jsonl", (str(path.absolute()),), deny=("train",))
    return tuple(read_documents(source, lab.data, []))


def _copy_of(background: Path) -> Path:
    copy = background.with_name(f"{background.name}-optout")
    if not copy.exists():
        fresh = copy.with_name(f"{copy.name}.copying")
        remove_tree(fresh)
        shutil.copytree(background, fresh)
        fresh.rename(copy)
    return copy


def _over_all_matches(sums: DomainSums) -> DomainSums:
    """Sums by stretch alone: which matches there are differs with what the store holds."""
    logs = {row: values.sum(axis=0, keepdims=True) for row, values in sums.logs.items()}
    return replace(sums, matches=("any",), tokens=sums.tokens.sum(axis=0, keepdims=True), logs=logs)


def run(lab: Lab, name: str) -> Result:
    """Every volume of the series with the store in three states, and the erasure of the series."""
    recipe = lab.recipe(name, Recipe)
    figures, erasures = {}, {}
    for model in recipe.models:
        series = Series.open(lab, recipe, model)
        states = {
            state: [series.score(volume, _held(series, volume, state)) for volume in series.volumes] for state in STATES
        }
        figures[model] = {
            volume.external_id: DomainFigures(_joined([states[state][at] for state in STATES]), seed=at)
            for at, volume in enumerate(series.volumes)
        }
        erasures[model] = series.erasure()
    tables = [table for model, items in figures.items() for table in _tables(model, items)]
    facts = {model: {volume: _facts(item) for volume, item in items.items()} for model, items in figures.items()}
    return Result(
        name,
        recipe.question,
        _answer(figures, erasures),
        recipe.paper,
        DIFFERENCES,
        (*tables, _erasure_table(erasures)),
        {"recipe": asdict(recipe), "volumes": facts, "erasures": erasures},
        _plot(figures),
    )


def _held(series: Series, volume: Document, state: str) -> tuple[Document, ...]:
    if state == "without":
        return ()
    return tuple(other for other in series.volumes if state == "all" or other.id != volume.id)


def _joined(states: Sequence[DomainSums]) -> DomainSums:
    """The rows of all states beside each other; those that need no store are the same in all."""
    logs = {row: values for row, values in states[0].logs.items() if not _needs_store(row)}
    for state, sums in zip(STATES, states, strict=True):
        logs |= {_row(row, state): values for row, values in sums.logs.items() if _needs_store(row)}
    return replace(states[0], logs=logs)


def _needs_store(row: str) -> bool:
    return any(method in row for method in ("knn", "ngram", "ric")) and "context of" not in row


def _row(method: str, state: str) -> str:
    return f"{method}; {state}"


def _methods(items: Mapping[str, DomainFigures]) -> list[str]:
    """The methods with a store; the one that has all token searches is the last, those of the reference before."""
    rows = next(iter(items.values())).rows
    names = {row.rpartition("; ")[0] for row in rows if "; " in row}
    return sorted(names, key=lambda name: (REFERENCE not in name, name.count("+"), name))


def _mean(items: Mapping[str, DomainFigures], row: str) -> intervals.Floats:
    mean: intervals.Floats = np.mean([item.perplexity(row) for item in items.values()], axis=0)
    return mean


def _estimate(figure: intervals.Floats) -> dict[str, Any]:
    return intervals.Estimate.of(figure).as_json()


def _gain(items: Mapping[str, DomainFigures], method: str) -> dict[str, Any]:
    """What the other volumes add, over the volumes; paired."""
    return _estimate(_mean(items, _row(method, "others")) - _mean(items, _row(method, "without")))


def _facts(item: DomainFigures) -> dict[str, Any]:
    return {row: _estimate(item.perplexity(row)) for row in item.rows}


def _tables(model: str, items: dict[str, DomainFigures]) -> list[Table]:
    """By volume for kNN-LM as in the paper, and the mean of the volumes for every method."""
    first = next(iter(items.values()))
    shown = [PLAIN, *(_row("knn", state) for state in STATES), REFERENCE]
    shown = [row for row in shown if row in first.rows]
    paper = {PLAIN: "lm", REFERENCE: "reference", _row("knn", "without"): "without", _row("knn", "others"): "others"}
    lines = [(volume, *(show_estimate(_facts(item)[row]) for row in shown)) for volume, item in items.items()]
    lines.append(("mean", *(show_estimate(_estimate(_mean(items, row))) for row in shown)))
    lines.append(("mean in the paper", *(str(PAPER.get(paper.get(row, ""), "")) for row in shown)))
    by_method = []
    for method in _methods(items):
        means = [show_estimate(_estimate(_mean(items, _row(method, state)))) for state in STATES]
        by_method.append((method, *means, show_estimate(_gain(items, method), 2)))
    names = {PLAIN: "lm", REFERENCE: "reference", **{_row("knn", state): f"knn {STATES[state]}" for state in STATES}}
    return [
        Table(
            f"Perplexity by volume, {model} (95 % interval over stretches of the volume)",
            ("volume", *(names[row] for row in shown)),
            tuple(lines),
        ),
        Table(
            f"Mean of the volumes by method, {model}",
            ("method", *STATES.values(), "what the other volumes add (paired)"),
            tuple(by_method),
        ),
    ]


def _erasure_table(erasures: Mapping[str, Mapping[str, Any]]) -> Table:
    lines = [
        (
            model,
            str(found["documents"]),
            "yes" if found["digest_as_before"] else "NO",
            "yes" if found["scores_as_before"] else "NO",
            ", ".join(found["failed_checks"]) or "none",
        )
        for model, found in erasures.items()
    ]
    columns = ("model", "volumes erased", "digest as before they came", "scores as before, to the bit", "failed checks")
    return Table("One erasure of the whole series, with its receipt", columns, tuple(lines))


def _answer(figures: Mapping[str, Mapping[str, DomainFigures]], erasures: Mapping[str, Mapping[str, Any]]) -> str:
    parts = []
    for model, items in figures.items():
        method = _methods(items)[-1]
        without, others = (_estimate(_mean(items, _row(method, state))) for state in ("without", "others"))
        exact = erasures[model]["digest_as_before"] and erasures[model]["scores_as_before"]
        parts.append(
            f"{model} with {method}: {show_estimate(without)} without the series, {show_estimate(others)} with the "
            f"other volumes (difference {show_estimate(_gain(items, method), 2)}); after erasing them store and scores "
            f"are {'exactly' if exact else 'NOT'} what they were"
        )
    return "; ".join(parts) + "."


def _plot(figures: Mapping[str, Mapping[str, DomainFigures]]) -> bytes:
    """Perplexity of every volume in the three states, for the last method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4 * len(figures)), layout="constrained")
    for axes, (model, items) in zip(figure.subplots(len(figures), squeeze=False)[:, 0], figures.items(), strict=True):
        method = _methods(items)[-1]
        rows = {"lm": PLAIN, **{STATES[state]: _row(method, state) for state in STATES}}
        for at, (label, row) in enumerate(rows.items()):
            found = [_facts(item)[row] for item in items.values()]
            places = [place + 0.15 * (at - 1.5) for place in range(len(found))]
            draw_estimates(axes, places, found, label=label, color=ACCENTS[at])
        axes.set_xticks(range(len(items)), list(items))
        axes.set_ylabel("perplexity")
        axes.set_title(f"{model} with {method}", loc="left")
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        axes.grid(alpha=0.3)
    return figure_png(figure)
