"""The paper's speed table: tokens per second of every method at several store sizes, beside the model alone.

All take turns in every round, so that what else the machine does meets all of them; a ratio is of one round, and the
figure is the median over rounds. Seconds are those of a clock on the wall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from silo.evaluation import intervals
from silo.evaluation.texts import TextLimits, read_domains
from silo.experiments.harness.lab import Lab, LabStore
from silo.experiments.harness.measure import known_domains
from silo.experiments.harness.result import ACCENTS, Result, Table, draw_estimates, figure_png, show_estimate
from silo.inference.predict import Predictor, open_predictor
from silo.inference.score import score_text
from silo.inference.session import Session
from silo.inference.settings import Settings
from silo.text.stream import TokenStream, first_tokens

PLAIN = "lm"
PAPER = {"ric": "0.23 (1,178M tokens) to 0.44 (51M)", "knn": "0.008 (1,024M) to 0.10 (51M)"}
"""Speed of the paper's methods as a share of its LM's: 812.7 and 419.7, 184.2 and 14.2 of 1,828.6 tokens per second."""

DIFFERENCES = """The paper scores with a 1.3B model on a GPU and reads its stores of up to a billion tokens from a slow
disk; here a small model runs on processor cores and the store is in memory, so the model is a smaller part of the
work. The paper has neither generation nor n-grams. Probes are the least number of lists: a search goes on until it has
seen twelve rows for each neighbour. Absolute figures are of this machine on this day; only ratios travel."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`store_tokens` are by model, 0 for all there is; `probes` are tried with knn at the largest store."""

    question: str
    paper: str
    models: tuple[str, ...]
    domain: str
    methods: tuple[str, ...]
    store_tokens: dict[str, tuple[int, ...]]
    probes: tuple[int, ...] = ()
    rounds: int = 9
    score_tokens: int = 4_096
    new_tokens: int = 64
    prompt_tokens: int = 128
    neighbours: int = 1024
    validation_tokens: int = 20_000
    document_tokens: int = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class _Contestant:
    """A method with a store of some size, opened."""

    name: str
    method: str
    store_tokens: int
    predictor: Predictor


@dataclass(frozen=True, slots=True, eq=False)
class _Seconds:
    """Seconds per token of every contestant in every round."""

    rounds: Mapping[str, Sequence[float]]
    draws: intervals.Resamples = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", intervals.Resamples(len(self.rounds[PLAIN])))

    def rate(self, name: str) -> intervals.Floats:
        """Tokens per second."""
        rate: intervals.Floats = self.draws.quantile(1 / np.array(self.rounds[name]), 0.5)
        return rate

    def relative(self, name: str) -> intervals.Floats:
        """Speed as a share of the model's in the same round."""
        shares = np.array(self.rounds[PLAIN]) / np.array(self.rounds[name])
        return self.draws.quantile(shares, 0.5)


def run(lab: Lab, name: str) -> Result:
    """Every method of every model at every size of the store."""
    recipe = lab.recipe(name, Recipe)
    recipe = replace(recipe, domain=known_domains(lab, [recipe.domain])[0])
    found = {model: measure(lab, recipe, model) for model in recipe.models}
    facts = {model: _facts(items) for model, items in found.items()}
    return Result(
        name,
        recipe.question,
        _answer(facts),
        recipe.paper,
        DIFFERENCES,
        tuple(_table(model, items) for model, items in facts.items()),
        {"recipe": asdict(recipe), "models": facts},
        _plot(facts),
    )


def measure(lab: Lab, recipe: Recipe, model: str) -> dict[str, Any]:
    """Seconds of all rounds of a model's contestants, and what they predict."""
    stores = [lab.store(model, recipe.domain, tokens) for tokens in recipe.store_tokens[model]]
    names = ("methods", "probes", "rounds", "score_tokens", "new_tokens", "prompt_tokens", "neighbours")
    key = {
        "model": lab.fingerprint(model),
        "stores": [store.digest for store in stores],
        "domain": recipe.domain,
        **{name: getattr(recipe, name) for name in names},
        "limits": [recipe.validation_tokens, recipe.document_tokens],
    }

    def contest() -> dict[str, Any]:
        contestants = _contestants(lab, recipe, model, stores)
        plain = contestants[0].predictor
        limits = TextLimits(recipe.score_tokens, recipe.document_tokens)
        domain_text = read_domains([lab.text_file(recipe.domain, "validation")], plain.tokenizer, limits)[recipe.domain]
        text = first_tokens(domain_text.stream, recipe.score_tokens)
        prompt = plain.tokenizer.decode(text.ids[1 : recipe.prompt_tokens])
        scoring = {one.name: _scorer(one.predictor, text) for one in contestants}
        writing = {one.name: _writer(one.predictor, prompt, recipe.new_tokens) for one in contestants}
        return {
            "cores": plain.network.cores,
            "contestants": [[one.name, one.method, one.store_tokens] for one in contestants],
            "score": take_turns(scoring, recipe.rounds, lab),
            "generate": take_turns(writing, recipe.rounds, lab),
            "logs": {one.name: _logs(one.predictor, text) for one in contestants},
        }

    return lab.cell("runtime", key, contest)


def _contestants(lab: Lab, recipe: Recipe, model: str, stores: Sequence[LabStore]) -> list[_Contestant]:
    made = [_Contestant(PLAIN, PLAIN, 0, open_predictor(lab.model(model), method=PLAIN))]
    limits = TextLimits(recipe.validation_tokens, recipe.document_tokens)
    for store in stores:
        tokens = store.tokens
        tuned = lab.settings(model, recipe.domain, store, neighbours=recipe.neighbours, limits=limits)
        for method in recipe.methods:
            settings = tuned.get(method, Settings())
            predictor = open_predictor(lab.model(model), [store.fill()], method=method, settings=settings)
            made.append(_Contestant(f"{method}, {tokens:,}", method, tokens, predictor))
    if recipe.probes:
        for probes in recipe.probes:
            settings = replace(tuned["knn"], probes=probes)
            predictor = open_predictor(lab.model(model), [stores[-1].fill()], method="knn", settings=settings)
            made.append(_Contestant(f"knn, {tokens:,}, {probes} probes", "knn", tokens, predictor))
    return made


def _scorer(predictor: Predictor, text: TokenStream) -> Callable[[], int]:
    def score() -> int:
        return len(score_text(predictor, text).logs)

    return score


def _writer(predictor: Predictor, prompt: str, tokens: int) -> Callable[[], int]:
    """Writes as `silo generate` does; the model may end the text before all tokens are written."""

    def write() -> int:
        return max(1, sum(1 for step in Session(predictor).generate(prompt, max_tokens=tokens) if step.token >= 0))

    return write


def take_turns(contestants: Mapping[str, Callable[[], int]], rounds: int, lab: Lab) -> dict[str, list[float]]:
    """Seconds per token: all in every round, forwards and backwards; the first round warms up and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        order = list(contestants.items())
        for name, act in order if turn % 2 else reversed(order):
            begun = time.perf_counter()
            tokens = act()
            if turn:
                seconds[name].append((time.perf_counter() - begun) / tokens)
        lab.advance("rounds", turn + 1, rounds + 1)
    return seconds


def _logs(predictor: Predictor, text: TokenStream) -> list[list[float]]:
    """By document the sum of log-probabilities, and the tokens."""
    scored = score_text(predictor, text)
    documents = np.cumsum(text.ids == predictor.tokenizer.begin) - 1
    counted = scored.counted
    sums = np.bincount(documents[counted], weights=scored.logs[counted], minlength=int(documents[-1]) + 1)
    tokens = np.bincount(documents[counted], minlength=len(sums))
    return [sums.tolist(), tokens.tolist()]


def _facts(found: Mapping[str, Any]) -> dict[str, Any]:
    seconds = {what: _Seconds(found[what]) for what in ("score", "generate")}
    facts = {}
    for name, method, tokens in found["contestants"]:
        logs, counts = (np.array(part, dtype=np.float64) for part in found["logs"][name])
        draws = intervals.Resamples(len(logs))
        figures = {"perplexity": intervals.perplexity(draws.total(logs), draws.total(counts))}
        for what, times in seconds.items():
            figures |= {f"{what}_rate": times.rate(name), f"{what}_relative": times.relative(name)}
        plain = {part: intervals.Estimate.of(figure).as_json() for part, figure in figures.items()}
        facts[name] = {"method": method, "store_tokens": tokens, **plain}
    return facts


def _table(model: str, items: Mapping[str, Mapping[str, Any]]) -> Table:
    parts = {"perplexity": 1, "score_rate": 0, "score_relative": 3, "generate_rate": 0, "generate_relative": 3}
    lines = [
        (
            name,
            *(show_estimate(item[part], digits) for part, digits in parts.items()),
            PAPER.get(item["method"], "") if "probes" not in name else "",
        )
        for name, item in items.items()
    ]
    columns = (
        "method, tokens in the store",
        "perplexity",
        "scoring, tokens per second",
        "of the lm's speed",
        "generating, tokens per second",
        "of the lm's speed",
        "paper, scoring",
    )
    title = f"Speed of {model} (medians over rounds, 95 % interval over rounds; perplexity: over documents)"
    return Table(title, columns, tuple(lines))


def _answer(facts: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    parts = []
    for model, items in facts.items():
        largest = max(item["store_tokens"] for item in items.values())
        shown = [
            f"{item['method']} {show_estimate(item['score_relative'], 2)} scoring and "
            f"{show_estimate(item['generate_relative'], 2)} generating"
            for name, item in items.items()
            if item["store_tokens"] == largest and "probes" not in name
        ]
        parts.append(f"{model} with {largest:,} stored tokens, as a share of the model's own speed: {', '.join(shown)}")
    return "; ".join(parts) + "."


def _plot(facts: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> bytes:
    """Relative speed against the size of the store."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6 * len(facts)), layout="constrained")
    for row, (model, items) in zip(figure.subplots(len(facts), 2, squeeze=False), facts.items(), strict=True):
        methods = list(dict.fromkeys(item["method"] for item in items.values() if item["store_tokens"]))
        for axes, what in zip(row, ("score", "generate"), strict=True):
            for at, method in enumerate(methods):
                same = [item for name, item in items.items() if item["method"] == method and "probes" not in name]
                found = [item[f"{what}_relative"] for item in same]
                sizes = [item["store_tokens"] for item in same]
                draw_estimates(axes, sizes, found, fmt="-o", label=method, color=ACCENTS[at])
            axes.set_xscale("log")
            axes.set_xlabel("tokens in the store")
            axes.set_ylabel("speed / that of the model alone")
            axes.set_title(f"{model}: {what}", loc="left")
            axes.grid(alpha=0.3)
        row[0].legend(frameon=False, fontsize=8)
    return figure_png(figure)
