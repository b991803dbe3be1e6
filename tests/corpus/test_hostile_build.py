"""All hostile inputs in one build: each is quarantined or a typed error; sound text beside them is unharmed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from silo.corpus.build import build
from silo.corpus.corpus import Corpus
from silo.errors import CODES, SiloError
from silo.recipe import CorpusRecipe, SourceRecipe
from silo.sources import plan
from tests.conftest import build_from, record, words, write_jsonl
from tests.corpus.hostile import CASES, recipe_for


def test_a_corpus_survives_every_hostile_input_at_once(tmp_path: Path) -> None:
    sound = write_jsonl(tmp_path / "sound.jsonl", [record(f"s{n}", words(n, 30)) for n in range(50)])
    sources = [SourceRecipe("jsonl", (str(sound),))]
    expected: Counter[str] = Counter()
    good = 0
    for case in CASES:
        place = tmp_path / "hostile" / case.name
        place.mkdir(parents=True)
        case.write(place)
        recipe = recipe_for(case)
        paths = tuple(f"hostile/{case.name}/{path}" for path in recipe.paths)
        recipe = replace(recipe, paths=paths, name=case.name)
        try:
            plan(recipe, tmp_path)
        except SiloError as error:
            assert (error.code,) == case.expect_codes
            continue
        sources.append(recipe)
        expected.update(case.expect_codes)
        good += case.good
    summary = build(CorpusRecipe(tuple(sources)), tmp_path / "out", base=tmp_path)
    assert summary["quarantine_codes"] == dict(sorted(expected.items()))
    assert summary["read"] == 50 + good + expected.total()
    assert summary["read"] == summary["accepted"] + summary["rejected"] + summary["quarantined"]
    corpus = Corpus.open(tmp_path / "out")
    corpus.verify()
    kept = {document.external_id: document.text for document in corpus.documents() if document.source == "test"}
    assert kept == {f"s{n}": words(n, 30) for n in range(50)}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"nonsense\nmore\n" + json.dumps({"id": "no text"}).encode() + b"\n", "json-invalid (2), field-missing (1)"),
        (b"nonsense\nmore\n", "not-records (1)"),
        (bytes(range(128, 256)) * 20 + b"\n", "utf8-invalid (1)"),
        (b"PK\x03\x04" + bytes(200), "not-text (1)"),
    ],
)
def test_sources_of_which_nothing_can_be_read_are_refused_with_the_reasons(
    tmp_path: Path, content: bytes, code: str
) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)
    with pytest.raises(SiloError) as caught:
        build_from([tmp_path / "in.jsonl"], tmp_path / "out")
    assert caught.value.code == "input-empty"
    assert code in caught.value.message
    assert "in.jsonl:line 1" in caught.value.message
    assert caught.value.hint == CODES[code.split()[0]].hint
    assert not (tmp_path / "out").exists()


def test_records_without_ids_are_named_by_their_place_and_counted(tmp_path: Path) -> None:
    texts = [words(number, 20) for number in range(3)]
    parquet.write_table(pa.table({"text": texts[:2]}), tmp_path / "in.parquet")
    (tmp_path / "in.jsonl").write_text("\n" + json.dumps({"text": texts[2]}) + "\n")
    sources = tuple(SourceRecipe("jsonl", (str(tmp_path / name),)) for name in ("in.parquet", "in.jsonl"))
    summary = build(CorpusRecipe(sources, workers=1), tmp_path / "out", base=tmp_path)
    assert (summary["accepted"], summary["derived_ids"], summary["skipped"]) == (3, 3, 0)
    names = {document.external_id: document.text for document in Corpus.open(tmp_path / "out").documents()}
    assert names == dict(zip(("in.parquet:row 1", "in.parquet:row 2", "in.jsonl:line 2"), texts, strict=True))
