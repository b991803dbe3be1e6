"""All hostile inputs in one build: each is quarantined or a typed error; sound text beside them is unharmed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from silo.corpus.build import build
from silo.corpus.corpus import Corpus
from silo.errors import SiloError
from silo.recipe import CorpusRecipe, SourceRecipe
from silo.sources import plan
from tests.conftest import record, words, write_jsonl
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
