"""Presets have the promised sizes; fresh weights depend on the seed alone."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaForCausalLM

from silo.errors import SiloError
from silo.lm.network import (
    PRESETS,
    Preset,
    choose_dtype,
    find_preset,
    make_config,
    make_network,
    parameter_count,
)

TINY = Preset("tiny", 32, 2, 4, 64, vocabulary=300, context=64, tied=True)


@pytest.mark.parametrize(
    ("name", "vocabulary", "low", "high"),
    [
        ("demo", 4096, 2e6, 5e6),
        ("demo", 8192, 2e6, 5e6),
        ("mini", 8192, 3e6, 3.5e6),
        ("small", 16384, 13e6, 18e6),
        ("160m", 50277, 150e6, 170e6),
        ("1.3b", 50277, 1.3e9, 1.45e9),
    ],
)
def test_presets_have_the_promised_size(name: str, vocabulary: int, low: float, high: float) -> None:
    with torch.device("meta"):
        network = LlamaForCausalLM(make_config(PRESETS[name], vocabulary=vocabulary, begin=0))  # type: ignore[no-untyped-call]
    assert low <= parameter_count(network) <= high


def test_largest_preset_is_the_papers_network() -> None:
    config = make_config(PRESETS["1.3b"], vocabulary=50277, begin=0)
    assert (config.num_hidden_layers, config.num_attention_heads, config.hidden_size) == (24, 16, 2048)
    assert config.vocab_size == 50432
    assert config.max_position_embeddings == 2048
    assert not config.tie_word_embeddings


def test_unknown_preset_is_refused_with_the_names() -> None:
    with pytest.raises(SiloError, match="demo, mini, mini-deep"):
        find_preset("huge")


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = make_network(TINY, vocabulary=300, begin=0, seed=7)
    torch.manual_seed(2)
    same = make_network(TINY, vocabulary=300, begin=0, seed=7)
    other = make_network(TINY, vocabulary=300, begin=0, seed=8)
    pairs = list(zip(first.parameters(), same.parameters(), strict=True))
    assert all(torch.equal(one, two) for one, two in pairs)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    make_network(TINY, vocabulary=300, begin=0, seed=7)
    assert torch.equal(before, torch.get_rng_state())


def test_weights_have_the_usual_spread() -> None:
    network = make_network("demo", vocabulary=4096, begin=0, seed=0)
    weights = dict(network.named_parameters())
    plain, residual = 0.02, 0.02 / math.sqrt(2 * 4)
    assert weights["model.embed_tokens.weight"].std().item() == pytest.approx(plain, rel=0.02)
    assert weights["model.layers.1.self_attn.q_proj.weight"].std().item() == pytest.approx(plain, rel=0.02)
    assert weights["model.layers.1.self_attn.o_proj.weight"].std().item() == pytest.approx(residual, rel=0.02)
    assert weights["model.layers.1.mlp.down_proj.weight"].std().item() == pytest.approx(residual, rel=0.02)
    assert bool((weights["model.norm.weight"] == 1).all())


def test_fresh_network_guesses_evenly() -> None:
    network = make_network(TINY, vocabulary=300, begin=0, seed=0)
    with torch.inference_mode():
        loss = network(input_ids=torch.arange(64)[None], labels=torch.arange(64)[None]).loss
    assert loss.item() == pytest.approx(math.log(300), abs=0.1)


def test_attention_is_the_fused_one_and_a_longer_context_can_be_asked_for() -> None:
    network = make_network(TINY, vocabulary=300, begin=3, seed=0, context=128)
    assert network.config._attn_implementation == "sdpa"
    assert network.config.max_position_embeddings == 128
    assert network.config.bos_token_id == network.config.eos_token_id == 3


def test_half_precision_only_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("silo.lm.network._processor_flags", lambda: frozenset({"avx2", "fma"}))
    assert choose_dtype() is torch.float32
    monkeypatch.setattr("silo.lm.network._processor_flags", lambda: frozenset({"avx2", "amx_bf16"}))
    assert choose_dtype() is torch.bfloat16
