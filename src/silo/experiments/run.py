"""`silo experiment NAME`: which experiments there are, and one run of one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from silo.errors import SiloError, did_you_mean

if TYPE_CHECKING:
    from silo.experiments.harness.lab import Lab
    from silo.experiments.harness.result import Result

EXPERIMENTS = {
    "corpus-stats": "corpus",
    "ngram-overlap": "corpus",
    "parametric": "parametric",
    "models": "training",
    "upsampling": "training",
    "no-code": "training",
    "nonparametric": "nonparametric",
    "scaling": "scaling",
    "gap": "ablations.changes",
    "merged": "ablations.changes",
    "gates": "ablations.gates",
    "ric-variants": "ric",
    "fair-ric": "ric",
    "approximation": "approximation",
    "downstream": "downstream",
    "optout": "optout",
    "attribution": "attribution",
    "extraction": "extraction",
    "runtime": "runtime",
}
"""Name of an experiment -> module of this package whose `run(lab, name)` makes it."""

_OTHER_DATA = "What follows was written of the data and models of silo's own report. "


def find_experiment(name: str) -> str:
    """The module of an experiment."""
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, EXPERIMENTS) or f"there are {', '.join(EXPERIMENTS)}"
        raise SiloError("usage", f"there is no experiment '{name}'", hint)
    return EXPERIMENTS[name]


def run_experiment(lab: Lab, name: str) -> tuple[Result, Path]:
    """Run an experiment, or what of it is not measured yet, and keep its result."""
    from silo.experiments.harness.result import save_result

    module = import_module(f"silo.experiments.{find_experiment(name)}")
    lab.require_known(name)
    result: Result = module.run(lab, name)
    options = lab.named + "".join(f" --{kind} {','.join(names)}" for kind, names in lab.only.items())
    about = (_OTHER_DATA if lab.named else "") + result.differences + _placements(lab.placements.values())
    result = replace(result, options=options, differences=about)
    return result, save_result(lab.kept / "results", result)


def _placements(places: Collection[str]) -> str:
    """Which part of the measurements was not made in float32 on the processor; nothing if all were."""
    others = Counter(place for place in places if place)
    return "".join(f" {count} of {len(places)} measurements were made on {place}." for place, count in others.items())
