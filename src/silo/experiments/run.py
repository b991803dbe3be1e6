"""`silo experiment NAME`: which experiments there are, and one run of one of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from silo.errors import SiloError
from silo.experiments.harness.result import Result, save_result

if TYPE_CHECKING:
    from silo.experiments.harness.lab import Lab

EXPERIMENTS = {
    "corpus-stats": "corpus",
    "ngram-overlap": "corpus",
    "parametric": "parametric",
    "models": "training",
    "upsampling": "training",
    "no-code": "training",
    "nonparametric": "nonparametric",
    "scaling": "scaling",
    "gap": "ablation",
    "merged": "ablation",
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


def run_experiment(lab: Lab, name: str) -> tuple[Result, Path]:
    """Run an experiment, or what of it is not measured yet, and keep its result."""
    if name not in EXPERIMENTS:
        raise SiloError("usage", f"there is no experiment '{name}'", f"there are {', '.join(EXPERIMENTS)}")
    result: Result = import_module(f"silo.experiments.{EXPERIMENTS[name]}").run(lab, name)
    return result, save_result(lab.kept / "results", result)
