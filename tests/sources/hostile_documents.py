"""Hostile documents of every kind: bytes, and the code they end in; an empty code where they are read all the same."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from tests.sources.document_files import docx, epub, notebook, opendocument, pack, pdf, pptx, word_paragraph, xlsx
from tests.sources.hostile_case import random_bytes

_TEXT = word_paragraph("Some text.")
_RELS = '<R><Relationship Id="a" Type="x/officeDocument" Target="word/none.xml"/></R>'
_EXTERNAL = '<!DOCTYPE d [<!ENTITY a SYSTEM "file:///etc/passwd">]><d>&a;</d>'
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)


@dataclass(frozen=True, slots=True)
class HostileDocument:
    """One file: what its name says it is, its bytes, and what has to become of it."""

    name: str
    kind: str
    make: Callable[[], bytes]
    code: str


def _entities(last: str) -> str:
    bomb = "".join(f'<!ENTITY {chr(98 + at)} "{f"&{chr(97 + at)};" * 50}">' for at in range(10))
    return f'<!DOCTYPE d [<!ENTITY a "ha">{bomb}]><d>{last}</d>'


def _with_encryption_bits(data: bytes) -> bytes:
    """The same archive, all of whose members are said to be encrypted."""
    changed, at = bytearray(data), 0
    while (at := changed.find(b"PK\x01\x02", at)) >= 0:
        changed[at + 8] |= 1
        at += 4
    return bytes(changed)


def _link_member() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        member = zipfile.ZipInfo("word/document.xml")
        member.external_attr = 0o120777 << 16
        archive.writestr(member, "/etc/passwd")
    return out.getvalue()


def _lying_size() -> bytes:
    """Members that say they are small and are not."""
    data, at = bytearray(docx(_TEXT)), 0
    while (at := data.find(b"PK\x01\x02", at)) >= 0:
        data[at + 24 : at + 28] = struct.pack("<I", 3)
        at += 4
    return bytes(data)


def _raw_pdf(*objects: bytes) -> bytes:
    body = b"".join(b"%d 0 obj\n%s\nendobj\n" % (number, item) for number, item in enumerate(objects, start=1))
    return b"%PDF-1.4\n" + body + b"trailer << /Root 1 0 R >>\n%%EOF"


def _pdf_stream_bomb() -> bytes:
    packed = zlib.compress(b"BT /F1 12 Tf (x) Tj ET" + b" " * (40 << 20))
    return _raw_pdf(
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 700] /Contents 4 0 R >>",
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(packed), packed),
    )


def _two_blank_parts() -> bytes:
    blank = b"<a>" + b" " * (33 << 20) + b"</a>"
    return docx(_TEXT, {"word/styles.xml": blank, "word/footnotes.xml": blank})


_REPEATED = (
    '<table:table table:name="S"><table:table-row table:number-rows-repeated="99999999999">'
    '<table:table-cell table:number-columns-repeated="999999"><text:p>boo</text:p></table:table-cell>'
    "</table:table-row></table:table>"
)
_CELL = {"source": ["x"], "outputs": [{"data": {"image/png": "A" * 500_000, "text/plain": 17}}, {"text": {}}, 7]}


HOSTILE_DOCUMENTS: list[HostileDocument] = [
    HostileDocument(name, kind, make, code)
    for name, kind, make, code in (
        ("pdf-cut", "pdf", lambda: pdf(["one", "two"])[:300], "document-invalid"),
        ("pdf-garbage", "pdf", lambda: b"%PDF-1.7\n" + random_bytes(4000), "document-invalid"),
        ("pdf-is-text", "pdf", lambda: b"hello", "document-invalid"),
        ("pdf-empty-file", "pdf", lambda: b"", "document-invalid"),
        ("pdf-encrypted", "pdf", lambda: pdf(["secret"], encrypted=True), "document-encrypted"),
        ("pdf-of-pictures", "pdf", lambda: pdf(["", ""]), "document-no-text"),
        ("pdf-without-pages", "pdf", lambda: pdf([]), "document-invalid"),
        (
            "pdf-page-tree-loop",
            "pdf",
            lambda: _raw_pdf(
                b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [2 0 R] /Count 999999999 >>"
            ),
            "document-invalid",
        ),
        (
            "pdf-deep",
            "pdf",
            lambda: _raw_pdf(b"<< /Type /Catalog /Pages 2 0 R >>", b"[" * 100_000 + b"]" * 100_000),
            "document-invalid",
        ),
        ("pdf-stream-bomb", "pdf", _pdf_stream_bomb, ""),
        ("pdf-named-docx", "docx", lambda: pdf(["Hello."]), ""),
        ("docx-named-pdf", "pdf", lambda: docx(_TEXT), ""),
        ("docx-cut", "docx", lambda: docx(_TEXT)[:-100], "document-invalid"),
        ("docx-is-text", "docx", lambda: b"plain text", "document-invalid"),
        ("docx-is-another-archive", "docx", lambda: pack({"a.txt": "x"}), "document-invalid"),
        ("docx-without-text", "docx", lambda: docx(""), "document-no-text"),
        ("docx-lacks-its-part", "docx", lambda: pack({"_rels/.rels": _RELS}), "document-invalid"),
        ("docx-entity-bomb", "docx", lambda: docx("", {"word/document2.xml": _entities("&j;")}), "document-invalid"),
        ("docx-external-entity", "docx", lambda: docx("", {"word/document2.xml": _EXTERNAL}), "document-invalid"),
        ("docx-deep", "docx", lambda: docx("<w:tbl>" * 5000 + "</w:tbl>" * 5000), "document-invalid"),
        ("docx-broken-utf8", "docx", lambda: docx("", {"word/document2.xml": b"<d>caf\xe9</d>"}), "document-invalid"),
        ("docx-dots", "docx", lambda: pack({"../../etc/x": "x"}), "path-unsafe"),
        ("docx-absolute", "docx", lambda: pack({"/etc/x": "x"}), "path-unsafe"),
        ("docx-drive", "docx", lambda: pack({"c:/x": "x"}), "path-unsafe"),
        ("docx-link", "docx", _link_member, "path-unsafe"),
        ("docx-lying-size", "docx", _lying_size, "document-invalid"),
        ("docx-members", "docx", lambda: pack({f"a{at}": "" for at in range(10_001)}), "archive-bomb"),
        ("docx-ratio", "docx", _two_blank_parts, "archive-bomb"),
        ("docx-part-of-65-mb", "docx", lambda: docx("", {"word/document2.xml": bytes(65 << 20)}), "file-too-large"),
        ("docx-encrypted-members", "docx", lambda: _with_encryption_bits(docx(_TEXT)), "document-encrypted"),
        (
            "docx-with-password",
            "docx",
            lambda: _OLE + "EncryptedPackage".encode("utf-16-le"),
            "document-encrypted",
        ),
        ("doc-named-docx", "docx", lambda: _OLE, "document-invalid"),
        ("pptx-lacks-its-slides", "pptx", lambda: pptx(["One"]).replace(b"s1.xml", b"s9.xml", 2), "document-invalid"),
        ("xlsx-far-cells", "xlsx", lambda: xlsx({"A1": "><v>1</v>", "XFD9999999": "><v>2</v>"}), ""),
        ("xlsx-no-such-string", "xlsx", lambda: xlsx({"A1": 't="s"><v>99999999999999</v>'}), "document-no-text"),
        ("xlsx-wild-date", "xlsx", lambda: xlsx({"A1": 's="1"><v>1e300</v>'}), ""),
        ("ods-repeated", "ods", lambda: opendocument("spreadsheet", _REPEATED), ""),
        ("odt-spaces", "odt", lambda: opendocument("text", f'<text:p>a<text:s text:c="{"9" * 30}"/>b</text:p>'), ""),
        (
            "odt-encrypted",
            "odt",
            lambda: opendocument("text", "", {"META-INF/manifest.xml": "<m><encryption-data/></m>"}),
            "document-encrypted",
        ),
        (
            "odt-entity-bomb",
            "odt",
            lambda: opendocument("text", "", {"content.xml": _entities("&k;")}),
            "document-invalid",
        ),
        ("epub-without-spine", "epub", lambda: epub(["<p>One"], spine=[]), ""),
        ("epub-without-container", "epub", lambda: pack({"mimetype": "application/epub+zip"}), "document-invalid"),
        ("epub-chapter-outside", "epub", lambda: epub(["x"]).replace(b"text/c1", b"../../c", 1), "document-invalid"),
        (
            "epub-encrypted",
            "epub",
            lambda: epub(
                ["<p>One"], {"META-INF/encryption.xml": '<e><CipherReference URI="OEBPS/text/c1.xhtml"/></e>'}
            ),
            "document-encrypted",
        ),
        ("html-bytes", "html", lambda: random_bytes(9000), "utf8-invalid"),
        ("html-nul", "html", lambda: b"<p>a\0b", "nul-byte"),
        ("html-odd-charset", "html", lambda: b"<meta charset=punycode><p>x" + b"a-" * 100_000, ""),
        ("html-storm", "html", lambda: b"<h1>" * 50_000 + b"&#x" * 50_000, ""),
        ("html-script-only", "html", lambda: b"<script>alert(1)", "document-no-text"),
        ("csv-100k-rows", "csv", lambda: b"a,b\n" + b"1,2\n" * 100_000, ""),
        ("csv-giant-cell", "csv", lambda: b'a,b\n"' + b"x" * (1 << 20) + b'",2\n', ""),
        ("csv-open-quote", "csv", lambda: b'a,b\n"never closed,2\n', ""),
        ("csv-nul", "csv", lambda: b"a,\0", "nul-byte"),
        ("csv-latin-1", "csv", lambda: b"caf\xe9,2", "utf8-invalid"),
        ("csv-binary", "csv", lambda: random_bytes(999) + b"\0", "not-text"),
        ("csv-only-commas", "csv", lambda: b"," * 100_000, "document-no-text"),
        ("notebook-binary-outputs", "notebook", lambda: notebook(_CELL, {"source": {"a": 1}}), ""),
        ("notebook-cut", "notebook", lambda: notebook(_CELL)[:-40], "document-invalid"),
        ("notebook-is-other-json", "notebook", lambda: b'{"a": 1}', "document-invalid"),
        ("notebook-is-a-list", "notebook", lambda: b"[1]", "document-invalid"),
        ("notebook-deep", "notebook", lambda: b'{"cells":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "json-depth"),
        ("notebook-surrogate", "notebook", lambda: b'{"cells":[{"source":"\\ud800"}]}', "surrogate-lone"),
        ("notebook-latin-1", "notebook", lambda: b'{"cells":["caf\xe9"]}', "utf8-invalid"),
        ("mail-without-headers", "mail", lambda: b"--zz\n\nx", "mail-invalid"),
        ("mail-of-bytes", "mail", lambda: random_bytes(3000), "mail-invalid"),
    )
]
