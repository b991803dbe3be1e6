"""OpenDocument files (LibreOffice): ODT by headings, ODP by slides, ODS by sheets and rows.

Left out: comments, text that a tracked change deleted, pictures. Footnotes stand after their paragraph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from silo.errors import SiloError
from silo.recipe import Limits
from silo.sources.documents.archive import Archive
from silo.sources.documents.parsed import Parsed, TextBuilder
from silo.sources.documents.tables import Row, add_table, expand_cells
from silo.sources.documents.xml import Event, Start, drop_elements, element_texts, read_xml

_SKIPPED = frozenset({"tracked-changes", "annotation", "note-citation", "forms", "styles", "automatic-styles"})
_BREAKS = {"tab": "\t", "line-break": "\n"}
_MOST_SPACES = 100
_MOST_REPEATED = 1 << 20


def parse_odt(archive: Archive, limits: Limits) -> Parsed:
    """A text, whose headings are its sections; or a presentation, by slides."""
    reader = _Reader(TextBuilder(limits.max_record_bytes))
    for event in _content(archive):
        reader.read(event)
    return _finish(reader.builder, archive)


def parse_ods(archive: Archive, limits: Limits) -> Parsed:
    """A spreadsheet: every sheet as a table of the values that its cells show."""
    builder = TextBuilder(limits.max_record_bytes)
    for name, rows in _sheets(_content(archive)):
        add_table(builder, rows, len(rows), f"sheet {name}")
    return _finish(builder, archive)


def _finish(builder: TextBuilder, archive: Archive) -> Parsed:
    found = element_texts(archive.read_if_there("meta.xml"), frozenset({"title", "creator", "initial-creator"}))
    authors = found.get("initial-creator", []) + found.get("creator", []) + [""]
    return builder.finish(title=found.get("title", [""])[0], author=authors[0])


def _content(archive: Archive) -> Iterator[Event]:
    """The events of the content, without what is not part of the text."""
    if b"encryption-data" in archive.read_if_there("META-INF/manifest.xml"):
        raise SiloError("document-encrypted", "the file is protected by a password")
    return drop_elements(read_xml(archive.read("content.xml")), lambda event: event.name in _SKIPPED)


@dataclass(slots=True)
class _Reader:
    """Paragraphs may hold others (a footnote, a text box), and cells other tables: both are kept as stacks.

    `held` are the paragraphs inside another, which come after it.
    """

    builder: TextBuilder
    paragraphs: list[list[str]] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    slides: int = 0

    def read(self, event: Event) -> None:
        if isinstance(event, str):
            if self.paragraphs:
                self.paragraphs[-1].append(" ".join(event.split("\n")))
        elif isinstance(event, Start):
            self._begin(event)
        elif event.name in ("p", "h") and self.paragraphs:
            self._end_paragraph("".join(self.paragraphs.pop()), is_heading=event.name == "h")
        elif event.name == "table-row" and self.rows:
            self._end_row(" | ".join(cell for cell in (" ".join(cell.split()) for cell in self.rows.pop()) if cell))

    def _begin(self, event: Start) -> None:
        if event.name in ("p", "h"):
            self.paragraphs.append([])
        elif event.name == "page":
            self.slides += 1
            self.builder.begin(f"slide {self.slides}")
        elif event.name == "notes" and self.slides:
            self.builder.begin(f"slide {self.slides}, notes")
        elif event.name == "table-row":
            self.rows.append([])
        elif event.name == "table-cell" and self.rows:
            self.rows[-1].append("")
        elif self.paragraphs and event.name == "s":
            self.paragraphs[-1].append(" " * min(_number(event, "c"), _MOST_SPACES))
        elif self.paragraphs and event.name in _BREAKS:
            self.paragraphs[-1].append(_BREAKS[event.name])

    def _end_paragraph(self, text: str, *, is_heading: bool) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += f" {text}"
        elif self.paragraphs:
            self.held.append(text)
        else:
            if is_heading and text.strip():
                self.builder.begin(f"section {text}")
            for block in (text, *self.held):
                self.builder.add(block)
            self.held.clear()

    def _end_row(self, line: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += f" {line}"
        else:
            self.builder.add(line, gap="\n")


def _number(event: Start, name: str) -> int:
    """A count in an attribute; 1 if it is missing or no number."""
    text = event.attributes.get(name, "1")
    return min(int(text), _MOST_REPEATED) if text.isdecimal() and len(text) < 10 else 1


def _sheets(events: Iterator[Event]) -> Iterator[tuple[str, list[Row]]]:
    """Sheets with their rows. A repeated row comes once: repeating says how a sheet looks, not what is in it."""
    name, number = "", 0
    rows: list[Row] = []
    cells: list[tuple[str, int]] = []
    paragraphs: list[str] = []
    repeated, cell_repeated, in_paragraph = 1, 1, False
    for event in events:
        if isinstance(event, str):
            if in_paragraph:
                paragraphs.append(event)
        elif isinstance(event, Start):
            if event.name == "table":
                name, rows, number = event.attributes.get("name", ""), [], 0
            elif event.name == "table-row":
                cells, repeated = [], _number(event, "number-rows-repeated")
            elif event.name in ("table-cell", "covered-table-cell"):
                paragraphs, cell_repeated = [], _number(event, "number-columns-repeated")
            elif event.name == "p":
                in_paragraph = True
        elif event.name == "p":
            in_paragraph = False
            paragraphs.append(" ")
        elif event.name in ("table-cell", "covered-table-cell"):
            cells.append((" ".join("".join(paragraphs).split()), cell_repeated))
        elif event.name == "table-row":
            if row := expand_cells(cells):
                rows.append((number + 1, row))
            number += repeated
        elif event.name == "table":
            yield name, rows
