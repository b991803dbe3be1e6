"""`silo experiment report`: all results as one HTML page that needs nothing else, and as Markdown with its plots."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable
from pathlib import Path

from silo.errors import SiloError
from silo.experiments.harness.result import Result, Table, load_result
from silo.files import write_atomic

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h2 { margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1rem; }
.answer { font-size: 1.15rem; } .small { color: #666; font-size: .9rem; }
.wide { overflow-x: auto; } img { max-width: 100%; }
table { border-collapse: collapse; font-size: .85rem; margin: .5rem 0 1.5rem; white-space: nowrap; }
td, th { padding: .2rem .6rem; border-bottom: 1px solid #eee; text-align: right; }
td:first-child, th:first-child { text-align: left; }
"""


def write_report(results: Path, out: Path, names: Iterable[str]) -> list[str]:
    """Write `report.html`, `report.md` and the plots of every result there is to `out`; returns their names."""
    found = [load_result(results / name) for name in names if (results / name / "results.json").exists()]
    if not found:
        raise SiloError("input-missing", f"there are no results in {results}", "run `silo experiment NAME` first")
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "report.html", _page(found).encode())
    write_atomic(out / "report.md", _markdown(found).encode())
    for result in found:
        if result.plot:
            write_atomic(out / f"report-{result.name}.png", result.plot)
    return [result.name for result in found]


def _page(results: list[Result]) -> str:
    contents = "".join(
        f'<li><a href="#{item.name}">{item.name}</a>: {html.escape(item.question)}</li>' for item in results
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>silo: experiments</title><style>{_STYLE}</style>'
        f"<h1>Experiments</h1><ul>{contents}</ul>{''.join(map(_section, results))}</html>\n"
    )


def _section(result: Result) -> str:
    image = base64.b64encode(result.plot).decode()
    plot = f'<img alt="{html.escape(result.question)}" src="data:image/png;base64,{image}">' if image else ""
    return (
        f'<h2 id="{result.name}">{result.name}</h2><p>{html.escape(result.question)}</p>'
        f'<p class="answer">{html.escape(result.answer)}</p>{plot}{"".join(map(_table, result.tables))}'
        f'<p class="small">In the paper: {html.escape(result.paper)}. {html.escape(result.differences)} '
        f"Repeat it: <code>silo experiment {result.name}</code>.</p>"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    title = f"<p><b>{html.escape(table.title)}</b></p>"
    return f'{title}<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _markdown(results: list[Result]) -> str:
    parts = ["# Experiments", "", "Made by `silo experiment NAME` and `silo experiment report`.", ""]
    for item in results:
        parts += [f"## {item.name}", "", item.question, "", f"**{item.answer}**", ""]
        parts += [f"![{item.question}](report-{item.name}.png)", ""] if item.plot else []
        parts += [table.as_markdown() for table in item.tables]
        parts += [f"In the paper: {item.paper}. {item.differences} Repeat it: `silo experiment {item.name}`.", ""]
    return "\n".join(parts)
