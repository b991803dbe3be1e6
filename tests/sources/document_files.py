"""Small writers of the files that people have, so that tests need no binary blobs."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

_WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_DRAWING = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
_SLIDES = 'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
_SHEET = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
_LINK = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_LINKS = f'xmlns:r="{_LINK}"'
_ODF = "urn:oasis:names:tc:opendocument:xmlns"


Parts = Mapping[str, str | bytes]
"""Members of an archive; where a writer takes some, they replace its own."""

_NONE: Parts = {}


def pack(members: Parts, *, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A ZIP file of the given members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def pdf(pages: Sequence[str], *, encrypted: bool = False, xmp: str = "", title: str = "") -> bytes:
    """A PDF with lines of ASCII text on each page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", ""]
    kids = []
    for page in pages:
        safe = page.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
        shown = " ".join(f"({line}) Tj T*" for line in safe.split("\n"))
        stream = f"BT /F1 12 Tf 14 TL 72 720 Td {shown} ET"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        font = "<< /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >>"
        content, place = len(objects), "/Parent 2 0 R /MediaBox [0 0 612 792]"
        objects.append(f"<< /Type /Page {place} /Resources << /Font {font} >> /Contents {content} 0 R >>")
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    objects.append(f"<< /Title ({title}) >>")
    trailer = f"/Root 1 0 R /Info {len(objects)} 0 R"
    if xmp:
        packet = f'<?xpacket begin=""?><x>{xmp}</x><?xpacket end="r"?>'
        objects.append(f"<< /Type /Metadata /Subtype /XML /Length {len(packet)} >>\nstream\n{packet}\nendstream")
        objects[0] = f"<< /Type /Catalog /Pages 2 0 R /Metadata {len(objects)} 0 R >>"
    if encrypted:
        key = "00" * 32
        objects.append(f"<< /Filter /Standard /V 1 /R 2 /O <{key}> /U <{key}> /P -4 >>")
        trailer += f" /Encrypt {len(objects)} 0 R /ID [<{key[:32]}> <{key[:32]}>]"
    out = b"%PDF-1.4\n"
    starts = []
    for number, body in enumerate(objects, start=1):
        starts.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    table = "".join(f"{start:010d} 00000 n \n" for start in starts)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} {trailer} >>\n"
    return out + f"{end}startxref\n{len(out)}\n%%EOF\n".encode()


def _links(*targets: tuple[str, str]) -> str:
    rows = (
        f'<Relationship Id="rId{at}" Type="{_LINK}/{kind}" Target="{target}"/>'
        for at, (kind, target) in enumerate(targets, start=1)
    )
    return f'<Relationships xmlns="http://x">{"".join(rows)}</Relationships>'


def _properties(title: str) -> str:
    return (
        f'<c:p xmlns:c="http://c" xmlns:dc="http://dc"><dc:title>{title}</dc:title><dc:creator>Ann</dc:creator></c:p>'
    )


def word_paragraph(text: str, style: str = "") -> str:
    head = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{head}<w:r><w:t>{escape(text)}</w:t></w:r></w:p>"


def docx(body: str, parts: Parts = _NONE, *, footnotes: Sequence[str] = ()) -> bytes:
    """A Word file; the style `berschrift1` is a heading, as a German Word names it."""
    style = '<w:style w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>'
    notes = "".join(f"<w:footnote>{word_paragraph(note)}</w:footnote>" for note in footnotes)
    return pack(
        {
            "[Content_Types].xml": "<Types/>",
            "_rels/.rels": _links(("officeDocument", "word/document2.xml")),
            "word/document2.xml": f"<w:document {_WORD} xmlns:mc='http://mc'><w:body>{body}</w:body></w:document>",
            "word/_rels/document2.xml.rels": _links(("styles", "styles.xml"), ("footnotes", "footnotes.xml")),
            "word/styles.xml": f"<w:styles {_WORD}>{style}</w:styles>",
            "word/footnotes.xml": f"<w:footnotes {_WORD}>{notes}</w:footnotes>",
            "docProps/core.xml": _properties("Handbook"),
            **parts,
        }
    )


def pptx(slides: Sequence[str], notes: Mapping[int, str] | None = None) -> bytes:
    """A presentation; slides and notes by number, from 1."""
    numbers = range(1, len(slides) + 1)
    ids = "".join(f'<p:sldId id="{255 + at}" r:id="rId{at}"/>' for at in numbers)
    members: dict[str, str | bytes] = {
        "_rels/.rels": _links(("officeDocument", "ppt/presentation.xml")),
        "ppt/presentation.xml": f"<p:x {_SLIDES} {_LINKS}><p:sldIdLst>{ids}</p:sldIdLst></p:x>",
        "ppt/_rels/presentation.xml.rels": _links(*(("slide", f"slides/s{at}.xml") for at in numbers)),
    }
    for at, text in enumerate(slides, start=1):
        number = f'<a:p><a:fld type="slidenum"><a:t>{at}</a:t></a:fld></a:p>'
        members[f"ppt/slides/s{at}.xml"] = f"<p:sld {_SLIDES} {_DRAWING}>{_drawn(text)}{number}</p:sld>"
    for at, text in (notes or {}).items():
        members[f"ppt/slides/_rels/s{at}.xml.rels"] = _links(("notesSlide", f"../notes/n{at}.xml"))
        members[f"ppt/notes/n{at}.xml"] = f"<p:notes {_SLIDES} {_DRAWING}>{_drawn(text)}</p:notes>"
    return pack(members)


def _drawn(text: str) -> str:
    return "".join(f"<a:p><a:r><a:t>{escape(line)}</a:t></a:r></a:p>" for line in text.split("\n"))


def xlsx(cells: Mapping[str, str], *, strings: Sequence[str] = (), name: str = "Budget") -> bytes:
    """An Excel file of one sheet; `cells` are by place, such as B3, and hold the XML inside `<c>`'s tag and body."""
    rows = "".join(f'<row><c r="{place}" {body}</c></row>' for place, body in cells.items())
    shared = "".join(f"<si><t>{escape(text)}</t></si>" for text in strings)
    formats = '<numFmts><numFmt numFmtId="170" formatCode="yyyy\\-mm\\-dd"/></numFmts>'
    styles = f'{formats}<cellXfs><xf numFmtId="0"/><xf numFmtId="170"/></cellXfs>'
    return pack(
        {
            "_rels/.rels": _links(("officeDocument", "xl/workbook.xml")),
            "xl/workbook.xml": f'<workbook {_SHEET} {_LINKS}><sheet name="{name}" sheetId="1" r:id="rId1"/></workbook>',
            "xl/_rels/workbook.xml.rels": _links(
                ("worksheet", "worksheets/sheet1.xml"), ("sharedStrings", "sharedStrings.xml"), ("styles", "styles.xml")
            ),
            "xl/worksheets/sheet1.xml": f"<worksheet {_SHEET}><sheetData>{rows}</sheetData></worksheet>",
            "xl/sharedStrings.xml": f"<sst {_SHEET}>{shared}</sst>",
            "xl/styles.xml": f"<styleSheet {_SHEET}>{styles}</styleSheet>",
        }
    )


def opendocument(kind: str, body: str, parts: Parts = _NONE) -> bytes:
    """An OpenDocument file; `kind` is text, presentation or spreadsheet."""
    spaces = " ".join(
        f'xmlns:{name}="{_ODF}:{name}:1.0"' for name in ("office", "text", "table", "draw", "presentation")
    )
    return pack(
        {
            "mimetype": f"application/vnd.oasis.opendocument.{kind}",
            "content.xml": f"<office:content {spaces}><office:body>{body}</office:body></office:content>",
            "meta.xml": '<m xmlns:dc="http://dc"><dc:title>Handbook</dc:title><dc:creator>Ann</dc:creator></m>',
            **parts,
        }
    )


def epub(
    chapters: Sequence[str], parts: Parts = _NONE, *, metadata: str = "", spine: Sequence[str] | None = None
) -> bytes:
    """A book; each chapter is the markup of its body."""
    names = [f"c{at}" for at in range(1, len(chapters) + 1)]
    items = "".join(
        f'<item id="{name}" href="text/{name}.xhtml" media-type="application/xhtml+xml"/>' for name in names
    )
    order = "".join(f'<itemref idref="{name}"/>' for name in (names if spine is None else spine))
    about = (
        f'<metadata xmlns:dc="http://dc"><dc:title>A Book</dc:title><dc:creator>Ann</dc:creator>{metadata}</metadata>'
    )
    package = f"<package>{about}<manifest>{items}</manifest><spine>{order}</spine></package>"
    pages = {
        f"OEBPS/text/{name}.xhtml": f"<!DOCTYPE html><html><head><title>x</title></head><body>{body}</body></html>"
        for name, body in zip(names, chapters, strict=True)
    }
    return pack(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container><rootfile full-path="OEBPS/p.opf"/></container>',
            "OEBPS/p.opf": package,
            **pages,
            **parts,
        }
    )


def notebook(*cells: Mapping[str, Any]) -> bytes:
    """A notebook of format 4."""
    return json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()
