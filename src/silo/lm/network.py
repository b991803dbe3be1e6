"""LLaMA networks by preset: the same seed gives the same weights, whatever else used random numbers before."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from silo.errors import SiloError

_STD = 0.02
_RESIDUAL_OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
_FAST_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})


@dataclass(frozen=True, slots=True)
class Preset:
    """The shape of a network. `vocabulary` is what a tokenizer for it should have; rows are padded to a multiple."""

    name: str
    width: int
    layers: int
    heads: int
    feed_forward: int
    vocabulary: int
    context: int
    tied: bool
    vocabulary_multiple: int = 1


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("demo", 256, 4, 4, 576, vocabulary=8192, context=1024, tied=True),
        Preset("demo-deep", 192, 8, 3, 384, vocabulary=8192, context=1024, tied=True),
        Preset("demo-wide", 320, 2, 5, 896, vocabulary=8192, context=1024, tied=True),
        Preset("small", 384, 6, 6, 1024, vocabulary=16384, context=1024, tied=True),
        Preset("160m", 768, 12, 12, 2048, vocabulary=50277, context=2048, tied=False, vocabulary_multiple=256),
        Preset("1.3b", 2048, 24, 16, 5632, vocabulary=50277, context=2048, tied=False, vocabulary_multiple=256),
    )
}
"""`1.3b` is the paper's network (Section 4.1): GPT-NeoX's 50,277 tokens padded to 50,432 rows.

`demo-deep` and `demo-wide` cost about as many multiplications a token as `demo`.
"""


def find_preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise SiloError("recipe-value", f"there is no preset '{name}': choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def make_config(preset: Preset, *, vocabulary: int, begin: int, context: int | None = None) -> LlamaConfig:
    """The Hugging Face configuration of a preset; `begin` both begins and ends a text."""
    return LlamaConfig(
        vocab_size=math.ceil(vocabulary / preset.vocabulary_multiple) * preset.vocabulary_multiple,
        hidden_size=preset.width,
        intermediate_size=preset.feed_forward,
        num_hidden_layers=preset.layers,
        num_attention_heads=preset.heads,
        num_key_value_heads=preset.heads,
        max_position_embeddings=context or preset.context,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=preset.tied,
        initializer_range=_STD,
        bos_token_id=begin,
        eos_token_id=begin,
    )


def make_network(
    preset: Preset | str, *, vocabulary: int, begin: int, seed: int, context: int | None = None
) -> LlamaForCausalLM:
    """A network with fresh fp32 weights that depend on the arguments alone; no global random state is touched."""
    shape = find_preset(preset) if isinstance(preset, str) else preset
    config = make_config(shape, vocabulary=vocabulary, begin=begin, context=context)
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights of its own
        network: LlamaForCausalLM = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    network.set_attn_implementation("sdpa")
    _draw_weights(network, seed)
    return network


def _draw_weights(network: LlamaForCausalLM, seed: int) -> None:
    """Normal with deviation 0.02, outputs into the residual stream divided by sqrt(2 x layers), norms at one."""
    source = torch.Generator().manual_seed(seed)
    residual_std = _STD / math.sqrt(2 * network.config.num_hidden_layers)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() == 1:
                nn.init.ones_(weight)
            else:
                std = residual_std if name.endswith(_RESIDUAL_OUTPUTS) else _STD
                nn.init.normal_(weight, std=std, generator=source)


def parameter_count(network: nn.Module) -> int:
    """Distinct parameters, embeddings included; tied ones count once."""
    return sum(weight.numel() for weight in network.parameters())


def choose_dtype() -> torch.dtype:
    """bf16 where the hardware computes it, else fp32: emulated bf16 is many times slower."""
    if torch.cuda.is_available():
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if _FAST_BF16_FLAGS & _processor_flags() else torch.float32


def _processor_flags() -> frozenset[str]:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8", errors="replace").splitlines() if listing.exists() else []
    fields = (line.partition(":") for line in lines)
    flags = (value.split() for name, _, value in fields if name.strip().lower() in ("flags", "features"))
    return frozenset(next(flags, ()))
