"""LLaMA networks by preset: the same seed gives the same weights, whatever else used random numbers before."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from silo.lm.training.presets import PRESETS as PRESETS
from silo.lm.training.presets import Preset as Preset
from silo.lm.training.presets import find_preset as find_preset

_STD = 0.02
_RESIDUAL_OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
_FAST_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})


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


def choose_dtype(device: str = "cpu") -> torch.dtype:
    """bf16 where the hardware computes it, else fp32: emulated bf16 is many times slower."""
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if device == "cpu" and _FAST_BF16_FLAGS & _processor_flags() else torch.float32


def _processor_flags() -> frozenset[str]:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8", errors="replace").splitlines() if listing.exists() else []
    fields = (line.partition(":") for line in lines)
    flags = (value.split() for name, _, value in fields if name.strip().lower() in ("flags", "features"))
    return frozenset(next(flags, ()))
