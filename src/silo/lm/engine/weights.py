"""Weights for the decode engine, read from a model directory's safetensors straight into panels: without torch.

`read_shape` says whether the engine computes what a `config.json` describes, and why not where it does not; then
transformers has to. `load_network` reads one slice of a tensor at a time, so that no second copy of the weights is
ever in memory. Weights stay in the format of their file (float32, bf16 or fp16; float32 that is bf16 in every bit too),
so that nothing is lost: all arithmetic is in float32. fp16 for a float32 file must be asked for.

float32 weights that an importer made of quantised blocks are kept as such, in 10 bits instead of 32: a weight is a
whole number times its block's scale plus its block's offset, which a multiply-add gives to the bit, but for the sign of
zeros.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.lm.engine.kernel import (
    BF16,
    BLOCK,
    BLOCK_BYTES,
    BLOCKS,
    FLOAT32,
    FP16,
    PAIR,
    PANEL,
    Float32s,
    Network,
    UInt8s,
    pack_blocks,
    pack_rows,
)
from silo.lm.manifest import BLOCKS_FILE

Storage = Literal["auto", "float32", "bf16", "fp16"]
"""How weights are kept; `auto` as in their file, or in blocks where that loses nothing."""
_PARTS = ("scales", "offsets")
"""What `BLOCKS_FILE` has of a matrix NAME, as NAME.scales and NAME.offsets."""

_STORED = {"float32": FLOAT32, "bf16": BF16, "fp16": FP16, "blocks": BLOCKS}
_BITS: dict[str, Any] = {"float32": np.uint32, "bf16": np.uint16, "fp16": np.uint16, "blocks": np.uint8}
"""Weights are moved as bits: what is not computed with cannot change."""
_EXPONENTS = {"float32": 0x7F80_0000, "bf16": 0x7F80, "fp16": 0x7C00}
"""Bits that are all set in what is no finite number."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What a file that is no safetensors, or a header that is no sense, is read with."""
_IN_FILE = {"F32": "float32", "BF16": "bf16", "F16": "fp16"}
_SLICE_BYTES = 4 << 20
_HUGE_PAGE = 2 << 20
_MOST_HEADER = 100_000_000
"""Bytes of a header at most, as in the safetensors library."""


class UnsupportedNetworkError(Exception):
    """The engine does not compute this network; the message says why."""


@dataclass(frozen=True, slots=True)
class _Family:
    """What a `model_type` means where its config does not say, and which of its flags ask for a bias."""

    epsilon: str = "rms_norm_eps"
    usual_epsilon: float = 1e-6
    layer_norm: bool = False
    key_heads: int | None = None
    rotary_part: float = 1.0
    projection_bias: str = ""
    output_bias: str = ""
    feed_bias: str = ""
    always_biased: bool = False
    sliding_window: int | None = None
    forbidden: tuple[str, ...] = ()


_FAMILIES = {
    "llama": _Family(projection_bias="attention_bias", output_bias="attention_bias", feed_bias="mlp_bias"),
    "mistral": _Family(key_heads=8, sliding_window=4096),
    "qwen2": _Family(key_heads=32, always_biased=True, forbidden=("use_sliding_window",)),
    "stablelm": _Family(
        epsilon="layer_norm_eps",
        usual_epsilon=1e-5,
        layer_norm=True,
        key_heads=32,
        rotary_part=0.25,
        projection_bias="use_qkv_bias",
        forbidden=("qk_layernorm", "use_parallel_residual"),
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A network that the engine computes."""

    width: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    feed_width: int
    vocabulary: int
    context: int
    epsilon: float
    layer_norm: bool
    tied: bool
    projection_bias: bool
    output_bias: bool
    feed_bias: bool
    frequencies: Float32s
    """The angle by which each pair of a head's dimensions turns from one position to the next."""

    @property
    def parameters(self) -> int:
        """Weights that a token is multiplied by."""
        attention = self.width * self.head_width * (2 * self.heads + 2 * self.key_heads)
        return self.layers * (attention + 3 * self.width * self.feed_width) + self.vocabulary * self.width


def read_shape(config: Mapping[str, Any]) -> Shape:
    """The network that a config describes."""
    family = _FAMILIES.get(str(config.get("model_type")))
    if family is None:
        raise UnsupportedNetworkError(f"networks of the kind {config.get('model_type')} are not computed by it")
    try:
        _refuse_unknown(config, family)
        heads, width = int(config["num_attention_heads"]), int(config["hidden_size"])
        key_heads = int(config.get("num_key_value_heads", family.key_heads) or heads)
        head_width = int(config.get("head_dim") or width // heads)
        shape = Shape(
            width=width,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            key_heads=key_heads,
            head_width=head_width,
            feed_width=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            context=int(config["max_position_embeddings"]),
            epsilon=float(config.get(family.epsilon, family.usual_epsilon)),
            layer_norm=family.layer_norm,
            tied=bool(config.get("tie_word_embeddings", False)),
            projection_bias=family.always_biased or bool(config.get(family.projection_bias)),
            output_bias=bool(config.get(family.output_bias)),
            feed_bias=bool(config.get(family.feed_bias)),
            frequencies=_frequencies(config, family, head_width),
        )
        if not np.isfinite(shape.frequencies).all():
            raise ValueError("its positions turn by no number")
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise UnsupportedNetworkError(f"its config.json is not understood: {error}") from error
    sizes = (shape.width, shape.layers, heads, key_heads, head_width, shape.feed_width, shape.vocabulary, shape.context)
    if min(sizes) < 1 or heads % key_heads:
        raise UnsupportedNetworkError("its config.json has sizes that do not fit each other")
    return shape


def _refuse_unknown(config: Mapping[str, Any], family: _Family) -> None:
    """Refuse what would make the network compute something else."""
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UnsupportedNetworkError(f"the activation {config['hidden_act']} is not computed by it")
    for flag in (*family.forbidden, "quantization_config"):
        if config.get(flag):
            raise UnsupportedNetworkError(f"{flag} is not computed by it")
    window = config.get("sliding_window", family.sliding_window) if family.sliding_window else None
    if window is not None and window < config.get("max_position_embeddings", math.inf):
        raise UnsupportedNetworkError("a sliding window is not computed by it")
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise UnsupportedNetworkError("layers of different attention are not computed by it")


@np.errstate(all="ignore")
def _frequencies(config: Mapping[str, Any], family: _Family, head_width: int) -> Float32s:
    """Rotary frequencies, as transformers makes them; none where no part of a head is turned."""
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise ValueError("positions that differ from layer to layer")
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", family.rotary_part))
    turned = int(head_width * part)
    if turned % 2 or turned > head_width or (turned != head_width and not family.layer_norm):
        raise UnsupportedNetworkError(f"{turned} turned dimensions of {head_width} are not computed by it")
    if not turned:
        return np.empty(0, dtype=np.float32)
    powers = np.arange(0, turned, 2, dtype=np.float32) / np.float32(turned)
    plain = np.float32(1) / np.power(np.float64(theta), powers.astype(np.float64)).astype(np.float32)
    match kind:
        case "default" | "dynamic":  # dynamic differs from the default beyond the context only, where nobody goes
            return plain
        case "linear":
            return plain / np.float32(rope["factor"])
        case "llama3":
            return _llama3_frequencies(plain, rope, int(config["max_position_embeddings"]))
    raise UnsupportedNetworkError(f"positions of the kind {kind} are not computed by it")


def _llama3_frequencies(plain: Float32s, rope: Mapping[str, Any], context: int) -> Float32s:
    """Slow frequencies divided by a factor, fast ones as they are, and a smooth way between (LLaMA 3.1)."""
    factor, low, high = (float(rope[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(rope.get("original_max_position_embeddings", context))
    length = np.float32(2 * math.pi) / plain
    smooth = (np.float32(original) / length - np.float32(low)) / np.float32(high - low)
    between = (1 - smooth) * plain / np.float32(factor) + smooth * plain
    slow = np.where(length > original / low, plain / np.float32(factor), plain)
    medium = (length >= original / high) & (length <= original / low)
    return np.where(medium, between, slow).astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Where a tensor lies."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    begin: int


def load_network(root: Path, shape: Shape, storage: Storage = "auto") -> tuple[Network, str]:
    """The weights of a model directory, and how they are kept; refused where they are not those of the shape."""
    try:
        files = sorted(root.glob("*.safetensors"))
        tensors = {name: tensor for file in files for name, tensor in _read_header(file)}
        _require_tensors(tensors, shape)
    except _UNREADABLE as error:
        raise SiloError("not-a-model", f"{root}: {error}") from error
    if storage == "auto":
        tensors |= _read_blocks(root / BLOCKS_FILE)
    chosen = _choose_storage(tensors, shape) if storage == "auto" else storage
    return _Packer(tensors, shape, chosen).network(), chosen


def _read_blocks(file: Path) -> dict[str, _Tensor]:
    """Scales and offsets, if there are some; no name of a weight counts here."""
    try:
        found = dict(_read_header(file)) if file.is_file() else {}
    except _UNREADABLE as error:
        raise SiloError("model-damaged", f"{file}: {error}", "import the model again") from error
    return {name: tensor for name, tensor in found.items() if name.rpartition(".")[2] in _PARTS}


def _read_header(file: Path) -> Iterator[tuple[str, _Tensor]]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= min(_MOST_HEADER, size - 8):
            raise ValueError(f"{file.name} has no header")
        header = json.loads(stream.read(length))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        shape = tuple(map(int, entry["shape"]))
        if not 0 <= begin <= end <= size - 8 - length:
            raise ValueError(f"{name} lies outside of {file.name}")
        if entry["dtype"] in _IN_FILE and end - begin != math.prod(shape) * (4 if entry["dtype"] == "F32" else 2):
            raise ValueError(f"{name} has another size than its shape")
        yield name, _Tensor(file, entry["dtype"], shape, 8 + length + begin)


def _matrices(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """All matrices by name."""
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.width)
    if not shape.tied:
        yield "lm_head.weight", (shape.vocabulary, shape.width)
    for layer in range(shape.layers):
        for name, outputs in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield f"model.layers.{layer}.self_attn.{name}.weight", (outputs, shape.width)
        yield f"model.layers.{layer}.self_attn.o_proj.weight", (shape.width, queries)
        for name in ("gate_proj", "up_proj"):
            yield f"model.layers.{layer}.mlp.{name}.weight", (shape.feed_width, shape.width)
        yield f"model.layers.{layer}.mlp.down_proj.weight", (shape.width, shape.feed_width)


def _require_tensors(tensors: Mapping[str, _Tensor], shape: Shape) -> None:
    """Refuse files without a matrix, or with one of another shape or format, before memory is taken for any."""
    if shape.layers > len(tensors):
        raise ValueError(f"config.json promises {shape.layers} layers, and there are {len(tensors)} weights")
    for name, expected in _matrices(shape):
        found = tensors.get(name)
        if found is None or found.shape != expected or found.kind not in _IN_FILE:
            raise ValueError(f"the weight {name} is missing or misshapen")


def _choose_storage(tensors: Mapping[str, _Tensor], shape: Shape) -> str:
    """What keeps every matrix as it is, in the fewest bytes."""
    kinds = {_IN_FILE[tensors[name].kind] for name, _ in _matrices(shape)}
    if kinds == {"float32"} and all(_has_blocks(tensors, name) for name, _ in _matrices(shape)):
        return "blocks"
    if kinds != {"float32"}:
        return kinds.pop() if len(kinds) == 1 else "float32"
    slices = (part for name, _ in _matrices(shape) for part in _read_slices(tensors[name]))
    exact = all(not (part.view(np.uint32) & 0xFFFF).any() for part in slices)
    return "bf16" if exact else "float32"


def _has_blocks(tensors: Mapping[str, _Tensor], name: str) -> bool:
    rows, width = tensors[name].shape
    parts = [tensors.get(f"{name}.{part}") for part in _PARTS]
    fitting = (part is not None and part.kind == "F32" and part.shape == (rows, width // BLOCK) for part in parts)
    return width % BLOCK == 0 and all(fitting)


def _read_slices(tensor: _Tensor) -> Iterator[NDArray[Any]]:
    """A matrix, some rows at a time."""
    rows, width = tensor.shape
    kind = _BITS[_IN_FILE[tensor.kind]]
    step = max(1, _SLICE_BYTES // (width * np.dtype(kind).itemsize))
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.begin)
        for first in range(0, rows, step):
            yield _read_array(stream, (min(step, rows - first), width), kind)


def _read_array(stream: BinaryIO, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
    array = np.fromfile(stream, dtype=kind, count=math.prod(shape))
    if len(array) != math.prod(shape):
        raise SiloError("model-damaged", f"{stream.name} is shorter than it was")
    return array.reshape(shape)


def _decode(array: NDArray[Any], kind: str) -> Float32s:
    """Stored numbers as float32."""
    match kind:
        case "bf16":
            widened: Float32s = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            return widened
        case "fp16":
            return array.view(np.float16).astype(np.float32)
    return array.view(np.float32)


def _encode(array: Float32s, kind: str) -> NDArray[Any]:
    """float32 as stored numbers, rounded to the nearest where they have to be."""
    match kind:
        case "bf16":
            bits = array.view(np.uint32)
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        case "fp16":
            return array.astype(np.float16).view(np.uint16)
    return array.view(np.uint32)


def _is_finite(bits: NDArray[Any], kind: str) -> bool:
    exponent = _EXPONENTS[kind]
    return not ((bits & exponent) == exponent).any()


def _require_finite(name: str, bits: NDArray[Any], kind: str) -> None:
    """Refuse what is no number: the loops, which look for the largest, would pass over it and answer all the same."""
    if not _is_finite(bits, kind):
        hint = "train or import the model again: its training may have diverged"
        raise SiloError("not-a-model", f"{name} has weights that are not finite", hint)


@dataclass(frozen=True, slots=True)
class _Packer:
    """Puts tensors where the kernel wants them."""

    tensors: Mapping[str, _Tensor]
    shape: Shape
    storage: str

    def network(self) -> Network:
        shape, width = self.shape, self.shape.width
        queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
        embedding = self._one("model.embed_tokens.weight")
        in_names = [("self_attn.q_proj", 0), ("self_attn.k_proj", queries), ("self_attn.v_proj", queries + keys)]
        return Network(
            stored=_STORED[self.storage],
            embedding=embedding,
            head=embedding if shape.tied else self._one("lm_head.weight"),
            attention_in=self._stack(in_names, queries + 2 * keys, width),
            attention_out=self._stack([("self_attn.o_proj", 0)], width, queries),
            feed_in=self._gate_and_up(),
            feed_out=self._stack([("mlp.down_proj", 0)], width, shape.feed_width),
            attention_in_bias=self._biases(in_names, queries + 2 * keys, shape.projection_bias),
            attention_out_bias=self._biases([("self_attn.o_proj", 0)], width, shape.output_bias),
            feed_in_bias=self._gate_and_up_biases(),
            feed_out_bias=self._biases([("mlp.down_proj", 0)], width, shape.feed_bias),
            gains=self._norms("weight"),
            shifts=self._norms("bias") if shape.layer_norm else np.zeros((2 * shape.layers + 1, width), np.float32),
            heads=shape.heads,
            key_heads=shape.key_heads,
            head_width=shape.head_width,
            feed_width=shape.feed_width,
            centred=shape.layer_norm,
            epsilon=shape.epsilon,
        )

    def _panels(self, *axes: int) -> NDArray[Any]:
        """Room for panels [..., inputs, PANEL or, of blocks, the bytes that an input takes]."""
        size = BLOCK_BYTES // BLOCK if self.storage == "blocks" else PANEL
        return _zeros_in_huge_pages((*axes, size), _BITS[self.storage])

    def _one(self, name: str) -> UInt8s:
        rows, width = self.tensors[name].shape
        panels = self._panels(_padded(rows) // PANEL, width)
        self._pack(name, panels)
        return panels.view(np.uint8)

    def _stack(self, names: Sequence[tuple[str, int]], outputs: int, inputs: int) -> UInt8s:
        panels = self._panels(self.shape.layers, _padded(outputs) // PANEL, inputs)
        for layer in range(self.shape.layers):
            for name, first in names:
                self._pack(f"model.layers.{layer}.{name}.weight", panels[layer], first)
        return panels.view(np.uint8)

    def _gate_and_up(self) -> UInt8s:
        """Panels of gate and up in turns: whoever computes a pair has what SwiGLU multiplies."""
        shape = self.shape
        panels = self._panels(shape.layers, 2 * -(-shape.feed_width // PANEL), shape.width)
        for layer in range(shape.layers):
            for turn, name in enumerate(("gate_proj", "up_proj")):
                self._pack(f"model.layers.{layer}.mlp.{name}.weight", panels[layer], 0, turn, 2)
        return panels.view(np.uint8)

    def _pack(self, name: str, panels: NDArray[Any], first: int = 0, turn: int = 0, turns: int = 1) -> None:
        tensor = self.tensors[name]
        kind, done = _IN_FILE[tensor.kind], 0
        for rows in _read_slices(tensor):
            _require_finite(name, rows, kind)
            if self.storage == "blocks":
                self._pack_blocks(name, rows.view(np.float32), panels, done, (first, turn, turns))
                first, done = first + len(rows), done + len(rows)
                continue
            stored = rows if kind == self.storage else _encode(_decode(rows, kind), self.storage)
            if self.storage == "fp16" and not _is_finite(stored, "fp16"):
                hint = "keep the weights as float32 or bf16"
                raise SiloError("not-a-model", f"{name} has numbers that fp16 cannot hold", hint)
            pack_rows(stored, panels, first, turn, turns)
            first += len(rows)

    def _pack_blocks(
        self, name: str, rows: Float32s, panels: NDArray[Any], done: int, place: tuple[int, int, int]
    ) -> None:
        """Some rows of a matrix, of which `done` were packed before."""
        tensor = self.tensors[name]
        scales, offsets = (self._rows_of_blocks(f"{name}.{part}", done, len(rows)) for part in _PARTS)
        flat = panels.reshape(len(panels), -1)
        if not pack_blocks(rows, scales, offsets, flat, flat.view(np.float32), *place):
            file = tensor.file.parent / BLOCKS_FILE
            raise SiloError("model-damaged", f"{file} does not give the weights of {name}", "import the model again")

    def _rows_of_blocks(self, name: str, first: int, count: int) -> Float32s:
        tensor = self.tensors[name]
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.begin + 4 * first * tensor.shape[1])
            return _read_array(stream, (count, tensor.shape[1]), np.float32)

    def _vector(self, name: str, size: int) -> Float32s:
        tensor = self.tensors.get(name)
        if tensor is None or tensor.shape != (size,) or tensor.kind not in _IN_FILE:
            raise SiloError("not-a-model", f"the weight {name} is missing or misshapen")
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.begin)
            kind = _IN_FILE[tensor.kind]
            vector = _read_array(stream, (size,), _BITS[kind])
        _require_finite(name, vector, kind)
        return _decode(vector, kind)

    def _biases(self, names: Sequence[tuple[str, int]], outputs: int, given: bool) -> Float32s:
        biases = np.zeros((self.shape.layers, _padded(outputs)), dtype=np.float32)
        firsts = [first for _, first in names]
        for layer in range(self.shape.layers if given else 0):
            for (name, first), end in zip(names, [*firsts[1:], outputs], strict=True):
                biases[layer, first:end] = self._vector(f"model.layers.{layer}.{name}.bias", end - first)
        return biases

    def _gate_and_up_biases(self) -> Float32s:
        shape, panels = self.shape, -(-self.shape.feed_width // PANEL)
        biases = np.zeros((shape.layers, panels, 2, PANEL), dtype=np.float32)
        for layer in range(shape.layers if shape.feed_bias else 0):
            for turn, name in enumerate(("gate_proj", "up_proj")):
                values = np.zeros(panels * PANEL, dtype=np.float32)
                values[: shape.feed_width] = self._vector(f"model.layers.{layer}.mlp.{name}.bias", shape.feed_width)
                biases[layer, :, turn] = values.reshape(panels, PANEL)
        return biases.reshape(shape.layers, -1)

    def _norms(self, part: str) -> Float32s:
        names = [
            f"model.layers.{layer}.{name}.{part}"
            for layer in range(self.shape.layers)
            for name in ("input_layernorm", "post_attention_layernorm")
        ]
        return np.stack([self._vector(name, self.shape.width) for name in [*names, f"model.norm.{part}"]])


def _zeros_in_huge_pages(shape: Sequence[int], kind: Any) -> NDArray[Any]:
    """Zeros that Linux keeps in pages of 2 MB where it can: a pass reads all weights, and to find each page takes time.

    numpy asks for that too, but not for arrays under 4 MB: a sixth of a token's time for a network of 20 MB.
    """
    array_bytes = math.prod(shape) * np.dtype(kind).itemsize
    if array_bytes < _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape, dtype=kind)
    pages_bytes = -(-array_bytes // _HUGE_PAGE) * _HUGE_PAGE
    memory = mmap.mmap(-1, pages_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    every = np.frombuffer(memory, dtype=np.uint8)
    first = -every.ctypes.data % _HUGE_PAGE
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE, first, pages_bytes)
    zeros: NDArray[Any] = every[first : first + array_bytes].view(kind).reshape(shape)
    return zeros


def _padded(outputs: int) -> int:
    return -(-outputs // PAIR) * PAIR
