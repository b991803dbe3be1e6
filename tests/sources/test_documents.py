"""What is read of each kind of document, where in it every line stands, and what the file says about itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.recipe import Limits
from silo.records import Right, place_at
from silo.sources import judge
from silo.sources.documents.headings import find_sections
from silo.sources.documents.kinds import parse_document
from silo.sources.documents.parsed import Parsed
from silo.sources.documents.parser import DocumentParser
from tests.sources.document_files import docx, epub, notebook, opendocument, pdf, pptx, word_paragraph, xlsx
from tests.sources.hostile_documents import HOSTILE_DOCUMENTS, HostileDocument
from tests.sources.reading import bad, good, one, read_source, spdx, write

pytest.importorskip("pypdfium2")

PAGE = b"""<title>Rules</title><meta name=robots content=noai><p>Before.<h1>Leave</h1><p>Sixteen
weeks.<h2>Pay &amp; more</h2><ul><li>monthly<li>in euros</ul>
<a rel=license href=https://creativecommons.org/licenses/by/4.0/>CC</a>"""


@pytest.fixture(scope="module")
def parser() -> Iterator[DocumentParser]:
    with DocumentParser(Limits()) as opened:
        yield opened


def parse(kind: str, data: bytes) -> Parsed:
    return parse_document(kind, data, Limits())


def lines_by_place(parsed: Parsed) -> list[tuple[str, str]]:
    """Every line that is not blank with the label of its place."""
    found, label = [], ""
    labels = dict(parsed.places)
    for number, line in enumerate(parsed.text.split("\n")):
        label = labels.get(number, label)
        found += [(label, line)] if line else []
    return found


def test_pdf_pages_are_places() -> None:
    parsed = parse("pdf", pdf(["Leave\nSixteen weeks.", "", "Pay (monthly)"], title="Handbook"))
    assert lines_by_place(parsed) == [("p. 1", "Leave"), ("p. 1", "Sixteen weeks."), ("p. 3", "Pay (monthly)")]
    assert parsed.meta["title"] == "Handbook"


def test_a_pdf_states_its_licence_and_reservation_in_xmp() -> None:
    xmp = '<cc:license rdf:resource="https://creativecommons.org/licenses/by-nc/4.0/"/><tdm:reservation>1</tdm:reservation>'
    claims = parse("pdf", pdf(["x"], xmp=xmp)).claims
    assert claims.licences == (("XMP", "https://creativecommons.org/licenses/by-nc/4.0/"),)
    assert claims.reservations == (("XMP", "tdm:reservation: 1"),)


def test_word_headings_tables_and_footnotes() -> None:
    cells = "".join(f"<w:tc>{word_paragraph(text)}</w:tc>" for text in ("Class", "second"))
    changed = (
        "<w:p><w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:moveFrom><w:r><w:t>gone</w:t></w:r></w:moveFrom>"
    )
    changed += "<w:ins><w:r><w:t>kept</w:t><w:br/><w:t>on</w:t></w:r></w:ins></w:p>"
    box = f"<mc:Choice>{word_paragraph('boxed')}</mc:Choice><mc:Fallback>{word_paragraph('boxed')}</mc:Fallback>"
    body = (
        word_paragraph("Travel", "berschrift1")
        + word_paragraph("Trains & ships.")
        + f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>"
        + word_paragraph("Pay", "berschrift1")
        + changed
        + f"<w:p><w:r>{box}</w:r></w:p>"
    )
    parsed = parse("docx", docx(body, footnotes=["Except islands."]))
    assert lines_by_place(parsed) == [
        ("section Travel", "Travel"),
        ("section Travel", "Trains & ships."),
        ("section Travel", "Class | second"),
        ("section Pay", "Pay"),
        ("section Pay", "kept"),
        ("section Pay", "on"),
        ("section Pay", "boxed"),
        ("footnotes", "Except islands."),
    ]
    assert parsed.meta["title"] == "Handbook" and parsed.meta["author"] == "Ann"


def test_slides_and_their_notes() -> None:
    parsed = parse("pptx", pptx(["Plans\nMore tests", "Budget"], {1: "Say hello."}))
    assert lines_by_place(parsed) == [
        ("slide 1", "Plans"),
        ("slide 1", "More tests"),
        ("slide 1, notes", "Say hello."),
        ("slide 2", "Budget"),
    ]


def test_sheets_have_column_names_and_dates_as_they_are_shown() -> None:
    cells = {
        "A1": 't="s"><v>0</v>',
        "B1": 't="s"><v>1</v>',
        "A2": 't="inlineStr"><is><t>Ann</t></is>',
        "B2": 's="1"><v>45292.5</v>',
        "B4": 't="b"><v>1</v>',
    }
    parsed = parse("xlsx", xlsx(cells, strings=["name", "start"]))
    assert lines_by_place(parsed) == [
        ("sheet Budget, row 1", "name | start"),
        ("sheet Budget, row 2", "name: Ann; start: 2024-01-01 12:00:00"),
        ("sheet Budget, row 4", "start: true"),
    ]


def test_opendocument_text_slides_and_sheets() -> None:
    note = "<text:note><text:note-citation>1</text:note-citation><text:p>A note.</text:p></text:note>"
    text = (
        "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes><text:h>Garden</text:h>"
        f'<text:p>Roses<text:s text:c="2"/>and<text:line-break/>tulips.{note}</text:p>'
    )
    assert lines_by_place(parse("odt", opendocument("text", text))) == [
        ("section Garden", "Garden"),
        ("section Garden", "Roses  and"),
        ("section Garden", "tulips."),
        ("section Garden", "A note."),
    ]
    slides = "<draw:page><text:p>One</text:p></draw:page><draw:page><text:p>Two</text:p></draw:page>"
    assert lines_by_place(parse("odt", opendocument("presentation", slides))) == [
        ("slide 1", "One"),
        ("slide 2", "Two"),
    ]
    cell = "<table:table-cell><text:p>{}</text:p></table:table-cell>"
    rows = "".join(
        f"<table:table-row>{cell.format(a)}{cell.format(b)}</table:table-row>"
        for a, b in (("name", "days"), ("Ann", 16))
    )
    sheet = f'<table:table table:name="S">{rows}</table:table>'
    assert lines_by_place(parse("ods", opendocument("spreadsheet", sheet)))[1] == (
        "sheet S, row 2",
        "name: Ann; days: 16",
    )


def test_chapters_of_a_book_and_what_it_says_about_its_rights() -> None:
    chapters = ["<h1>Morning</h1><p>It began.</p><h2>Noon</h2><p>Lunch.</p>", "<p>No heading.</p>"]
    rights = '<dc:rights>CC0</dc:rights><meta property="tdm:reservation">1</meta>'
    parsed = parse("epub", epub(chapters, metadata=rights, spine=["c2", "c1", "c7"]))
    assert lines_by_place(parsed) == [
        ("chapter 1", "No heading."),
        ("chapter Morning", "Morning"),
        ("chapter Morning", "It began."),
        ("chapter Morning, section Noon", "Noon"),
        ("chapter Morning, section Noon", "Lunch."),
    ]
    assert parsed.unread == (("chapter 3", "the chapter is missing"),)
    assert parsed.claims.licences == (("dc:rights", "CC0"),)
    assert parsed.claims.reservations == (("tdm:reservation", "tdm:reservation: 1"),)


def test_sections_and_claims_of_a_page() -> None:
    parsed = parse("html", PAGE)
    assert lines_by_place(parsed) == [
        ("", "Rules"),
        ("", "Before."),
        ("section Leave", "Leave"),
        ("section Leave", "Sixteen"),
        ("section Leave", "weeks."),
        ("section Pay & more", "Pay & more"),
        ("section Pay & more", "monthly"),
        ("section Pay & more", "in euros"),
        ("section Pay & more", "CC"),
    ]
    assert parse("html", b"<meta charset=iso-8859-1>caf\xe9").text == "caf\xe9"


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_rows_of_a_table_name_their_columns(mark: str) -> None:
    table = f'name{mark}days\n"Ann{mark}\n Lee"{mark}16\n\nBob{mark}\n'.encode()
    assert lines_by_place(parse("csv", table)) == [
        ("row 1", "name | days"),
        ("row 2", f"name: Ann{mark if mark.strip() else ''} Lee; days: 16"),
        ("row 4", "name: Bob"),
    ]


def test_a_table_without_names_and_one_of_many_rows() -> None:
    assert lines_by_place(parse("csv", b"1,2\n3,4\n")) == [("row 1", "1 | 2"), ("row 2", "3 | 4")]
    many = parse("csv", b"a,b\n" + b"x,1\n" * 5000)
    assert len(many.places) < 2100
    assert many.places[1] == (1, "rows 2-4") and many.places[-1][1] == "rows 5000-5001"


def test_cells_of_a_notebook_with_what_they_printed() -> None:
    code = {"source": "print(1)", "outputs": [{"text": ["\x1b[31m1\x1b[0m\n"]}, {"data": {"text/plain": "<Figure>"}}]}
    parsed = parse("notebook", notebook({"source": ["# Title\n", "words"]}, {"source": ""}, code))
    assert lines_by_place(parsed) == [
        ("cell 1", "# Title"),
        ("cell 1", "words"),
        ("cell 3", "print(1)"),
        ("cell 3", "1"),
        ("cell 3", "<Figure>"),
    ]


def test_headings_of_markdown_and_restructured_text() -> None:
    text = (
        "---\ntitle: no\n---\n# Leave #\nx\n```\n# no\n```\nPay *now*\n---\n- item\n---\n| a |\n---\n## [Link](x)\n#no"
    )
    assert find_sections(text, ".md") == ((3, "section Leave"), (8, "section Pay now"), (14, "section Link"))
    assert find_sections("Title\n=====\ntext\n\nLonger title\n---\nSub\n~~~\n", ".rst") == (
        (0, "section Title"),
        (6, "section Sub"),
    )
    assert find_sections("Title\n=====\n", ".txt") == ()
    assert find_sections("# " + "long " * 100, ".md")[0][1].endswith("…")
    assert find_sections("# a\n" * 20_000, ".md")[-1] == (19_999, "section a")
    assert find_sections("# a\n" * 20_001, ".md") == ()


def test_a_folder_of_all_kinds(tmp_path: Path) -> None:
    message = "From {0}@example.org Mon Jan  1 00:00:00 2024\nFrom: {0}@example.org\nSubject: {0}\n\nHello.\n\n"
    write(
        tmp_path / "in",
        {
            "a.pdf": pdf(["One", "Two"]),
            "b.html": PAGE,
            "c.mbox": message.format("ann") + message.format("bob") + "From x Mon Jan  1 00:00:00 2024\nbroken\n",
            "d.eml": "From: cy@example.org\nSubject: cy\n\nAlone.\n",
            "e.md": "# Leave\r\nSixteen weeks.",
            "f.docx": b"no",
            "metadata.csv": "path,license,owner,title\na.pdf,CC0-1.0,Ann,Mine\nc.mbox,,List,\n",
        },
    )
    items = read_source(tmp_path, "folder", "in", domain="")
    assert bad(items) == [("in/c.mbox:message 3", "mail-invalid"), ("in/f.docx", "document-invalid")]
    a, b, c1, c2, d, e = good([item for item in items if hasattr(item, "text")])
    assert (a.external_id, a.owner, a.meta) == ("a.pdf", "Ann", {"title": "Mine", "places": [[0, "p. 1"], [2, "p. 2"]]})
    assert spdx(a) == ["CC0-1.0"]
    assert spdx(b) == ["CC-BY-4.0"] and {right for item in b.evidence for right in item.denies} == {
        Right.train,
        Right.store,
    }
    assert [item.where for item in b.evidence] == ["in/b.html: rel=license", "in/b.html: meta robots"]
    assert [c1.owner, c2.owner, d.owner] == ["List", "List", "cy@example.org"]
    assert [c1.domain, d.domain, e.domain] == ["mail", "mail", "in"]
    assert c1.external_id.startswith("c.mbox#") and d.external_id == "d.eml"
    document = judge(e)
    assert place_at(document, document.text.index("weeks")) == "section Leave"


def test_places_and_ids_of_a_file_do_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"in/{at}.pdf": pdf([f"Page {at}", "Two"]) for at in range(3)}
    write(tmp_path / "all", files)
    write(tmp_path / "one", {"in/1.pdf": files["in/1.pdf"]})
    assert good(read_source(tmp_path / "all", "folder", "in"))[1] == one(read_source(tmp_path / "one", "folder", "in"))


@pytest.mark.parametrize("case", HOSTILE_DOCUMENTS, ids=lambda case: case.name)
def test_a_hostile_document_costs_only_itself(case: HostileDocument, parser: DocumentParser) -> None:
    data = case.make()
    try:
        parsed, code = parser.parse(case.kind, data), ""
        assert parsed.text and len(parsed.places) < 3000
        parsed.text.encode()
    except SiloError as error:
        code = error.code
        assert error.message and error.hint
    assert code == case.code
    assert parser.parse("csv", b"a,b\n1,2\n").text == "a | b\na: 1; b: 2"


def test_hostile_documents_in_one_folder(tmp_path: Path) -> None:
    names = ("pdf-encrypted", "docx-entity-bomb", "epub-without-spine", "docx-named-pdf", "csv-latin-1", "html-nul")
    some = [case for case in HOSTILE_DOCUMENTS if case.name in names]
    files: dict[str, Any] = {f"{case.name}.{case.kind}": case.make() for case in some}
    write(tmp_path / "in", {**files, "sound.txt": "Sound text.", "sound.html": "<p>Sound page."})
    items = read_source(tmp_path, "folder", "in")
    refused = {where.partition("/")[2].rpartition(".")[0]: code for where, code in bad(items)}
    assert refused == {case.name: case.code for case in some if case.code}
    texts = [item.text for item in items if hasattr(item, "text")]
    assert len(texts) == len(names) - len(refused) + 2
    assert {"Sound text.", "Sound page."} <= set(texts)


def test_more_text_than_a_record_may_hold_is_refused_however_small_the_file() -> None:
    cells = "<table:table-cell><text:p>boo</text:p></table:table-cell>"
    row = f"<table:table-row>{cells}</table:table-row>"
    packed = opendocument("spreadsheet", f'<table:table table:name="S">{row * 5000}</table:table>')
    limits = Limits(max_record_bytes=len(packed) + 10_000)
    with pytest.raises(SiloError) as caught:
        parse_document("ods", packed, limits)
    assert caught.value.code == "file-too-large"
