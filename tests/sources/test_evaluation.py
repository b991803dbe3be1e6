"""Evaluation files: which of their records an evaluation counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.evaluation.tune import validation_text
from silo.lm.training.validation import validation_streams
from silo.sources.evaluation import read_evaluation, read_scored
from silo.text.tokenizer import ByteTokenizer
from tests.conftest import record, write_jsonl

MASKED = record("m", "[**Name**] [**Hospital 2**] seen on [**2020-1-1**]")
HALF = record("h", "[**Name**] [**Hospital**] was here")
PLAIN = record("p", "nothing of this is masked")


def test_notes_that_are_mostly_masked_are_not_counted(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "notes.jsonl", [MASKED, HALF, PLAIN])
    assert len(list(read_evaluation(file))) == 3, "what is kept out of training is everything"
    assert [item.label for item in read_scored([file])] == ["notes.jsonl#h", "notes.jsonl#p"]
    tokenizer = ByteTokenizer()
    for stream in (validation_text([file], tokenizer, 10_000), *validation_streams([file], 9999, tokenizer).values()):
        assert (stream.ids == tokenizer.begin).sum() == 2
        assert "2020" not in tokenizer.decode(stream.ids)


def test_a_file_of_masks_only_is_told(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="input-empty"):
        list(read_scored([write_jsonl(tmp_path / "notes.jsonl", [MASKED])]))
