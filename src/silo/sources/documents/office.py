"""Word and PowerPoint files (Office Open XML): paragraphs under their headings, and slides by number.

Left out: comments, text that a tracked change deleted or moved away, headers and footers, pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from silo.errors import SiloError
from silo.recipe import Limits
from silo.sources.documents.archive import Archive, resolve_target
from silo.sources.documents.parsed import Parsed, TextBuilder
from silo.sources.documents.xml import End, Start, drop_elements, element_texts, read_xml

_SKIPPED = frozenset({"Fallback", "moveFrom"})
_BREAKS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_HEADING_NAMES = ("heading ", "title")
_NOTES = ("footnotes", "endnotes")
_BODY_LEVEL = "9"
"""The outline level of a paragraph that is no heading."""


def main_part(archive: Archive) -> str:
    """The part with the content of an Office Open XML file, such as word/document.xml; empty if it is none."""
    links = read_links(archive, "")
    return next((target for kind, target in links.values() if kind == "officeDocument"), "")


def read_links(archive: Archive, part: str) -> dict[str, tuple[str, str]]:
    """The parts that a part points to: their kind and name, by the id of the link."""
    folder, _, name = part.rpartition("/")
    place = f"{folder}/_rels/{name}.rels".lstrip("/")
    links = {}
    for event in read_xml(archive.read_if_there(place)):
        if (
            isinstance(event, Start)
            and event.name == "Relationship"
            and event.attributes.get("TargetMode") != "External"
        ):
            kind = event.attributes.get("Type", "").rpartition("/")[2]
            links[event.attributes.get("Id", "")] = (kind, resolve_target(part, event.attributes.get("Target", "")))
    return links


def read_properties(archive: Archive) -> tuple[str, str]:
    """Title and author, as the file names them."""
    found = element_texts(archive.read_if_there("docProps/core.xml"), frozenset({"title", "creator"}))
    return found.get("title", [""])[0], found.get("creator", [""])[0]


def parse_docx(archive: Archive, limits: Limits) -> Parsed:
    """A Word file: its headings are the sections; footnotes come last."""
    part = main_part(archive)
    links = read_links(archive, part)
    styles = next((target for kind, target in links.values() if kind == "styles"), "")
    builder = TextBuilder(limits.max_record_bytes)
    _Reader(builder, _heading_styles(archive, styles)).read(archive.read(part))
    for name in _NOTES:
        for kind, target in links.values():
            if kind == name and target in archive:
                builder.begin(name)
                _Reader(builder).read(archive.read(target))
    title, author = read_properties(archive)
    return builder.finish(title=title, author=author)


def _heading_styles(archive: Archive, part: str) -> frozenset[str]:
    """The ids of heading styles: ids are translated, the names of built-in styles are not."""
    headings, style = set(), ""
    for event in read_xml(archive.read_if_there(part)):
        if not isinstance(event, Start):
            continue
        if event.name == "style":
            style = event.attributes.get("styleId", "")
        elif event.name == "name" and event.attributes.get("val", "").lower().startswith(_HEADING_NAMES):
            headings.add(style)
    return frozenset(headings)


def parse_pptx(archive: Archive, limits: Limits) -> Parsed:
    """A presentation: slides in their order, each followed by its notes."""
    part = main_part(archive)
    links = read_links(archive, part)
    builder = TextBuilder(limits.max_record_bytes)
    unread: list[tuple[str, str]] = []
    slides = [event for event in read_xml(archive.read(part)) if isinstance(event, Start) and event.name == "sldId"]
    for number, slide in enumerate(slides, start=1):
        label = f"slide {number}"
        try:
            _read_slide(archive, links[slide.attributes.get("id", "")][1], label, builder)
        except KeyError:
            unread.append((label, "the slide is missing"))
        except SiloError as error:
            if error.code != "document-invalid":
                raise
            unread.append((label, error.message))
    title, author = read_properties(archive)
    return builder.finish(title=title, author=author, unread=unread)


def _read_slide(archive: Archive, part: str, label: str, builder: TextBuilder) -> None:
    builder.begin(label)
    _Reader(builder).read(archive.read(part))
    for kind, target in read_links(archive, part).values():
        if kind == "notesSlide" and target in archive:
            builder.begin(f"{label}, notes")
            _Reader(builder).read(archive.read(target))


@dataclass(slots=True)
class _Paragraph:
    pieces: list[str] = field(default_factory=list)
    is_heading: bool = False


@dataclass(slots=True)
class _Row:
    """A table row under way: the finished cells, and the pieces of the open one."""

    cells: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Reader:
    """Paragraphs may hold others (a text box), and cells other tables: both are kept as stacks."""

    builder: TextBuilder
    headings: frozenset[str] = frozenset()
    paragraphs: list[_Paragraph] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)
    in_text: bool = False

    def read(self, data: bytes) -> None:
        """Add the paragraphs and table rows of a part."""
        for event in drop_elements(read_xml(data), _is_skipped):
            if isinstance(event, Start):
                self.in_text = event.name == "t"
                self._begin(event)
            elif isinstance(event, End):
                self.in_text = False
                self._end(event.name)
            elif self.in_text and self.paragraphs:
                self.paragraphs[-1].pieces.append(event)

    def _begin(self, event: Start) -> None:
        value = event.attributes.get("val")
        if event.name == "p":
            self.paragraphs.append(_Paragraph())
        elif event.name == "tr":
            self.rows.append(_Row())
        elif self.paragraphs and event.name in _BREAKS:
            self.paragraphs[-1].pieces.append(_BREAKS[event.name])
        elif self.paragraphs and (event.name == "outlineLvl" or (event.name == "pStyle" and value in self.headings)):
            self.paragraphs[-1].is_heading = value != _BODY_LEVEL

    def _end(self, name: str) -> None:
        if name == "p" and self.paragraphs:
            self._end_paragraph(self.paragraphs.pop())
        elif name == "tc" and self.rows:
            row = self.rows[-1]
            row.cells.append(" ".join(" ".join(row.pieces).split()))
            row.pieces.clear()
        elif name == "tr" and self.rows:
            line = " | ".join(cell for cell in self.rows.pop().cells if cell)
            if self.rows:
                self.rows[-1].pieces.append(line)
            else:
                self.builder.add(line, gap="\n")

    def _end_paragraph(self, paragraph: _Paragraph) -> None:
        text = "".join(paragraph.pieces)
        if self.rows:
            self.rows[-1].pieces.append(text)
            return
        if paragraph.is_heading and text.strip():
            self.builder.begin(f"section {text}")
        self.builder.add(text)


def _is_skipped(event: Start) -> bool:
    """True for elements that repeat text, take it away or only number slides."""
    return event.name in _SKIPPED or (event.name == "fld" and event.attributes.get("type") == "slidenum")
