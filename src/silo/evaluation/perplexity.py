"""`silo eval ppl`: what stores are worth on some domains, beside the rows that keep the comparison honest.

Every row is the log-probability of every token of the same text, so that whatever is asked later (perplexity, bits per
byte, a difference, the share of a gap, by document, by how much of the text the store holds) comes from one pass.
Settings come from validation text. A test text that was scored before is said to have been.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silo.evaluation.intervals import Estimate, Floats, Resamples, gap_closed, perplexity
from silo.evaluation.tune import fit_matches, tune
from silo.inference.context import RicContext
from silo.inference.observe import Observations, observe
from silo.inference.predict import Predictor
from silo.inference.settings import Settings, parse_method
from silo.lm.windows import Windows
from silo.pairing import KeyEncoder
from silo.progress import Advance
from silo.sources.evaluation import read_scored
from silo.store.policy import EVERYTHING
from silo.store.store import Store
from silo.text.stream import TokenStream, first_tokens, merged_stream
from silo.text.tokenizer import Ids, Tokenizer

if TYPE_CHECKING:
    from silo.lm.model import LanguageModel
    from silo.lm.training.finetune import FineTuning

PLAIN, REFERENCE = "lm", "reference"
METHODS = ("lm", "ric", "knn", "ngram", "knn+ngram")
MATCHES = {"0": (0, 0), "1-4": (1, 4), "5-8": (5, 8), "9-12": (9, 12), "13+": (13, 10**9)}
"""Tokens by the longest stretch before them that the store holds, in tokens."""
CLEAN = ("0", "1-4", "5-8", "9-12")
ANY = "any"
_WINDOWS = Windows()
IN, NEAR, OUT, UNKNOWN = "in", "near", "out", "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class DomainText:
    """Text of one domain as one stream; `documents` numbers the document of every token, `labels` names them."""

    domain: str
    stream: TokenStream
    documents: NDArray[np.int64]
    labels: tuple[str, ...]

    @property
    def counted(self) -> NDArray[np.bool_]:
        """The tokens that are scored: the first of all has nothing to be predicted from."""
        counted = self.stream.scored.copy()
        counted[:1] = False
        return counted


@dataclass(frozen=True, slots=True)
class TextLimits:
    """About so many tokens of a domain, in whole documents, each cut to its first `document_tokens`; 0 is no limit."""

    tokens: int = 0
    document_tokens: int = 0


def read_domains(files: Iterable[Path], tokenizer: Tokenizer, limits: TextLimits) -> dict[str, DomainText]:
    """The documents of some files by domain."""
    parts: dict[str, list[tuple[str, TokenStream]]] = {}
    sizes: dict[str, int] = {}
    for record in read_scored(files):
        if limits.tokens and sizes.get(record.domain, 0) >= limits.tokens:
            continue
        document = merged_stream([record.text], tokenizer)
        if limits.document_tokens:
            document = first_tokens(document, limits.document_tokens + 1)
        parts.setdefault(record.domain, []).append((record.label, document))
        sizes[record.domain] = sizes.get(record.domain, 0) + len(document.ids)
    return {domain: _join(domain, documents) for domain, documents in sorted(parts.items())}


def read_domain(file: Path, domain: str, tokenizer: Tokenizer, *, tokens: int, document_tokens: int) -> DomainText:
    """The documents of one domain; the limits are those of `TextLimits`."""
    return read_domains([file], tokenizer, TextLimits(tokens, document_tokens))[domain]


def _join(domain: str, documents: Sequence[tuple[str, TokenStream]]) -> DomainText:
    streams = [stream for _, stream in documents]
    whole = TokenStream(
        np.concatenate([stream.ids for stream in streams]),
        np.concatenate([stream.scored for stream in streams]),
        np.concatenate([stream.sizes for stream in streams]),
    )
    numbers = np.repeat(np.arange(len(streams)), [len(stream.ids) for stream in streams])
    return DomainText(domain, whole, numbers, tuple(label for label, _ in documents))


@dataclass(frozen=True, slots=True, eq=False)
class DomainScores:
    """The rows of one domain: log-probabilities of all tokens, and the longest match before each (-1 without a store).

    `notes` says of some rows how they came about (settings, fine-tuning).
    """

    text: DomainText
    mark: str
    matches: NDArray[np.int64]
    logs: dict[str, Floats]
    notes: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Contestants:
    """What is compared on every domain. `encoder` makes the stores' keys; references have the model's tokenizer.

    `windows` are what a model reads at once, with RIC the passages included.
    """

    model: LanguageModel
    stores: Sequence[Store]
    encoder: KeyEncoder | None
    methods: Sequence[str]
    references: Mapping[str, LanguageModel]
    settings: Mapping[str, Settings] = field(default_factory=dict)
    neighbours: int = 1024
    fine_tuning: FineTuning | None = None
    windows: Windows = _WINDOWS


def score_domain(
    contestants: Contestants,
    text: DomainText,
    validation: TokenStream | None,
    *,
    advance: Advance = lambda *_: None,
) -> DomainScores:
    """All rows of one domain. Without validation text the settings are those given, or the defaults."""
    matches = np.full(len(text.stream.ids), -1, dtype=np.int64)
    scores = DomainScores(text, domain_mark(contestants.model.manifest, text.domain), matches, {})
    _Scoring(contestants, scores, validation, advance).run()
    return scores


@dataclass(frozen=True, slots=True, eq=False)
class _Scoring:
    """Fills the rows of one domain."""

    contestants: Contestants
    scores: DomainScores
    validation: TokenStream | None
    advance: Advance

    def run(self) -> None:
        contest = self.contestants
        self._methods(contest.model, "", contest.methods)
        if contest.stores and contest.fine_tuning is not None and self.validation is not None:
            self._fine_tuned(contest.fine_tuning)
        for name, model in contest.references.items():
            best = [method for method in contest.methods if method != PLAIN and "ric" not in method][-1:]
            self._methods(model, name, [PLAIN, *best] if contest.stores else [PLAIN])

    def _methods(self, model: LanguageModel, name: str, methods: Sequence[str]) -> None:
        """The rows of one model; those of a reference are named after it."""
        searched = frozenset(part for method in methods for part in parse_method(method)) - {"ric"}
        predictor = self._predictor(model, searched)
        tuned = tune(predictor, self.validation, advance=self.advance) if searched and self.validation else None
        chosen = {**self.contestants.settings, **(tuned.settings if tuned else {})}
        if tuned:
            predictor.settings = next(iter(tuned.settings.values()))  # k and tau are the same in all of them
            self.scores.notes[_row(name, "settings")] = dict(tuned.figures)
        observed = self._timed(_row(name, "+".join(sorted(searched)) or PLAIN), lambda: self._observe(predictor))
        if "ngram" in searched:
            self.scores.matches[:] = observed.levels.lengths
        for method in methods:
            parts = parse_method(method)
            if "ric" in parts:
                self._ric(model, name, method, chosen)
            else:
                self._add(_row(name, method), observed.probabilities(parts, chosen.get(method, predictor.settings)))
        if tuned and "knn" in methods and not name:
            self._add("knn, fixed", observed.probabilities(frozenset({"knn"}), tuned.fixed["knn"]))
        if "ngram" in searched and not name:
            self._without_model(predictor, observed)

    def _predictor(self, model: LanguageModel, method: frozenset[str]) -> Predictor:
        contest = self.contestants
        predictor = Predictor(
            model,
            contest.stores if method else (),
            method=method,
            settings=contest.settings.get("+".join(sorted(method)), Settings(k=contest.neighbours)),
            policy=EVERYTHING,
            encoder=contest.encoder if "knn" in method else None,
            context=None,
        )
        predictor.windows = contest.windows.within(model.context)
        return predictor

    def _observe(self, predictor: Predictor) -> Observations:
        return observe(predictor, self.scores.text.stream.ids, advance=self.advance)

    def _ric(self, model: LanguageModel, name: str, method: str, chosen: Mapping[str, Settings]) -> None:
        """Passages before the text, in an input as long as that of the model alone, and the model alone with as much
        context as they leave it."""
        settings = chosen.get(method.removeprefix("ric+"), Settings())
        predictor = self._predictor(model, parse_method(method))
        predictor.settings = settings
        provider = RicContext(predictor.windows.length, settings.ric, model.tokenizer)
        predictor.context = provider
        observed = self._timed(_row(name, method), lambda: self._observe(predictor))
        self._add(_row(name, method), observed.probabilities(parse_method(method) - {"ric"}, settings))
        control = _row(name, "lm, context of ric")
        if control not in self.scores.logs:
            plain = self._predictor(model, frozenset())
            plain.windows = Windows(provider.windows.length, provider.windows.stride)
            self._add(control, self._observe(plain).lm)

    def _without_model(self, predictor: Predictor, observed: Observations) -> None:
        """Matches of the store over its unigrams: what an n-gram model reaches that has no language model at all."""
        if self.validation is None:
            return
        alone = self._predictor(predictor.model, frozenset({"ngram"}))
        shares = unigrams(self.contestants.stores, predictor.model.vocabulary)
        with alone.reading() as retriever:
            levels = retriever.levels(self.validation.ids.astype(np.int64))
        features = replace(
            observed.features, peaks=np.zeros(len(levels.lengths)), lengths=levels.lengths, totals=levels.totals
        )
        seen = Observations(shares[self.validation.ids], np.zeros(len(levels.lengths)), levels, features)
        counted = self.validation.scored.copy()
        counted[:1] = False
        settings = fit_matches(seen, counted)
        here = replace(observed, lm=shares[self.scores.text.stream.ids])
        self._add("ngram, no lm", here.probabilities(frozenset({"ngram"}), settings))

    def _fine_tuned(self, how: FineTuning) -> None:
        from silo.lm.training.finetune import fine_tune

        model, validation = self.contestants.model, self.validation
        assert validation is not None
        tokens = store_tokens(self.contestants.stores, model.tokenizer.begin)
        adapted, report = self._timed(
            "fine-tuned", lambda: fine_tune(model, tokens, validation, how, advance=self.advance)
        )
        self.scores.notes["fine-tuned"] = report
        self._add("fine-tuned", self._observe(self._predictor(adapted, frozenset())).lm)

    def _add(self, row: str, probabilities: Floats) -> None:
        self.scores.logs[row] = _logs(probabilities)

    def _timed(self, row: str, work: Any) -> Any:
        begun = time.perf_counter()
        result = work()
        self.scores.seconds[row] = time.perf_counter() - begun
        return result


def _row(model: str, method: str) -> str:
    if not model:
        return method
    return model if method == PLAIN else f"{model} + {method}"


def store_tokens(stores: Sequence[Store], begin: int) -> Ids:
    """All documents of the stores end to end, each led by the beginning-of-text token."""
    parts: list[NDArray[np.uint32]] = []
    for store in stores:
        with store.reading() as view:
            for row in range(len(view.ids)):
                parts += [np.array([begin], dtype=np.uint32), view.document_tokens(row)]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)


def unigrams(stores: Sequence[Store], vocabulary: int) -> Floats:
    """The share of every token in the stores' text, each token counted once more than it occurs."""
    counts = np.ones(vocabulary)
    for store in stores:
        with store.reading() as view:
            for row in range(len(view.ids)):
                np.add.at(counts, view.document_tokens(row), 1.0)
    shares: Floats = counts / counts.sum()
    return shares


def domain_mark(manifest: Mapping[str, Any], domain: str) -> str:
    """How near a model's training text is to a domain: the domain itself, one of its group, neither; or not known."""
    training = manifest.get("training", {})
    if "domains" not in training:
        return UNKNOWN
    learned = set(training["domains"])
    kin = {other for group in training.get("groups", {}).values() if domain in group for other in group}
    return IN if domain in learned else NEAR if kin & learned else OUT


@dataclass(frozen=True, slots=True, eq=False)
class DomainSums:
    """What every figure of a domain comes from: sums by document, and by the longest match where there is a store.

    `tokens` and the `logs` of every row are [kinds of match, documents]; `sizes` are the bytes of the documents.
    """

    domain: str
    mark: str
    labels: tuple[str, ...]
    matches: tuple[str, ...]
    tokens: Floats
    sizes: Floats
    logs: dict[str, Floats]
    notes: dict[str, Any]
    seconds: dict[str, float]

    @classmethod
    def of(cls, scores: DomainScores) -> DomainSums:
        """Add up the tokens that count."""
        text, counted = scores.text, scores.text.counted
        known = (scores.matches >= 0).any()
        bounds = MATCHES if known else {ANY: (-1, 10**9)}
        chosen = [counted & (scores.matches >= low) & (scores.matches <= high) for low, high in bounds.values()]

        def add_up(values: NDArray[Any], some: NDArray[np.bool_]) -> Floats:
            sums = np.bincount(text.documents[some], weights=values[some], minlength=len(text.labels))
            return sums.astype(np.float64)

        def by_match(values: NDArray[Any]) -> Floats:
            return np.stack([add_up(values, some) for some in chosen])

        return cls(
            text.domain,
            scores.mark,
            text.labels,
            tuple(bounds),
            by_match(np.ones(len(counted))),
            add_up(text.stream.sizes, counted),
            {row: by_match(logs) for row, logs in scores.logs.items()},
            scores.notes,
            {name: round(value, 2) for name, value in scores.seconds.items()},
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values; `rows` keeps the order of the rows, which a file of JSON need not."""
        plain = {name: getattr(self, name) for name in ("domain", "mark", "notes", "seconds")}
        lists = {"rows": list(self.logs), **{name: list(getattr(self, name)) for name in ("labels", "matches")}}
        logs = {row: values.tolist() for row, values in self.logs.items()}
        return {**plain, **lists, "tokens": self.tokens.tolist(), "sizes": self.sizes.tolist(), "logs": logs}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> DomainSums:
        """The inverse of `as_json`."""
        return cls(
            content["domain"],
            content["mark"],
            tuple(content["labels"]),
            tuple(content["matches"]),
            np.array(content["tokens"], dtype=np.float64),
            np.array(content["sizes"], dtype=np.float64),
            {row: np.array(content["logs"][row], dtype=np.float64) for row in content["rows"]},
            content["notes"],
            content["seconds"],
        )


def sum_rows(text: DomainText, probabilities: Mapping[str, Floats]) -> DomainSums:
    """Rows that were scored elsewhere: the probability of every token of a text."""
    matches = np.full(len(text.documents), -1, dtype=np.int64)
    return DomainSums.of(
        DomainScores(text, UNKNOWN, matches, {row: _logs(found) for row, found in probabilities.items()})
    )


def _logs(probabilities: Floats) -> Floats:
    """Natural logarithms; the first token of all has nothing to be predicted from."""
    logs: Floats = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    logs[:1] = 0.0
    return logs


class DomainFigures:
    """Figures of the rows of one domain; all vectors share the draws of documents."""

    def __init__(self, sums: DomainSums, *, seed: int = 0) -> None:
        self.sums = sums
        self._resamples = Resamples(len(sums.labels), seed=seed)

    @property
    def rows(self) -> list[str]:
        return list(self.sums.logs)

    def perplexity(self, row: str, matches: Sequence[str] = ()) -> Floats:
        """Of all tokens, or of those of some kinds of match."""
        return perplexity(*(self._total(values, matches) for values in (self.sums.logs[row], self.sums.tokens)))

    def bits_per_byte(self, row: str) -> Floats:
        sizes = np.maximum(self._resamples.total(self.sums.sizes), 1)
        figure: Floats = -self._total(self.sums.logs[row], ()) / math.log(2) / sizes
        return figure

    def mean(self, sums: Floats) -> Floats:
        """Of anything that was added up over the tokens of every document: its mean over tokens."""
        figure: Floats = self._resamples.total(sums) / np.maximum(self._total(self.sums.tokens, ()), 1)
        return figure

    def gap_closed(self, row: str, reference: str, matches: Sequence[str] = ()) -> Floats:
        return gap_closed(*(self.perplexity(name, matches) for name in (PLAIN, row, reference)))

    def _total(self, values: Floats, matches: Sequence[str]) -> Floats:
        kept = [at for at, name in enumerate(self.sums.matches) if not matches or name in matches]
        return self._resamples.total(values[kept].sum(axis=0))

    def as_json(self) -> dict[str, Any]:
        """Every figure of every row with its interval."""
        sums = self.sums
        counts = {name: int(count) for name, count in zip(sums.matches, sums.tokens.sum(axis=1), strict=True)}
        return {
            "mark": sums.mark,
            "documents": len(sums.labels),
            "tokens": int(sums.tokens.sum()),
            "bytes": int(sums.sizes.sum()),
            "matches": {} if ANY in counts else counts,
            "rows": {row: self._row(row, counts) for row in self.rows},
            "notes": sums.notes,
            "seconds": sums.seconds,
        }

    def _row(self, row: str, counts: Mapping[str, int]) -> dict[str, Any]:
        figures: dict[str, Floats] = {"perplexity": self.perplexity(row), "bits_per_byte": self.bits_per_byte(row)}
        compared = REFERENCE in self.rows and row not in (PLAIN, REFERENCE)
        if row != PLAIN:
            plain = self.perplexity(PLAIN)
            figures |= {"ratio_to_lm": figures["perplexity"] / plain, "difference_to_lm": figures["perplexity"] - plain}
        if compared:
            figures["gap_closed"] = self.gap_closed(row, REFERENCE)
        by_match = {}
        if ANY not in counts:
            by_match = {name: self.perplexity(row, [name]) for name, count in counts.items() if count}
            figures["clean"] = self.perplexity(row, CLEAN)
            if compared:
                figures["clean_gap_closed"] = self.gap_closed(row, REFERENCE, CLEAN)
        plain_figures = {name: Estimate.of(figure).as_json() for name, figure in figures.items()}
        return {**plain_figures, "by_match": {name: Estimate.of(item).as_json() for name, item in by_match.items()}}

    def by_document(self) -> list[dict[str, Any]]:
        """Of every document its tokens, bytes, share of long matches and perplexity in every row."""
        sums = self.sums
        tokens = sums.tokens.sum(axis=0)
        clean = sums.tokens[[at for at, name in enumerate(sums.matches) if name in CLEAN]].sum(axis=0)
        means = {
            row: np.exp(np.minimum(-logs.sum(axis=0) / np.maximum(tokens, 1), 700)) for row, logs in sums.logs.items()
        }
        return [
            {
                "document": label,
                "tokens": int(tokens[at]),
                "bytes": int(sums.sizes[at]),
                "long_matches": None if ANY in sums.matches else float(1 - clean[at] / tokens[at]),
                "perplexity": {row: float(values[at]) for row, values in means.items()},
            }
            for at, label in enumerate(sums.labels)
            if tokens[at]
        ]


def average_gap_closed(figures: Sequence[DomainFigures], row: str, *, clean: bool = False) -> Estimate:
    """The mean over domains of how much of the gap a row closes, of all tokens or of those without a long match.

    The domains' draws are independent.
    """
    matches = CLEAN if clean else ()
    return Estimate.of(np.mean([item.gap_closed(row, REFERENCE, matches) for item in figures], axis=0))
