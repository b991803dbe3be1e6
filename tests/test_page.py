"""Pages hold what they are given as text, whatever it spells, and need nothing else."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.page import Html, bars, check_page_path, element, items, join, named, table, write_page

HOSTILE = "<script>alert('x')</script>\"' onload=\"y\" &amp; \x1b \ud800"


class Reader(HTMLParser):
    """Collects tags, attributes and text, as a browser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_no_data_becomes_markup(tmp_path: Path) -> None:
    parts = [
        element("p", HOSTILE, title=HOSTILE),
        table([HOSTILE], [[HOSTILE], [named(HOSTILE, "#fff")]]),
        items([HOSTILE]),
        bars({HOSTILE: 1.0}),
    ]
    write_page(tmp_path / "page.html", HOSTILE, *parts)
    page = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count("<script>alert('x')</script>\"' onload=\"y\" &amp;") == 7


def test_what_was_made_is_not_escaped_twice() -> None:
    assert element("p", element("b", "a & b"), " < c") == Html("<p><b>a &amp; b</b> &lt; c</p>")
    assert join([Html("<i>"), "<i>"]) == "<i>&lt;i&gt;"


def test_numbers_stand_at_the_right() -> None:
    made = table(["n"], [[1234567], [0.25], ["12.5 %"], ["text"], [None], [True]])
    assert made.count('class="n"') == 3
    assert "1,234,567" in made and "<td></td>" in made and "<td>True</td>" in made


def test_a_page_loads_and_runs_nothing(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", "t", element("p", "x"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page and "://" not in page and "<script" not in page


def test_a_page_that_cannot_be_written_is_refused_early(tmp_path: Path) -> None:
    check_page_path(tmp_path / "page.html")
    for place in (tmp_path, tmp_path / "nowhere" / "page.html"):
        with pytest.raises(SiloError) as caught:
            check_page_path(place)
        assert caught.value.code == "input-missing"
