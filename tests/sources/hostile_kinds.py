"""Hostile folders, source trees, mail, books, crawls and datasets."""

from __future__ import annotations

import base64
import gzip
import os
from pathlib import Path

from tests.sources.document_files import pack
from tests.sources.hostile_case import GOOD, Case, fifo, file, link, random_bytes, then, tree


def mail(body: bytes, headers: bytes = b"") -> bytes:
    head = b"From ann@example.org Mon Jan  1 00:00:00 2024\nFrom: Ann <ann@example.org>\nSubject: Hello\n"
    return head + headers + b"\n" + body + b"\n\n"


BROKEN_MIME = mail(b"--zz\nno such boundary", b'Content-Type: multipart/mixed; boundary="yy"\n')
BROKEN_BASE64 = mail(b"!!!not base64!!!a", b"Content-Type: text/plain\nContent-Transfer-Encoding: base64\n")
BOOK = (
    b"Title: A Book\nRelease Date: 2001 [eBook #77]\n\n*** START OF THE PROJECT GUTENBERG EBOOK A BOOK ***\n\nOnce.\n\n"
    b"*** END OF THE PROJECT GUTENBERG EBOOK A BOOK ***\nnot protected by U.S. copyright law\n"
)
LAUGHS = (
    b'<?xml version="1.0"?><!DOCTYPE rsl [<!ENTITY a "ha">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + at, b"&%c;" % (97 + at) * 50) for at in range(12))
    + b']><rsl><content url="/"><license><permits type="usage">&m;</permits></license></content></rsl>'
)
WARC_HEAD = (
    b"WARC/1.1\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:%s>\r\nWARC-Target-URI: http://a.example/\r\n"
)


def warc_page(body: bytes, name: bytes, headers: bytes = b"Content-Type: text/html\r\n") -> bytes:
    content = b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n" + body
    head = WARC_HEAD % name + b"Content-Type: application/http; msgtype=response\r\nContent-Length: %d\r\n\r\n"
    return head % len(content) + content + b"\r\n\r\n"


PAGE = warc_page(b"<p>Hello", b"00000000-0000-0000-0000-000000000001")

FOLDERS: list[Case] = [
    # folders
    Case(
        "folder-link-out",
        "folder",
        then(tree("texts", a_dot_txt=b"x"), link("texts/b.txt", "/etc/passwd")),
        ("path-unsafe",),
        1,
    ),
    Case(
        "folder-link-to-directory-out",
        "folder",
        then(tree("texts", a_dot_txt=b"x"), link("texts/up", "..")),
        ("path-unsafe",),
        1,
    ),
    Case("folder-link-loop", "folder", then(tree("texts", a_dot_txt=b"x"), link("texts/loop", ".")), (), 1),
    Case(
        "folder-link-to-itself",
        "folder",
        then(tree("texts", a_dot_txt=b"x"), link("texts/l.txt", "l.txt")),
        ("path-unsafe",),
        1,
    ),
    Case("folder-fifo", "folder", then(tree("texts", a_dot_txt=b"x"), fifo("texts/b.txt")), ("input-unreadable",), 1),
    Case("folder-binary", "folder", tree("texts", a_dot_txt=b"x", b_dot_txt=b"\x7fELF\0\xff"), ("not-text",), 1),
    Case("folder-latin-1", "folder", tree("texts", a_dot_txt=b"x", b_dot_txt=b"caf\xe9"), ("utf8-invalid",), 1),
    Case("folder-nul", "folder", tree("texts", a_dot_txt=b"x", b_dot_txt=b"a\0b"), ("nul-byte",), 1),
    Case(
        "folder-huge-file",
        "folder",
        tree("texts", a_dot_txt=b"x", b_dot_txt=lambda: b"y" * (65 << 20)),
        ("file-too-large",),
        1,
    ),
    Case(
        "folder-file-name-not-utf8",
        "folder",
        then(
            tree("texts", a_dot_txt=b"x"),
            lambda d: Path(os.fsdecode(os.fsencode(d) + b"/texts/\xff.txt")).write_bytes(b"x"),
        ),
        ("utf8-invalid",),
        1,
    ),
    Case(
        "folder-hostile-documents",
        "folder",
        tree(
            "texts",
            a_dot_txt=b"x",
            b_dot_docx=lambda: pack({"../x": "x"}),
            c_dot_csv=b"a,\0",
            d_dot_epub=b"no",
            e_dot_html=b"caf\xe9",
            f_dot_ipynb=b"[1]",
            g_dot_mbox=b"no mail",
        ),
        ("path-unsafe", "nul-byte", "document-invalid", "utf8-invalid", "document-invalid", "mail-invalid"),
        1,
    ),
    Case("folder-empty", "folder", lambda directory: (directory / "texts").mkdir(), ("input-empty",), 0),
    Case("folder-is-a-file", "folder", file(b"x", "texts"), ("recipe-value",), 0),
    Case(
        "metadata-csv-outside",
        "folder",
        tree("texts", a_dot_txt=b"x", metadata_dot_csv=b"path,license\n../../x,MIT\n/etc/passwd,MIT\n"),
        ("path-unsafe", "path-unsafe"),
        1,
    ),
    Case(
        "metadata-csv-ragged",
        "folder",
        tree("texts", a_dot_txt=b"x", metadata_dot_csv=b"path,license\na.txt\n"),
        ("metadata-invalid",),
        1,
    ),
    Case(
        "metadata-csv-two-licenses",
        "folder",
        tree("texts", a_dot_txt=b"x", metadata_dot_csv=b"path,license,license\na.txt,MIT,GPL\n"),
        ("metadata-invalid",),
        1,
    ),
    Case(
        "metadata-csv-binary",
        "folder",
        tree("texts", a_dot_txt=b"x", metadata_dot_csv=random_bytes(500)),
        ("metadata-invalid",),
        1,
    ),
    Case(
        "metadata-jsonl-broken-line",
        "folder",
        tree("texts", a_dot_txt=b"x", metadata_dot_jsonl=b'{"path": "a.txt", "license": "MIT"}\n{"path\n'),
        ("metadata-invalid",),
        1,
    ),
    Case(
        "metadata-jsonl-list-license",
        "folder",
        tree("texts", a_dot_txt=b"x", b_dot_txt=b"y", metadata_dot_jsonl=b'{"path": "a.txt", "license": ["MIT"]}\n'),
        ("field-type",),
        1,
    ),
    Case(
        "metadata-json-scalar",
        "folder",
        tree("texts", a_dot_txt=b"x", metadata_dot_json=b"17"),
        ("metadata-invalid",),
        1,
    ),
    Case("robots-binary", "folder", tree("texts", a_dot_txt=b"x", robots_dot_txt=random_bytes(2000)), (), 1),
    Case("tdmrep-invalid", "folder", tree("texts", a_dot_txt=b"x", tdmrep_dot_json=b'[{"location": '), (), 1),
    Case("rsl-billion-laughs", "folder", tree("texts", a_dot_txt=b"x", rsl_dot_xml=LAUGHS), (), 1),
    # source trees
    Case(
        "tree-link-out",
        "tree",
        then(tree("tree", a_dot_py=b"x"), link("tree/b.py", "/etc/passwd")),
        ("path-unsafe",),
        1,
    ),
    Case(
        "tree-license-link-out", "tree", then(tree("tree", a_dot_py=b"x"), link("tree/LICENSE", "/etc/passwd")), (), 1
    ),
    Case("tree-license-fifo", "tree", then(tree("tree", a_dot_py=b"x"), fifo("tree/LICENSE")), (), 1),
    Case("tree-license-binary", "tree", tree("tree", a_dot_py=b"x", LICENSE=random_bytes(3000)), (), 1),
    Case("tree-license-huge", "tree", tree("tree", a_dot_py=b"x", LICENSE=b"MIT License\n" * 200_000), (), 1),
    Case("tree-longest-file-name", "tree", tree("tree", **{"a" * 252 + "_dot_py": b"x"}), (), 1),
    Case(
        "tree-reuse-broken",
        "tree",
        tree("tree", a_dot_py=b"x", REUSE_dot_toml=b"[[annotations\n"),
        ("metadata-invalid",),
        1,
    ),
    Case(
        "tree-reuse-wrong-types",
        "tree",
        tree("tree", a_dot_py=b"x", REUSE_dot_toml=b"annotations = 3\n"),
        ("metadata-invalid",),
        1,
    ),
    Case(
        "tree-reuse-star-storm",
        "tree",
        tree(
            "tree",
            **{"a" * 60 + "_dot_py": b"x"},
            REUSE_dot_toml=b'[[annotations]]\npath = "' + b"**a*" * 40 + b'z"\nSPDX-License-Identifier = "MIT"\n',
        ),
        (),
        1,
    ),
    Case(
        "tree-dep5-twice",
        "tree",
        tree("tree", a_dot_py=b"x", _dot_reuse__dep5=b"Files: *\nLicense: MIT\nLicense: GPL-3.0\n"),
        ("metadata-invalid",),
        1,
    ),
]

OTHERS: list[Case] = [
    # mail
    Case("mbox-broken-mime", "mbox", file(mail(b"one") + BROKEN_MIME + mail(b"two"), "in.mbox"), ("mail-invalid",), 2),
    Case(
        "mbox-broken-base64", "mbox", file(mail(b"one") + BROKEN_BASE64 + mail(b"two"), "in.mbox"), ("mail-invalid",), 2
    ),
    Case(
        "mbox-unknown-charset",
        "mbox",
        file(mail(b"caf\xe9", b"Content-Type: text/plain; charset=x-none\n") + mail(b"two"), "in.mbox"),
        ("utf8-invalid",),
        1,
    ),
    Case(
        "mbox-no-headers",
        "mbox",
        file(b"From a Mon Jan  1 00:00:00 2024\n\nonly a body\n\n" + mail(b"two"), "in.mbox"),
        ("mail-invalid",),
        1,
    ),
    Case("mbox-nul", "mbox", file(mail(b"a\0b") + mail(b"two"), "in.mbox"), ("nul-byte",), 1),
    Case("mbox-no-from-line", "mbox", file(b"Subject: x\n\nhello\n", "in.mbox"), ("mail-invalid",), 0),
    Case(
        "mbox-binary-attachment",
        "mbox",
        file(
            mail(
                b"--b\nContent-Type: text/plain\n\nhello\n--b\nContent-Type: application/pdf\n"
                b"Content-Disposition: attachment\nContent-Transfer-Encoding: base64\n\n"
                + base64.b64encode(random_bytes(300))
                + b"\n--b--\n",
                b'Content-Type: multipart/mixed; boundary="b"\n',
            ),
            "in.mbox",
        ),
        (),
        1,
    ),
    Case(
        "mbox-huge-message",
        "mbox",
        file(lambda: mail(b"one") + mail((b"x" * 1023 + b"\n") * (65 << 10)) + mail(b"two"), "in.mbox"),
        ("file-too-large",),
        2,
    ),
    # Project Gutenberg
    Case("gutenberg-without-end", "gutenberg", file(BOOK.split(b"*** END")[0], "in.txt"), ("gutenberg-markers",), 0),
    Case("gutenberg-without-start", "gutenberg", file(b"Once upon a time.\n", "in.txt"), ("gutenberg-markers",), 0),
    Case(
        "gutenberg-end-first",
        "gutenberg",
        file(
            b"*** END OF THE PROJECT GUTENBERG EBOOK X ***\nx\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\ny\n",
            "in.txt",
        ),
        ("gutenberg-markers",),
        0,
    ),
    Case("gutenberg-two-books", "gutenberg", file(BOOK + BOOK, "in.txt"), ("gutenberg-markers",), 0),
    Case("gutenberg-broken-utf8", "gutenberg", file(BOOK.replace(b"Once", b"Onc\xe9"), "in.txt"), ("utf8-invalid",), 0),
    Case("gutenberg-sound", "gutenberg", file(BOOK, "in.txt"), (), 1),
    # WARC and the hub
    Case("warc-garbage", "warc", file(random_bytes(3000), "in.warc"), ("warc-invalid",), 0),
    Case(
        "warc-truncated-gz",
        "warc",
        file(gzip.compress(PAGE) + gzip.compress(PAGE)[:-30], "in.warc.gz"),
        ("archive-damaged", "warc-invalid"),
        1,
    ),
    Case(
        "warc-broken-charset",
        "warc",
        file(warc_page(b"caf\xe9", b"00000000-0000-0000-0000-000000000002") + PAGE, "in.warc"),
        ("utf8-invalid",),
        1,
    ),
    Case(
        "warc-body-not-gzip",
        "warc",
        file(
            warc_page(
                b"plain",
                b"00000000-0000-0000-0000-000000000003",
                b"Content-Type: text/html\r\nContent-Encoding: gzip\r\n",
            )
            + PAGE,
            "in.warc",
        ),
        ("warc-invalid",),
        1,
    ),
    Case(
        "warc-endless-record",
        "warc",
        file(PAGE + PAGE.replace(b"Length: ", b"Length: 9999999999999"), "in.warc"),
        ("file-too-large",),
        1,
    ),
    Case("warc-cut-record", "warc", file(PAGE + PAGE[:-20], "in.warc"), ("warc-invalid",), 1),
    Case(
        "warc-broken-chunks",
        "warc",
        file(
            warc_page(
                b"zz\r\nplain",
                b"00000000-0000-0000-0000-000000000004",
                b"Content-Type: text/html\r\nTransfer-Encoding: chunked\r\n",
            )
            + PAGE,
            "in.warc",
        ),
        ("warc-invalid",),
        1,
    ),
    Case(
        "warc-body-bomb",
        "warc",
        file(
            lambda: (
                warc_page(
                    gzip.compress(b"a" * (70 << 20)),
                    b"00000000-0000-0000-0000-000000000005",
                    b"Content-Type: text/plain\r\nContent-Encoding: gzip\r\n",
                )
                + PAGE
            ),
            "in.warc",
        ),
        ("file-too-large",),
        1,
    ),
    Case(
        "warc-html-storm",
        "warc",
        file(
            lambda: (
                warc_page(b"<!--" * 50_000 + b"<a " * 50_000 + b"&#x" * 50_000, b"00000000-0000-0000-0000-000000000006")
                + PAGE
            ),
            "in.warc",
        ),
        (),
        2,
    ),
    Case(
        "hub-broken-card", "hub", tree("dataset", README_dot_md=b"---\nlicense: [\n\xff", data__a_dot_jsonl=GOOD), (), 1
    ),
    Case(
        "hub-mixed",
        "hub",
        tree("dataset", data__a_dot_jsonl=GOOD + b"\nnot json\n", data__b_dot_parquet=b"no"),
        ("json-invalid", "parquet-invalid"),
        1,
    ),
    Case("hub-nothing", "hub", tree("dataset", README_dot_md=b"x"), ("input-empty",), 0),
]
