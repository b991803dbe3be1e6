"""Tables (CSV, TSV, Excel): one line per row, in which every cell has its column's name; the row is the place.

A row that says `name: Ann; days: 16` can be found and understood alone, far from the head of its table.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from silo.errors import SiloError
from silo.recipe import Limits
from silo.sources.documents.archive import Archive
from silo.sources.documents.office import main_part, read_links, read_properties
from silo.sources.documents.parsed import Parsed, TextBuilder
from silo.sources.documents.xml import Start, read_xml

Row = tuple[int, list[str]]
"""The number of a row in its file, from 1, and its cells; blank rows may be left out."""

_MOST_PLACES = 2000
"""Rows of a larger table share places: 'rows 51-75'."""
_MOST_COLUMNS = 16_384
_DELIMITERS = ",;\t|"
_SAMPLE_ROWS = 20
_CELL = re.compile(r"([A-Z]{1,3})(\d{1,7})")
_BUILT_IN_DATES = frozenset({*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)})
_DATE_LETTERS = re.compile(r"[ydhs]|mm", re.IGNORECASE)
_NOT_FORMAT = re.compile(r'"[^"]*"|\[[^\]]*\]|\\.')


def add_table(builder: TextBuilder, rows: Iterable[Row], count: int, where: str = "") -> None:
    """Add the `count` rows of a table, each under the names of its columns if the first row gives any."""
    coming = iter(rows)
    before = f"{where}, " if where else ""
    first = next(coming, None)
    if first is None:
        return
    names = _column_names(first[1]) if count > 1 else []
    if names:
        builder.begin(f"{before}row {first[0]}")
        builder.add(" | ".join(names))
    else:
        coming = itertools.chain([first], coming)
    gap = "\n" if names else "\n\n"
    step = -(-count // _MOST_PLACES)
    while group := list(itertools.islice(coming, step)):
        start, end = group[0][0], group[-1][0]
        builder.begin(f"{before}row {start}" if start == end else f"{before}rows {start}-{end}")
        for _, cells in group:
            builder.add(_row_text(names, cells), gap=gap)
            gap = "\n"


def _column_names(cells: list[str]) -> list[str]:
    """What the cells of a first row name, if they can be names: several different words, and no numbers."""
    names = [" ".join(cell.split()) for cell in cells]
    while names and not names[-1]:
        names.pop()
    sound = len(names) > 1 and len(set(names)) == len(names) and not any(map(_is_number, names)) and all(names)
    return names if sound else []


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace(",", "").lstrip("-+").isdigit()


def _row_text(names: list[str], cells: list[str]) -> str:
    words = [" ".join(cell.split()) for cell in cells]
    if not names:
        return " | ".join(word for word in words if word)
    named = [f"{names[at]}: {word}" if at < len(names) else word for at, word in enumerate(words) if word]
    return "; ".join(named)


def parse_csv(data: bytes, limits: Limits) -> Parsed:
    """A table of text; the delimiter is the one that divides its first rows most evenly."""
    text = _decode(data)
    csv.field_size_limit(limits.max_record_bytes)
    delimiter = _find_delimiter(text)
    builder = TextBuilder(limits.max_record_bytes)
    try:
        count = sum(1 for _ in _csv_rows(text, delimiter))
        add_table(builder, _csv_rows(text, delimiter), count)
    except csv.Error as error:
        raise SiloError("document-invalid", f"the table cannot be read: {error}") from None
    return builder.finish()


def _csv_rows(text: str, delimiter: str) -> Iterator[Row]:
    """The rows that are not blank."""
    for number, row in enumerate(_split_csv(text, delimiter), start=1):
        if any(map(str.strip, row)):
            yield number, row


def _split_csv(text: str, delimiter: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)


def _decode(data: bytes) -> str:
    charset = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = data.decode(charset)
    except UnicodeDecodeError as error:
        raise SiloError("not-text" if b"\0" in data else "utf8-invalid", f"byte {error.start} is not UTF-8") from None
    if "\0" in text:
        raise SiloError("nul-byte", "the table holds NUL bytes")
    return text


def _find_delimiter(text: str) -> str:
    """The delimiter that gives the first rows the same, largest number of columns."""
    best, best_columns = ",", 1
    for delimiter in _DELIMITERS:
        widths = []
        try:
            for _, row in zip(range(_SAMPLE_ROWS), _split_csv(text, delimiter), strict=False):
                widths += [len(row)] if row else []
        except csv.Error:
            continue
        common = max(set(widths), key=widths.count) if widths else 1
        if common > best_columns and 2 * widths.count(common) > len(widths):
            best, best_columns = delimiter, common
    return best


def parse_xlsx(archive: Archive, limits: Limits) -> Parsed:
    """An Excel file: every sheet as a table of the values that its cells show."""
    part = main_part(archive)
    links = read_links(archive, part)
    by_kind = dict(links.values())
    strings = list(_shared_strings(archive.read_if_there(by_kind.get("sharedStrings", ""))))
    dates = _date_styles(archive.read_if_there(by_kind.get("styles", "")))
    builder = TextBuilder(limits.max_record_bytes)
    unread: list[tuple[str, str]] = []
    for event in read_xml(archive.read(part)):
        if isinstance(event, Start) and event.name == "sheet":
            where = f"sheet {event.attributes.get('name', '')}"
            kind, target = links.get(event.attributes.get("id", ""), ("", ""))
            if target not in archive:
                unread.append((where, "the sheet is missing"))
            elif kind == "worksheet":
                rows = _sheet_rows(archive.read(target), strings, dates)
                add_table(builder, rows, len(rows), where)
    title, author = read_properties(archive)
    return builder.finish(title=title, author=author, unread=unread)


def _shared_strings(data: bytes) -> Iterator[str]:
    pieces: list[str] = []
    in_text = phonetic = False
    for event in read_xml(data):
        if isinstance(event, str):
            if in_text and not phonetic:
                pieces.append(event)
            continue
        begins = isinstance(event, Start)
        if event.name == "t":
            in_text = begins
        elif event.name == "rPh":
            phonetic = begins
        elif event.name == "si" and not begins:
            yield "".join(pieces)
            pieces = []


def _date_styles(data: bytes) -> frozenset[str]:
    """The numbers of the cell styles that show a number as a date or time."""
    custom: set[int] = set()
    formats: list[int] = []
    inside = False
    for event in read_xml(data):
        if isinstance(event, str):
            continue
        if event.name == "cellXfs":
            inside = isinstance(event, Start)
        elif not isinstance(event, Start):
            continue
        elif event.name == "numFmt":
            code = _NOT_FORMAT.sub("", event.attributes.get("formatCode", ""))
            custom |= {_whole(event.attributes.get("numFmtId", ""))} if _DATE_LETTERS.search(code) else set()
        elif event.name == "xf" and inside:
            formats.append(_whole(event.attributes.get("numFmtId", "")))
    return frozenset(str(at) for at, number in enumerate(formats) if number in custom | _BUILT_IN_DATES)


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def _sheet_rows(data: bytes, strings: Sequence[str], dates: frozenset[str]) -> list[Row]:
    rows: dict[int, list[str]] = {}
    cell = Start("c", {})
    value: list[str] = []
    place = ""
    for event in read_xml(data):
        if isinstance(event, str):
            if place:
                value.append(event)
        elif isinstance(event, Start):
            if event.name == "c":
                cell, value = event, []
            place = event.name if event.name in ("v", "t") else ""
        else:
            place = ""
            if event.name == "c" and (match := _CELL.fullmatch(cell.attributes.get("r", ""))):
                shown = _shown_value("".join(value), cell, strings, dates)
                _put(rows.setdefault(int(match[2]), []), _column(match[1]), shown)
    return [(number, cells) for number, cells in sorted(rows.items()) if any(cells)]


def _put(cells: list[str], column: int, value: str) -> None:
    if column < _MOST_COLUMNS and value:
        cells += [""] * (column + 1 - len(cells))
        cells[column] = value


def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - 64
    return number - 1


def _shown_value(value: str, cell: Start, strings: Sequence[str], dates: frozenset[str]) -> str:
    kind = cell.attributes.get("t", "n")
    if kind == "s":
        at = _whole(value)
        return strings[at] if 0 <= at < len(strings) else ""
    if kind == "b":
        return {"1": "true", "0": "false"}.get(value, value)
    if kind == "n" and cell.attributes.get("s") in dates:
        return _date(value)
    return value


def _date(value: str) -> str:
    """A day number of Excel, counted from the end of 1899, as ISO text."""
    try:
        moment = dt.datetime(1899, 12, 30) + dt.timedelta(days=round(float(value), 8))
    except (ValueError, OverflowError):
        return value
    moment = (moment + dt.timedelta(microseconds=500_000)).replace(microsecond=0)
    return moment.date().isoformat() if moment.time() == dt.time() else moment.isoformat(" ")


def expand_cells(cells: Iterable[tuple[str, int]]) -> list[str]:
    """Cells with how often each is repeated, as one row; what is empty at the end is left out."""
    row: list[str] = []
    for value, count in cells:
        row += [value] * min(count, _MOST_COLUMNS - len(row))
    while row and not row[-1]:
        row.pop()
    return row
