"""What an experiment found: a question, its answer in a sentence, tables, a plot, and how to repeat it.

On disk: `results.json` (all of it, with settings and lineage), `table.md` and `plot.png` in `results/NAME`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from silo.files import read_json, write_atomic, write_json

INK, ACCENTS = "#222222", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#999999")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def as_markdown(self) -> str:
        lines = [f"**{self.title}**", "", _line(self.columns), _line(["---"] + ["---:"] * (len(self.columns) - 1))]
        return "\n".join([*lines, *(_line(row) for row in self.rows)]) + "\n"


@dataclass(frozen=True, slots=True)
class Result:
    """`paper` is the table or figure it answers to, `differences` where and why ours is not the paper's.

    `options` are those of `silo experiment NAME` that repeat it.
    """

    name: str
    question: str
    answer: str
    paper: str
    differences: str
    tables: tuple[Table, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    plot: bytes = b""
    options: str = ""

    @property
    def command(self) -> str:
        """What repeats it."""
        return f"silo experiment {self.name}{self.options}"


def save_result(folder: Path, result: Result) -> Path:
    """Write a result; the plot is a file of its own."""
    place = folder / result.name
    place.mkdir(parents=True, exist_ok=True)
    content = {name: value for name, value in asdict(result).items() if name != "plot"}
    write_atomic(place / "table.md", "\n".join(table.as_markdown() for table in result.tables).encode())
    if result.plot:
        write_atomic(place / "plot.png", result.plot)
    write_json(place / "results.json", content)
    return place


def load_result(place: Path) -> Result:
    """The inverse of `save_result`."""
    content = read_json(place / "results.json")
    tables = tuple(
        Table(item["title"], tuple(item["columns"]), tuple(map(tuple, item["rows"]))) for item in content.pop("tables")
    )
    plot = (place / "plot.png").read_bytes() if (place / "plot.png").exists() else b""
    return Result(**content, tables=tables, plot=plot)


def figure_png(figure: Any) -> bytes:
    """A figure of matplotlib as bytes that depend on nothing but what it shows."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()


def draw_estimates(
    axes: Any,
    places: Sequence[float],
    estimates: Sequence[dict[str, Any] | None],
    *,
    across: bool = False,
    **style: Any,
) -> None:
    """Values with error bars, which lie on their side if `across`; those that are not defined are left out."""
    found = [(place, one) for place, one in zip(places, estimates, strict=True) if one and one["value"] is not None]
    values = [one["value"] for _, one in found]
    errors = [[_distance(one, end) for _, one in found] for end in ("low", "high")]
    at = [place for place, _ in found]
    position = (values, at) if across else (at, values)
    style = {"fmt": "o", "markersize": 4, "linewidth": 1.2, **style}
    axes.errorbar(*position, **{"xerr" if across else "yerr": errors}, **style)


def use_log_scale(axes: Any) -> None:
    """A logarithmic vertical axis with plain numbers, as many as the range has room for."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=range(1, 10) if high < 5 * low else (1, 2, 5)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())


def _distance(estimate: dict[str, Any], end: str) -> float:
    return 0.0 if estimate[end] is None else max(0.0, abs(estimate[end] - estimate["value"]))


def show_estimate(found: dict[str, Any] | None, digits: int = 1, scale: float = 1.0) -> str:
    """A value with its interval, for a table."""
    if not found or found["value"] is None:
        return ""
    value = f"{scale * found['value']:.{digits}f}"
    if found["low"] is None or found["high"] is None:
        return value
    return f"{value} ({scale * found['low']:.{digits}f} to {scale * found['high']:.{digits}f})"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
