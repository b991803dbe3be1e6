"""A tokenizer is learned from permitted text only, loses nothing, and is a function of the corpus."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from silo.corpus.build import build
from silo.corpus.corpus import Corpus
from silo.errors import SiloError
from silo.lm.tokenizer import FILE, TrainedTokenizer, train_tokenizer
from silo.recipe import CorpusRecipe, SourceRecipe
from silo.records import Tier
from silo.text.normalise import text_hash
from silo.text.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from tests.byte_tokenizer import write_byte_tokenizer
from tests.conftest import build_from, record, words, write_jsonl

LICENSES = {"pd": "CC0-1.0", "sw": "MIT", "by": "CC-BY-4.0", "restricted": "GPL-3.0-only"}
PERMITTED = (Tier.pd, Tier.sw, Tier.by)


def prose(seed: str) -> str:
    """Sixty made-up words."""
    source = random.Random(seed)
    return " ".join("".join(source.choices("abcdefghijklmnop", k=source.randint(2, 7))) for _ in range(60))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Forty documents of each tier; each tier repeats a word of its own."""
    root = tmp_path_factory.mktemp("corpus")
    records = [
        record(
            f"{tier}-{number}",
            f"The {tier}marker sat on the mat. naïve café 東京 🙂\n\n\treturn x\n" * 3 + prose(f"{tier}{number}"),
            license=spdx,
        )
        for tier, spdx in LICENSES.items()
        for number in range(40)
    ]
    free = write_jsonl(root / "a.jsonl", records)
    denied = write_jsonl(root / "b.jsonl", [record("denied", "deniedmarker " * 200)])
    sources = (SourceRecipe("jsonl", (str(free),)), SourceRecipe("jsonl", (str(denied),), deny=("train",)))
    build(CorpusRecipe(source=sources, workers=1), root / "corpus", base=root)
    return Corpus.open(root / "corpus")


@pytest.fixture(scope="module")
def trained(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> TrainedTokenizer:
    return train_tokenizer(corpus, tiers=PERMITTED, vocabulary=420, out=tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def loaded(trained: TrainedTokenizer) -> Tokenizer:
    return load_tokenizer(str(trained.root))


def test_begin_mark_is_id_zero_and_the_vocabulary_is_as_asked(trained: TrainedTokenizer, loaded: Tokenizer) -> None:
    assert loaded.begin == 0
    assert loaded.vocabulary == trained.vocabulary == 420


@given(st.text())
def test_round_trip_loses_nothing(loaded: Tokenizer, text: str) -> None:
    text = unicodedata.normalize("NFC", text)
    (ids,) = loaded.encode([text])
    assert loaded.begin not in ids
    assert loaded.decode(ids) == text


def test_marks_in_the_text_are_only_text(loaded: Tokenizer) -> None:
    (ids,) = loaded.encode(["a <|endoftext|> b"])
    assert loaded.begin not in ids
    assert loaded.decode(ids) == "a <|endoftext|> b"


def test_same_corpus_gives_the_same_bytes_in_any_process(
    corpus: Corpus, trained: TrainedTokenizer, tmp_path: Path
) -> None:
    code = (
        "import sys; from pathlib import Path; from silo.corpus.corpus import Corpus;"
        "from silo.lm.tokenizer import train_tokenizer; from silo.records import Tier;"
        "train_tokenizer(Corpus.open(Path(sys.argv[1])), tiers=(Tier.by, Tier.pd, Tier.sw), vocabulary=420,"
        " out=Path(sys.argv[2]))"
    )
    expected = (trained.root / FILE).read_bytes()
    for seed in ("1", "2"):
        out = tmp_path / seed
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, str(corpus.root), str(out)], env=environment, check=True)
        assert (out / FILE).read_bytes() == expected


def test_documents_that_shaped_it_are_listed(corpus: Corpus, trained: TrainedTokenizer) -> None:
    expected = {
        (document.id, text_hash(document.text))
        for document in corpus.documents(tiers=PERMITTED)
        if document.rights.train
    }
    assert len(expected) == 120
    assert set(trained.documents) == expected


def test_forbidden_text_leaves_no_trace(trained: TrainedTokenizer, loaded: Tokenizer) -> None:
    """Words of permitted tiers became tokens; those of denied and restricted documents are still spelled out."""
    assert len(loaded.encode([" swmarker"])[0]) == 1
    assert len(loaded.encode([" restrictedmarker"])[0]) > 3
    assert len(loaded.encode(["deniedmarker"])[0]) > 3


def test_restricted_tier_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(SiloError) as caught:
        train_tokenizer(corpus, tiers=tuple(Tier), vocabulary=300, out=tmp_path / "t")
    assert caught.value.code == "training-refused"
    assert not (tmp_path / "t").exists()


def test_opted_out_documents_are_left_out(tmp_path: Path) -> None:
    records = [record(str(number), words(number, 50), license="MIT") for number in range(10)]
    build_from([write_jsonl(tmp_path / "a.jsonl", records)], tmp_path / "corpus")
    corpus = Corpus.open(tmp_path / "corpus")
    gone = next(iter(corpus.documents())).id
    corpus.opt_out([gone])
    trained = train_tokenizer(corpus, tiers=(Tier.sw,), vocabulary=300, out=tmp_path / "t")
    assert len(trained.documents) == 9
    assert gone not in dict(trained.documents)


def test_a_sample_takes_its_share_of_every_shard(corpus: Corpus, tmp_path: Path) -> None:
    whole = train_tokenizer(corpus, tiers=PERMITTED, vocabulary=300, out=tmp_path / "whole")
    half = train_tokenizer(
        corpus, tiers=PERMITTED, vocabulary=300, out=tmp_path / "half", max_bytes=whole.text_bytes // 2
    )
    assert half.text_bytes <= whole.text_bytes // 2
    tiers = {document.id: document.tier for document in corpus.documents()}
    taken = [tiers[name] for name, _ in half.documents]
    assert [taken.count(tier) for tier in PERMITTED] == pytest.approx([20, 20, 20], abs=2)


def test_progress_reaches_its_end(corpus: Corpus, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    train_tokenizer(
        corpus, tiers=PERMITTED, vocabulary=300, out=tmp_path / "t", advance=lambda *call: calls.append(call)
    )
    assert {stage for stage, _, _ in calls} == {"tokenizer"}
    assert calls[-1][1] == calls[-1][2] > 0
    assert all(one[1] <= two[1] for one, two in itertools.pairwise(calls))


def test_a_vocabulary_without_room_for_every_byte_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="at least 257"):
        train_tokenizer(corpus, tiers=PERMITTED, vocabulary=256, out=tmp_path / "t")


def test_transformers_agrees(trained: TrainedTokenizer, loaded: Tokenizer) -> None:
    theirs = AutoTokenizer.from_pretrained(trained.root)
    text = "The swmarker sat on naïve 東京 🙂\n\n\treturn x"
    assert theirs(text).input_ids == loaded.encode([text])[0].tolist()
    assert theirs.bos_token_id == theirs.eos_token_id == 0
    assert theirs.decode(theirs(text).input_ids) == text


@given(st.text())
def test_byte_tokenizer_as_a_file_is_the_byte_tokenizer(byte_file: Tokenizer, text: str) -> None:
    plain = ByteTokenizer()
    assert (byte_file.begin, byte_file.vocabulary) == (plain.begin, plain.vocabulary)
    assert np.array_equal(byte_file.encode([text])[0], plain.encode([text])[0])


@pytest.fixture(scope="module")
def byte_file(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(str(write_byte_tokenizer(tmp_path_factory.mktemp("bytes"))))
