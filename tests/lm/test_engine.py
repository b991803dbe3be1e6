"""The decode engine against transformers, and against itself: the bits do not depend on what shares a pass."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir
from numba.core import types
from numpy.typing import NDArray
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, StableLmConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from silo.errors import SiloError
from silo.lm.engine import kernel
from silo.lm.engine.engine import Engine, _Pace, why_unsupported
from silo.lm.engine.weights import Storage, UnsupportedNetworkError, read_shape

VOCABULARY, CONTEXT, LENGTH = 75, 320, 160
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
NETWORKS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SMALL),
    "tied": lambda: LlamaConfig(**SMALL, tie_word_embeddings=True, head_dim=20),
    "biased": lambda: LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama3": lambda: LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "linear": lambda: LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
    "dynamic": lambda: LlamaConfig(**SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    "mistral": lambda: MistralConfig(**SMALL, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**SMALL),
    "silo": lambda: StableLmConfig(**SMALL, rope_parameters=_stablelm_rope(0.0)),
    "stablelm": lambda: StableLmConfig(**SMALL, rope_parameters=_stablelm_rope(0.5), use_qkv_bias=True),
}


def _stablelm_rope(part: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": part}


def save(config: Any, root: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A network with weights large enough that its tokens differ, and norms and biases that are not 1 and 0."""
    torch.manual_seed(3)
    network = AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2 + (1 if weight.dim() == 1 else 0))
    network = network.to(dtype)
    network.save_pretrained(root)
    return network.float()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("engine") / "llama"
    save(NETWORKS["llama"](), root)
    return root


@pytest.fixture(scope="module")
def engine(llama: Path) -> Engine:
    return Engine.open(llama, threads=2)


def weight_bytes(engine: Engine) -> int:
    """Memory that the weights take."""
    return sum({id(item): item.nbytes for item in engine._network if isinstance(item, np.ndarray)}.values())


def text(seed: int = 0, length: int = LENGTH) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length)


def read(engine: Engine, ids: NDArray[np.int64], cuts: tuple[int, ...] = ()) -> list[NDArray[np.float32]]:
    """Logits, final state and last feed-forward input of all tokens, read in pieces."""
    slot = engine.claim_slot()
    bounds = [0, *cuts, len(ids)]
    parts = []
    for first, last in pairwise(bounds):
        if last > first:
            found = engine.forward(ids[first:last], range(first, last), [slot] * (last - first))
            parts.append((found.logits, found.final, found.feed_forward))
    engine.release_slot(slot)
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_gives_what_transformers_gives(name: str, tmp_path: Path) -> None:
    network = save(NETWORKS[name](), tmp_path)
    inputs: list[torch.Tensor] = []
    network.model.layers[-1].mlp.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with torch.inference_mode():
        theirs = network(input_ids=torch.from_numpy(text())[None], output_hidden_states=True)
    logits, final, feed_forward = read(Engine.open(tmp_path, threads=1), text())
    np.testing.assert_allclose(logits, theirs.logits[0].numpy(), rtol=1e-4, atol=2e-4)
    np.testing.assert_allclose(final, theirs.hidden_states[-1][0].numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(feed_forward, inputs[0][0].numpy(), rtol=1e-4, atol=1e-4)


def test_a_real_checkpoint_gives_what_transformers_gives(shared: Path) -> None:
    root = shared / "models" / "stories260K"
    network = AutoModelForCausalLM.from_pretrained(root, dtype=torch.float32)
    ids = np.random.default_rng(1).integers(0, 512, 200)
    with torch.inference_mode():
        theirs = network(input_ids=torch.from_numpy(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(read(Engine.open(root), ids)[0], theirs, atol=1e-4)


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, LENGTH - 1), max_size=8, unique=True).map(sorted).map(tuple))
def test_the_bits_do_not_depend_on_how_a_text_is_cut(engine: Engine, cuts: tuple[int, ...]) -> None:
    for whole, pieces in zip(read(engine, text()), read(engine, text(), cuts), strict=True):
        assert np.array_equal(whole, pieces)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=2, max_size=9),
    starts=st.lists(st.integers(0, 140), min_size=9, max_size=9),
)
def test_the_bits_do_not_depend_on_batch_mates(engine: Engine, lengths: list[int], starts: list[int]) -> None:
    alone = [read(engine, text(seed))[0] for seed in range(len(lengths))]
    slots = [engine.claim_slot() for _ in lengths]
    columns: list[tuple[int, int, int]] = []
    for seed, (slot, length, start) in enumerate(zip(slots, lengths, starts, strict=False)):
        if start:
            engine.forward(text(seed)[:start], range(start), [slot] * start)
        columns += [(int(text(seed)[at]), at, slot) for at in range(start, start + length)]
    together = engine.forward(*np.array(columns).T).logits
    expected = [logits[at : at + n] for logits, at, n in zip(alone, starts, lengths, strict=False)]
    for slot in slots:
        engine.release_slot(slot)
    assert np.array_equal(together, np.concatenate(expected))


def test_the_bits_do_not_depend_on_threads(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("silo.lm.engine.engine._WORK_PER_THREAD", 1)
    monkeypatch.setattr("silo.lm.engine.engine._FEW_ROWS", 0)
    alone = read(Engine.open(llama, threads=1), text(), (1, 2, 5))
    for threads in (2, 3):
        for one, other in zip(alone, read(Engine.open(llama, threads=threads), text(), (1, 2, 5)), strict=True):
            assert np.array_equal(one, other)


def test_threads_rest_where_they_were_slower_than_one_and_are_tried_again() -> None:
    pace, chosen = _Pace(), []
    for seconds in (0.5, 2.0):  # of a pass in two threads; one thread takes 1.0
        for _ in range(100):
            threads = pace.choose(2)
            pace.note(threads, 1.0 if threads == 1 else seconds)
            chosen.append(threads)
    assert chosen[0] == 1  # to know what one thread takes
    assert chosen[1:100] == [2] * 99
    slow = chosen[100:]
    assert slow[:3] == [2, 2, 2]
    assert slow.count(2) == 12  # rests of 8, 16 and 32 passes between


def test_a_text_that_is_rewound_leaves_nothing_behind(engine: Engine) -> None:
    slot, other = engine.claim_slot(), text(8)
    engine.forward(text(), range(LENGTH), [slot] * LENGTH)
    again = engine.forward(other[70:150], range(70, 150), [slot] * 80).logits
    engine.release_slot(slot)
    assert np.array_equal(again, read(engine, np.concatenate([text()[:70], other[70:150]]))[0][70:])


def test_only_what_is_asked_for_comes_back(engine: Engine) -> None:
    slot = engine.claim_slot()
    length = 250  # more than one pass
    found = engine.forward(text(2, length), range(length), [slot] * length, wanted=[0, 5, 249])
    engine.release_slot(slot)
    assert np.array_equal(found.logits, read(engine, text(2, length))[0][[0, 5, 249]])


@pytest.mark.parametrize("work_per_thread", [2_000_000, 1])
def test_threads_may_share_an_engine(engine: Engine, work_per_thread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of one thread run beside each other, those of several one after the other."""
    monkeypatch.setattr("silo.lm.engine.engine._WORK_PER_THREAD", work_per_thread)
    alone = [read(engine, text(seed)) for seed in range(4)]
    together: dict[int, Any] = {}

    def work(seed: int) -> None:
        together[seed] = read(engine, text(seed), tuple(range(1, 40)))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for seed in range(4):
        assert all(np.array_equal(one, other) for one, other in zip(alone[seed], together[seed], strict=True))


@pytest.mark.parametrize(
    ("saved", "kept"), [(torch.float32, "float32"), (torch.bfloat16, "bf16"), (torch.float16, "fp16")]
)
def test_weights_stay_in_the_format_of_their_file(saved: torch.dtype, kept: str, tmp_path: Path) -> None:
    save(NETWORKS["tied"](), tmp_path / "saved", saved)
    stored = Engine.open(tmp_path / "saved")
    assert stored.storage == kept
    plain = Engine.open(tmp_path / "saved", storage="float32")
    assert all(np.array_equal(one, other) for one, other in zip(read(stored, text()), read(plain, text()), strict=True))


def test_float32_that_is_bf16_in_every_bit_is_kept_as_bf16(tmp_path: Path) -> None:
    network = save(NETWORKS["llama"](), tmp_path / "rounded", torch.bfloat16)
    network.save_pretrained(tmp_path / "float32")
    assert Engine.open(tmp_path / "float32").storage == "bf16"


@pytest.mark.parametrize(("storage", "difference"), [("bf16", 0.2), ("fp16", 0.02)])
def test_fewer_bits_can_be_asked_for(storage: Storage, difference: float, llama: Path, engine: Engine) -> None:
    small = Engine.open(llama, storage=storage)
    assert weight_bytes(small) < 0.6 * weight_bytes(engine)
    ours, exact = read(small, text())[0], read(engine, text())[0]
    assert 0 < np.abs(ours - exact).max() < difference * np.abs(exact).max()


def test_memory_is_one_copy_of_the_weights_and_follows_what_was_read(llama: Path) -> None:
    small = Engine.open(llama)
    assert (
        weight_bytes(small) < 1.35 * (llama / "model.safetensors").stat().st_size
    )  # panels of a tiny network are padded
    slot = small.claim_slot()
    small.forward([1], [0], [slot])
    pages = small._slots[slot]
    assert len(pages) == 1
    small.forward([1] * 130, range(1, 131), [slot] * 130)
    assert len(pages) == 2
    small.release_slot(slot)
    small.forward([1], [0], [small.claim_slot()])
    assert small._slots[0][0] is pages[1] or small._slots[0][0] is pages[0]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GPT2Config(n_embd=8, n_head=2, n_layer=1), "kind gpt2"),
        (LlamaConfig(**SMALL, hidden_act="gelu"), "activation gelu"),
        (MistralConfig(**SMALL, sliding_window=16), "sliding window"),
        (StableLmConfig(**SMALL, use_parallel_residual=True), "use_parallel_residual"),
        (LlamaConfig(**SMALL, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}), "kind yarn"),
    ],
)
def test_a_network_it_does_not_compute_is_named(config: Any, reason: str, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    assert reason in why_unsupported(tmp_path)
    with pytest.raises(UnsupportedNetworkError, match=reason):
        Engine.open(tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"model_type": "llama"}', '{"model_type": "llama", "hidden_size": "x"}'])
def test_a_config_that_says_too_little_is_left_to_transformers(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    assert why_unsupported(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": 5},
        {"sliding_window": "all"},
        {"max_position_embeddings": math.inf},
        {"rope_parameters": {"rope_theta": None}},
        {"rope_parameters": {"rope_theta": 0}},
        {"rope_parameters": {"rope_theta": -5.0}},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 0}},
        {"rope_parameters": "none"},
        {"rope_parameters": {"full_attention": {"rope_theta": 5e5}}},
    ],
)
def test_a_config_that_is_no_sense_is_left_to_transformers(change: dict[str, Any]) -> None:
    config = MistralConfig(**SMALL, sliding_window=None).to_dict()
    read_shape(config)
    with pytest.raises(UnsupportedNetworkError, match="not understood"):
        read_shape({**config, **change})


def test_damaged_weights_are_refused(llama: Path, tmp_path: Path) -> None:
    whole = (llama / "model.safetensors").read_bytes()
    (tmp_path / "config.json").write_bytes((llama / "config.json").read_bytes())
    header = int.from_bytes(whole[:8], "little")
    broken = [whole[:1000], b"\xff" * 8 + whole[8:], whole[:8] + b"[" * header + whole[8 + header :], whole[:-4], b""]
    broken += [whole.replace(b"mlp.up_proj", b"mlp.xp_proj"), whole.replace(b'"F32"', b'"I32"')]
    for content in broken:
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(SiloError) as refused:
            Engine.open(tmp_path)
        assert refused.value.code == "not-a-model"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["model.layers.0.self_attn.k_proj.weight", "model.norm.weight", "lm_head.weight"])
def test_weights_that_are_no_numbers_are_refused(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    network = save(NETWORKS["llama"](), tmp_path, dtype).to(dtype)
    with torch.no_grad():
        network.get_parameter(name).view(-1)[5] = math.nan if dtype is torch.float32 else math.inf
    network.save_pretrained(tmp_path)
    with pytest.raises(SiloError, match=f"{name} has weights that are not finite"):
        Engine.open(tmp_path)


def test_tokens_and_slots_that_do_not_exist_are_refused(engine: Engine) -> None:
    slot = engine.claim_slot()
    for ids, positions, slots in [
        ([VOCABULARY], [0], [slot]),
        ([-1], [0], [slot]),
        ([1], [-1], [slot]),
        ([1], [0], [99]),
    ]:
        with pytest.raises(ValueError):
            engine.forward(ids, positions, slots)
    engine.release_slot(slot)


def test_frequencies_are_those_of_transformers() -> None:
    for name in ("llama", "llama3", "linear"):
        config = NETWORKS[name]()
        with torch.device("meta"):
            network = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        rotary = type(network.model.rotary_emb)(config)
        np.testing.assert_allclose(read_shape(config.to_dict()).frequencies, rotary.inv_freq.numpy(), rtol=2e-7)


def test_softmax_is_exact_to_the_last_bits() -> None:
    rng = np.random.default_rng(5)
    for size, spread in [(1, 1.0), (3, 10.0), (4099, 30.0), (1000, 900.0)]:
        logits = (rng.standard_normal(size) * spread).astype(np.float32)
        probabilities = np.empty(size)
        kernel.softmax(logits, probabilities)
        weights = np.exp(logits.astype(np.longdouble) - logits.max())
        exact = (weights / weights.sum()).astype(np.float64)
        np.testing.assert_allclose(probabilities, exact, rtol=1e-14, atol=1e-300)


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"])
@pytest.mark.parametrize("stored", [types.float32, types.uint16, types.int16, types.uint8])
def test_tiles_compile_for_plain_processors_without_calls(triple: str, stored: Any) -> None:
    """A call would be to a function that emulates an instruction: slow, or not there."""
    llvmlite.binding.initialize_all_targets()
    llvmlite.binding.initialize_all_asmprinters()
    target = llvmlite.binding.Target.from_triple(triple).create_target_machine(cpu="generic", opt=2)
    module = ir.Module()
    module.triple, module.data_layout = triple, str(target.target_data)
    for rows, panels in [(1, 2), (3, 2), (6, kernel._TILE_PANELS)]:
        kernel._find_tile(module, stored, rows, panels).linkage = "external"
    assembly = target.emit_assembly(llvmlite.binding.parse_assembly(str(module)))
    lines = [line.split()[0] for line in assembly.splitlines() if line.startswith("\t")]
    assert "silo_tile_6x" in assembly
    assert not {"call", "callq", "bl", "blr"} & set(lines)


def test_vectors_of_any_width_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with AVX-512 multiplies sixteen floats at once, and larger tiles: an output stays one chain."""
    rng, width = np.random.default_rng(6), 48
    panels, inputs = (
        rng.standard_normal((2, width, kernel.PANEL), np.float32),
        rng.standard_normal((6, width), np.float32),
    )
    found = []
    for lanes, at_once in [(8, 1), (16, 2)]:
        monkeypatch.setattr(kernel, "_LANES", lanes)
        tile: Any = kernel._make_tile(6, at_once)

        @numba.njit
        def multiply(weights: Any, x: Any, y: Any, at_once: int = at_once, tile: Any = tile) -> None:
            panel_bytes = weights.strides[0]
            for panel in range(0, len(weights), at_once):
                here, target = weights.ctypes.data + panel * panel_bytes, y.ctypes.data + 4 * kernel.PANEL * panel
                tile(0, here, panel_bytes, x.shape[1], x.ctypes.data, x.strides[0], target, y.strides[0], here, 0)

        found.append(np.zeros((6, 2 * kernel.PANEL), dtype=np.float32))
        multiply(panels, inputs, found[-1])
    expected = inputs @ panels.transpose(1, 0, 2).reshape(width, -1)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)
    assert found[0].tobytes() == found[1].tobytes()
