"""Pictures of corpus statistics and of n-gram overlap: the same numbers give the same bytes, as PNG or SVG by suffix.

Colours are from palettes that people with colour blindness can tell apart. Matplotlib's settings are as before after
every call, and it is imported only when something is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from silo.corpus.report.overlap import Overlap
from silo.corpus.report.stats import CorpusStats, Spread
from silo.corpus.weights import SETS
from silo.errors import SiloError
from silo.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#7F7F7F")
"""Okabe and Ito: pd, pdsw, pdswby and all; grey for the reference."""

_STRIPE, _GRID, _INK = "#F5F5F5", "#E0E0E0", "#333333"
_LABEL_CHARS = 32
_METADATA: dict[str, dict[str, Any]] = {".png": {"Software": None}, ".svg": {"Date": None}}
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "svg.fonttype": "none",
    "svg.hashsalt": "silo",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}


@contextmanager
def _drawing(path: Path, width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """An empty picture of some inches, written to `path` at the end."""
    if path.suffix not in _METADATA:
        raise SiloError("recipe-value", f"a plot is a .png or .svg file, not '{path.name}'")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    image = io.BytesIO()
    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), dpi=150, layout="tight")
        yield figure, figure.add_subplot()
        figure.savefig(image, format=path.suffix[1:], metadata=_METADATA[path.suffix])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, image.getvalue())


def _label(name: str) -> str:
    return name if len(name) <= _LABEL_CHARS else name[: _LABEL_CHARS - 1] + "…"


def plot_distribution(stats: CorpusStats, path: Path) -> None:
    """Bars: how the groups share out each training set, everything, and the reference if there is one."""
    names = [*SETS, stats.reference] if stats.reference else [*SETS]
    groups = [_label(spread.group) for spread in stats.distribution]
    height = 1.6 + 0.13 * (len(names) + 1) * max(len(groups), 2)
    with _drawing(path, 9.0, height) as (_, axes):
        for at, name in enumerate(names):
            _draw_bars(axes, [_shares(spread)[at] for spread in stats.distribution], at, len(names), _label(name))
        axes.set_yticks(range(len(groups)), groups)
        _dress_distribution(axes, len(groups), len(names))


def _shares(spread: Spread) -> list[float]:
    """In the order of the legend."""
    amounts = [spread.sets[name] for name in SETS]
    return [amount.share for amount in [*amounts, *([spread.reference] if spread.reference else [])]]


def _draw_bars(axes: Axes, shares: list[float], at: int, sets: int, name: str) -> None:
    """The bars of one set: the `at`-th in the bundle of every group."""
    height = 0.84 / sets
    places = np.arange(len(shares)) + (at - (sets - 1) / 2) * height
    bars = axes.barh(places, [100 * share for share in shares], 0.92 * height, color=_COLOURS[at], label=name)
    labels = [f"{100 * share:.1f}" if share else "" for share in shares]
    axes.bar_label(bars, labels, padding=2, fontsize=6.5, color=_INK)


def _dress_distribution(axes: Axes, groups: int, sets: int) -> None:
    axes.set_ylim(groups - 0.5, -0.5)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.03)
    for group in range(0, groups, 2):
        axes.axhspan(group - 0.5, group + 0.5, color=_STRIPE, zorder=0, linewidth=0)
    axes.set_xlabel("share of the tokens of the set, %")
    axes.set_title("How domains share out each training set", loc="left", pad=28)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=sets, frameon=False, borderaxespad=0.2)
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def plot_overlap(overlap: Overlap, path: Path) -> None:
    """A heat map of the coverage, the best of each column in bold; a column without any n-gram is grey."""
    values = np.array(overlap.coverage)
    rows, columns = values.shape
    empty = np.array([sample.ngrams == 0 for sample in overlap.column_samples])
    with _drawing(path, 3.6 + 0.5 * max(columns, 6), 2.6 + 0.36 * max(rows, 3)) as (figure, axes):
        visible = np.ma.masked_array(values, np.broadcast_to(empty, values.shape))
        image = axes.pcolormesh(visible, cmap="YlGnBu", vmin=0, vmax=1, edgecolors="white", linewidth=0.6)
        axes.set_facecolor(_GRID)
        axes.invert_yaxis()
        _write_cells(axes, values, empty)
        _dress_overlap(axes, overlap)
        figure.colorbar(image, ax=axes, label="coverage", fraction=0.04, pad=0.02)


def _write_cells(axes: Axes, values: np.ndarray[Any, np.dtype[np.float64]], empty: np.ndarray[Any, Any]) -> None:
    best = values.argmax(axis=0)
    for (row, column), value in np.ndenumerate(values):
        text = "–" if empty[column] else f"{value:.2f}"
        weight = "bold" if value and row == best[column] else "normal"
        colour = "white" if value > 0.55 else _INK
        place = (column + 0.5, row + 0.5)
        axes.text(*place, text, ha="center", va="center", fontsize=7.5, color=colour, fontweight=weight)


def _dress_overlap(axes: Axes, overlap: Overlap) -> None:
    columns = np.arange(len(overlap.columns)) + 0.5
    rows = np.arange(len(overlap.rows)) + 0.5
    slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(columns, [_label(name) for name in overlap.columns], **slanted)
    axes.set_yticks(rows, [_label(name) for name in overlap.rows])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("evaluation domain")
    axes.set_ylabel(f"training domain\n({', '.join(overlap.tiers)})")
    title = "Share of the evaluation domain's uni- and bigrams\nthat the training domain has too (bold: maximum)"
    axes.set_title(title, loc="left", fontsize=11)
