"""A model's codec is learned from permitted text only, frozen beside the weights, and what shaped it is listed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from silo.corpus.opened import Corpus
from silo.datastore.codec import Codec, CodecSettings
from silo.inference.codec import learn_codec
from silo.lm.audit import verify_model
from silo.lm.encode import document_keys
from silo.lm.firewall import what_it_shaped
from silo.lm.model import LanguageModel, save_model
from silo.lm.network import Preset, make_network
from silo.lm.scoring import Windows
from silo.lm.tokenizer import byte_tokenizer
from tests.conftest import build_from, record, words, write_jsonl

SHAPE = Preset("tiny", 32, 2, 2, 64, vocabulary=257, context=64, tied=True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    tokenizer = byte_tokenizer(tmp_path / "tokenizer")
    network = make_network(SHAPE, vocabulary=257, begin=256, seed=1)
    save_model(network, tokenizer, tmp_path / "model", {"origin": "test"})
    return tmp_path / "model"


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    records = [record(f"p{n}", words(n, 40), license="CC0-1.0") for n in range(30)]
    records += [record(f"r{n}", words(n + 100, 40), license="") for n in range(10)]
    build_from([write_jsonl(tmp_path / "in.jsonl", records)], tmp_path / "corpus")
    return Corpus.open(tmp_path / "corpus")


def test_a_codec_is_learned_from_permitted_text_and_listed(model: Path, corpus: Corpus) -> None:
    before = LanguageModel.open(model).fingerprint
    codec = learn_codec(model, corpus, CodecSettings(lists=16, code_bytes=8), keys=3000)
    assert Codec.open(model / "codec").fingerprint == codec.fingerprint
    found = verify_model(model, corpus=str(corpus.root))
    assert found["violations"] == []
    assert found["model"] == before
    for document in corpus.documents():
        shaped = what_it_shaped(model, document.id)
        assert shaped in (["codec"], []) if document.tier == "pd" else shaped == []
    again = learn_codec(model, corpus, CodecSettings(lists=16, code_bytes=8), keys=3000)
    assert again.fingerprint == codec.fingerprint


def test_keys_do_not_depend_on_batch_or_threads(model: Path) -> None:
    opened = LanguageModel.open(model)
    ids = np.concatenate(
        [np.array([256], dtype=np.uint32), np.random.default_rng(0).integers(0, 256, 500, dtype=np.uint32)]
    )
    windows = Windows(64, 32)
    expected, values = document_keys(opened, ids, windows, batch=1)
    assert values.tolist() == ids[1:].tolist()
    assert np.isfinite(expected).all()
    for batch, threads in ((3, 1), (16, 1), (4, 2)):
        torch.set_num_threads(threads)
        found, _ = document_keys(opened, ids, windows, batch=batch)
        assert (found == expected).all()
    torch.set_num_threads(1)


def test_a_key_is_the_state_after_its_prefix(model: Path) -> None:
    opened = LanguageModel.open(model)
    ids = np.array([256, *b"hello world"], dtype=np.uint32)
    keys, _ = document_keys(opened, ids, Windows(64, 32))
    with torch.inference_mode():
        for at in range(len(ids) - 1):
            hidden = opened.forward(torch.from_numpy(ids[: at + 1].astype(np.int64)).unsqueeze(0)).hidden[0, -1]
            assert np.allclose(hidden.numpy(), keys[at], atol=1e-5)
