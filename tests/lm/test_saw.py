"""Did a model see a text? Yes, nearly, no and nobody knows are four answers, whatever id the text is given."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from silo.cli import main
from silo.corpus.corpus import Corpus
from silo.files import write_manifest
from silo.lm.audit import saw_document, saw_text, verify_model
from silo.lm.firewall import CODEC, DOCUMENTS, SKETCHES, WEIGHTS, seen_file, seen_rows
from silo.lm.manifest import FORMAT, file_checksums
from silo.pairing import list_models
from silo.records import document_id
from silo.text.normalise import text_hash
from silo.text.sketch import Sketches, sketch
from tests.conftest import build_from, record, words, write_jsonl

TEXTS = {document_id("s", f"{seed}"): words(seed, 300) for seed in range(5)}
FIRST = next(iter(TEXTS))
TRAINED = {"origin": "trained", "training": {"tiers": ["pd"], "permitted": True}}


def _model(root: Path, facts: Mapping[str, Any], *, shaped: int = WEIGHTS, sketches: bool = True) -> Path:
    root.mkdir()
    rows = seen_rows(((name, text_hash(text)) for name, text in TEXTS.items()), shaped)
    (root / DOCUMENTS).write_bytes(seen_file(rows))
    if sketches:
        made = Sketches.of((text_hash(text), sketch(text)) for text in TEXTS.values())
        (root / SKETCHES).write_bytes(made.as_bytes())
    write_manifest(root, {**facts, "format": FORMAT, "files": file_checksums(root)})
    return root


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return _model(tmp_path / "model", TRAINED)


def test_a_text_is_seen_whatever_its_id_case_and_spaces(model: Path) -> None:
    found = saw_text(model, TEXTS[FIRST].upper().replace(" ", "\r\n  "))
    assert (found.answer, found.shaped, found.documents, found.share) == ("seen", ("weights",), (FIRST,), 1.0)


def test_a_near_copy_says_how_near_it_is(model: Path) -> None:
    text = " ".join(TEXTS[FIRST].split()[:150]) + " " + words(77, 150)
    found = saw_text(model, text)
    assert found.answer == "near copy"
    assert found.documents == (FIRST,)
    assert found.share is not None
    assert 0.25 < found.share < 0.7
    assert saw_text(model, f"{TEXTS[FIRST]} and a word more").answer == "near copy"


def test_a_text_inside_a_far_longer_one_is_found(model: Path) -> None:
    found = saw_text(model, f"{words(50, 4000)} {TEXTS[FIRST]} {words(51, 4000)}")
    assert (found.answer, found.documents) == ("near copy", (FIRST,))


def test_only_a_complete_list_and_a_long_enough_text_allow_a_no(model: Path, tmp_path: Path) -> None:
    assert saw_text(model, words(99, 300)).answer == "not seen"
    short = saw_text(model, "a few words")
    assert (short.answer, "too short" in short.reason) == ("unknown", True)
    older = saw_text(_model(tmp_path / "older", TRAINED, sketches=False), words(99, 300))
    assert (older.answer, "no sketches" in older.reason) == ("unknown", True)
    assert saw_text(tmp_path / "older", TEXTS[FIRST]).answer == "seen"


def test_an_imported_model_never_says_no(tmp_path: Path) -> None:
    imported = {"origin": "imported", "training_data": "unknown"}
    with_codec = _model(tmp_path / "codec", imported, shaped=CODEC)
    assert saw_text(with_codec, TEXTS[FIRST]).shaped == ("codec",)
    assert saw_text(with_codec, words(99, 300)).answer == "unknown"
    (tmp_path / "bare").mkdir()
    write_manifest(tmp_path / "bare", {**imported, "format": FORMAT, "files": {}})
    assert saw_text(tmp_path / "bare", TEXTS[FIRST]).answer == "unknown"
    assert saw_document(tmp_path / "bare", FIRST).answer == "unknown"


def test_an_id_alone_allows_no_no(model: Path, tmp_path: Path) -> None:
    assert saw_document(model, FIRST).answer == "seen"
    other = document_id("test", "renamed")
    assert saw_document(model, other).answer == "unknown"
    records = [record("renamed", TEXTS[FIRST]), record("new", words(99, 300))]
    build_from([write_jsonl(tmp_path / "in.jsonl", records)], tmp_path / "corpus")
    corpus = Corpus.open(tmp_path / "corpus")
    assert saw_document(model, other, corpus=corpus).answer == "seen"
    assert saw_document(model, document_id("test", "new"), corpus=corpus).answer == "not seen"
    assert verify_model(model, saw=other)["answer"] == "unknown"


def test_models_are_listed_by_id_and_by_text(model: Path, tmp_path: Path) -> None:
    other = document_id("store", "renamed")
    mark = text_hash(TEXTS[FIRST])
    assert [item.listed for item in list_models(model, [FIRST])] == [True]
    assert [item.listed for item in list_models(model, [other])] == [False]
    assert [item.listed for item in list_models(model, [other], {other: mark})] == [True]
    assert [item.listed for item in list_models(model, [other], {other: bytes(16), FIRST: mark})] == [False]
    _model(tmp_path / "model.replaced", TRAINED)
    _model(tmp_path / "theirs", {"origin": "imported"}, shaped=CODEC)
    assert [(item.name, item.listed) for item in list_models(model, [other])] == [("model", False)]
    assert [item.name for item in list_models(model, [FIRST])] == ["model", "theirs"]
    (model / DOCUMENTS).write_bytes(b"")
    assert [item.name for item in list_models(model, [FIRST])] == ["theirs"]


@pytest.mark.parametrize(
    ("text", "answer", "status"),
    [
        (TEXTS[FIRST], "seen", 10),
        (TEXTS[FIRST] + " more", "near copy", 11),
        (words(99, 300), "not seen", 0),
        ("a few words", "unknown", 5),
    ],
)
def test_every_answer_has_its_own_exit_status(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    answer: str,
    status: int,
) -> None:
    (tmp_path / "book.txt").write_text(text, encoding="utf-8")
    assert main(["lm", "saw", str(model), "--file", str(tmp_path / "book.txt"), "--json"]) == status
    assert json.loads(capsys.readouterr().out)["answer"] == answer
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["lm", "saw", str(model), "--file", "-"]) == status


def test_a_question_that_cannot_be_asked_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b" ")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for options, status in {
        (): 2,
        ("--file", "x", "--document", "y"): 2,
        ("--file", str(tmp_path / "none")): 3,
        ("--file", str(tmp_path / "empty")): 3,
        ("--file", str(tmp_path / "binary")): 3,
        ("--file", str(tmp_path)): 3,
        ("--document", "nonsense"): 2,
        ("--document", FIRST): 10,
        ("--document", document_id("x", "y")): 5,
    }.items():
        assert main(["lm", "saw", str(model), *options]) == status, options


def test_a_record_is_asked_for_by_its_own_id(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_from([write_jsonl(tmp_path / "in.jsonl", [record("poem", TEXTS[FIRST])])], tmp_path / "corpus")
    corpus = ["--corpus", str(tmp_path / "corpus"), "--json"]
    assert main(["lm", "saw", str(model), "--document", "poem", *corpus]) == 10
    assert json.loads(capsys.readouterr().out)["documents"] == [FIRST]
    assert main(["lm", "saw", str(model), "--document", "pome", *corpus]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["hint"]) == ("nothing-selected", "did you mean poem?")
    assert main(["lm", "verify", str(model), "--saw", document_id("x", "y"), *corpus]) == 5
    assert "neither the model nor the corpus has" in json.loads(capsys.readouterr().out)["reason"]


def test_violations_are_counted_and_the_first_are_shown(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = record("0", "another text", source="s", license="CC0-1.0")
    build_from([write_jsonl(tmp_path / "in.jsonl", [changed])], tmp_path / "corpus")
    command = ["lm", "verify", str(model), "--corpus", str(tmp_path / "corpus")]
    assert main([*command, "--violations", str(tmp_path / "all.txt")]) == 5
    shown = " ".join(capsys.readouterr().out.split())
    assert "is not in the corpus │ 4 │" in shown
    assert "has another text than the model saw │ 1 │" in shown
    assert "the first 5 of 5" in shown
    lines = (tmp_path / "all.txt").read_text().splitlines()
    assert main([*command, "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["violations"] == lines
    assert len(lines) == 5
    assert main(["lm", "verify", str(model)]) == 0
    assert "│ violations" not in capsys.readouterr().out, "nothing was compared"
