"""The loss curve of a run as JSON and PNG: the same numbers give the same bytes."""

from __future__ import annotations

import io
import math
from typing import Any

from silo.files import canonical_json
from silo.lm.training.checkpoint import State


def curve_json(state: State) -> bytes:
    """Training losses as [tokens, loss] and validations with their domains."""
    return canonical_json({"training": state.losses, "validation": state.validations, "chosen_step": state.best_step})


def curve_png(state: State, title: str) -> bytes:
    """Training and validation loss against tokens, with perplexity on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    tokens = [point[0] / 1e6 for point in state.losses]
    losses = [point[1] for point in state.losses]
    axes.plot(tokens, losses, color="#9ecae1", linewidth=0.8, label="training, each step")
    axes.plot(tokens, smooth(losses), color="#0072b2", linewidth=1.6, label="training, smoothed")
    if state.validations:
        points = [(item["tokens"] / 1e6, item["loss"]) for item in state.validations]
        axes.plot(
            *zip(*points, strict=True), color="#d55e00", marker="o", markersize=4, label="validation, mean of domains"
        )
    axes.set_xlabel("million tokens")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(title, loc="left")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    right = axes.secondary_yaxis("right", functions=(_exp, _log))
    right.set_ylabel("perplexity")
    right.set_yscale("log")
    return _png(figure)


def smooth(values: list[float], *, keep: float = 0.9) -> list[float]:
    """An exponential mean that does not lean on its first value."""
    mean, weight, out = 0.0, 0.0, []
    for value in values:
        mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        out.append(mean / weight)
    return out


def _exp(values: Any) -> Any:
    import numpy as np

    return np.exp(np.minimum(values, math.log(1e9)))


def _log(values: Any) -> Any:
    import numpy as np

    return np.log(np.maximum(values, 1e-9))


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()
