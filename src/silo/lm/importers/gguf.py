"""A GGUF file of a LLaMA model -> the network and the tokenizer it describes; block-quantised weights become fp32.

Read are little-endian files of version 2 and 3 with weights of the kinds below, and byte-level BPE. The package `gguf`
knows the kinds and dequantises them; the head of a file is read here, because its reader trusts the counts it finds
there (113 bytes make it ask for all memory).
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray
from safetensors.numpy import save
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from silo.errors import SiloError
from silo.lm.manifest import BLOCKS_FILE
from silo.lm.tokenizer import FILE, TEMPLATE, save_tokenizer
from silo.progress import Advance

Floats = NDArray[np.float32]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _LIST = 8, 9
_CONTROL_TOKEN = 3

_READ_KINDS = "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"
_KINDS = {int(kind): kind for kind in map(GGMLQuantizationType.__getitem__, _READ_KINDS)}

_OFFSET_IN_SCALES = {"Q4_0": -8, "Q5_0": -16, "Q8_0": -128, "Q4_1": None, "Q5_1": None}
"""Kinds whose weights are number * scale + offset of a block of 32: the offset in scales; None: it is in the block."""

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


@dataclass(frozen=True, slots=True)
class Gguf:
    """What a file holds: its facts, and its weights as fp32 under their names in the file.

    `blocks` are the scales and offsets [rows, blocks of a row] of weights that were kept in simple blocks.
    """

    facts: Mapping[str, Any]
    weights: Mapping[str, Floats]
    blocks: Mapping[str, tuple[Floats, Floats]]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Where a tensor lies in the file: its shape has rows first, its offset counts from where tensors begin."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int

    @property
    def row_size(self) -> int:
        """Bytes of a row, which is a whole number of blocks."""
        values, size = GGML_QUANT_SIZES[self.kind]
        width = self.shape[-1] if self.shape else 1
        if width % values:
            raise ValueError(f"{self.name} has rows of {width}, which are not whole blocks of {values}")
        return width // values * size

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape[:-1]) * self.row_size


class _Reader:
    """Reads values one after another; `struct` and slices refuse to go beyond the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def number(self, kind: str) -> Any:
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def text(self) -> str:
        size = self.number("Q")
        if size > len(self.data) - self.at:
            raise ValueError("a text reaches beyond the end of the file")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _LIST:
            return self.number(_SCALARS[kind])
        inner, count = self.number("I"), self.number("Q")
        if inner == _LIST or count > len(self.data):
            raise ValueError("a list is nested or longer than the file")
        return [self.value(inner) for _ in range(count)]


def read_gguf(path: Path, advance: Advance = lambda *_: None) -> Gguf:
    """Read a file; whatever is wrong with it, the answer is `not-a-model`."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Reader(data), advance)
    except (ValueError, TypeError, LookupError, ArithmeticError, struct.error) as error:
        raise SiloError("not-a-model", f"{path} cannot be read as GGUF: {error}"[:300]) from None


def _parse(reader: _Reader, advance: Advance) -> Gguf:
    if reader.data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    reader.at = 4
    if reader.number("I") not in (2, 3):
        raise ValueError("only versions 2 and 3 are read")
    tensors, count = reader.number("Q"), reader.number("Q")
    facts = {reader.text(): reader.value(reader.number("I")) for _ in range(count)}
    listing = [_read_tensor(reader) for _ in range(tensors)]
    alignment = max(1, int(facts.get("general.alignment", 32)))
    start = math.ceil(reader.at / alignment) * alignment
    total, done = sum(tensor.size for tensor in listing), 0
    if total > len(reader.data):
        raise ValueError("its weights take more than the file")
    weights, blocks = {}, {}
    for tensor in listing:
        rows = _read_rows(reader.data, start, tensor)
        weights[tensor.name] = np.array(dequantize(rows, tensor.kind), dtype=np.float32).reshape(tensor.shape)
        if tensor.kind.name in _OFFSET_IN_SCALES and len(tensor.shape) == 2:
            blocks[tensor.name] = _scales_and_offsets(rows, tensor.kind)
        done += tensor.size
        advance("convert", done, total)
    return Gguf(facts, weights, blocks)


def _read_tensor(reader: _Reader) -> _Tensor:
    name, dimensions = reader.text(), reader.number("I")
    if dimensions > 4:
        raise ValueError(f"{name} has {dimensions} dimensions")
    shape = tuple(reader.number("Q") for _ in range(dimensions))[::-1]
    number, offset = reader.number("I"), reader.number("Q")
    if number not in _KINDS:
        known = ", ".join(kind.name for kind in _KINDS.values())
        raise ValueError(f"{name} is of kind {number}, read are only {known}")
    return _Tensor(name, shape, _KINDS[number], offset)


def _read_rows(data: mmap.mmap, start: int, tensor: _Tensor) -> NDArray[np.uint8]:
    first = start + tensor.offset
    if first + tensor.size > len(data):
        raise ValueError(f"{tensor.name} reaches beyond the end of the file")
    return np.frombuffer(data[first : first + tensor.size], dtype=np.uint8).reshape(-1, tensor.row_size)


def _scales_and_offsets(rows: NDArray[np.uint8], kind: GGMLQuantizationType) -> tuple[Floats, Floats]:
    """Of each block of each row: blocks begin with the scale in fp16, and the offset where it is written."""
    heads = rows.reshape(len(rows), -1, GGML_QUANT_SIZES[kind][1])[:, :, :4].copy().view(np.float16).astype(np.float32)
    times = _OFFSET_IN_SCALES[kind.name]
    return heads[:, :, 0].copy(), heads[:, :, 1].copy() if times is None else times * heads[:, :, 0]


def build_llama(content: Gguf, *, begin: int) -> Any:
    """The LLaMA network a file describes, in fp32."""
    facts = content.facts
    if facts.get("general.architecture") != "llama":
        raise SiloError("not-a-model", f"the file holds a {facts.get('general.architecture')!r}, only llama is read")
    try:
        config = _make_config(content, begin)
        heads = _heads(config)
        renamed = {
            _translate_name(name): torch.from_numpy(_separate_channels(name, value, heads))
            for name, value in content.weights.items()
        }
        if config.tie_word_embeddings:
            renamed["lm_head.weight"] = renamed["model.embed_tokens.weight"]
        _require_shapes(config, renamed)
        with torch.random.fork_rng(devices=[]):  # the constructor draws weights, all of which are replaced
            network: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
        network.load_state_dict(renamed, strict=True)
    except Exception as error:  # facts of any type and size end in errors of many kinds
        raise SiloError("not-a-model", f"the file does not describe a whole LLaMA: {error}"[:300]) from None
    return network.eval()


def _make_config(content: Gguf, begin: int) -> LlamaConfig:
    llama = {name.removeprefix("llama."): value for name, value in content.facts.items() if name.startswith("llama.")}
    heads = llama["attention.head_count"]
    if llama.get("rope.dimension_count", llama["embedding_length"] // heads) != llama["embedding_length"] // heads:
        raise ValueError("only a part of each head is turned")
    if any(name.startswith("rope.scaling.type") and value != "none" for name, value in llama.items()):
        raise ValueError("its positions are scaled")
    return LlamaConfig(
        vocab_size=content.weights["token_embd.weight"].shape[0],
        hidden_size=llama["embedding_length"],
        intermediate_size=llama["feed_forward_length"],
        num_hidden_layers=llama["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=llama.get("attention.head_count_kv", heads),
        max_position_embeddings=llama["context_length"],
        rms_norm_eps=llama["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": float(llama.get("rope.freq_base", 10000.0))},
        tie_word_embeddings="output.weight" not in content.weights,
        bos_token_id=begin,
        eos_token_id=begin,
    )


def _require_shapes(config: LlamaConfig, weights: Mapping[str, torch.Tensor]) -> None:
    """Refuse a file whose facts promise other weights than it holds, before memory is taken for what they promise."""
    if config.num_hidden_layers > len(weights):
        raise ValueError(f"it has only {len(weights)} weights for {config.num_hidden_layers} layers")
    with torch.device("meta"):
        skeleton: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    expected = {name: tuple(value.shape) for name, value in skeleton.state_dict().items()}
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    for name in sorted(expected.keys() | shapes.keys()):
        if shapes.get(name) != expected.get(name):
            raise ValueError(f"{name} is {shapes.get(name)} where {expected.get(name)} is needed")


def _translate_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, layer, inside = name.split(".", 2)
    return f"model.layers.{int(layer)}.{_IN_LAYER[inside]}"


def blocks_file(content: Gguf, network: Any) -> dict[str, bytes]:
    """The file with the scales and offsets of all matrices, for the decode engine; none where some have no blocks."""
    if any(value.ndim == 2 and name not in content.blocks for name, value in content.weights.items()):
        return {}
    heads, parts = _heads(network.config), {}
    for name, found in content.blocks.items():
        for part, values in zip(("scales", "offsets"), found, strict=True):
            parts[f"{_translate_name(name)}.{part}"] = np.ascontiguousarray(_separate_channels(name, values, heads))
    return {BLOCKS_FILE: save(parts)}


def _heads(config: LlamaConfig) -> Mapping[str, int]:
    return {"attn_q.weight": config.num_attention_heads, "attn_k.weight": config.num_key_value_heads or 0}


def _separate_channels(name: str, value: Floats, heads: Mapping[str, int]) -> Floats:
    """GGUF puts the two channels that turn together side by side; transformers puts them half a head apart."""
    count = next((count for ending, count in heads.items() if name.endswith(ending)), 0)
    if count:
        pairs = value.reshape(count, -1, 2, value.shape[1])
        value = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(value.shape)
    return value


def write_tokenizer(content: Gguf, folder: Path) -> Path:
    """Write the file's byte-level BPE as a `tokenizer.json`, its chat template beside it, and return its path."""
    facts = content.facts
    splitters: dict[str, list[Any]] = {
        "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    }
    model, split = facts.get("tokenizer.ggml.model"), str(facts.get("tokenizer.ggml.pre", "gpt-2"))
    complete = {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.bos_token_id"} <= facts.keys()
    if model != "gpt2" or split not in splitters or not complete:
        hint = "pass --tokenizer with the model's tokenizer.json"
        raise SiloError("not-a-model", f"the file's tokenizer ({model}, {split}) is not one silo can write", hint)
    try:
        tokenizer, begin = _build_tokenizer(facts, splitters[split])
    except Exception as error:  # facts may be of any type, and the library raises nothing more special
        raise SiloError("not-a-model", f"the file's tokenizer cannot be read: {error}"[:300]) from None
    save_tokenizer(tokenizer, folder, begin)
    template = facts.get("tokenizer.chat_template")
    if isinstance(template, str):
        (folder / TEMPLATE).write_text(template, encoding="utf-8")
    return folder / FILE


def _build_tokenizer(facts: Mapping[str, Any], splitter: list[Any]) -> tuple[Tokenizer, str]:
    """The byte-level BPE and the token that begins a text."""
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splitter)
    tokenizer.decoder = decoders.ByteLevel()
    types = facts.get("tokenizer.ggml.token_type", [])
    marks = [token for token, kind in zip(tokens, types, strict=False) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in marks])
    begin = "<|endoftext|>" if "<|endoftext|>" in tokens else tokens[facts["tokenizer.ggml.bos_token_id"]]
    return tokenizer, begin
