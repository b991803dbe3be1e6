"""Documents that give away evaluation text are found, whole or embedded; shared boilerplate is no leak."""

from __future__ import annotations

from pathlib import Path

import pytest

from silo.corpus.decontaminate import EvaluationText, apply_rule
from silo.errors import SiloError
from silo.recipe import DecontaminationRecipe
from silo.sources.evaluation import EvaluationRecord, read_evaluation
from tests.conftest import record, words, write_jsonl

RECIPE = DecontaminationRecipe()


def _evaluation(*texts: str, recipe: DecontaminationRecipe = RECIPE) -> EvaluationText:
    return EvaluationText.build(
        recipe, [EvaluationRecord(f"e{number}", "prose", text) for number, text in enumerate(texts)]
    )


def test_a_copy_is_found_and_named() -> None:
    leak = _evaluation(words(1, 50), words(2, 50)).leak(words(2, 50).upper())
    assert leak is not None
    assert (leak.evaluation, leak.share, leak.coverage) == ("e1", 1.0, 1.0)


def test_an_embedded_copy_is_found_however_long_the_document_is() -> None:
    evaluation = _evaluation(words(1, 60))
    text = f"{words(5, 3000)} {words(1, 60)} {words(6, 3000)}"
    leak = evaluation.leak(text)
    assert leak is not None
    assert leak.coverage == 1.0
    assert leak.share < 0.02


def test_a_short_quotation_is_no_leak() -> None:
    evaluation = _evaluation(words(1, 400))
    quotation = " ".join(words(1, 400).split()[100:130])
    assert evaluation.leak(f"{words(5, 300)} {quotation}") is None


def test_boilerplate_of_many_evaluation_documents_identifies_none() -> None:
    header = words(9, 100)
    evaluation = _evaluation(*(f"{header} {words(seed, 40)}" for seed in range(20)))
    assert evaluation.leak(f"{header} {words(77, 30)}") is None
    assert evaluation.leak(f"{header} {words(3, 40)}") is not None


def test_by_the_strict_rule_one_shared_ngram_is_enough_boilerplate_too() -> None:
    header = words(9, 100)
    texts = [f"{header} {words(seed, 40)}" for seed in range(20)]
    strict = _evaluation(*texts, recipe=apply_rule(RECIPE, "strict"))
    quotation = " ".join(words(3, 40).split()[10:23])
    quoting = f"{words(77, 3000)} {quotation} {words(78, 3000)}"
    assert _evaluation(*texts).leak(quoting) is None
    leak = strict.leak(quoting)
    assert leak is not None and leak.evaluation == "e3"
    assert strict.leak(f"{words(77, 3000)} {header}") is not None
    assert strict.leak(f"{words(77, 300)} {' '.join(quotation.split()[:-1])}") is None
    assert apply_rule(RECIPE, "default") == RECIPE


def test_repeating_one_ngram_is_not_coverage() -> None:
    evaluation = _evaluation(words(1, 40))
    piece = " ".join(words(1, 40).split()[:14])
    text = " . ".join(f"{piece} {words(seed, 40)}" for seed in range(50, 80))
    assert evaluation.leak(text) is None


def test_short_texts_match_as_a_whole() -> None:
    evaluation = _evaluation("to be or not to be")
    assert evaluation.leak("To be, or not to be!") is not None
    assert evaluation.leak("to be or not") is None
    assert evaluation.leak("") is None


def test_a_saved_table_answers_the_same(tmp_path: Path) -> None:
    evaluation = _evaluation(*(words(seed, 60) for seed in range(30)))
    evaluation.save(tmp_path / "table")
    opened = EvaluationText.open(tmp_path / "table", RECIPE)
    for seed in (3, 29, 400):
        assert opened.leak(words(seed, 60)) == evaluation.leak(words(seed, 60))


def test_reading_evaluation_files_is_all_or_nothing(tmp_path: Path) -> None:
    good = write_jsonl(tmp_path / "good.jsonl", [record("a", "one"), {"text": "two", "text2": "three", "label": 1}])
    assert list(read_evaluation(good)) == [
        EvaluationRecord("good.jsonl#a", "prose", "one"),
        EvaluationRecord("good.jsonl#2", "good", "two\nthree"),
    ]
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "a", "text": "one"}\n{"id": "b"}\n')
    with pytest.raises(SiloError, match="field-missing"):
        list(read_evaluation(bad))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(SiloError, match="input-empty"):
        list(read_evaluation(tmp_path / "empty.jsonl"))
    with pytest.raises(SiloError, match="input-missing"):
        list(read_evaluation(tmp_path / "none.jsonl"))
