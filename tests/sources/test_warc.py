from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.recipe import SourceRecipe
from silo.records import Candidate, Right
from silo.sources import plan
from tests.sources.hostile_kinds import warc_page
from tests.sources.reading import good, one, read_source, spdx, write


def denied(candidate: Candidate) -> set[Right]:
    return {right for item in candidate.evidence for right in item.denies}


@pytest.fixture
def fastwarc() -> None:
    pytest.importorskip("fastwarc")


@pytest.mark.usefixtures("fastwarc")
def test_a_page_is_its_visible_text_with_what_it_says(tmp_path: Path) -> None:
    html = b"<title>T</title><p>Caf\xe9</p><a rel=license href=https://creativecommons.org/licenses/by-sa/4.0/>CC</a>"
    headers = b"Content-Type: text/html; charset=ISO-8859-1\r\nContent-Usage: train-ai=n\r\n"
    for name, packed in (("a.warc", bytes), ("a.warc.gz", gzip.compress)):
        write(tmp_path, {name: packed(warc_page(html, b"0a", headers))})
        found = one(read_source(tmp_path, "warc", name))
        assert (found.text, found.external_id, found.url) == ("T\n\nCafé\nCC", "0a", "http://a.example/")
        assert (found.owner, found.domain, found.source) == ("a.example", "web", "a")
        assert spdx(found) == ["CC-BY-SA-4.0"]
        assert denied(found) == {Right.train}


@pytest.mark.usefixtures("fastwarc")
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"TDM-Reservation: 1\r\n", b"<p>x"),
        (b"X-Robots-Tag: noindex, noai\r\n", b"<p>x"),
        (b"", b"<meta name=robots content='noai, noimageai'><p>x"),
        (b"", b"<meta name='tdm-reservation' content='1'><p>x"),
        (b"Content-Signal: ai-train=no, ai-input=no\r\n", b"<p>x"),
    ],
)
def test_preferences_of_page_and_server_narrow(tmp_path: Path, headers: bytes, body: bytes) -> None:
    write(tmp_path, {"a.warc": warc_page(body, b"0a", b"Content-Type: text/html\r\n" + headers)})
    assert denied(one(read_source(tmp_path, "warc", "a.warc"))) == {Right.train, Right.store}


@pytest.mark.usefixtures("fastwarc")
def test_packed_and_chunked_bodies_are_read_and_other_records_left_out(tmp_path: Path) -> None:
    body = gzip.compress(b"plain text")
    chunked = b"%x\r\n%s\r\n%x;x=y\r\n%s\r\n0\r\n\r\n" % (9, body[:9], len(body) - 9, body[9:])
    headers = b"Content-Type: text/plain\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"
    missing = warc_page(b"<p>x", b"0c").replace(b"200 OK", b"404 No")
    image = warc_page(b"\x89PNG", b"0d", b"Content-Type: image/png\r\n")
    request = warc_page(b"", b"0e").replace(b"WARC-Type: response", b"WARC-Type: request ")
    write(tmp_path, {"a.warc": warc_page(chunked, b"0b", headers) + missing + image + request})
    assert [item.text for item in good(read_source(tmp_path, "warc", "a.warc"))] == ["plain text"]


def test_a_missing_extra_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a.warc": b""})
    monkeypatch.setitem(sys.modules, "fastwarc", None)
    with pytest.raises(SiloError) as caught:
        plan(SourceRecipe("warc", ("a.warc",)), tmp_path)
    assert caught.value.code == "extra-missing" and "pip install 'silo-lm[warc]'" in caught.value.hint
