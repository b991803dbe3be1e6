"""PDF, by PDFium: the text of every page, with the page's number as its place."""

from __future__ import annotations

import re
from typing import Any

from silo.errors import SiloError
from silo.recipe import Limits
from silo.sources.documents.parsed import Parsed, TextBuilder, tidy
from silo.sources.reader.claims import NO_CLAIMS, Claims

_HYPHEN_AT_LINE_END = re.compile("[\ufffe\x02\xad]\r?\n?")
"""PDFium marks a word that is divided between two lines."""

_XMP = re.compile(rb"<\?xpacket begin.{0,262144}?<\?xpacket end", re.DOTALL)
_LICENCE_FIELDS = re.compile(
    rb"<cc:license[^>]{0,20}rdf:resource\s*=\s*[\"']([^\"']{1,1000})|<xmpRights:UsageTerms>(.{1,4000}?)</xmpRights:UsageTerms>",
    re.DOTALL,
)
_RESERVED = re.compile(rb"tdm:reservation(?:\s*=\s*[\"']|>)\s*1\b")
_TAG = re.compile(r"<[^>]*>")


def parse_pdf(data: bytes, limits: Limits) -> Parsed:
    """The text of a PDF page by page. Pages that cannot be read are named; a file of pictures has no text."""
    import pypdfium2 as pdfium

    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        # PDFium may name the failure of the file before: what the file itself says counts too.
        if "password" in str(error).lower() and b"/Encrypt" in data:
            raise SiloError("document-encrypted", "the PDF is protected by a password") from None
        raise SiloError("document-invalid", "the PDF is damaged, cut off, or no PDF") from None
    builder = TextBuilder(limits.max_record_bytes)
    unread: list[tuple[str, str]] = []
    for number in range(len(document)):
        label = f"p. {number + 1}"
        try:
            text = _page_text(document, number)
        except pdfium.PdfiumError:
            unread.append((label, "the page is damaged"))
            continue
        builder.begin(label)
        builder.add(tidy(_HYPHEN_AT_LINE_END.sub("", text.replace("\r\n", "\n"))))
    about = document.get_metadata_dict()
    return builder.finish(title=about["Title"], author=about["Author"], claims=_read_claims(data), unread=unread)


def _page_text(document: Any, number: int) -> str:
    page = document[number]
    try:
        text_page = page.get_textpage()
        try:
            return str(text_page.get_text_range())
        finally:
            text_page.close()
    finally:
        page.close()


def _read_claims(data: bytes) -> Claims:
    """Licences and reservations in the XMP packet, where it is not packed."""
    packet = _XMP.search(data)
    if packet is None:
        return NO_CLAIMS
    fields = (match[1] or match[2] for match in _LICENCE_FIELDS.finditer(packet[0]))
    licences = (" ".join(_TAG.sub(" ", field.decode("utf-8", "replace")).split()) for field in fields)
    reserved = (("XMP", "tdm:reservation: 1"),) if _RESERVED.search(packet[0]) else ()
    return Claims(tuple(("XMP", licence) for licence in licences), reserved)
