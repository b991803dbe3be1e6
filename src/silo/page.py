"""One HTML page that needs nothing else: the look of all reports, and the parts they are made of.

Whatever is not `Html` is data and is escaped when it is put into an element. A page runs no script, loads nothing, and
says so to the browser.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from silo.errors import SiloError
from silo.files import write_atomic

PALETTE = (
    "#2f9e6e",
    "#3b6fb6",
    "#c58a2b",
    "#a347ba",
    "#c2483d",
    "#1d8a99",
    "#7a6f1d",
    "#6b5bd2",
    "#b3446c",
    "#4d7c0f",
)

_NUMBER = re.compile(r"[-−+]?\d[\d,.]*( ?%)?")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
body{font:16px/1.55 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1c1c1c;background:#fff}
h1{font-size:1.9rem;margin-bottom:.2rem}h2{margin-top:2.4rem;border-bottom:1px solid #ddd;padding-bottom:.2rem}
.wide{overflow-x:auto}img{max-width:100%}
table{border-collapse:collapse;margin:.8rem 0}td,th{padding:.25rem .8rem;text-align:left;border-bottom:1px solid #eee}
td.n{text-align:right;font-variant-numeric:tabular-nums}.lead,.small{color:#555}.small{font-size:.9rem}
.answer{font-size:1.15rem}
pre.text{white-space:pre-wrap;overflow-wrap:anywhere;background:#fafafa;border:1px solid #e4e4e4;border-radius:6px;
padding:1rem}
pre.text span{border-radius:3px;cursor:help;unicode-bidi:isolate}pre.text .lm{color:#777}
pre.text .prompt{font-weight:600}
blockquote{margin:.6rem 0;padding:.2rem 1rem;border-left:4px solid #ccc}
.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}
.good{color:#1d7a46;font-weight:600}.bad{color:#b3261e;font-weight:600}code{background:#f4f4f4;padding:.1em .3em}
"""


class Html(str):
    """What may stand in a page as it is."""


def escape(content: object) -> Html:
    """Data as it may stand in a page, also within quotes; `Html` stays as it is."""
    return content if isinstance(content, Html) else Html(html.escape(str(content), quote=True))


def join(parts: Iterable[object]) -> Html:
    """Parts one after the other."""
    return Html("".join(map(escape, parts)))


def element(name: str, *content: object, **attributes: str) -> Html:
    """An element; an attribute whose name is a word of Python is written with _ behind it."""
    given = "".join(f' {key.rstrip("_")}="{escape(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{given}>" if name == "img" else f"<{name}{given}>{join(content)}</{name}>")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """A table; numbers are aligned at the right and grouped by thousands."""
    head = element("tr", *(element("th", name) for name in header))
    body = (element("tr", *map(_cell, row)) for row in rows)
    return element("div", element("table", head, *body), class_="wide")


def _cell(value: object) -> Html:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
    shown = "" if value is None else value
    return element("td", shown, class_="n") if _NUMBER.fullmatch(str(shown)) else element("td", shown)


def named(name: str, colour: str) -> Html:
    """A name behind a patch of its colour."""
    return join([element("i", class_="key", style=f"background:{colour}"), name])


def items(lines: Iterable[object]) -> Html:
    """A list."""
    return element("ul", *(element("li", line) for line in lines))


def bars(values: Mapping[str, float]) -> Html:
    """Numbers with names, as bars."""
    top = max(values.values(), default=0.0) or 1.0
    rows = []
    for at, (name, value) in enumerate(values.items()):
        size, y = round(380 * value / top), 8 + 30 * at
        colour, line = PALETTE[at % len(PALETTE)], {"y": str(y + 15), "font-size": "13"}
        rows += [
            element("text", name, x="170", **line, **{"text-anchor": "end"}),
            element("rect", x="180", y=str(y), width=str(size), height="20", rx="3", fill=colour),
            element("text", f"{value:,.1f}", x=str(188 + size), **line),
        ]
    return element("svg", *rows, viewBox=f"0 0 660 {16 + 30 * len(values)}", width="660", role="img")


def check_page_path(path: Path) -> None:
    """Refuse a place where no page can be written, before what it shows is computed."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise SiloError("input-missing", f"there is no folder for the page {path}, or it is a folder itself")


def write_page(path: Path, title: str, *parts: Html) -> None:
    """Write a page, whole or not at all."""
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    head += f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    body = "\n".join(parts)
    page = f'<!doctype html><html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'
    write_atomic(path, page.encode("utf-8", "replace"))
