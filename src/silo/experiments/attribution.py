"""The paper's attribution examples, with figures for what they illustrate: where does a token's probability come from?

At places drawn from test text the probability of the true token is split between the model and the stored documents.
Then the document with the largest share is looked at: does it hold the very words, is it of the same kind as the text?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.evaluation import intervals
from silo.evaluation.texts import TextLimits, read_domains
from silo.experiments.harness.lab import Lab
from silo.experiments.harness.measure import known_domains
from silo.experiments.harness.result import ACCENTS, Result, Table, figure_png, show_estimate
from silo.experiments.optout import Recipe as OptOut
from silo.experiments.optout import Series, hold
from silo.inference.credit import credit
from silo.inference.neighbours import top_neighbours
from silo.inference.predict import Prediction, Predictor, open_predictor
from silo.pairing import open_store
from silo.recipe import SourceRecipe
from silo.records import Document, Tier
from silo.rights.notices import notice_lines
from silo.sources import read_documents
from silo.store.selector import Selector

_PREFIX, _CONTINUATION = 24, 12
_EARLIEST = 16
"""Places before so many tokens of a document are not drawn: nothing could be recognised there."""
_MOSTLY = 0.5
SOURCE, AUTHOR = "source", "author"

DIFFERENCES = """The paper shows chosen examples; these are the places of those drawn where the store raised the
probability most, one of a text, so they are its best cases. The figures beside them are of all places drawn. Mail of
one thread and files of one project are kept in one split, so the document of a prediction is never of the same thread
or project; `same kind` is a specialty, a site, a language and so on, the author for the volume of a series, beside the
share of the stored text that is of that kind."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`groups` says by domain what makes two documents of one kind: a metadata key, or `source`.

    `positions` places are drawn from each domain; `ngrams` are the lengths of runs that end in the token. With a
    `volume` (of the series of the opt-out recipe), it is looked at too, while the store holds the other volumes.
    """

    question: str
    paper: str
    models: tuple[str, ...]
    domains: tuple[str, ...]
    method: str
    positions: int = 400
    examples: int = 2
    ngrams: tuple[int, ...] = (4, 8)
    neighbours: int = 1024
    test_tokens: int = 40_000
    validation_tokens: int = 20_000
    document_tokens: int = 1_000
    store_tokens: dict[str, int] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    volume: str = ""


def run(lab: Lab, name: str) -> Result:
    """Every model on every domain of the data that the recipe names."""
    recipe = lab.recipe(name, Recipe)
    domains = known_domains(lab, recipe.domains)
    found = {model: {domain: measure(lab, recipe, model, domain) for domain in domains} for model in recipe.models}
    if recipe.volume and (lab.data / lab.recipe("optout", OptOut).series).exists():
        for model, items in found.items():
            items[recipe.volume] = measure_volume(lab, recipe, model)
    figures = {
        model: {domain: _figures(places, recipe, at) for at, (domain, places) in enumerate(items.items())}
        for model, items in found.items()
    }
    tables = [_table(model, items) for model, items in figures.items()]
    tables += [_examples(model, items) for model, items in found.items()]
    plain = {
        model: {domain: {part: _estimate(one) for part, one in parts.items()} for domain, parts in items.items()}
        for model, items in figures.items()
    }
    examples = {
        model: {domain: places["examples"] for domain, places in items.items()} for model, items in found.items()
    }
    facts = {"recipe": asdict(recipe), "figures": plain, "examples": examples}
    answer, plot = _answer(figures), _plot(figures)
    return Result(name, recipe.question, answer, recipe.paper, DIFFERENCES, tuple(tables), facts, plot)


def measure(lab: Lab, recipe: Recipe, model: str, domain: str) -> dict[str, Any]:
    """The places of one domain, as columns, and its examples."""
    store = lab.store(model, domain, recipe.store_tokens.get(model, 0))
    group = recipe.groups.get(domain, "")
    key = {
        "model": lab.fingerprint(model),
        "store": store.digest,
        "domain": domain,
        "method": recipe.method,
        "group": group,
        "numbers": [recipe.positions, recipe.examples, *recipe.ngrams, recipe.neighbours],
        "limits": [recipe.test_tokens, recipe.validation_tokens, recipe.document_tokens],
    }

    def look() -> dict[str, Any]:
        limits = TextLimits(recipe.validation_tokens, recipe.document_tokens)
        settings = lab.settings(model, domain, store, neighbours=recipe.neighbours, limits=limits)[recipe.method]
        predictor = open_predictor(lab.model(model), [store.fill()], method=recipe.method, settings=settings)
        file, most = lab.text_file(domain, "test"), TextLimits(recipe.test_tokens, recipe.document_tokens)
        text = read_domains([file], predictor.tokenizer, most)[domain]
        return _Places(lab, recipe, predictor, text, group, _test_groups(file, text.labels, group)).look()

    return lab.cell("attribution", key, look)


def measure_volume(lab: Lab, recipe: Recipe, model: str) -> dict[str, Any]:
    """The same for a volume of a series, with the other volumes and the background of the opt-out experiment."""
    series = Series.open(lab, lab.recipe("optout", OptOut), model)
    (volume,) = [one for one in series.volumes if one.external_id == recipe.volume]
    others = [one for one in series.volumes if one.id != volume.id]
    numbers = [recipe.positions, recipe.examples, *recipe.ngrams]
    key = {**series.key(others), "volume": recipe.volume, "method": recipe.method, "numbers": numbers}

    def look() -> dict[str, Any]:
        store = open_store(series.copy(), encoding=True)
        hold(store, series.volumes, others)
        store.close()
        settings = series.settings()[recipe.method]
        predictor = open_predictor(lab.model(model), [series.copy()], method=recipe.method, settings=settings)
        text = series.text(predictor.opened, volume)
        return _Places(
            lab, recipe, predictor, text, AUTHOR, [str(volume.meta.get(AUTHOR, ""))] * len(text.labels)
        ).look()

    return lab.cell("attribution", key, look)


class _Places:
    """Places of a text, one after the other; `kinds` has the group of each of its documents."""

    def __init__(
        self, lab: Lab, recipe: Recipe, predictor: Predictor, text: Any, group: str, kinds: Sequence[str]
    ) -> None:
        self._lab, self._recipe, self._predictor = lab, recipe, predictor
        self._text, self._group, self._kinds = text, group, kinds

    def look(self) -> dict[str, Any]:
        columns: dict[str, list[Any]] = {}
        with self._predictor.reading() as retriever:
            view, reader = retriever.views[0], self._predictor.reader()
            shares = _group_shares(view.documents(), self._group)
            drawn = self._draw()
            predictions: list[tuple[float, int]] = []
            for number, at in enumerate(drawn):
                prediction = reader.predict(self._prefix(at), retriever)
                row = self._place(prediction, at, retriever, shares)
                for name, value in row.items():
                    columns.setdefault(name, []).append(value)
                predictions.append((row["mixed"] - row["lm"], at))
                self._lab.advance("places", number + 1, len(drawn))
            examples = [
                self._example(reader.predict(self._prefix(at), retriever), at, retriever)
                for at in self._best(predictions)
            ]
        return {"columns": columns, "examples": [one for one in examples if one]}

    def _draw(self) -> list[int]:
        """Places of tokens that count, ascending."""
        starts = np.searchsorted(self._text.documents, self._text.documents)
        far = np.arange(len(starts)) - starts >= _EARLIEST
        known = np.flatnonzero(self._text.counted & far)
        chosen = np.random.default_rng(0).permutation(known)[: self._recipe.positions]
        return sorted(chosen.tolist())

    def _prefix(self, at: int) -> NDArray[np.int64]:
        """The document up to a place."""
        ids: NDArray[np.int64] = self._text.stream.ids[:at].astype(np.int64)
        start = int(np.flatnonzero(ids == self._predictor.tokenizer.begin)[-1])
        return ids[start:]

    def _best(self, gains: Sequence[tuple[float, int]]) -> list[int]:
        """Where the store raised the probability most, at most one place of a document."""
        by_document: dict[int, int] = {}
        for _, at in sorted(gains, reverse=True):
            by_document.setdefault(int(self._text.documents[at]), at)
        return list(by_document.values())[: self._recipe.examples]

    def _place(self, prediction: Prediction, at: int, retriever: Any, shares: Mapping[str, float]) -> dict[str, Any]:
        """What the true token owes to whom."""
        token, view = int(self._text.stream.ids[at]), retriever.views[0]
        (owed,) = credit(prediction.every, [token], retriever)
        tiers = dict.fromkeys(map(str, Tier), 0.0)
        for item in owed:
            tiers[item.facts.tier] += item.share
        top = max(owed.parts, key=lambda part: float(part.shares.max()), default=None)
        row = int(top.rows[top.shares.argmax()]) if top is not None else -1
        near = prediction.neighbours
        group = self._kinds[int(self._text.documents[at])]
        holds = {}
        for length in self._recipe.ngrams:
            run = np.append(prediction.prefix[1:], token)[-length:]
            holds[f"holds {length}"] = row >= 0 and len(run) == length and contains(view.document_tokens(row), run)
        return {
            "document": int(self._text.documents[at]),
            "lm": float(prediction.lm[token]),
            "mixed": float(prediction.probabilities[token]),
            "lm_share": owed.lm_share,
            **{f"tier {tier}": share for tier, share in tiers.items()},
            "credited": row >= 0,
            "nearest_right": near is not None and bool(near.rows[0, 0] >= 0 and near.values[0, 0] == token),
            "same_group": bool(self._group and row >= 0 and _group_of(view.document(row), self._group) == group),
            "chance_group": shares.get(group, 0.0) if self._group else 0.0,
            **holds,
        }

    def _example(self, prediction: Prediction, at: int, retriever: Any) -> dict[str, Any]:
        """Test prefix and continuation, the nearest stored place with its own, and whose it is."""
        tokenizer, ids = self._predictor.tokenizer, self._text.stream.ids
        near = top_neighbours(prediction, retriever, tokenizer, 1)
        if not near:
            return {}
        (document,) = retriever.views[0].documents(Selector(document=f"id:{near[0].document}"))
        end = int(np.searchsorted(self._text.documents, self._text.documents[at], side="right"))
        token = int(ids[at])
        return {
            "prefix": tokenizer.decode(prediction.prefix[1:][-_PREFIX:].astype(np.uint32)),
            "continuation": tokenizer.decode(ids[at : min(end, at + _CONTINUATION)]),
            "retrieved_prefix": near[0].left,
            "retrieved_continuation": near[0].continuation,
            "document": document.external_id,
            "source": document.source,
            "owner": document.owner,
            "license": document.license,
            "tier": str(document.tier),
            "notice": "; ".join(notice_lines([document])),
            "lm": float(prediction.lm[token]),
            "mixed": float(prediction.probabilities[token]),
        }


def contains(document: NDArray[Any], run: NDArray[Any]) -> bool:
    """Do these tokens stand in a document in this order?"""
    if len(document) < len(run):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(document, len(run))
    return bool((windows == run).all(axis=1).any())


def _group_of(document: Document, group: str) -> str:
    return document.source if group == SOURCE else str(document.meta.get(group, ""))


def _test_groups(file: Path, labels: Sequence[str], group: str) -> list[str]:
    """The kind of every test document, in the order of their labels."""
    if not group:
        return [""] * len(labels)
    documents = read_documents(SourceRecipe("jsonl", (str(file),)), file.parent, [])
    kinds = {f"{file.name}#{document.external_id}": _group_of(document, group) for document in documents}
    return [kinds.get(label, "") for label in labels]


def _group_shares(documents: Iterator[Document], group: str) -> dict[str, float]:
    """How much of the stored text is of each kind: what guessing would reach."""
    sizes: Counter[str] = Counter()
    for document in documents if group else ():
        sizes[_group_of(document, group)] += len(document.text)
    return {kind: size / sizes.total() for kind, size in sizes.items()}


Figures = dict[str, intervals.Floats]


def _figures(found: Mapping[str, Any], recipe: Recipe, seed: int) -> Figures:
    """Vectors of all figures of a domain; documents are drawn, not places."""
    columns = {name: np.array(values, dtype=np.float64) for name, values in found["columns"].items()}
    _, documents = np.unique(columns.pop("document"), return_inverse=True)
    draws = intervals.Resamples(int(documents.max()) + 1, seed=seed)

    def total(values: intervals.Floats) -> intervals.Floats:
        return draws.total(np.bincount(documents, weights=values).astype(np.float64))

    def mean(values: intervals.Floats, where: intervals.Floats) -> intervals.Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            figure: intervals.Floats = total(values * where) / total(where)
        return figure

    every, credited = np.ones(len(documents)), columns["credited"]
    mostly = (columns["lm_share"] < 1 - _MOSTLY).astype(np.float64)
    tiers = {f"from {tier}": mean(columns[f"tier {tier}"], every) for tier in Tier if columns[f"tier {tier}"].any()}
    holds = {f"holds the last {length}": mean(columns[f"holds {length}"], mostly) for length in recipe.ngrams}
    kinds = {}
    if columns["chance_group"].any():
        kinds = {
            "same kind": mean(columns["same_group"], credited),
            "same kind by chance": mean(columns["chance_group"], credited),
        }
    return {
        "from the model": mean(columns["lm_share"], every),
        **tiers,
        "nearest place has the token": mean(columns["nearest_right"], every),
        "mostly from the store": mean(mostly, every),
        **holds,
        **kinds,
    }


def _estimate(figure: intervals.Floats) -> dict[str, Any]:
    return intervals.Estimate.of(figure).as_json()


def _table(model: str, items: Mapping[str, Figures]) -> Table:
    parts = list(dict.fromkeys(part for figures in items.values() for part in figures))
    lines = [
        (
            domain,
            *(show_estimate(_estimate(figures[part]), 0, 100) if part in figures else "" for part in parts),
        )
        for domain, figures in items.items()
    ]
    title = f"Where the probability of the true token comes from, {model} (per cent, 95 % interval over documents)"
    note = "; `holds` is of the document with the largest share, at tokens that are mostly from the store"
    return Table(title + note, ("domain", *parts), tuple(lines))


def _examples(model: str, items: Mapping[str, Mapping[str, Any]]) -> Table:
    lines = [
        (
            domain,
            f"...{_line(one['prefix'])}",
            f"{_line(one['continuation'])}...",
            f"...{_line(one['retrieved_prefix'])}",
            f"{_line(one['retrieved_continuation'])}...",
            f"{one['document']} ({one['source']})",
            _line(one["notice"] or f"{one['license']} ({one['tier']})"),
            f"{one['lm']:.3f} to {one['mixed']:.3f}",
        )
        for domain, found in items.items()
        for one in found["examples"]
    ]
    columns = (
        "domain",
        "test prefix",
        "test continuation",
        "nearest stored prefix",
        "its continuation",
        "document",
        "licence, notice",
        "probability of the token, LM to mixture",
    )
    return Table(f"Examples, {model}: test text, and what the store has there", columns, tuple(lines))


def _line(text: str) -> str:
    return " ".join(text.split())


def _answer(figures: Mapping[str, Mapping[str, Figures]]) -> str:
    parts = []
    for model, items in figures.items():
        names = [part for part in next(iter(items.values())) if part.startswith("holds")]
        own = _mean(items, "from the model")
        held = ", ".join(
            f"{name.removeprefix('holds ')} in {show_estimate(_mean(items, name), 0, 100)} %" for name in names
        )
        parts.append(
            f"{model}: {show_estimate(own, 0, 100)} % of the true tokens' probability is the model's own, the rest is "
            f"credited to documents; at tokens that are mostly from the store the first document credited holds of "
            f"the tokens up to there {held} of the cases"
        )
    return "; ".join(parts) + "."


def _mean(items: Mapping[str, Figures], part: str) -> dict[str, Any]:
    return _estimate(np.mean([figures[part] for figures in items.values()], axis=0))


def _plot(figures: Mapping[str, Mapping[str, Figures]]) -> bytes:
    """Shares of the model and of the tiers, domain by domain."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4 * len(figures)), layout="constrained")
    for axes, (model, items) in zip(figure.subplots(len(figures), squeeze=False)[:, 0], figures.items(), strict=True):
        parts = ["from the model", *(f"from {tier}" for tier in Tier)]
        bottom = np.zeros(len(items))
        for at, part in enumerate(parts):
            values = np.array([figures[part][0] if part in figures else 0.0 for figures in items.values()])
            axes.bar(list(items), values, bottom=bottom, label=part, color=ACCENTS[at])
            bottom += values
        axes.set_ylabel("share of the true token's probability")
        axes.set_title(model, loc="left")
        axes.tick_params(axis="x", rotation=15)
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure_png(figure)
