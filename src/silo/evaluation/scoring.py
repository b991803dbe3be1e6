"""The rows of one domain: a model alone and with stores, beside the rows that keep the comparison honest.

Every row is the log-probability of every token of the same text, so that whatever is asked later (perplexity, bits per
byte, a difference, the share of a gap, by document, by how much of the text the store holds) comes from one pass.
Settings come from validation text.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silo.evaluation.intervals import Floats
from silo.evaluation.texts import DomainText
from silo.evaluation.tune import fit_matches, tune
from silo.inference.context import RicContext
from silo.inference.observe import Observations, observe
from silo.inference.predict import Predictor
from silo.inference.settings import Features, Settings, parse_method
from silo.lm.windows import Windows
from silo.pairing import KeyEncoder
from silo.progress import Advance
from silo.store.policy import EVERYTHING
from silo.store.store import Store
from silo.text.stream import TokenStream
from silo.text.tokenizer import Ids

if TYPE_CHECKING:
    from silo.lm.engine.decoder import DecodingModel
    from silo.lm.model import LanguageModel
    from silo.lm.training.finetune import FineTuning

PLAIN, REFERENCE = "lm", "reference"
METHODS = ("lm", "ric", "knn", "ngram", "knn+ngram")
_WINDOWS = Windows()
IN, NEAR, OUT, UNKNOWN = "in", "near", "out", "unknown"


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

    Without methods there are no rows but those of fine-tuning and references.

    `windows` are what a model reads at once, with RIC the passages included.
    """

    model: DecodingModel
    stores: Sequence[Store]
    encoder: KeyEncoder | None
    methods: Sequence[str]
    references: Mapping[str, DecodingModel]
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
        if contest.methods:
            self._methods(contest.model, "", contest.methods)
        elif contest.stores:
            self._note_matches()
        if contest.stores and contest.fine_tuning is not None and self.validation is not None:
            self._fine_tuned(contest.fine_tuning)
        for name, model in contest.references.items():
            best = [method for method in contest.methods if method != PLAIN and "ric" not in method][-1:]
            self._methods(model, name, [PLAIN, *best] if contest.stores else [PLAIN])

    def _note_matches(self) -> None:
        """The longest matches, where no method looks for them."""
        with self._predictor(self.contestants.model, frozenset({"ngram"})).reading() as retriever:
            self.scores.matches[:] = retriever.levels(self.scores.text.stream.ids.astype(np.int64)).lengths

    def _methods(self, model: DecodingModel, name: str, methods: Sequence[str]) -> None:
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

    def _predictor(self, model: DecodingModel | LanguageModel, method: frozenset[str]) -> Predictor:
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

    def _ric(self, model: DecodingModel, name: str, method: str, chosen: Mapping[str, Settings]) -> None:
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
        alone = self._predictor(predictor.opened, frozenset({"ngram"}))
        shares = unigrams(self.contestants.stores, predictor.network.vocabulary)
        with alone.reading() as retriever:
            levels, kinds = retriever.known_levels(self.validation.ids.astype(np.int64))
        nothing = np.zeros(len(kinds))
        none = nothing.astype(np.int64)
        features = Features(nothing, nothing, none, levels.lengths, levels.totals, kinds)
        seen = Observations(shares[self.validation.ids], nothing, levels, features)
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
        weights = model.language_model
        adapted, report = self._timed(
            "fine-tuned", lambda: fine_tune(weights, tokens, validation, how, advance=self.advance)
        )
        self.scores.notes["fine-tuned"] = report
        self._add("fine-tuned", self._observe(self._predictor(adapted, frozenset())).lm)

    def _add(self, row: str, probabilities: Floats) -> None:
        self.scores.logs[row] = log_probabilities(probabilities)

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


def log_probabilities(probabilities: Floats) -> Floats:
    """Natural logarithms; the first token of all has nothing to be predicted from."""
    logs: Floats = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    logs[:1] = 0.0
    return logs
