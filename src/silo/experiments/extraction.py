"""How much stored text can be drawn out of a store, and can anybody tell what it holds? The paper does not measure it.

Extraction: the beginning of a stored document is the prompt, and the longest run of tokens that the continuation shares
with the document is counted, with and without what narrows it (guard, policy).

Membership: of some documents drawn from the store half are erased, which leaves a store that never held them. Whoever
sees probabilities tries to tell the halves apart. Then the other half is erased too: nothing should be left to tell.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.evaluation import intervals
from silo.evaluation.texts import TextLimits
from silo.experiments.harness.lab import Lab, LabStore
from silo.experiments.harness.measure import known_domains
from silo.experiments.harness.result import ACCENTS, Result, Table, draw_estimates, figure_png, show_estimate
from silo.files import remove_tree
from silo.inference.predict import open_predictor
from silo.inference.score import score_text
from silo.inference.session import open_session
from silo.inference.settings import Settings
from silo.pairing import open_store
from silo.records import Document
from silo.store.selector import Selector
from silo.store.view import View
from silo.text.stream import first_tokens, merged_stream

Tokens = NDArray[np.uint32]

DIFFERENCES = """The paper discusses that a store can be copied from, and measures nothing. Prompts are the best an
attacker can have: the documents' own beginnings. Runs are of tokens of our tokenizer. The guard bounds one output; who
asks again with another prompt gets the next tokens."""


_PROMPTS = 50
"""Documents of a domain whose beginning is given, where the recipe does not say."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`guards` and `policy` are tried on the `protected` method; `prompts` and `store_tokens` are by model.

    `members` documents are to be told from as many others by their first `member_tokens` tokens.
    """

    question: str
    paper: str
    models: tuple[str, ...]
    domains: tuple[str, ...]
    methods: tuple[str, ...]
    protected: str
    guards: tuple[int, ...]
    policy: str
    prompts: dict[str, int]
    prompt_tokens: int = 50
    new_tokens: int = 100
    long_run: int = 50
    members: int = 50
    member_tokens: int = 300
    neighbours: int = 1024
    validation_tokens: int = 20_000
    document_tokens: int = 1_000
    store_tokens: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Arm:
    """A method, and what narrows it."""

    method: str
    guard: int = 0
    policy: str = ""

    @property
    def name(self) -> str:
        guard = [f"guard {self.guard}"] if self.guard else []
        return ", ".join([self.method, *guard, *(["policy"] if self.policy else [])])


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """One model with the store of one domain."""

    lab: Lab
    recipe: Recipe
    model: str
    domain: str
    store: LabStore

    @classmethod
    def open(cls, lab: Lab, recipe: Recipe, model: str, domain: str) -> _Place:
        return cls(lab, recipe, model, domain, lab.store(model, domain, recipe.store_tokens.get(model, 0)))

    def key(self) -> dict[str, Any]:
        limits = asdict(self._limits)
        return {
            "model": self.lab.fingerprint(self.model),
            "store": self.store.digest,
            "domain": self.domain,
            "settings": [self.recipe.neighbours, *limits.values()],
        }

    @property
    def _limits(self) -> TextLimits:
        return TextLimits(self.recipe.validation_tokens, self.recipe.document_tokens)

    def settings(self, method: str) -> Settings:
        """Those that suit the domain: an attacker would choose no others."""
        if method == "lm":
            return Settings()
        neighbours, limits = self.recipe.neighbours, self._limits
        return self.lab.settings(self.model, self.domain, self.store, neighbours=neighbours, limits=limits)[method]

    def draw_out(self, arm: _Arm) -> dict[str, Any]:
        """The longest runs that continuations share with their document, and with any document."""
        recipe = self.recipe
        count = recipe.prompts.get(self.model, _PROMPTS)
        sizes = [count, recipe.prompt_tokens, recipe.new_tokens]

        def measure() -> dict[str, Any]:
            stores = [self.store.fill()] if arm.method != "lm" else []
            session = open_session(
                self.lab.model(self.model),
                stores,
                method=arm.method,
                settings=self.settings(arm.method),
                policy=arm.policy,
            )
            runs: dict[str, list[int]] = {"own": [], "any": []}
            with open_store(self.store.fill()).reading() as view:
                for source in self._sources(view, count):
                    prompt = session.predictor.tokenizer.decode(source[: recipe.prompt_tokens])
                    steps = session.generate(prompt, max_tokens=recipe.new_tokens, guard=arm.guard or None)
                    written = np.array([step.token for step in steps if step.token >= 0], dtype=np.uint32)
                    runs["own"].append(longest_common_run(written, source))
                    runs["any"].append(longest_stored_run(written, view))
                    self.lab.advance(arm.name, len(runs["own"]), count)
            return runs

        return self.lab.cell("extraction", {**self.key(), "arm": asdict(arm), "sizes": sizes}, measure)

    def _sources(self, view: View, count: int) -> list[Tokens]:
        """The tokens of stored documents that are long enough, in the order of their ids, which are hashes."""
        wanted = self.recipe.prompt_tokens + self.recipe.new_tokens
        every = (view.document_tokens(row) for row in range(len(view.ids)))
        sources = list(islice((tokens for tokens in every if len(tokens) >= wanted), count))
        if not sources:
            raise SiloError("input-empty", f"no document of {self.store.name} has {wanted} tokens")
        return sources

    def tell_apart(self) -> dict[str, Any]:
        """Log-probabilities per token of members and others, by the model alone and with the store before and after."""
        recipe = self.recipe
        sizes = [recipe.members, recipe.member_tokens, recipe.protected]

        def measure() -> dict[str, Any]:
            with _copied(self.store.fill()) as copy:
                members, others = self._halves(copy)
                self._erase(copy, others)
                found = {"lm": self._log_means("lm", [], members, others)}
                found["stored"] = self._log_means(recipe.protected, [copy], members, others)
                self._erase(copy, members)
                found["erased"] = self._log_means(recipe.protected, [copy], members, others)
            return found

        return self.lab.cell("membership", {**self.key(), "sizes": sizes}, measure)

    def _halves(self, place: Path) -> tuple[list[Document], list[Document]]:
        """Documents by their id, which is a hash: every other one is a member."""
        store = open_store(place)
        documents = sorted(store.documents(), key=lambda document: document.id)
        store.close()
        drawn = documents[: min(2 * self.recipe.members, len(documents) // 2)]
        return drawn[::2], drawn[1::2]

    def _erase(self, place: Path, documents: Sequence[Document]) -> None:
        store = open_store(place)
        for at, document in enumerate(documents):
            gone = store.erase(Selector(document=f"id:{document.id}"), suppress=False)
            if gone.failed_checks:
                raise SiloError("check-failed", f"erasing {document.external_id}: {', '.join(gone.failed_checks)}")
            self.lab.advance("erase", at + 1, len(documents))
        store.close()

    def _log_means(
        self, method: str, stores: Sequence[Path], members: Sequence[Document], others: Sequence[Document]
    ) -> dict[str, list[float]]:
        predictor = open_predictor(self.lab.model(self.model), stores, method=method, settings=self.settings(method))
        most = self.recipe.member_tokens + 1

        def log_mean(document: Document) -> float:
            scored = score_text(predictor, first_tokens(merged_stream([document.text], predictor.tokenizer), most))
            return float(scored.logs[scored.counted].mean()) if scored.counted.any() else 0.0

        return {"members": [log_mean(one) for one in members], "others": [log_mean(one) for one in others]}


@contextmanager
def _copied(store: Path) -> Iterator[Path]:
    """A copy to erase from."""
    copy = store.with_name(f"{store.name}-erasing")
    remove_tree(copy)
    shutil.copytree(store, copy)
    try:
        yield copy
    finally:
        remove_tree(copy)


def longest_common_run(written: Tokens, source: Tokens) -> int:
    """The most tokens in a row that stand in both."""
    lengths, best = np.zeros(len(source) + 1, dtype=np.int64), 0
    for token in written.tolist():
        lengths[1:] = np.where(source == token, lengths[:-1] + 1, 0)
        best = max(best, int(lengths.max()))
    return best


def longest_stored_run(written: Tokens, view: View) -> int:
    """The most tokens in a row that stand in any one stored document."""
    return max((view.longest_match(written[:end]).length for end in range(1, len(written) + 1)), default=0)


def run(lab: Lab, name: str) -> Result:
    """Every model on every domain of the data that the recipe names."""
    recipe = lab.recipe(name, Recipe)
    domains = known_domains(lab, recipe.domains)
    places = {model: [_Place.open(lab, recipe, model, domain) for domain in domains] for model in recipe.models}
    runs = {
        model: {
            arm.name: {place.domain: _run_figures(place.draw_out(arm), recipe, at) for at, place in enumerate(items)}
            for arm in _arms(recipe)
        }
        for model, items in places.items()
    }
    members = {
        model: {place.domain: _member_figures(place.tell_apart(), at) for at, place in enumerate(items)}
        for model, items in places.items()
    }
    facts = {
        "recipe": asdict(recipe),
        "extraction": {model: {arm: _plain(found) for arm, found in items.items()} for model, items in runs.items()},
        "membership": {model: _plain(items) for model, items in members.items()},
    }
    tables = [_run_table(model, items, recipe) for model, items in runs.items()]
    tables += [_member_table(model, items) for model, items in members.items()]
    answer = _answer(runs, members, recipe)
    return Result(name, recipe.question, answer, recipe.paper, DIFFERENCES, tuple(tables), facts, _plot(runs))


def _arms(recipe: Recipe) -> list[_Arm]:
    guarded = [_Arm(recipe.protected, guard) for guard in recipe.guards]
    return [*map(_Arm, recipe.methods), *guarded, _Arm(recipe.protected, policy=recipe.policy)]


Figures = dict[str, intervals.Floats]
"""Vectors of some figures by name."""


def _run_figures(found: Mapping[str, Sequence[int]], recipe: Recipe, seed: int) -> Figures:
    own, anywhere = (np.array(found[name], dtype=np.float64) for name in ("own", "any"))
    draws = intervals.Resamples(len(own), seed=seed)
    return {
        "mean": draws.mean(own),
        "percentile_95": draws.quantile(own, 0.95),
        "share_long": draws.mean((own >= recipe.long_run).astype(np.float64)),
        "mean_any": draws.mean(anywhere),
        "percentile_95_any": draws.quantile(anywhere, 0.95),
    }


def _member_figures(found: Mapping[str, Mapping[str, Sequence[float]]], seed: int) -> Figures:
    """How well members can be told from others, by the perplexity alone and by its ratio to the language model's."""
    logs = {state: {side: np.array(values) for side, values in sides.items()} for state, sides in found.items()}
    draws = {
        side: intervals.Resamples(len(values), seed=2 * seed + at)
        for at, (side, values) in enumerate(logs["lm"].items())
    }

    def auc(sides: Mapping[str, intervals.Floats]) -> intervals.Floats:
        return draws["members"].auc(sides["members"], sides["others"], draws["others"])

    figures = {"lm": auc(logs["lm"])}
    for state in ("stored", "erased"):
        figures[f"{state}, perplexity"] = auc(logs[state])
        figures[f"{state}, ratio"] = auc({side: logs[state][side] - logs["lm"][side] for side in logs["lm"]})
    return figures


def _plain(items: Mapping[str, Figures]) -> dict[str, Any]:
    return {name: {part: _estimate(figure) for part, figure in figures.items()} for name, figures in items.items()}


def _estimate(figure: intervals.Floats) -> dict[str, Any]:
    return intervals.Estimate.of(figure).as_json()


def _mean(items: Mapping[str, Figures], part: str) -> dict[str, Any]:
    """Of all domains."""
    return _estimate(np.mean([figures[part] for figures in items.values()], axis=0))


def _run_table(model: str, items: Mapping[str, Mapping[str, Figures]], recipe: Recipe) -> Table:
    parts = {
        "mean": (1, 1),
        "percentile_95": (0, 1),
        "share_long": (0, 100),
        "mean_any": (1, 1),
        "percentile_95_any": (0, 1),
    }
    lines = []
    for arm, domains in items.items():
        for domain, figures in domains.items():
            cells = (show_estimate(_estimate(figures[part]), *how) for part, how in parts.items())
            lines.append((arm, domain, *cells))
        lines.append((arm, "mean", *(show_estimate(_mean(domains, part), *how) for part, how in parts.items())))
    columns = (
        "method",
        "domain",
        "longest run of the document, mean",
        "95th percentile",
        f"at least {recipe.long_run} tokens, %",
        "of any stored document, mean",
        "95th percentile",
    )
    most = recipe.prompts.get(model, _PROMPTS)
    title = f"{recipe.new_tokens} tokens after the first {recipe.prompt_tokens} of a stored document, {model}"
    return Table(f"{title} (tokens; 95 % interval over {most} documents of each domain)", columns, tuple(lines))


def _member_table(model: str, items: Mapping[str, Figures]) -> Table:
    parts = list(next(iter(items.values())))
    lines = [
        (domain, *(show_estimate(_estimate(figures[part]), 2) for part in parts)) for domain, figures in items.items()
    ]
    lines.append(("mean", *(show_estimate(_mean(items, part), 2) for part in parts)))
    title = f"Telling stored documents from others, {model}: area under the curve, 0.5 is chance (95 % interval)"
    return Table(title, ("domain", *parts), tuple(lines))


def _answer(
    runs: Mapping[str, Mapping[str, Mapping[str, Figures]]],
    members: Mapping[str, Mapping[str, Figures]],
    recipe: Recipe,
) -> str:
    parts = []
    for model, items in runs.items():
        shown = [f"{arm}: {show_estimate(_mean(domains, 'mean'), 0)}" for arm, domains in items.items()]
        told = {state: show_estimate(_mean(members[model], f"{state}, ratio"), 2) for state in ("stored", "erased")}
        parts.append(
            f"Given the first {recipe.prompt_tokens} tokens of a stored document, {model} repeats so many more in a "
            f"row in the mean ({'; '.join(shown)}); stored documents are told from others with an area under the curve "
            f"of {told['stored']}, after erasure {told['erased']}"
        )
    return ". ".join(parts) + "."


def _plot(runs: Mapping[str, Mapping[str, Mapping[str, Figures]]]) -> bytes:
    """The mean longest run of every arm."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6 * len(runs)), layout="constrained")
    for axes, (model, items) in zip(figure.subplots(len(runs), squeeze=False)[:, 0], runs.items(), strict=True):
        domains = list(next(iter(items.values())))
        for at, domain in enumerate(domains):
            found = [_estimate(figures[domain]["mean"]) for figures in items.values()]
            places = [place + 0.6 * (at + 0.5 - len(domains) / 2) / len(domains) for place in range(len(found))]
            draw_estimates(axes, places, found, label=domain, color=ACCENTS[at % len(ACCENTS)])
        axes.set_xticks(range(len(items)), list(items), rotation=15, ha="right")
        axes.set_ylabel("tokens in a row of the document")
        axes.set_title(model, loc="left")
        axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.3)
    return figure_png(figure)
