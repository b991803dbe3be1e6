"""The visible text of a page, what it links to and asks for; and a bounded time for pages made to take for ever."""

from __future__ import annotations

import time

import pytest

from silo.sources.html import read_html

PAGE_BYTES = 1_000_000


def test_visible_text_of_html() -> None:
    page = read_html(
        "<!DOCTYPE html><title>A &amp; B</title><style>p{}</style><body class='x>y'><p>One<br>two<!-- no --> <i>x</i>"
        "<script>if (a < b) document.write('<p>no')</script><svg><text>no</text></svg><p>1 < 2 &#8364; &bogus; "
        "<a href=https://creativecommons.org/licenses/by/4.0/ rel='nofollow license'>CC</a>"
    )
    assert page.title == "A & B"
    assert page.text == "One\ntwo x\n1 < 2 € &bogus; CC"
    assert page.licenses == ("https://creativecommons.org/licenses/by/4.0/",)


def test_preferences_and_what_is_hidden() -> None:
    page = read_html(
        "<meta name=ROBOTS content='noai, NoIndex'><meta name=tdm-reservation content=1>"
        "<template>no</template><noscript>no <a rel=license href=/no>no</a></noscript><object>no</object>yes"
    )
    assert (page.text, page.licenses) == ("yes", ())
    assert (page.robots, page.tdm_reservation) == (("noai", "noindex"), "1")


@pytest.mark.parametrize(
    "piece", ["<a ", "<div>", "<b><p>", "<font><a>", "<a b='", "<!-- ", "<table><tr><td>", "<script>", "<svg>", "&#x"]
)
def test_a_page_of_open_markup_takes_bounded_time(piece: str) -> None:
    start = time.perf_counter()
    read_html(piece * (PAGE_BYTES // len(piece)))
    assert time.perf_counter() - start < 20


def test_a_tag_of_many_attributes_takes_bounded_time() -> None:
    start = time.perf_counter()
    read_html(f"<a {' '.join(f'a{number}=1' for number in range(PAGE_BYTES // 8))}>")
    assert time.perf_counter() - start < 20
