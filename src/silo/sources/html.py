"""Promises the visible text of an HTML page, the licences it links to and the AI preferences it states.

The scan is linear in the size of the page whatever it holds: the standard library's parser needs hours for a page of
a few megabytes of half-open tags.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_BLOCK_NAMES = (
    "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header "
    "hr li main nav ol p pre section table td th tr ul title body"
)
_BLOCKS = frozenset(_BLOCK_NAMES.split())
_HIDDEN = frozenset({"template", "noscript", "iframe", "object", "svg"})
_RAW = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]{0,40}")
_ATTRIBUTE = re.compile(r"([^\s=>/\"']{1,100})(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+)))?")
_MARK = re.compile(r"[>\"']")
_HUGE_REFERENCE = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{8,});?")
_MAX_ATTRIBUTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Page:
    """What one HTML page shows and says."""

    title: str
    text: str
    licenses: tuple[str, ...]
    robots: tuple[str, ...]
    tdm_reservation: str


@dataclass(slots=True)
class _PageParts:
    """What has been collected so far; `hidden` are the open elements whose content is not shown."""

    text: list[str] = field(default_factory=list)
    title: list[str] = field(default_factory=list)
    licenses: list[str] = field(default_factory=list)
    robots: set[str] = field(default_factory=set)
    tdm_reservation: str = ""
    hidden: str = ""
    in_title: bool = False


def read_html(markup: str) -> Page:
    """Read a page, however broken."""
    page = _PageParts()
    for is_tag, piece in _split_markup(markup):
        if is_tag:
            _read_tag(piece, page)
        elif not page.hidden:
            (page.title if page.in_title else page.text).append(_unescape(piece))
    return Page(
        title=_tidy_space("".join(page.title)),
        text=_tidy_space("".join(page.text)),
        licenses=tuple(dict.fromkeys(page.licenses)),
        robots=tuple(sorted(page.robots)),
        tdm_reservation=page.tdm_reservation,
    )


def _split_markup(markup: str) -> Iterator[tuple[bool, str]]:
    """The page as (False, text) and (True, inside of a tag); comments, declarations, scripts and styles are gone."""
    at = 0
    unclosed: set[str] = set()
    while (start := markup.find("<", at)) >= 0:
        if start > at:
            yield False, markup[at:start]
        name = _NAME.match(markup, start + 1)
        if markup.startswith("<!--", start):
            end = markup.find("-->", start)
            at = end + 3
        elif name:
            end = _tag_end(markup, start + 1, unclosed)
            at = end + 1
            if end >= 0:
                yield True, markup[start + 1 : end]
            if name[0].lower() in _RAW:
                close = _RAW[name[0].lower()].search(markup, at)
                end = at = close.start() if close else -1
        elif markup[start + 1 : start + 2] in ("/", "!", "?"):
            end = markup.find(">", start)
            at = end + 1
            if end >= 0 and markup[start + 1] == "/":
                yield True, markup[start + 1 : end]
        else:
            yield False, "<"
            end = at = start + 1
        if end < 0:
            return
    yield False, markup[at:]


def _tag_end(markup: str, at: int, unclosed: set[str]) -> int:
    """Where the tag's `>` is, past quoted values. A quote that never closes is an ordinary character from then on."""
    while mark := _MARK.search(markup, at):
        if mark[0] == ">":
            return mark.start()
        close = -1 if mark[0] in unclosed else markup.find(mark[0], mark.end())
        if close < 0:
            unclosed.add(mark[0])
        at = (close if close >= 0 else mark.start()) + 1
    return -1


def _read_tag(inside: str, page: _PageParts) -> None:
    closing = inside.startswith("/")
    name_match = _NAME.match(inside, int(closing))
    tag = name_match[0].lower() if name_match else ""
    page.in_title = tag == "title" and not closing
    if page.hidden:
        if closing and tag == page.hidden:
            page.hidden = ""
        return
    if tag in _HIDDEN and not closing and not inside.endswith("/"):
        page.hidden = tag
    elif tag in _BLOCKS:
        page.text.append("\n")
    if tag in ("a", "link", "area", "meta") and not closing:
        _read_attributes(tag, inside[name_match.end() if name_match else 0 :][:_MAX_ATTRIBUTES], page)


def _read_attributes(tag: str, inside: str, page: _PageParts) -> None:
    attributes: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(inside):
        attributes.setdefault(match[1].lower(), _unescape(match[2] or match[3] or match[4] or "").strip())
    if tag != "meta":
        if "license" in attributes.get("rel", "").lower().split() and attributes.get("href"):
            page.licenses.append(attributes["href"])
        return
    name = attributes.get("name", "").lower()
    if name == "robots":
        page.robots.update(word.strip() for word in attributes.get("content", "").lower().split(","))
    elif name == "tdm-reservation":
        page.tdm_reservation = attributes.get("content", "")


def _unescape(text: str) -> str:
    return html.unescape(_HUGE_REFERENCE.sub("\N{REPLACEMENT CHARACTER}", text)) if "&" in text else text


def _tidy_space(text: str) -> str:
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
