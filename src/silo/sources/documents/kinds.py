"""The table of files that are read as documents: their endings, their parsers and what these need.

What a file holds decides, where it can be told: a PDF that is named as a Word file is read as a PDF.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from silo.errors import SiloError
from silo.recipe import Limits
from silo.sources.documents.archive import ZIP_MAGIC, Archive
from silo.sources.documents.notebook import parse_notebook
from silo.sources.documents.office import main_part, parse_docx, parse_pptx
from silo.sources.documents.opendocument import parse_ods, parse_odt
from silo.sources.documents.parsed import Parsed
from silo.sources.documents.pdf import parse_pdf
from silo.sources.documents.tables import parse_csv, parse_xlsx
from silo.sources.documents.web import parse_epub, parse_html
from silo.sources.mbox import parse_message

_PDF_MAGIC = b"%PDF-"
_OLE_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OLE_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_MIMETYPE_BYTES = 100


def _parse_mail(data: bytes, limits: Limits) -> Parsed:
    message = parse_message(data)
    if len(message.text) > limits.max_record_bytes:
        raise SiloError("file-too-large", "the text of the message is too large")
    about = tuple(message.meta.items())
    return Parsed(message.text, identity=message.identity, owner=message.sender, about=about)


_PLAIN: dict[str, Callable[[bytes, Limits], Parsed]] = {
    "pdf": parse_pdf,
    "html": parse_html,
    "csv": parse_csv,
    "notebook": parse_notebook,
    "mail": _parse_mail,
}
_PACKED: dict[str, Callable[[Archive, Limits], Parsed]] = {
    "docx": parse_docx,
    "pptx": parse_pptx,
    "xlsx": parse_xlsx,
    "odt": parse_odt,
    "ods": parse_ods,
    "epub": parse_epub,
}
_OFFICE_FOLDERS = {"word": "docx", "ppt": "pptx", "xl": "xlsx"}
_MIMETYPES = {
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.oasis.opendocument.presentation": "odt",
    "application/vnd.oasis.opendocument.spreadsheet": "ods",
    "application/epub+zip": "epub",
}

ENDINGS: dict[str, str] = {
    ".pdf": "pdf",
    ".docx": "docx",
    ".pptx": "pptx",
    ".xlsx": "xlsx",
    ".odt": "odt",
    ".odp": "odt",
    ".ods": "ods",
    ".epub": "epub",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".csv": "csv",
    ".tsv": "csv",
    ".ipynb": "notebook",
    ".eml": "mail",
    ".mbox": "mail",
}
"""Kinds by the ending of a file's name. A mailbox is read message by message."""

_LIBRARIES = {"pdf": "pypdfium2"}


def missing_library(kind: str) -> str:
    """The library that reading a kind needs and that is not installed; empty if nothing is missing."""
    library = _LIBRARIES.get(kind, "")
    return library if library and importlib.util.find_spec(library) is None else ""


@dataclass(frozen=True, slots=True)
class _Recognised:
    kind: str
    archive: Archive | None = None


def parse_document(kind: str, data: bytes, limits: Limits) -> Parsed:
    """The document in a file's bytes; `kind` is what its name says, and its content may know better."""
    found = _recognise(kind, data, limits)
    if found.archive is not None:
        return _PACKED[found.kind](found.archive, limits)
    if library := missing_library(found.kind):
        raise SiloError(
            "extra-missing", f"reading this kind of file needs {library}", "run: pip install 'silo-lm[docs]'"
        )
    return _PLAIN[found.kind](data, limits)


def _recognise(kind: str, data: bytes, limits: Limits) -> _Recognised:
    if data.startswith(_PDF_MAGIC):
        return _Recognised("pdf")
    if data.startswith(_OLE_MAGIC):
        if _OLE_ENCRYPTED in data:
            raise SiloError("document-encrypted", "the file is protected by a password")
        raise SiloError("document-invalid", "an old binary Office file: save it as .docx, .pptx or .xlsx")
    if data.startswith(ZIP_MAGIC):
        archive = Archive(data, limits)
        return _Recognised(_kind_of_archive(archive), archive)
    if kind in _PACKED:
        raise SiloError("document-invalid", "not a ZIP file, as such a file must be")
    return _Recognised(kind)


def _kind_of_archive(archive: Archive) -> str:
    mimetype = archive.read_if_there("mimetype")[:_MIMETYPE_BYTES].decode("ascii", "replace").strip()
    kind = _MIMETYPES.get(mimetype) or _OFFICE_FOLDERS.get(main_part(archive).partition("/")[0], "")
    if not kind:
        raise SiloError("document-invalid", "a ZIP archive, but no document of a kind that is read")
    return kind
