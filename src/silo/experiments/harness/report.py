"""`silo experiment report`: all results as one HTML page that needs nothing else, and as Markdown with its plots."""

from __future__ import annotations

import base64
from collections.abc import Collection
from pathlib import Path

from silo.errors import SiloError
from silo.experiments.harness.result import Result, Table, load_result
from silo.files import write_atomic
from silo.page import Html, element, items, join, table, write_page


def write_report(results: Path, out: Path, names: Collection[str]) -> list[str]:
    """Write `report.html`, `report.md` and the plots of every result there is to `out`; returns their names."""
    known = [name for name in names if (results / name / "results.json").exists()]
    found = [load_result(results / name) for name in known]
    missing = [name for name in names if name not in known]
    if not found:
        raise SiloError("input-missing", f"there are no results in {results}", "run `silo experiment NAME` first")
    out.mkdir(parents=True, exist_ok=True)
    contents = items(join([element("a", item.name, href=f"#{item.name}"), f": {item.question}"]) for item in found)
    opening = [element("h1", "Experiments"), element("p", _missing(missing)), contents]
    write_page(out / "report.html", "silo: experiments", *opening, *map(_section, found))
    write_atomic(out / "report.md", _markdown(found, missing).encode())
    for result in found:
        if result.plot:
            write_atomic(out / f"report-{result.name}.png", result.plot)
    return [result.name for result in found]


def _missing(names: list[str]) -> str:
    return f"Not measured yet: {', '.join(names)}." if names else "Every experiment has been run."


def _section(result: Result) -> Html:
    data = f"data:image/png;base64,{base64.b64encode(result.plot).decode()}"
    plot = [element("img", alt=result.question, src=data)] if result.plot else []
    about = f"In the paper: {result.paper}. {result.differences} Repeat it: "
    return join(
        [
            element("h2", result.name, id=result.name),
            element("p", result.question),
            element("p", result.answer, class_="answer"),
            *plot,
            *map(_table, result.tables),
            element("p", about, element("code", result.command), ".", class_="small"),
        ]
    )


def _table(figures: Table) -> Html:
    return join([element("p", element("b", figures.title)), table(figures.columns, figures.rows)])


def _markdown(results: list[Result], missing: list[str]) -> str:
    made = "Made by `silo experiment NAME` and `silo experiment report`."
    parts = ["# Experiments", "", made, "", _missing(missing), ""]
    for item in results:
        parts += [f"## {item.name}", "", item.question, "", f"**{item.answer}**", ""]
        parts += [f"![{item.question}](report-{item.name}.png)", ""] if item.plot else []
        parts += [table.as_markdown() for table in item.tables]
        parts += [f"In the paper: {item.paper}. {item.differences} Repeat it: `{item.command}`.", ""]
    return "\n".join(parts)
