"""`silo corpus opt-out`: who is meant, what is left out from then on, and what that does not reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from silo.cli import main
from silo.corpus.corpus import Corpus
from silo.corpus.opt_out import Selection, choose_documents
from silo.errors import SiloError
from silo.files import write_manifest
from silo.lm.firewall import DOCUMENTS, WEIGHTS, seen_file, seen_rows
from silo.lm.manifest import FORMAT, file_checksums
from silo.records import document_id
from silo.text.normalise import text_hash
from tests.conftest import build_from, record, words, write_jsonl

POEM = "Roses are red in the  garden of the WRITER."
RECORDS = [
    record("poem", POEM, owner="A. Writer", license="CC0-1.0"),
    record("essay", words(2, 30), owner="A. Writer", source="blog"),
    record("code", words(3, 30), owner="Corp", domain="code"),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    build_from([write_jsonl(tmp_path / "in.jsonl", RECORDS)], tmp_path / "corpus")
    return Corpus.open(tmp_path / "corpus")


@pytest.fixture
def run(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*options: str, status: int = 0) -> Any:
        assert main(["corpus", "opt-out", str(corpus.root), *options, "--json"]) == status
        return json.loads(capsys.readouterr().out)

    return call


def _left(corpus: Corpus) -> set[str]:
    return {document.external_id for document in corpus.documents()}


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        (["--owner", "A. Writer"], {"poem", "essay"}),
        (["--owner", "A. Writer", "--source", "blog"], {"essay"}),
        (["--license", "CC0-1.0"], {"poem"}),
        (["--domain", "code"], {"code"}),
        (["--document", "external:poem"], {"poem"}),
        (["--document", f"id:{document_id('test', 'code')}"], {"code"}),
        (["--document", document_id("test", "code")], {"code"}),
        (["--query", "the garden of the  writer"], {"poem"}),
    ],
)
def test_who_is_meant_is_left_out_of_every_later_view(
    options: list[str], gone: set[str], corpus: Corpus, run: Any
) -> None:
    listed = run(*options, "--dry-run")
    assert {row["external_id"] for row in listed["documents"]} == gone
    assert _left(corpus) == {"poem", "essay", "code"}, "a dry run changes nothing"
    done = run(*options)
    assert done["documents"] == listed["documents"] and not done["dry_run"]
    assert _left(corpus) == {"poem", "essay", "code"} - gone
    again = run(*options)
    assert (again["documents"], again["already_out"]) == ([], len(gone))
    assert len(done["not_covered"]) == 4


def test_nothing_meant_is_no_success(run: Any) -> None:
    assert run(status=2)["error"]["code"] == "usage"
    error = run("--owner", "a. writer", status=3)["error"]
    assert (error["code"], error["hint"]) == ("nothing-selected", "did you mean owner 'A. Writer'?")
    assert "document 'poem'" in run("--document", "peom", status=3)["error"]["hint"]


def test_a_name_of_two_meanings_is_refused(tmp_path: Path) -> None:
    trap = record(document_id("test", "poem"), words(9, 30))
    build_from([write_jsonl(tmp_path / "in.jsonl", [*RECORDS, trap])], tmp_path / "corpus")
    corpus, name = Corpus.open(tmp_path / "corpus"), document_id("test", "poem")
    with pytest.raises(SiloError) as caught:
        choose_documents(corpus, Selection(document=name))
    assert caught.value.code == "document-ambiguous"
    for spelled, own in ((f"id:{name}", "poem"), (f"external:{name}", name)):
        assert [item.external_id for item in choose_documents(corpus, Selection(document=spelled)).documents] == [own]


def test_models_that_saw_a_document_or_its_text_are_named(corpus: Corpus, tmp_path: Path, run: Any) -> None:
    def model(place: Path, name: str, text: str) -> None:
        place.mkdir(parents=True)
        rows = seen_rows([(name, text_hash(text))], WEIGHTS)
        (place / DOCUMENTS).write_bytes(seen_file(rows))
        facts = {"origin": "trained", "training": {"tiers": ["pd"]}, "format": FORMAT}
        write_manifest(place, {**facts, "files": file_checksums(place)})

    model(tmp_path / "beside", document_id("test", "poem"), "another text")
    model(tmp_path / "elsewhere" / "copy", document_id("x", "y"), POEM.lower())
    model(tmp_path / "elsewhere" / "innocent", document_id("x", "y"), "nothing of the kind")
    found = run("--document", "poem", "--models", str(tmp_path / "elsewhere"))["models"]
    assert [Path(item["model"]).name for item in found] == ["beside", "copy"]


def test_a_new_build_at_the_same_place_keeps_the_list(corpus: Corpus, tmp_path: Path) -> None:
    corpus.opt_out([document_id("test", "poem")])
    more = [*RECORDS, record("new", words(8, 30))]
    write_jsonl(tmp_path / "in.jsonl", more)
    build = ["corpus", "build", "--jsonl", str(tmp_path / "in.jsonl"), "--out", str(corpus.root), "--workers", "1"]
    assert main([*build, "--force", "--quiet"]) == 0
    assert _left(Corpus.open(corpus.root)) == {"essay", "code", "new"}


def test_a_list_that_cannot_be_read_opens_nothing(corpus: Corpus) -> None:
    for content in ("{", '{"a": 1}', "[1]"):
        (corpus.root / "opt-outs.json").write_text(content)
        with pytest.raises(SiloError) as caught:
            list(corpus.documents())
        assert caught.value.code == "corpus-damaged"


def test_people_read_what_it_does_not_cover(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "opt-out", str(corpus.root), "--owner", "Corp"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"1 documents have opted out of {corpus.root}" in shown.replace(" /", " /")
    assert "not covered" in shown and "silo store erase" in shown
