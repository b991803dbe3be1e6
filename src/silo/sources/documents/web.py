"""Web pages and e-books: HTML by its headings, EPUB by its chapters in reading order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from silo.errors import SiloError
from silo.recipe import Limits
from silo.sources.documents.archive import Archive, resolve_target
from silo.sources.documents.parsed import Parsed, TextBuilder
from silo.sources.documents.xml import Start, element_texts, read_xml
from silo.sources.html import Page, decode_html, page_claims, read_html
from silo.sources.reader.claims import Claims

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml", "text/x-oeb1-document")
_DESCRIBED = frozenset({"title", "creator", "rights"})
_RESERVATION = "tdm:reservation"


def parse_html(data: bytes, limits: Limits) -> Parsed:
    """A page: its title, unless the text begins with it, and its headings as sections."""
    page = read_html(decode_html(data))
    builder = TextBuilder(limits.max_record_bytes)
    builder.add("" if page.text.startswith(page.title) else page.title)
    _add_page(builder, page, [(line, f"section {words}") for line, words in page.headings])
    return builder.finish(title=page.title, claims=page_claims(page))


def _add_page(builder: TextBuilder, page: Page, places: Iterable[tuple[int, str]]) -> None:
    """Add the text of a page in pieces that begin where its places do."""
    lines = page.text.split("\n")
    at = 0
    for line, label in places:
        builder.add("\n".join(lines[at:line]))
        builder.begin(label)
        at = line
    builder.add("\n".join(lines[at:]))


@dataclass(frozen=True, slots=True)
class _Package:
    """The description of a book: its chapters in reading order, and what it says about itself."""

    chapters: tuple[str, ...]
    title: str
    author: str
    claims: Claims


def parse_epub(archive: Archive, limits: Limits) -> Parsed:
    """A book by chapters: named by their first heading, else by number; further headings are their sections."""
    package = _read_package(archive)
    locked = _encrypted_members(archive)
    builder = TextBuilder(limits.max_record_bytes)
    unread: list[tuple[str, str]] = []
    claims = [package.claims]
    for number, name in enumerate(package.chapters, start=1):
        label = f"chapter {number}"
        if name in locked:
            raise SiloError("document-encrypted", "the book's chapters are encrypted (DRM)")
        if name not in archive:
            unread.append((label, "the chapter is missing"))
            continue
        page = read_html(decode_html(archive.read(name)))
        builder.begin(label)
        _add_page(builder, page, _chapter_places(page))
        claims.append(page_claims(page))
    return builder.finish(title=package.title, author=package.author, claims=_merge_claims(claims), unread=unread)


def _chapter_places(page: Page) -> list[tuple[int, str]]:
    """The first heading names the chapter from its first line on; further ones are sections of it."""
    if not page.headings:
        return []
    (_, name), *further = page.headings
    chapter = name if name.lower().startswith("chapter") else f"chapter {name}"
    return [(0, chapter), *((line, f"{chapter[:40]}, section {words}") for line, words in further)]


def _read_package(archive: Archive) -> _Package:
    roots = [event for event in read_xml(archive.read(_CONTAINER)) if isinstance(event, Start)]
    place = next((event.attributes.get("full-path", "") for event in roots if event.name == "rootfile"), "")
    data = archive.read(place)
    items: dict[str, tuple[str, str]] = {}
    spine: list[str] = []
    reserved = False
    expecting = False
    for event in read_xml(data):
        if isinstance(event, str):
            reserved, expecting = reserved or (expecting and event.strip() == "1"), False
        elif isinstance(event, Start):
            given = event.attributes
            expecting = event.name == "meta" and given.get("property") == _RESERVATION
            if event.name == "item":
                target = resolve_target(place, unquote(given.get("href", "")))
                items[given.get("id", "")] = (target, given.get("media-type", ""))
            elif event.name == "itemref":
                spine.append(given.get("idref", ""))
    found = element_texts(data, _DESCRIBED)
    chapters = [items[name][0] if name in items else f"(no item {name[:80]})" for name in spine]
    chapters = chapters or [target for target, kind in items.values() if kind in _PAGES]
    return _Package(
        tuple(dict.fromkeys(chapters)),
        title=found.get("title", [""])[0],
        author=", ".join(found.get("creator", [])),
        claims=Claims(
            tuple(("dc:rights", words) for words in found.get("rights", []) if words),
            ((_RESERVATION, f"{_RESERVATION}: 1"),) if reserved else (),
        ),
    )


def _encrypted_members(archive: Archive) -> frozenset[str]:
    """What the book keeps under a key; fonts often are, and do not matter."""
    events = read_xml(archive.read_if_there(_ENCRYPTION))
    references = (event for event in events if isinstance(event, Start) and event.name == "CipherReference")
    return frozenset(unquote(event.attributes.get("URI", "")) for event in references)


def _merge_claims(claims: list[Claims]) -> Claims:
    return Claims(
        tuple(dict.fromkeys(pair for item in claims for pair in item.licences)),
        tuple(dict.fromkeys(pair for item in claims for pair in item.reservations)),
    )
