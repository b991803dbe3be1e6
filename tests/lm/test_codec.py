"""A model's codec is learned from permitted text only, frozen beside the weights, and what shaped it is listed."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
import zstandard

from silo.corpus.corpus import Corpus
from silo.corpus.shards import read_lines
from silo.errors import SiloError
from silo.lm.audit import verify_model
from silo.lm.codec import learn_codec
from silo.lm.encode import DocumentEncoder
from silo.lm.firewall import what_it_shaped
from silo.lm.manifest import Key, codec_key
from silo.lm.model import LanguageModel, save_model
from silo.lm.network import Preset, make_network
from silo.pairing import create_store, open_store
from silo.records import Tier
from silo.search.knn.codec import Codec, CodecSettings
from tests.byte_tokenizer import write_byte_tokenizer
from tests.conftest import build_from, record, words, write_jsonl
from tests.store.small import document

SMALL = CodecSettings(lists=16, code_bytes=8)
SHAPE = Preset("tiny", 32, 2, 2, 64, vocabulary=257, context=64, tied=True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    tokenizer = write_byte_tokenizer(tmp_path / "tokenizer")
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
    codec = learn_codec(model, corpus, SMALL, keys=3000)
    assert Codec.open(model / "codec").fingerprint == codec.fingerprint
    found = verify_model(model, corpus=str(corpus.root))
    assert found["violations"] == []
    assert found["model"] == before
    for item in corpus.documents():
        shaped = what_it_shaped(model, item.id)
        assert shaped in (["codec"], []) if item.tier == "pd" else shaped == []
    again = learn_codec(model, corpus, SMALL, keys=3000)
    assert again.fingerprint == codec.fingerprint


def test_a_corpus_that_differs_from_its_manifest_shapes_no_codec(model: Path, corpus: Corpus) -> None:
    shard = next(iter(corpus.shards(tiers=[Tier.pd])))
    file = shard.root / (shard.stem + ".jsonl.zst")
    lines = list(read_lines(file))
    changed = lines[0].replace(b"w", b"v", 1)
    file.write_bytes(zstandard.compress(b"".join(line + b"\n" for line in [changed, *lines[1:]])))
    with pytest.raises(SiloError) as caught:
        learn_codec(model, corpus, SMALL, keys=3000)
    assert caught.value.code == "corpus-damaged"
    assert not (model / "codec").exists()


def test_the_codec_of_an_imported_model_is_judged_by_what_may_shape_a_codec(model: Path, tmp_path: Path) -> None:
    licences = {"p": "CC0-1.0", "s": "MIT", "b": "CC-BY-4.0"}
    records = [record(f"{a}{n}", words(n + ord(a), 40), license=name) for a, name in licences.items() for n in range(9)]
    build_from([write_jsonl(tmp_path / "all.jsonl", records)], tmp_path / "all")
    learn_codec(model, Corpus.open(tmp_path / "all"), SMALL, keys=3000)
    found = verify_model(model, corpus=str(tmp_path / "all"))
    assert found["violations"] == []
    assert set(found["document_tiers"]) == {"pd", "sw", "by"}
    assert found["permitted"] is False


@pytest.mark.parametrize("key", get_args(Key))
def test_keys_do_not_depend_on_batch_mates_order_or_threads(model: Path, key: Key) -> None:
    encoder = DocumentEncoder(LanguageModel.open(model), key)
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
    (keys,) = DocumentEncoder(opened).keys([ids])
    with torch.inference_mode():
        for at in range(len(ids) - 1):
            hidden = opened.forward(torch.from_numpy(ids[: at + 1].astype(np.int64)).unsqueeze(0)).hidden[0, -1]
            assert np.allclose(hidden.numpy(), keys[at], atol=1e-5)


def test_each_kind_of_key_has_its_own_fingerprint(model: Path) -> None:
    opened = LanguageModel.open(model)
    final, ffn = (DocumentEncoder(opened, key) for key in get_args(Key))
    assert final.fingerprint == opened.fingerprint == DocumentEncoder(opened).fingerprint
    assert ffn.fingerprint != final.fingerprint
    ids = np.array([256, *b"hello world"], dtype=np.uint32)
    assert not np.allclose(next(ffn.keys([ids])), next(final.keys([ids])))


def test_a_model_knows_the_key_of_its_codec(model: Path, corpus: Corpus) -> None:
    assert codec_key(model) == "final"
    learn_codec(model, corpus, SMALL, keys=3000)
    assert codec_key(model) == "ffn"
    learn_codec(model, corpus, SMALL, keys=3000, key="final")
    assert codec_key(model) == "final"
    (model / "manifest.json").unlink()
    assert codec_key(model) == "final"


def test_a_store_uses_the_key_of_the_models_codec(model: Path, corpus: Corpus, tmp_path: Path) -> None:
    learn_codec(model, corpus, SMALL, keys=3000, key="ffn")
    create_store(tmp_path / "store", model).add([document("one", words(500, 40))])
    store = open_store(tmp_path / "store", encoding=True)
    assert store.add([document("two", words(600, 40))]).added == 1
    assert store.verify(keys=True).problems == ()
    encoder = DocumentEncoder(LanguageModel.open(model), "ffn")
    assert store.config.model == encoder.fingerprint
    ids = np.array([256, *words(600, 40).encode()], dtype=np.uint32)
    (keys,) = encoder.keys([ids])
    nearest = store.search(keys, 1)
    codec = Codec.open(model / "codec")
    gaps = codec.transform(keys) - codec.reconstruct(codec.encode(keys))
    assert (nearest.distances[:, 0] <= (gaps**2).sum(axis=1) + 1e-3).all()


@pytest.mark.parametrize(("key", "later"), [("final", "ffn"), ("ffn", "final")])
def test_a_store_refuses_documents_with_another_key(
    model: Path, corpus: Corpus, tmp_path: Path, key: Key, later: Key
) -> None:
    learn_codec(model, corpus, SMALL, keys=3000, key=key)
    create_store(tmp_path / "store", model).add([document("one", words(500, 40))])
    learn_codec(model, corpus, SMALL, keys=3000, key=later)
    with pytest.raises(SiloError) as caught:
        open_store(tmp_path / "store", encoding=True)
    assert caught.value.code == "store-mismatch"
    assert [found.external_id for found in open_store(tmp_path / "store").documents()] == ["one"]
