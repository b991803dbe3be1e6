"""GGUF files: every kind of block gives the numbers its definition says, and no file asks for more than it holds."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quantize
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.lm.importers.gguf import Gguf, build_llama, read_gguf, write_tokenizer

Bytes = NDArray[np.uint8]
Kind = GGMLQuantizationType
ROWS, WIDTH = 3, 512


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def write_tensor(file: Path, blocks: bytes, kind: int, *, shape: tuple[int, ...] = (ROWS, WIDTH)) -> Path:
    """A file that holds one tensor and no facts."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    head += _text("w") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, 0)
    file.write_bytes(head + bytes(-len(head) % 32) + blocks)
    return file


def _half(block: Bytes) -> float:
    return float(block[:2].view(np.float16)[0])


def _scale_and_least(scales: Bytes, number: int) -> tuple[int, int]:
    """Six bits each, packed as in ggml's get_scale_min_k4."""
    q = [int(value) for value in scales]
    if number < 4:
        return q[number] & 63, q[number + 4] & 63
    low = q[number + 4]
    return (low & 15) | (q[number - 4] >> 6) << 4, (low >> 4) | (q[number] >> 6) << 4


def q4_k(block: Bytes) -> list[float]:
    scale, least, scales, packed = _half(block), _half(block[2:]), block[4:16], block[16:]
    values = []
    for number in range(8):
        step, minimum = _scale_and_least(scales, number)
        part = packed[32 * (number // 2) : 32 * (number // 2) + 32]
        values += [scale * step * (int(q) >> 4 * (number % 2) & 15) - least * minimum for q in part]
    return values


def q5_k(block: Bytes) -> list[float]:
    scale, least, scales, high, packed = _half(block), _half(block[2:]), block[4:16], block[16:48], block[48:]
    values = []
    for number in range(8):
        step, minimum = _scale_and_least(scales, number)
        part = packed[32 * (number // 2) : 32 * (number // 2) + 32]
        for q, fifth in zip(part, high, strict=True):
            whole = (int(q) >> 4 * (number % 2) & 15) + 16 * (int(fifth) >> number & 1)
            values.append(scale * step * whole - least * minimum)
    return values


def q6_k(block: Bytes) -> list[float]:
    low, high, scales, scale = block[:128], block[128:192], block[192:208].view(np.int8), _half(block[208:])
    values = []
    for place in range(256):
        half, inside = divmod(place, 128)
        quarter, at = divmod(inside, 32)
        nibble = int(low[64 * half + 32 * (quarter % 2) + at]) >> 4 * (quarter // 2) & 15
        whole = (nibble | (int(high[32 * half + at]) >> 2 * quarter & 3) << 4) - 32
        values.append(scale * int(scales[8 * half + 2 * quarter + at // 16]) * whole)
    return values


@pytest.mark.parametrize(
    ("kind", "halves", "decode"), [(Kind.Q4_K, (0, 2), q4_k), (Kind.Q5_K, (0, 2), q5_k), (Kind.Q6_K, (208,), q6_k)]
)
def test_k_quants_are_what_ggml_defines(
    kind: GGMLQuantizationType, halves: tuple[int, ...], decode: Callable[[Bytes], list[float]], tmp_path: Path
) -> None:
    """The package cannot quantise these, so blocks are made by hand: any bytes, with sane numbers as scales."""
    rng = np.random.default_rng(int(kind))
    _, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS * WIDTH // 256, size), dtype=np.uint8)
    for at in halves:
        blocks[:, at : at + 2] = rng.uniform(0.001, 0.1, len(blocks)).astype(np.float16)[:, None].view(np.uint8)
    file = write_tensor(tmp_path / "k.gguf", blocks.tobytes(), int(kind))
    found = read_gguf(file).weights["w"]
    expected = np.array([decode(block) for block in blocks]).reshape(ROWS, WIDTH)
    assert found.dtype == np.float32
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_what_the_package_quantises_comes_back(name: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    kind = GGMLQuantizationType[name]
    file = write_tensor(tmp_path / "q.gguf", quantize(values, kind).tobytes(), int(kind))
    tolerance = {"F32": 0.0, "F16": 1e-3, "BF16": 2e-2, "Q8_0": 2e-2, "Q5_0": 0.15, "Q5_1": 0.15}.get(name, 0.4)
    assert np.abs(read_gguf(file).weights["w"] - values).max() <= tolerance


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_weights_of_simple_blocks_are_a_number_times_a_scale_plus_an_offset(name: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    kind = GGMLQuantizationType[name]
    content = read_gguf(write_tensor(tmp_path / "q.gguf", quantize(values, kind).tobytes(), int(kind)))
    scales, offsets = (np.repeat(found, 32, axis=1) for found in content.blocks["w"])
    numbers = np.round((content.weights["w"] - offsets) / scales)
    assert numbers.min() >= 0
    assert numbers.max() < 256
    assert np.array_equal(numbers * scales + offsets, content.weights["w"])


def test_weights_of_other_blocks_have_no_scales(tmp_path: Path) -> None:
    blocks = np.zeros((ROWS * WIDTH // 256, GGML_QUANT_SIZES[Kind.Q6_K][1]), dtype=np.uint8)
    assert not read_gguf(write_tensor(tmp_path / "k.gguf", blocks.tobytes(), int(Kind.Q6_K))).blocks


def test_a_kind_that_is_not_read_and_rows_of_broken_blocks_are_refused(tmp_path: Path) -> None:
    for kind, shape in ((Kind.Q8_K, (1, 256)), (99, (1, 32)), (Kind.Q4_0, (2, 48)), (Kind.Q6_K, (1, 128))):
        with pytest.raises(SiloError, match="not-a-model"):
            read_gguf(write_tensor(tmp_path / "bad.gguf", bytes(4096), int(kind), shape=shape))


def _fact(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    "fact",
    [
        _fact("a", 9, struct.pack("<IQ", 0, 1 << 40)),  # the package's own reader takes all memory for this
        _fact("a", 9, struct.pack("<IQ", 8, 1 << 40)),
        _fact("a", 9, struct.pack("<IQ", 9, 1) * 2000),
        _fact("a", 8, struct.pack("<Q", 1 << 63)),
        _fact("general.alignment", 9, struct.pack("<IQI", 4, 1, 32)),
        _fact("general.alignment", 6, struct.pack("<f", float("inf"))),
        _fact("general.alignment", 8, _text("wide")),
    ],
)
def test_a_file_never_asks_for_more_than_it_holds(fact: bytes, tmp_path: Path) -> None:
    file = tmp_path / "hostile.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + fact + bytes(64))
    with pytest.raises(SiloError, match="not-a-model"):
        read_gguf(file)


def test_tensors_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """Each of a thousand names could stand for the whole file."""
    entries = b"".join(_text(f"w{n}") + struct.pack("<IQIQ", 1, 4096, 0, 0) for n in range(1000))
    head = b"GGUF" + struct.pack("<IQQ", 3, 1000, 0) + entries
    (tmp_path / "many.gguf").write_bytes(head + bytes(-len(head) % 32) + bytes(4 * 4096))
    with pytest.raises(SiloError, match="more than the file"):
        read_gguf(tmp_path / "many.gguf")


FACTS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 3,
}


def tiny_weights() -> dict[str, NDArray[np.float32]]:
    shapes = {"token_embd": (4, 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    shapes |= {f"blk.0.attn_{name}": (32, 32) for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}
    rng = np.random.default_rng(0)
    return {f"{name}.weight": rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    "change",
    [
        {"llama.block_count": 1 << 31},
        {"llama.block_count": 2},
        {"llama.feed_forward_length": 1 << 31},
        {"llama.embedding_length": 1 << 31},
        {"llama.attention.head_count": 0},
        {"llama.attention.head_count": "two"},
        {"llama.attention.head_count_kv": 1 << 31},
        {"llama.attention.head_count_kv": 1},
        {"llama.context_length": [64]},
    ],
)
def test_facts_that_promise_other_weights_are_refused(change: dict[str, Any]) -> None:
    assert build_llama(Gguf(FACTS, tiny_weights(), {}), begin=3).config.num_hidden_layers == 1
    with pytest.raises(SiloError) as caught:
        build_llama(Gguf(FACTS | change, tiny_weights(), {}), begin=3)
    assert caught.value.code == "not-a-model"


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer.ggml.merges": ["x y"]},
        {"tokenizer.ggml.merges": [1, 2]},
        {"tokenizer.ggml.merges": ["ab"]},
        {"tokenizer.ggml.tokens": 7},
        {"tokenizer.ggml.bos_token_id": 99},
        {"tokenizer.ggml.pre": ["gpt-2"]},
    ],
)
def test_a_tokenizer_that_contradicts_itself_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    assert write_tokenizer(Gguf(FACTS, {}, {}), tmp_path / "good").is_file()
    with pytest.raises(SiloError) as caught:
        write_tokenizer(Gguf(FACTS | change, {}, {}), tmp_path / "bad")
    assert caught.value.code == "not-a-model"
