"""Whole texts read by the decode engine: what generation sees, near what torch sees; a store keeps to its own."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from silo import placement
from silo.errors import SiloError
from silo.lm.encode import DocumentEncoder, open_encoder
from silo.lm.engine import engine
from silo.lm.engine.decoder import DecodingModel
from silo.lm.engine.engine import multiply
from silo.lm.engine.reading import EngineNetwork
from silo.lm.manifest import CODEC_FOLDER, Key
from silo.lm.model import LanguageModel, save_model
from silo.lm.network import make_network
from silo.lm.reading import Keys, Row
from silo.pairing import create_store, open_store
from silo.placement import ENGINE, Placement
from silo.search.knn.codec import Codec
from silo.store.selector import Selector
from silo.store.store import Store
from silo.text.tokenizer import Ids
from tests.byte_tokenizer import write_byte_tokenizer
from tests.conftest import record, words, write_jsonl
from tests.inference.world import SHAPE, documents, make_model
from tests.store.small import tree

LENGTHS = (2, 40, 63, 64, 65, 100, 100, 200, 500, 701)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("encode"), key="ffn")


@pytest.fixture(scope="module")
def opened(model: Path) -> DecodingModel:
    return DecodingModel.open(model, threads=2)


@pytest.fixture(scope="module")
def texts(opened: DecodingModel) -> list[Ids]:
    rng, tokenizer = np.random.default_rng(0), opened.tokenizer
    begin = np.array([tokenizer.begin], dtype=np.uint32)
    return [np.concatenate([begin, rng.integers(0, tokenizer.begin, size - 1).astype(np.uint32)]) for size in LENGTHS]


@pytest.mark.parametrize("key", get_args(Key))
def test_the_engine_makes_nearly_the_keys_of_torch(
    model: Path, opened: DecodingModel, texts: list[Ids], key: Key
) -> None:
    engine, torch = (
        DocumentEncoder(network, key) for network in (opened.network_of(ENGINE), LanguageModel.open(model))
    )
    assert engine.fingerprint == torch.fingerprint and engine.windows == torch.windows
    for ours, theirs in zip(engine.keys(texts), torch.keys(texts), strict=True):
        assert np.allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("key", get_args(Key))
def test_the_engine_makes_the_keys_that_generation_sees(opened: DecodingModel, texts: list[Ids], key: Key) -> None:
    encoder = DocumentEncoder(opened.network_of(ENGINE), key)
    short = texts[3]
    (keys,) = encoder.keys([short])
    decoder = opened.decoder(key)
    for at in (1, 30, len(short) - 1):
        assert np.array_equal(decoder.read(short[:at]).key, keys[at - 1])


@pytest.mark.parametrize("key", get_args(Key))
def test_the_engines_keys_do_not_depend_on_what_is_read_with_them(
    model: Path, opened: DecodingModel, texts: list[Ids], key: Key
) -> None:
    alone = [next(DocumentEncoder(opened.network_of(ENGINE), key).keys([ids])) for ids in texts]
    assert [len(keys) for keys in alone] == [length - 1 for length in LENGTHS]
    for threads in (1, 2):
        encoder = DocumentEncoder(DecodingModel.open(model, threads=threads).network_of(ENGINE), key)
        for order in (range(len(texts)), range(len(texts) - 1, -1, -1)):
            together = encoder.keys([texts[at] for at in order])
            assert all(np.array_equal(keys, alone[at]) for at, keys in zip(order, together, strict=True))


def test_products_are_sums_in_one_order() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(70, 40)).astype(np.float32), rng.normal(size=(40, 33)).astype(np.float32)
    product = multiply(left, right)
    assert np.allclose(product, left.astype(np.float64) @ right, atol=1e-4)
    assert np.array_equal(multiply(left[5:6], right), product[5:6])


def test_a_store_is_filled_without_torch(model: Path, tmp_path: Path) -> None:
    store, lines = tmp_path / "s", write_jsonl(tmp_path / "in.jsonl", [record("a", words(1, 40))])
    create, add = ["store", "create", str(store), "--model", str(model)], ["store", "add", str(store), "--jsonl"]
    code = (
        "import sys; from silo.cli import main;"
        f"print(main({create!r}), main({[*add, str(lines)]!r}), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-3:] == ["0", "0", "False"]
    assert open_store(store).stats()["documents"] == 1


def test_a_store_that_torch_filled_keeps_to_it(model: Path, tmp_path: Path) -> None:
    """Stores of before: `encoded_on` is not in their configuration."""
    encoder = DocumentEncoder(LanguageModel.open(model), "ffn")
    made = [
        Store.create(
            tmp_path / name,
            encoder,
            codec=Codec.open(model / CODEC_FOLDER),
            tokenizer_file=model / "tokenizer.json" if (model / "tokenizer.json").exists() else None,
        )
        for name in ("whole", "parts")
    ]
    whole, parts = made
    whole.use(encoder)
    whole.add(documents())
    parts.close()
    again = open_store(tmp_path / "parts", model, encoding=True)
    for document in documents():
        again.add([document])
    assert isinstance(again.encoder, DocumentEncoder) and isinstance(again.encoder.network, LanguageModel)
    assert again.config.encoded_on == "" and again.verify(keys=True).problems == ()
    assert again.digest() == whole.digest()
    assert tree(tmp_path / "parts" / "data") == tree(tmp_path / "whole" / "data")


def test_a_store_that_the_engine_filled_keeps_to_it(model: Path, tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", model, passage_tokens=16)
    assert isinstance(store.encoder, DocumentEncoder) and isinstance(store.encoder.network, EngineNetwork)
    store.add(documents())
    assert open_store(tmp_path / "s", encoding=True).verify(keys=True).problems == ()
    for opened, mark in (
        (DecodingModel.of(LanguageModel.open(model)), ENGINE),
        (DecodingModel.open(model, storage="fp16"), ENGINE),
        (DecodingModel.open(model), "cpu bfloat16"),
    ):
        with pytest.raises(SiloError, match="is not open as what made the keys") as caught:
            opened.network_of(mark)
        assert caught.value.code == "store-mismatch"
    with pytest.raises(SiloError, match="have other bits") as caught:
        store.use(DocumentEncoder(LanguageModel.open(model), "ffn"))
    assert caught.value.code == "store-mismatch"


def test_where_torch_must_compute_it_makes_the_keys(model: Path) -> None:
    encoder = open_encoder(model, "cpu bfloat16")
    assert isinstance(encoder.network, LanguageModel) and encoder.network.mark == "cpu bfloat16"
    assert Placement.of_mark("cpu bfloat16").mark == "cpu bfloat16" and Placement.of_mark("").mark == ""
    assert open_encoder(model).network.mark == ENGINE


@pytest.mark.parametrize("key", [None, *get_args(Key)])
def test_the_engine_scores_nearly_as_torch(
    model: Path, opened: DecodingModel, texts: list[Ids], key: Key | None
) -> None:
    rows = [Row(ids.astype(np.int64), max(1, len(ids) // 3)) for ids in texts]
    torch = LanguageModel.open(model)
    for row, ours, theirs in zip(
        rows, opened.network.read_rows(rows, 704, key), torch.read_rows(rows, 704, key), strict=True
    ):
        assert len(ours.logs) == len(theirs.logs) == len(row.tokens) - row.first
        assert np.allclose(ours.logs, theirs.logs, atol=1e-5) and np.allclose(ours.peaks, theirs.peaks, atol=1e-5)
        if key:
            assert np.allclose(ours.keys, theirs.keys, atol=1e-4)
    ends = [(ids.astype(np.int64), min(2, len(ids))) for ids in texts]
    found, expected = (network.predict_ends(ends, 704, key) for network in (opened.network, torch))
    for (logs, keys), (their_logs, their_keys) in zip(found, expected, strict=True):
        assert np.allclose(logs, their_logs, atol=1e-5) and np.allclose(keys, their_keys, atol=1e-4)


def test_a_token_has_the_score_that_generation_gives_it(opened: DecodingModel, texts: list[Ids]) -> None:
    ids = texts[-1].astype(np.int64)
    (read,) = opened.network.read_rows([Row(ids, 90)], 704, "ffn")
    decoder = opened.decoder("ffn")
    for at in (90, 95, 96, 97, 191, 192, 500, len(ids) - 1):
        output = decoder.read(ids[:at])
        assert read.logs[at - 90] == np.log(output.probabilities[ids[at]])
        assert read.peaks[at - 90] == output.peak and np.array_equal(read.keys[at - 90], output.key)


def test_a_text_is_scored_without_torch(model: Path, tmp_path: Path) -> None:
    store = create_store(tmp_path / "s", model, passage_tokens=16)
    store.add(documents())
    store.close()
    lines = write_jsonl(tmp_path / "in.jsonl", [record("a", words(1, 40))])
    score = ["score", "--jsonl", str(lines), "--model", str(model), "--store", str(tmp_path / "s"), "--json"]
    code = f"import sys; from silo.cli import main; print(main({score!r}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-2:] == ["0", "False"]


def test_rounded_weights_score_nothing(model: Path) -> None:
    assert isinstance(DecodingModel.open(model, storage="fp16").network, LanguageModel)


def test_the_cores_that_were_asked_for_are_used(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_threads", 1)
    assert DecodingModel.open(model).network.cores == open_encoder(model).network.cores == 1
    assert DecodingModel.open(model, threads=3).network.cores == 3


def test_whoever_is_modest_takes_one_thread_for_a_pass(
    opened: DecodingModel, texts: list[Ids], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened.engine is not None
    taken: list[int] = []
    keys = opened.engine.keys

    def note(windows: Sequence[Ids], key: Key, *, threads: int) -> Keys:
        taken.append(threads)
        return keys(windows, key, threads=threads)

    monkeypatch.setattr(opened.engine, "keys", note)
    for modest in (True, False):
        next(DocumentEncoder(opened.network_of(ENGINE, modest=modest), "ffn").keys([texts[5]]))
    assert taken == [1, 2]


def test_a_row_with_an_unknown_token_is_refused(opened: DecodingModel) -> None:
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        opened.network.read_rows([Row(np.array([256, 1, 2, 5000]), 1)], 64, None)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that reads 1,024 tokens at once: several passes, pages and windows."""
    root = tmp_path_factory.mktemp("long")
    network = make_network(replace(SHAPE, context=1024), vocabulary=257, begin=256, seed=3)
    save_model(network, write_byte_tokenizer(root / "tokenizer"), root / "model", {"origin": "test"})
    return root / "model"


def test_long_texts_are_read_as_generation_reads_them(long: Path) -> None:
    opened, rng = DecodingModel.open(long, threads=2), np.random.default_rng(1)
    texts = [np.concatenate([[256], rng.integers(0, 256, size)]).astype(np.uint32) for size in (130, 700, 1023, 1500)]
    encoder = DocumentEncoder(opened.network, "ffn")
    together = list(encoder.keys(texts))
    for ids, keys in zip(texts, together, strict=True):
        assert np.array_equal(next(encoder.keys([ids])), keys)
    alone = DocumentEncoder(DecodingModel.open(long, threads=1).network, "ffn")
    assert all(np.array_equal(one, other) for one, other in zip(alone.keys(texts), together, strict=True))
    torch = DocumentEncoder(LanguageModel.open(long), "ffn")
    assert all(np.allclose(one, other, atol=1e-4) for one, other in zip(torch.keys(texts), together, strict=True))
    decoder = opened.decoder("ffn")
    for at in (1, 128, 129, 192, 193, 384, 700, 1023):
        assert np.array_equal(decoder.read(texts[2][:at]).key, together[2][at - 1])


def test_memory_of_what_was_read_is_given_back(long: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = DecodingModel.open(long, threads=2)
    assert opened.engine is not None
    page = opened.engine._take_page().nbytes
    monkeypatch.setattr(engine, "_MOST_FREE_BYTES", 3 * page)
    list(DocumentEncoder(opened.network, "ffn").keys([np.arange(200, dtype=np.uint32)] * 20))
    assert 0 < len(opened.engine._free_pages) <= 3 and not opened.engine._slots


def test_a_text_that_is_left_gives_its_slot_back(long: Path) -> None:
    opened = DecodingModel.open(long)
    assert opened.engine is not None
    for _ in opened.engine.read_text(np.arange(200), 0):
        break
    gc.collect()
    assert not opened.engine._slots
    with pytest.raises(ValueError, match="vocabulary"):
        opened.engine.keys([np.array([5000])], "ffn")
    assert not opened.engine._slots


def test_a_store_of_the_engines_keys_forgets_exactly(model: Path, tmp_path: Path) -> None:
    """Filled in any way, on any number of threads, and after an erasure: the bytes of a store that never held it."""
    never = create_store(tmp_path / "never", model, passage_tokens=16, bucket_bytes=2000)
    never.add(item for item in documents() if item.external_id != "fox")
    for threads in (1, 2):
        store = create_store(tmp_path / f"store{threads}", model, passage_tokens=16, bucket_bytes=2000)
        store.use(DocumentEncoder(DecodingModel.open(model, threads=threads).network_of(ENGINE), "ffn"))
        for item in reversed(documents()):
            store.add([item])
        store.erase(Selector(document="fox"))
        assert store.digest() == never.digest()
        assert tree(tmp_path / f"store{threads}" / "data") == tree(tmp_path / "never" / "data")
