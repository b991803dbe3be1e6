"""Promises the visible text of an HTML page, the licences it links to and the AI preferences it states.

The scan is linear in the size of the page whatever it holds: the standard library's parser needs hours for a page of
a few megabytes of half-open tags.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from silo.errors import SiloError
from silo.sources.reader.bytes import decode_charset
from silo.sources.reader.claims import Claims, robots_reservation

_BLOCK_NAMES = (
    "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header "
    "hr li main nav ol p pre section table td th tr ul title body"
)
_BLOCKS = frozenset(_BLOCK_NAMES.split())
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_HIDDEN = frozenset({"template", "noscript", "iframe", "object", "svg"})
_RAW = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]{0,40}")
_ATTRIBUTE = re.compile(r"([^\s=>/\"']{1,100})(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+)))?")
_MARK = re.compile(r"[>\"']")
_HUGE_REFERENCE = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{8,});?")
_MAX_ATTRIBUTES = 1 << 14
_HEADING_PIECES = 64
"""Of a heading so many runs of text are read: one that never ends is not a title."""
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_CHARSET_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Page:
    """What one HTML page shows and says; `headings` are the lines of the text at which they stand, with their words."""

    title: str
    text: str
    licenses: tuple[str, ...] = ()
    robots: tuple[str, ...] = ()
    tdm_reservation: str = ""
    headings: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class _PageParts:
    """What has been collected so far; `hidden` are the open elements whose content is not shown.

    `headings` are numbers of pieces of `text` with the words that begin there; -1 in `heading` means that none is open.
    """

    text: list[str] = field(default_factory=list)
    headings: list[tuple[int, str]] = field(default_factory=list)
    heading: int = -1
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
    lines, headings = _tidy_lines(page)
    return Page(
        title=_tidy_space("".join(page.title)),
        text="\n".join(lines),
        licenses=tuple(dict.fromkeys(page.licenses)),
        robots=tuple(sorted(page.robots)),
        tdm_reservation=page.tdm_reservation,
        headings=headings,
    )


def page_claims(page: Page) -> Claims:
    """What a page says about its rights."""
    reserved = [("meta robots", robots_reservation(page.robots))]
    reserved += [("meta tdm-reservation", "tdm-reservation: 1")] if page.tdm_reservation == "1" else []
    return Claims(tuple(("rel=license", link) for link in page.licenses), tuple(pair for pair in reserved if pair[1]))


def decode_html(data: bytes, charset: str = "") -> str:
    """The markup of a page: in the character set that is given, else in the one it names, else in UTF-8."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        charset = "utf-16"
    if not charset and (named := _CHARSET.search(data[:_CHARSET_BYTES])):
        charset = named[1].decode()
    markup = decode_charset(data, charset or "utf-8").removeprefix("\ufeff")
    if "\0" in markup:
        raise SiloError("nul-byte", "the page holds NUL bytes")
    return markup


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
        if closing and tag in _HEADINGS:
            _end_heading(page)
        page.text.append("\n")
        if tag in _HEADINGS and not closing:
            page.heading = len(page.text)
    if tag in ("a", "link", "area", "meta") and not closing:
        _read_attributes(tag, inside[name_match.end() if name_match else 0 :][:_MAX_ATTRIBUTES], page)


def _end_heading(page: _PageParts) -> None:
    if page.heading >= 0:
        words = " ".join("".join(page.text[page.heading : page.heading + _HEADING_PIECES]).split())
        page.headings += [(page.heading, words)] if words else []
    page.heading = -1


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
    return " ".join(text.split())


def _tidy_lines(page: _PageParts) -> tuple[list[str], tuple[tuple[int, str], ...]]:
    """The lines of a page without needless space, never two blank ones in a row, and where its headings are."""
    headings = _raw_lines_of_headings(page)[::-1]
    lines: list[str] = []
    placed: list[tuple[int, str]] = []
    for number, raw in enumerate("".join(page.text).split("\n")):
        if line := _tidy_space(raw):
            while headings and headings[-1][0] <= number:
                placed.append((len(lines), headings.pop()[1]))
            lines.append(line)
        elif lines and lines[-1]:
            lines.append("")
    return lines[:-1] if lines and not lines[-1] else lines, tuple(placed)


def _raw_lines_of_headings(page: _PageParts) -> list[tuple[int, str]]:
    """Headings by the number of line ends before the piece they begin with."""
    placed: list[tuple[int, str]] = []
    at = ends = 0
    for piece, words in page.headings:
        ends += sum(text.count("\n") for text in page.text[at:piece])
        placed.append((ends, words))
        at = piece
    return placed
