"""Decoding: what was read is reused, guesses that come true save passes, and neither shows in a result."""

from __future__ import annotations

import gc
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import GPT2Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from silo.errors import SiloError
from silo.lm.engine.decoder import DecodingModel, Drafts, EngineDecoder, Reading, read_together
from silo.lm.model import LanguageModel, save_model
from silo.lm.network import Preset, make_network
from tests.byte_tokenizer import write_byte_tokenizer

SHAPE = Preset("tiny", 32, 2, 2, 64, vocabulary=257, context=64, tied=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("decoder")
    network = make_network(SHAPE, vocabulary=257, begin=256, seed=1)
    save_model(network, write_byte_tokenizer(place / "tokenizer"), place / "model", {"origin": "test"})
    return place / "model"


@pytest.fixture(scope="module")
def model(root: Path) -> DecodingModel:
    return DecodingModel.open(root)


texts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=20), min_size=1, max_size=6)


def _first(tokens: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return tokens[:count]


@given(texts=texts, drafts=st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=6, max_size=6))
def test_what_was_read_or_guessed_before_does_not_show(
    model: DecodingModel, texts: list[list[int]], drafts: list[list[int]]
) -> None:
    decoder = model.decoder("ffn")
    assert isinstance(decoder, EngineDecoder)
    for text, draft in zip(texts, drafts, strict=False):
        guess = np.array(draft, dtype=np.int64)
        found = decoder.read(np.array(text), partial(_first, guess))
        fresh = model.decoder("ffn").read(np.array(text))
        assert np.array_equal(found.probabilities, fresh.probabilities) and np.array_equal(found.key, fresh.key)


def test_texts_read_together_are_as_if_read_alone(model: DecodingModel) -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 256, size) for size in (1, 9, 30, 30)]
    decoders = [model.decoder() for _ in texts]
    for _ in range(3):
        readings = [Reading([decoder], [text]) for decoder, text in zip(decoders, texts, strict=True)]
        for text, found in zip(texts, read_together(readings), strict=True):
            assert found is not None
            assert np.array_equal(found[0].probabilities, model.decoder().read(text).probabilities)
        texts = [np.append(text, 7) for text in texts]


def test_long_texts_are_read_in_parts_while_short_ones_are_answered(model: DecodingModel) -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 256, size) for size in (1, 3, 30, 50)]
    readings = [Reading([model.decoder("ffn")], [text]) for text in texts]
    rounds: list[list[int]] = []
    waiting = readings
    while waiting:
        found = list(zip(waiting, read_together(waiting, spare=10), strict=True))
        rounds.append([len(reading.texts[0]) for reading, outputs in found if outputs])
        for reading, outputs in found:
            fresh = model.decoder("ffn").read(reading.texts[0])
            if outputs is not None:
                assert np.array_equal(outputs[0].probabilities, fresh.probabilities)
                assert np.array_equal(outputs[0].key, fresh.key)
        waiting = [reading for reading, outputs in found if outputs is None]
    assert rounds[0] == [1, 3]
    assert [length for ended in rounds for length in ended] == [1, 3, 30, 50]
    assert len(rounds) == 7


def test_a_pass_that_fails_leaves_nothing_behind(model: DecodingModel) -> None:
    decoder, text = model.decoder(), np.array([1, 2, 3])
    with pytest.raises(ValueError, match="vocabulary"):
        read_together([Reading([decoder], [text]), Reading([model.decoder()], [np.array([999])])])
    assert np.array_equal(decoder.read(text).probabilities, model.decoder().read(text).probabilities)


def test_the_engine_predicts_what_transformers_predicts(root: Path, model: DecodingModel) -> None:
    slow = DecodingModel.of(LanguageModel.open(root))
    ids = np.random.default_rng(2).integers(0, 256, 60)
    for key in ("final", "ffn"):
        ours, theirs = model.decoder(key), slow.decoder(key)
        assert type(ours) is not type(theirs)
        for length in (1, 5, 6, 60, 3):
            one, other = ours.read(ids[:length]), theirs.read(ids[:length])
            np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-4)
            np.testing.assert_allclose(one.key, other.key, atol=1e-4)


def test_a_network_the_engine_does_not_know_is_read_by_transformers(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=257, n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=256)
    network = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    save_model(network, write_byte_tokenizer(tmp_path / "tokenizer"), tmp_path / "model", {"origin": "test"})
    model = DecodingModel.open(tmp_path / "model")
    assert model.engine is None and model.context == 64
    with torch.inference_mode():
        theirs = network.eval()(torch.tensor([[256, 5, 6]])).logits[0, -1].softmax(0).numpy()
    np.testing.assert_allclose(model.decoder().read(np.array([256, 5, 6])).probabilities, theirs, rtol=1e-4)
    with pytest.raises(SiloError, match="cannot be kept as fp16"):
        DecodingModel.open(tmp_path / "model", storage="fp16")


def test_slots_of_forgotten_texts_are_used_again(model: DecodingModel) -> None:
    slots = set()
    for _ in range(5):
        decoder = model.decoder()
        assert isinstance(decoder, EngineDecoder)
        decoder.read(np.array([1, 2, 3]))
        slots.add(decoder.slot)
        del decoder
    assert len(slots) == 1


def test_a_text_that_the_collector_finds_in_the_midst_of_a_pass_holds_up_nothing(model: DecodingModel) -> None:
    """Errors keep texts alive in cycles, and the collector runs where it likes: also where the engine is locked."""
    decoder = model.decoder()
    assert isinstance(decoder, EngineDecoder) and model.engine is not None
    lock, slot = model.engine._lock, decoder.slot
    decoder.__dict__["itself"] = decoder
    del decoder

    def collect() -> None:
        with lock:
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert model.engine.claim_slot() == slot
    model.engine.release_slot(slot)


def test_guesses_stop_where_they_do_not_come_true_and_are_tried_again() -> None:
    drafts = Drafts()
    made = [drafts.worthwhile()]
    for _ in range(300):
        if made[-1]:
            drafts.note(made[-1], 0)
        made.append(drafts.worthwhile())
    assert made[0] == 2
    assert 0 < sum(count > 0 for count in made[20:]) < 12
    for _ in range(60):
        count = drafts.worthwhile()
        if count:
            drafts.note(count, count)
    assert drafts.worthwhile() == 5
