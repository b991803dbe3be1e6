"""Tokens give the text back, and marks inside a text are only text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.errors import SiloError
from silo.text import tokenizer as tokens
from silo.text.normalise import normalise
from silo.text.tokenizer import ByteTokenizer, FileTokenizer, load_tokenizer, token_dtype


@given(st.text())
def test_bytes_give_the_text_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode(ids) == text
    assert tokenizer.begin not in ids


@pytest.mark.parametrize("text", ["<|endoftext|> inside", "tabs\tand  spaces\n\n\nlines", "naïve Ωß中文 🎉", ""])
def test_the_papers_tokenizer_gives_the_text_back(shared: Path, text: str) -> None:
    tokenizer = load_tokenizer(str(shared / "tokenizers" / "gpt-neox-20b"))
    (ids,) = tokenizer.encode([normalise(text)])
    assert tokenizer.begin not in ids
    assert tokenizer.decode(ids) == normalise(text)


def test_long_texts_are_cut_without_loss(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_PIECE_CHARS", 50)
    tokenizer = load_tokenizer(str(shared / "tokenizers" / "gpt-neox-20b" / "tokenizer.json"))
    for text in ("word " * 100, "line one\nline two\n" * 30, "x" * 333):
        (ids,) = tokenizer.encode([text])
        assert tokenizer.decode(ids) == text


def test_a_small_tokenizer_from_somebody_else(shared: Path) -> None:
    tokenizer = load_tokenizer(str(shared / "models" / "stories260K"))
    assert isinstance(tokenizer, FileTokenizer)
    assert tokenizer.begin < tokenizer.vocabulary


def test_files_that_are_no_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="input-missing"):
        load_tokenizer(str(tmp_path / "none.json"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SiloError, match="tokenizer-invalid"):
        load_tokenizer(str(tmp_path))


def test_ids_always_fit() -> None:
    assert token_dtype(1 << 16) == np.dtype("<u2")
    assert token_dtype((1 << 16) + 1) == np.dtype("<u4")
