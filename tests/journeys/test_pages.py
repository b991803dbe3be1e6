"""`--html` and `--csv`: what people are handed says who contributed what, and holds no markup of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from silo.cli import main
from tests.conftest import build_from, record, write_jsonl
from tests.inference.ask.world import note_store, speaker
from tests.inference.world import make_model, make_store
from tests.test_page import Reader

PAINTED = "The boat was painted in 1987 by Anna Berg."


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pages")
    make_store(root / "store", make_model(root)).close()
    note_store(root / "notes", speaker(root / "speaker", PAINTED)).close()
    return root


def read(path: Path) -> Reader:
    page = Reader(path.read_text(encoding="utf-8"))
    assert "script" not in page.tags and "link" not in page.tags
    return page


def test_a_generated_text_names_its_documents(place: Path, tmp_path: Path) -> None:
    page = tmp_path / "text.html"
    options = [
        "--model",
        str(place / "model"),
        "--store",
        str(place / "store"),
        "--max-tokens",
        "12",
        "--html",
        str(page),
    ]
    assert main(["generate", "The quick <brown> fox ", *options, "--quiet", "--json"]) == 0
    shown = read(page)
    assert "The quick <brown> fox" in shown.text and "the language model" in shown.text
    assert any(name == "title" and "language model" in (value or "") for name, value in shown.attributes)
    assert "documentownerlicenceshare" in shown.text, "the head of the legend"


def test_an_answer_shows_where_it_stands(place: Path, tmp_path: Path) -> None:
    page = tmp_path / "answer.html"
    for question, status, words in (
        ("When was the boat painted?", 0, [PAINTED, "boat.md", "NOASSERTION", "Where it stands", "Who contributed"]),
        ("What protects the lettuce from slugs?", 0, ["ring of sand", "own words", "CC-BY-4.0: name A. Writer"]),
        ("Who sells <b>rope</b>?", 12, ["Who sells <b>rope</b>?", "Not in the store."]),
    ):
        assert main(["ask", str(place / "notes"), question, "--html", str(page), "--quiet"]) == status
        shown = read(page)
        assert all(word in shown.text for word in words), question


def test_a_score_shows_every_token(place: Path, tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [record("a", "The quick <brown> fox jumps.")])
    page = tmp_path / "score.html"
    options = ["--model", str(place / "model"), "--store", str(place / "store"), "--jsonl", str(file)]
    assert main(["score", *options, "--html", str(page), "--quiet"]) == 0
    shown = read(page)
    assert "The quick <brown> fox jumps." in shown.text and "perplexity" in shown.text


def test_a_corpus_shows_its_tables(tmp_path: Path) -> None:
    build_from(
        [write_jsonl(tmp_path / "in.jsonl", [record("a", "some words of a text", license="MIT")])], tmp_path / "c"
    )
    assert main(["corpus", "stats", str(tmp_path / "c"), "--html", str(tmp_path / "stats.html"), "--json"]) == 0
    shown = read(tmp_path / "stats.html")
    assert "by license" in shown.text and "MIT" in shown.text and "svg" in shown.tags


def test_a_place_without_a_folder_is_refused_first(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", str(place / "notes"), "Where?", "--html", str(place / "no" / "page.html")]) == 3
    assert "[input-missing]" in capsys.readouterr().err
