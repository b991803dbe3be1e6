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
from silo.lm.encode import DocumentEncoder, document_keys
from silo.lm.firewall import what_it_shaped
from silo.lm.model import LanguageModel, save_model
from silo.lm.network import Preset, make_network
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


def test_keys_do_not_depend_on_batch_mates_order_or_threads(model: Path) -> None:
    encoder = DocumentEncoder(LanguageModel.open(model))
    rng = np.random.default_rng(0)
    documents = [
        np.concatenate([np.array([256], dtype=np.uint32), rng.integers(0, 256, size, dtype=np.uint32)])
        for size in (1, 40, 63, 64, 65, 100, 100, 200, 500, 701)
    ]
    alone = [next(encoder.keys([ids])) for ids in documents]
    assert [len(keys) for keys in alone] == [len(ids) - 1 for ids in documents]
    assert all(np.isfinite(keys).all() for keys in alone)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for order in (range(10), range(9, -1, -1), rng.permutation(10)):
            together = encoder.keys([documents[at] for at in order])
            assert all((keys == alone[at]).all() for at, keys in zip(order, together, strict=True))
    torch.set_num_threads(1)


def test_a_key_is_the_state_after_its_prefix(model: Path) -> None:
    opened = LanguageModel.open(model)
    ids = np.array([256, *b"hello world"], dtype=np.uint32)
    keys, _ = document_keys(opened, ids)
    with torch.inference_mode():
        for at in range(len(ids) - 1):
            hidden = opened.forward(torch.from_numpy(ids[: at + 1].astype(np.int64)).unsqueeze(0)).hidden[0, -1]
            assert np.allclose(hidden.numpy(), keys[at], atol=1e-5)
