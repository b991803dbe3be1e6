"""Word and PowerPoint files (Office Open XML): paragraphs under their headings, and slides by number.

Left out: comments, text that a tracked change deleted or moved away, headers and footers, pictures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from silo.errors import SiloError
from silo.recipe import Limits
from silo.sources.documents.archive import Archive, resolve_target
from silo.sources.documents.parsed import Parsed, TextBuilder
from silo.sources.documents.xml import Event, Start, element_texts, read_xml

_SKIPPED = frozenset({"Fallback", "moveFrom"})
_BREAKS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_HEADING_NAMES = ("heading ", "title")
_NOTES = ("footnotes", "endnotes")


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


def read_properties(archive: Archive) -> dict[str, str]:
    """Title and author, as the file names them."""
    found = element_texts(archive.read_if_there("docProps/core.xml"), frozenset({"title", "creator"}))
    return {"title": found.get("title", [""])[0], "author": found.get("creator", [""])[0]}


def parse_docx(archive: Archive, limits: Limits) -> Parsed:
    """A Word file: its headings are the sections; footnotes come last."""
    part = main_part(archive)
    links = read_links(archive, part)
    styles = next((target for kind, target in links.values() if kind == "styles"), "")
    builder = TextBuilder(limits.max_record_bytes)
    _read_paragraphs(archive.read(part), builder, _heading_styles(archive, styles))
    for name in _NOTES:
        for kind, target in links.values():
            if kind == name and target in archive:
                builder.begin(name)
                _read_paragraphs(archive.read(target), builder, frozenset())
    return builder.finish(**read_properties(archive))


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
    return builder.finish(**read_properties(archive), unread=tuple(unread))


def _read_slide(archive: Archive, part: str, label: str, builder: TextBuilder) -> None:
    builder.begin(label)
    _read_paragraphs(archive.read(part), builder, frozenset())
    for kind, target in read_links(archive, part).values():
        if kind == "notesSlide" and target in archive:
            builder.begin(f"{label}, notes")
            _read_paragraphs(archive.read(target), builder, frozenset())


@dataclass(slots=True)
class _Paragraph:
    pieces: list[str] = field(default_factory=list)
    is_heading: bool = False


@dataclass(slots=True)
class _Row:
    """A table row under way: the finished cells, and the pieces of the open one."""

    cells: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)


def _read_paragraphs(data: bytes, builder: TextBuilder, headings: frozenset[str]) -> None:
    """Add the paragraphs and table rows of a part. A paragraph may hold others, in a text box; a cell another table."""
    paragraphs: list[_Paragraph] = []
    rows: list[_Row] = []
    in_text = False
    for event in _without_skipped(read_xml(data)):
        if isinstance(event, str):
            if in_text and paragraphs:
                paragraphs[-1].pieces.append(event)
            continue
        if isinstance(event, Start):
            in_text = event.name == "t"
            if event.name == "p":
                paragraphs.append(_Paragraph())
            elif event.name == "tr":
                rows.append(_Row())
            elif paragraphs:
                _note_in_paragraph(event, paragraphs[-1], headings)
            continue
        in_text = False
        if event.name == "p" and paragraphs:
            paragraph = paragraphs.pop()
            text = "".join(paragraph.pieces)
            if rows:
                rows[-1].pieces.append(text)
            else:
                if paragraph.is_heading and text.strip():
                    builder.begin(f"section {text}")
                builder.add(text)
        elif event.name == "tc" and rows:
            rows[-1].cells.append(" ".join(" ".join(rows[-1].pieces).split()))
            rows[-1].pieces.clear()
        elif event.name == "tr" and rows:
            line = " | ".join(cell for cell in rows.pop().cells if cell)
            if rows:
                rows[-1].pieces.append(line)
            else:
                builder.add(line, gap="\n")


def _note_in_paragraph(event: Start, paragraph: _Paragraph, headings: frozenset[str]) -> None:
    if event.name in _BREAKS:
        paragraph.pieces.append(_BREAKS[event.name])
    elif event.name == "outlineLvl" or (event.name == "pStyle" and event.attributes.get("val") in headings):
        paragraph.is_heading = event.attributes.get("val") != "9"


def _without_skipped(events: Iterator[Event]) -> Iterator[Event]:
    """Events without the elements that repeat text, take it away or only number slides."""
    skipping = 0
    for event in events:
        if isinstance(event, str):
            if not skipping:
                yield event
        elif isinstance(event, Start):
            if skipping or _is_skipped(event):
                skipping += 1
            else:
                yield event
        elif skipping:
            skipping -= 1
        else:
            yield event


def _is_skipped(event: Start) -> bool:
    return event.name in _SKIPPED or (event.name == "fld" and event.attributes.get("type") == "slidenum")
