"""The published SILO checkpoints: weights in OpenLM's layout -> a stock transformers network that computes the same.

OpenLM's block is LayerNorm with bias, attention, LayerNorm with bias, SwiGLU, each added to the stream: a StableLM
network without biases in its projections. The released models turn queries and keys by an angle that depends on the
*head* instead of the position; query and key of one head turn alike, so every score stays what it was and no position
is seen. That is `position="none"`: a rotary part of zero width. `"rotary"` is for later OpenLM models, which do turn by
position.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import StableLmConfig, StableLmForCausalLM

from silo.errors import SiloError

POSITIONS = {"none": 0.0, "rotary": 1.0}
"""The share of a head that is turned by position."""

Weights = Mapping[str, Tensor]

_PREFIX = re.compile(r"^(?:(?:module|model|_orig_mod)\.)+")
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_ROTARY_TABLE = re.compile(r"\.inv_freq$|pos_embed\.")
_USUAL_HEAD = 128
_USUAL_CONTEXT = 2048

_TOP = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "norm.bias": "model.norm.bias",
    "output.weight": "lm_head.weight",
}
_IN_LAYER: dict[str, tuple[str, ...]] = {
    "attention.in_proj.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "attention.out_proj.weight": ("self_attn.o_proj.weight",),
    "feed_forward.w12.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "feed_forward.w1.weight": ("mlp.gate_proj.weight",),
    "feed_forward.w2.weight": ("mlp.up_proj.weight",),
    "feed_forward.w3.weight": ("mlp.down_proj.weight",),
    "attention_norm.weight": ("input_layernorm.weight",),
    "attention_norm.bias": ("input_layernorm.bias",),
    "ffn_norm.weight": ("post_attention_layernorm.weight",),
    "ffn_norm.bias": ("post_attention_layernorm.bias",),
}


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint file by their plain names; of a pickle only tensors are ever made."""
    try:
        content: Any = load_file(path) if path.suffix == ".safetensors" else _load_tensors(path)
    except Exception as error:  # torch raises the pickle module's errors, and many others for damaged files
        hint = "only tensors are read: a file that holds anything else, or is damaged, is refused"
        raise SiloError("not-a-model", f"{path} cannot be read as weights: {type(error).__name__}", hint) from error
    while isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise SiloError("not-a-model", f"{path} is not a table of weights")
    return {_PREFIX.sub("", str(name)): value for name, value in content.items()}


def _load_tensors(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))


def convert(weights: Weights, settings: Mapping[str, Any], *, position: str, begin: int) -> Any:
    """A network with these weights; `settings` may say `n_heads` and `seq_len`, which weights alone do not tell."""
    if position not in POSITIONS:
        raise SiloError("usage", f"position must be one of {', '.join(POSITIONS)}, not '{position}'")
    missing = [name for name in ("tok_embeddings.weight", "output.weight", "norm.weight") if name not in weights]
    if missing:
        raise SiloError("not-a-model", f"the checkpoint is not in OpenLM's layout: it has no {missing[0]}")
    try:
        return _build_network(weights, settings, position=position, begin=begin)
    except (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError) as error:
        raise SiloError("not-a-model", f"the checkpoint does not describe a whole network: {error}"[:300]) from None


def _build_network(weights: Weights, settings: Mapping[str, Any], *, position: str, begin: int) -> Any:
    renamed = dict(_rename_weights(weights))
    vocabulary, width = weights["tok_embeddings.weight"].shape
    layers = 1 + max((int(layer[1]) for name in weights if (layer := _LAYER.fullmatch(name))), default=-1)
    config = StableLmConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=_feed_forward_width(renamed),
        num_hidden_layers=layers,
        num_attention_heads=_count_heads(weights, settings, width),
        num_key_value_heads=_count_heads(weights, settings, width),
        max_position_embeddings=int(settings.get("seq_len", _USUAL_CONTEXT)),
        layer_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": POSITIONS[position],
        },
        bos_token_id=begin,
        eos_token_id=begin,
        dtype=weights["output.weight"].dtype,
    )
    _require_shapes(config, renamed)
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights, all of which are replaced
        network: Any = StableLmForCausalLM(config)  # type: ignore[no-untyped-call]
    network = network.to(weights["output.weight"].dtype).eval()
    _fill(network, renamed)
    return network


def _require_shapes(config: StableLmConfig, renamed: Weights) -> None:
    """Refuse shapes that contradict each other, before memory is taken for what they promise."""
    if config.num_hidden_layers > len(renamed):
        raise ValueError(f"it has only {len(renamed)} weights for {config.num_hidden_layers} layers")
    with torch.device("meta"):
        skeleton: Any = StableLmForCausalLM(config)  # type: ignore[no-untyped-call]
    expected = {name: tuple(value.shape) for name, value in skeleton.state_dict().items()}
    for name, value in renamed.items():
        if name in expected and tuple(value.shape) != expected[name]:
            raise ValueError(f"{name} is {tuple(value.shape)} where {expected[name]} is needed")


def _rename_weights(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """Every weight under its name in StableLM; packed ones are taken apart."""
    for name, value in weights.items():
        if _ROTARY_TABLE.search(name):
            continue
        inside = _LAYER.fullmatch(name)
        if name in _TOP:
            yield _TOP[name], value
        elif inside and inside[2] in _IN_LAYER:
            targets = _IN_LAYER[inside[2]]
            for target, part in zip(targets, value.chunk(len(targets)), strict=True):
                yield f"model.layers.{inside[1]}.{target}", part
        else:
            raise SiloError("not-a-model", f"the checkpoint holds {name}, which no published SILO model has")


def _feed_forward_width(renamed: Weights) -> int:
    gate = renamed.get("model.layers.0.mlp.gate_proj.weight")
    if gate is None:
        raise SiloError("not-a-model", "the checkpoint is not in OpenLM's layout: it has no feed_forward.w12.weight")
    return int(gate.shape[0])


def _count_heads(weights: Weights, settings: Mapping[str, Any], width: int) -> int:
    """Attention heads: as the settings say, else from the rotary table (half a head long), else of the usual width."""
    if settings.get("n_heads"):
        return int(settings["n_heads"])
    table = next((value for name, value in weights.items() if name.endswith(".inv_freq")), None)
    head = 2 * len(table) if table is not None else _USUAL_HEAD
    if width % head:
        hint = "put a config.json with n_heads and seq_len beside the checkpoint"
        raise SiloError("not-a-model", f"cannot tell how many heads a network of width {width} has", hint)
    return width // head


def _fill(network: Any, renamed: Weights) -> None:
    """Copy the weights in, all of them; a LayerNorm without a bias has a bias of zero."""
    wanted = network.state_dict()
    biases = {name: torch.zeros_like(value) for name, value in wanted.items() if name.endswith("norm.bias")}
    try:
        network.load_state_dict({**biases, **renamed}, strict=True)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise SiloError("not-a-model", f"the checkpoint does not fit its own shapes: {first}"[:300]) from None
