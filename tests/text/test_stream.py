"""Documents as one stream: what is scored, and how many bytes of text every token stands for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.text.normalise import normalise
from silo.text.stream import first_tokens, merged_stream
from silo.text.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from tests.byte_tokenizer import write_byte_tokenizer

TEXTS = ["naïve  Ωß中文 🎉🎉", "", "a [**Name**]\n\n\n  was here", "tabs\t\tand x" * 50, "<|endoftext|> e\u0301"]


@pytest.fixture(scope="module", params=["bytes", "bytes in a file", "gpt-neox-20b", "stories260K"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "bytes":
        return ByteTokenizer()
    if request.param == "bytes in a file":
        return load_tokenizer(str(write_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))))
    shared: Path = request.getfixturevalue("shared")
    kind = "tokenizers" if request.param == "gpt-neox-20b" else "models"
    return load_tokenizer(str(shared / kind / request.param))


def test_every_byte_of_a_scored_text_is_some_tokens(tokenizer: Tokenizer) -> None:
    for text in map(normalise, TEXTS):
        ((ids, sizes),) = tokenizer.measure([text])
        assert ids.tolist() == tokenizer.encode([text])[0].tolist()
        assert len(sizes) == len(ids) and sizes.sum() == len(text.encode())


@given(st.text(max_size=60))
def test_any_text_is_measured_whole(tokenizer: Tokenizer, text: str) -> None:
    text = normalise(text)
    ((ids, sizes),) = tokenizer.measure([text])
    assert len(ids) == len(sizes) and sizes.sum() == len(text.encode())


def test_a_cut_stream_has_the_bytes_of_its_tokens(shared: Path) -> None:
    tokenizer = load_tokenizer(str(shared / "tokenizers" / "gpt-neox-20b"))
    stream = merged_stream(["antidisestablishmentarianism", "a b c d", "It is Ωß中文"], tokenizer)
    for most in range(len(stream.ids) + 1):
        cut = first_tokens(stream, most)
        text = tokenizer.decode(cut.ids)
        assert cut.bytes == len(text.encode()) or text.endswith("\ufffd")


def test_a_character_cut_in_the_middle_counts_as_far_as_it_is_there(shared: Path) -> None:
    tokenizer = load_tokenizer(str(shared / "tokenizers" / "gpt-neox-20b"))
    ((ids, sizes),) = tokenizer.measure(["🎉"])
    assert len(ids) > 1 and sizes.tolist() == [5 - len(ids), *[1] * (len(ids) - 1)]


def test_masks_and_beginnings_have_no_bytes(tokenizer: Tokenizer) -> None:
    stream = merged_stream(TEXTS, tokenizer)
    assert stream.bytes == sum(len(normalise(text).replace("[**Name**]", "").encode()) for text in TEXTS)
    assert not stream.sizes[~stream.scored].any()
    starts = np.flatnonzero(stream.ids == tokenizer.begin)
    each = np.add.reduceat(stream.sizes, starts)
    assert each.tolist() == [len(normalise(text).replace("[**Name**]", "").encode()) for text in TEXTS]


def test_no_text_is_an_empty_stream() -> None:
    assert merged_stream([], ByteTokenizer()).bytes == 0
