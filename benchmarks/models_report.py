"""The page and the picture of the four models; every number comes from the result."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from silo.lm.training.curve import smooth

REFERENCE = "all"
IN, NEAR, OUT = "in", "near", "out"
MARKS = {IN: "●", NEAR: "◐", OUT: "○"}
COLOURS = {"pd": "#0072b2", "pdsw": "#009e73", "pdswby": "#e69f00", "all": "#666666"}
TIERS = ("pd", "sw", "by", "restricted")

INTRODUCTION = """# Four models, permitted text and all text

Made by `python benchmarks/models.py` from `recipes/lm-*.toml`; numbers in `models.json`.

LLaMA-style models of {size:.1f} M parameters, one seed each, that differ in nothing but the text they were trained on.
`{reference}` is the reference that was trained on everything and plays the part of the paper's Pythia. All share one
tokenizer, learned from pd text alone, so perplexities compare. The models are far smaller and far less trained than the
paper's: read the differences, not the level.

All were trained on the same number of tokens, which a model of more tiers spreads over more domains: that a permitted
model beats `{reference}` where it may learn does not show that leaving text out improves a model.

| model | trained on | permitted | tokens | kept step | documents that shaped it | of them | breaches the audit found |
|---|---|---|---:|---:|---:|---|---:|
"""

DOMAINS = """
![loss curves](models.png)

## Validation domains

About the first {tokens_per_domain:,} tokens of each; windows of {length:,} tokens, later ones score {stride}.
Perplexity, and bits per byte in brackets; lower is better. {ins} in-domain: most of the domain's training text may
train the model; {near} near: not this domain, but one of its group in the corpus recipe; {out} out of domain. The test
files are untouched.

"""


def page(result: Mapping[str, Any]) -> str:
    """The result as a page of docs/results."""
    models = result["models"]
    size = next(iter(models.values()))["parameters"] / 1e6
    marks = {"ins": MARKS[IN], "near": MARKS[NEAR], "out": MARKS[OUT]}
    return (
        INTRODUCTION.format(size=size, reference=REFERENCE)
        + "".join(model_row(name, model) + "\n" for name, model in models.items())
        + DOMAINS.format(**result["settings"], **marks)
        + "\n".join([*domain_table(result), *seen(result)])
        + "\n"
    )


def model_row(name: str, model: Mapping[str, Any]) -> str:
    tiers = ", ".join(f"{model['document_tiers'][tier]:,} {tier}" for tier in TIERS if tier in model["document_tiers"])
    cells = [
        f"`{name}`",
        ", ".join(tier for tier in TIERS if tier in model["tiers"]),
        "yes" if model["permitted"] else "no",
        f"{model['tokens']:,}",
        f"{model['chosen_step']:,} of {model['steps']:,}",
        f"{model['documents']:,}",
        tiers,
        str(len(model["violations"])),
    ]
    return "| " + " | ".join(cells) + " |"


def domain_table(result: Mapping[str, Any]) -> list[str]:
    """A row per domain, from the freest text to the most restricted, and the averages."""
    models, domains = result["models"], result["domains"]
    lines = [
        "| domain | its tier | " + " | ".join(f"`{name}`" for name in models) + " |",
        "|---|---|" + "---:|" * len(models),
    ]
    for domain in by_tier(domains):
        cells = [cell(model["scores"][domain], domains[domain]["marks"][name]) for name, model in models.items()]
        lines.append(f"| {domain} | {tier_words(domains[domain])} | " + " | ".join(cells) + " |")
    means = [
        f"{mean(column(model, 'perplexity')):.1f} ({mean(column(model, 'bits_per_byte')):.3f})"
        for model in models.values()
    ]
    return [*lines, "| average | | " + " | ".join(means) + " |"]


def seen(result: Mapping[str, Any]) -> list[str]:
    """What the table shows, in numbers computed from it."""
    models, domains = result["models"], result["domains"]
    permitted = [name for name in models if name != REFERENCE]
    if REFERENCE not in models or not permitted:
        return []
    ratios = {name: ratios_to_reference(models, name) for name in permitted}
    lines = [
        "",
        "## What is seen",
        "",
        f"Perplexity as a multiple of `{REFERENCE}`'s, geometric mean over domains (how many in brackets):",
        "",
        "| | " + " | ".join(f"{MARKS[kind]} {kind}" for kind in MARKS) + " | every domain |",
        "|---|" + "---:|" * (len(MARKS) + 1),
    ]
    for name in permitted:
        groups = [
            [ratio for domain, ratio in ratios[name].items() if domains[domain]["marks"][name] == kind]
            for kind in MARKS
        ]
        cells = [
            f"{geometric(group):.2f} ({len(group)})" if group else "" for group in [*groups, [*ratios[name].values()]]
        ]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    wider = [widening(models, domains, *pair) for pair in pairwise(permitted)]
    return [*lines, "", *(extremes(name, ratios[name]) for name in permitted), *wider]


def widening(models: Mapping[str, Any], domains: Mapping[str, Any], narrow: str, wide: str) -> str:
    """What more tiers cost on the domains that both models may learn, the number of tokens being equal."""
    scores = {name: models[name]["scores"] for name in (narrow, wide)}
    shared = [name for name, item in domains.items() if item["marks"][narrow] == item["marks"][wide] == IN]
    ratios = [scores[wide][name]["perplexity"] / scores[narrow][name]["perplexity"] for name in shared]
    worse = sum(ratio > 1 for ratio in ratios)
    return (
        f"- `{wide}` against `{narrow}` on the {len(shared)} domains that both may learn: worse on {worse}, "
        f"{geometric(ratios):.2f} times the perplexity in the geometric mean."
    )


def ratios_to_reference(models: Mapping[str, Any], name: str) -> dict[str, float]:
    reference = models[REFERENCE]["scores"]
    return {
        domain: score["perplexity"] / reference[domain]["perplexity"]
        for domain, score in models[name]["scores"].items()
    }


def extremes(name: str, ratios: Mapping[str, float]) -> str:
    worst, best = max(ratios, key=ratios.__getitem__), min(ratios, key=ratios.__getitem__)
    ahead = sum(ratio <= 1 for ratio in ratios.values())
    return (
        f"- `{name}`: at least as good as `{REFERENCE}` on {ahead} of {len(ratios)} domains; best on {best} "
        f"({ratios[best]:.2f} times its perplexity), worst on {worst} ({ratios[worst]:.2f} times)."
    )


def cell(score: Mapping[str, float], nearness: str) -> str:
    return f"{score['perplexity']:.1f} ({score['bits_per_byte']:.3f}) {MARKS[nearness]}"


def by_tier(domains: Mapping[str, Any]) -> list[str]:
    """Domains from the freest text to the most restricted."""
    return sorted(
        domains, key=lambda name: (domains[name]["held_back"] > 0.5, TIERS.index(main_tier(domains[name])), name)
    )


def main_tier(domain: Mapping[str, Any]) -> str:
    return max(domain["tiers"], key=domain["tiers"].__getitem__, default="restricted")


def tier_words(domain: Mapping[str, Any]) -> str:
    """The tiers of at least a tenth of the text; said if the train right was taken from it."""
    words = "/".join(tier for tier in TIERS if domain["tiers"].get(tier, 0) >= 0.1) or "none here"
    return f"{words}, kept from training" if domain["held_back"] > 0.5 else words


def column(model: Mapping[str, Any], unit: str) -> list[float]:
    return [score[unit] for score in model["scores"].values()]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def geometric(values: Iterable[float]) -> float:
    return math.exp(mean([math.log(value) for value in values]))


def loss_curves(curves: Mapping[str, Any]) -> bytes:
    """A picture of the training losses, smoothed, and the validation losses of all models."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        tokens = [point[0] / 1e6 for point in curve["training"]]
        losses = smooth([point[1] for point in curve["training"]])
        axes.plot(tokens, losses, color=COLOURS[name], linewidth=1, alpha=0.6, label=f"{name}: training, smoothed")
        points = [(item["tokens"] / 1e6, item["loss"]) for item in curve["validation"]]
        if points:
            label = f"{name}: validation, mean of domains"
            axes.plot(*zip(*points, strict=True), color=COLOURS[name], marker="o", markersize=4, label=label)
    axes.set_xlabel("million tokens")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, ncols=2)
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=120, metadata={"Software": None})
    return held.getvalue()
