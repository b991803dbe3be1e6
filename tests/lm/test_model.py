"""A model directory is an ordinary Hugging Face directory; `forward` gives logits and the state the head reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from silo.errors import SiloError
from silo.lm.codec import learn_from
from silo.lm.manifest import Key, open_manifest, verify_files
from silo.lm.model import LanguageModel, save_model
from silo.lm.network import Preset, make_config, make_network
from silo.pairing import create_store
from silo.search.knn.codec import CodecSettings
from tests.byte_tokenizer import write_byte_tokenizer

TINY = Preset("tiny", 32, 2, 4, 64, vocabulary=257, context=64, tied=True)


def networks() -> dict[str, Any]:
    """One small network of each of several families, with random weights large enough to tell mistakes apart."""
    shape: dict[str, Any] = {"vocab_size": 260, "bos_token_id": 256, "eos_token_id": 256, "initializer_range": 0.3}
    depth: dict[str, Any] = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": 32,
        "intermediate_size": 64,
    }
    llama = make_config(TINY, vocabulary=257, begin=256)
    neox = GPTNeoXConfig(**shape, **depth, max_position_embeddings=64)
    gpt2 = GPT2Config(**shape, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return {
            "llama": LlamaForCausalLM(llama),  # type: ignore[no-untyped-call]
            "gpt_neox": GPTNeoXForCausalLM(neox),  # type: ignore[no-untyped-call]
            "gpt2": GPT2LMHeadModel(gpt2),  # type: ignore[no-untyped-call]
        }


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny matrices are quicker on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def saved(tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "tiny"
    network = make_network(TINY, vocabulary=257, begin=256, seed=0)
    save_model(network, tokenizer_file, out, {"origin": "test"}, extra={"note.txt": b"hello"})
    return out


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in saved.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


IDS = torch.randint(0, 256, (3, 17), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2"])
def test_hidden_state_is_what_the_head_reads(family: str, tokenizer_file: Path, tmp_path: Path) -> None:
    network = networks()[family].eval()
    save_model(network, tokenizer_file, tmp_path / "model", {"origin": "test"})
    model = LanguageModel.open(tmp_path / "model")
    with torch.inference_mode():
        output = model.forward(IDS)
        expected = network(input_ids=IDS, output_hidden_states=True)
        assert torch.equal(model.network.get_output_embeddings()(output.hidden), output.logits)
    assert model.plain_head
    assert torch.equal(output.logits, expected.logits)
    assert torch.equal(output.hidden, expected.hidden_states[-1])
    assert output.hidden.shape == (3, 17, model.hidden_size)
    assert output.logits.shape == (3, 17, model.vocabulary)
    assert model.context == 64


def llama_ffn_input(body: Any, before: Tensor) -> Tensor:
    layer = body.layers[-1]
    positions = body.rotary_emb(before, torch.arange(before.shape[1]).unsqueeze(0))
    normed = layer.input_layernorm(before)
    attended, _ = layer.self_attn(normed, position_embeddings=positions, attention_mask=None)
    answer: Tensor = layer.post_attention_layernorm(before + attended)
    assert torch.equal(body.norm(before + attended + layer.mlp(answer)), body(IDS).last_hidden_state)
    return answer


def gpt2_ffn_input(body: Any, before: Tensor) -> Tensor:
    layer = body.h[-1]
    attended = layer.attn(layer.ln_1(before))[0]
    answer: Tensor = layer.ln_2(before + attended)
    return answer


def neox_ffn_input(body: Any, before: Tensor) -> Tensor:
    """The residual is parallel: attention is no part of it."""
    answer: Tensor = body.layers[-1].post_attention_layernorm(before)
    return answer


@pytest.mark.parametrize(
    ("family", "by_hand"), [("llama", llama_ffn_input), ("gpt2", gpt2_ffn_input), ("gpt_neox", neox_ffn_input)]
)
def test_ffn_key_is_the_input_of_the_last_feed_forward_network(
    family: str, by_hand: Any, tokenizer_file: Path, tmp_path: Path
) -> None:
    save_model(networks()[family].eval(), tokenizer_file, tmp_path / "model", {"origin": "test"})
    model = LanguageModel.open(tmp_path / "model")
    with torch.inference_mode():
        found = model.states(IDS, "ffn")
        before = model.network(input_ids=IDS, output_hidden_states=True).hidden_states[-2]
        assert torch.equal(found.keys, by_hand(model.network.base_model, before))
        assert torch.equal(found.hidden, model.hidden(IDS))
        assert torch.equal(model.keys(IDS, "ffn"), found.keys)


def test_nothing_is_computed_beyond_the_keys(saved: Path) -> None:
    model, ran = LanguageModel.open(saved), []
    model.network.base_model.layers[-1].mlp.register_forward_hook(lambda *_: ran.append(True))
    with torch.inference_mode():
        keys = model.keys(IDS, "ffn")
        assert not ran
        assert torch.equal(keys, model.states(IDS, "ffn").keys)
    assert ran


def test_a_feed_forward_network_that_layers_share_ends_a_pass_at_its_last_use(saved: Path) -> None:
    opened = LanguageModel.open(saved)
    layers = opened.network.base_model.layers
    layers[0].mlp = layers[-1].mlp
    model = replace(opened, feed_forward_calls=2)
    with torch.inference_mode():
        assert torch.equal(model.keys(IDS, "ffn"), model.states(IDS, "ffn").keys)
        assert not torch.equal(model.keys(IDS, "ffn"), replace(opened, feed_forward_calls=1).keys(IDS, "ffn"))


def test_final_key_is_the_hidden_state(saved: Path) -> None:
    model = LanguageModel.open(saved)
    with torch.inference_mode():
        found = model.states(IDS)
        assert found.keys is found.hidden
        assert torch.equal(model.keys(IDS), found.keys)
        assert torch.equal(found.hidden, model.hidden(IDS))


def test_threads_that_share_a_model_get_their_own_keys(saved: Path) -> None:
    model = LanguageModel.open(saved)
    batches = [IDS[:, :length] for length in range(1, 17)] * 4

    @torch.inference_mode()
    def keys(ids: Tensor) -> Tensor:
        model.hidden(IDS)
        return model.states(ids, "ffn").keys

    expected = [keys(ids) for ids in batches]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(keys, batches), expected))


def test_a_key_the_network_does_not_have_is_refused(saved: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"vocab_size": 260, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64}
    config = OPTConfig(**shape, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64)
    save_model(OPTForCausalLM(config), tokenizer_file, tmp_path / "opt", {})  # type: ignore[no-untyped-call]
    model = LanguageModel.open(tmp_path / "opt")
    with pytest.raises(SiloError, match="not offered for the architecture opt") as caught:
        model.states(IDS, "ffn")
    assert caught.value.code == "usage"
    assert model.choose_key() == "final"
    assert LanguageModel.open(saved).choose_key() == "ffn"
    unknown: Any = "middle"
    with pytest.raises(ValueError, match="not 'middle'"):
        LanguageModel.open(saved).states(IDS, unknown)
    assert get_args(Key) == ("final", "ffn")


def test_hidden_state_is_normalised(saved: Path) -> None:
    """After the final norm of a fresh LLaMA every state has mean square one."""
    with torch.inference_mode():
        hidden = LanguageModel.open(saved).forward(IDS).hidden
    assert torch.allclose(hidden.square().mean(-1), torch.ones(3, 17), atol=0.05)


def test_capped_logits_are_the_networks_own(tokenizer_file: Path, tmp_path: Path) -> None:
    config = Gemma2Config(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        final_logit_softcapping=3.0,
        initializer_range=0.5,
        bos_token_id=256,
        eos_token_id=256,
    )
    network = Gemma2ForCausalLM(config).eval()  # type: ignore[no-untyped-call]
    save_model(network, tokenizer_file, tmp_path / "model", {"origin": "test"})
    model = LanguageModel.open(tmp_path / "model")
    with torch.inference_mode():
        output = model.forward(IDS)
        assert not model.plain_head
        assert torch.equal(output.logits, network(input_ids=IDS).logits)
        assert torch.allclose(3 * torch.tanh(network.lm_head(output.hidden) / 3), output.logits, atol=1e-5)


def test_forward_is_deterministic_and_works_with_gradients_off_or_on(saved: Path) -> None:
    model = LanguageModel.open(saved)
    with torch.inference_mode():
        first, second = model.forward(IDS), model.forward(IDS)
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(first.logits, model.forward(IDS).logits.detach())


def test_right_padding_changes_nothing_before_it(saved: Path) -> None:
    model = LanguageModel.open(saved)
    padded = torch.cat([IDS, torch.full((3, 5), 256)], dim=1)
    mask = (torch.arange(22) < 17).long().expand(3, 22)
    with torch.inference_mode():
        plain = model.forward(IDS).logits
        masked = model.forward(padded, attention_mask=mask).logits[:, :17]
        unmasked = model.forward(padded).logits[:, :17]
    assert torch.allclose(plain, masked, atol=1e-5)
    assert torch.allclose(plain, unmasked, atol=1e-5)


def test_transformers_loads_the_directory(saved: Path) -> None:
    network: Any = AutoModelForCausalLM.from_pretrained(saved)
    tokenizer = AutoTokenizer.from_pretrained(saved)
    with torch.inference_mode():
        assert torch.equal(network(input_ids=IDS).logits, LanguageModel.open(saved).forward(IDS).logits)
    assert tokenizer("hé").input_ids == list("hé".encode())
    assert tokenizer.bos_token_id == network.generation_config.bos_token_id == 256


def test_directory_has_the_ordinary_files(saved: Path) -> None:
    names = {file.name for file in saved.iterdir()}
    expected = {"config.json", "generation_config.json", "manifest.json", "model.safetensors", "note.txt"}
    assert names == expected | {"tokenizer.json", "tokenizer_config.json"}
    manifest = LanguageModel.open(saved).manifest
    assert set(manifest["files"]) == names - {"manifest.json"}
    assert (manifest["format"], manifest["origin"]) == ("silo-model-1", "test")


def test_facts_of_the_network(saved: Path) -> None:
    model = LanguageModel.open(saved)
    assert (model.hidden_size, model.vocabulary, model.context) == (32, 257, 64)
    assert model.tokenizer.begin == 256


def test_same_weights_have_the_same_fingerprint_whatever_lies_beside(
    saved: Path, tokenizer_file: Path, tmp_path: Path
) -> None:
    same = make_network(TINY, vocabulary=257, begin=256, seed=0)
    other = make_network(TINY, vocabulary=257, begin=256, seed=1)
    save_model(same, tokenizer_file, tmp_path / "same", {"origin": "elsewhere"})
    save_model(other, tokenizer_file, tmp_path / "other", {"origin": "test"})
    model = LanguageModel.open(saved)
    assert LanguageModel.open(tmp_path / "same").fingerprint == model.fingerprint
    assert LanguageModel.open(tmp_path / "other").fingerprint != model.fingerprint


def test_verify_names_the_file_that_changed(copy: Path) -> None:
    verify_files(copy, open_manifest(copy))
    (copy / "note.txt").write_bytes(b"other")
    with pytest.raises(SiloError, match=r"note.txt differs") as caught:
        verify_files(copy, open_manifest(copy))
    assert caught.value.code == "model-damaged"
    (copy / "note.txt").unlink()
    with pytest.raises(SiloError, match=r"note.txt is missing"):
        verify_files(copy, open_manifest(copy))


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": "silo-model-1", "files": {}}'])
def test_a_damaged_manifest_is_refused(copy: Path, content: bytes) -> None:
    (copy / "manifest.json").write_bytes(content)
    with pytest.raises(SiloError) as caught:
        LanguageModel.open(copy)
    assert caught.value.code == "model-damaged"


def test_damaged_weights_do_not_open(copy: Path) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(SiloError) as caught:
        LanguageModel.open(copy)
    assert caught.value.code == "model-damaged"
    (copy / "manifest.json").unlink()
    with pytest.raises(SiloError) as caught:
        LanguageModel.open(copy)
    assert caught.value.code == "not-a-model"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
def test_one_changed_bit_keeps_a_model_from_opening(copy: Path, name: str) -> None:
    LanguageModel.open(copy)
    data = bytearray((copy / name).read_bytes())
    data[-10] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(SiloError, match=f"{name} differs") as caught:
        LanguageModel.open(copy)
    assert caught.value.code == "model-damaged"


def test_a_model_whose_keys_are_not_finite_makes_no_store(tokenizer_file: Path, tmp_path: Path) -> None:
    network: Any = make_network(TINY, vocabulary=257, begin=256, seed=0)
    with torch.no_grad():
        network.get_input_embeddings().weight[200, 3] = float("nan")
    save_model(network, tokenizer_file, tmp_path / "model", {"origin": "test"})
    keys = np.random.default_rng(0).normal(size=(600, TINY.width)).astype(np.float32)
    learn_from(keys, CodecSettings(lists=4, code_bytes=4)).save(tmp_path / "model" / "codec")
    with pytest.raises(SiloError, match="not finite") as caught:
        create_store(tmp_path / "store", tmp_path / "model", searches=["knn"])
    assert caught.value.code == "not-a-model"
    assert not (tmp_path / "store").exists()
    create_store(tmp_path / "store", tmp_path / "model", searches=["ngram", "bm25"]).close()


def test_a_plain_hugging_face_directory_opens_and_claims_nothing(copy: Path, saved: Path) -> None:
    (copy / "manifest.json").unlink()
    model = LanguageModel.open(copy)
    assert model.manifest["origin"] == "imported, unverified"
    assert model.manifest["training_data"] == "unknown"
    assert model.fingerprint == LanguageModel.open(saved).fingerprint
    verify_files(model.root, model.manifest)


def test_missing_weights_are_never_made_up(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "manifest.json").unlink()
    (copy / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(SiloError, match="weights are missing"):
        LanguageModel.open(copy)


@pytest.mark.parametrize(
    ("gone", "message"),
    [("config.json", "config.json"), ("model.safetensors", "safetensors"), ("tokenizer.json", "tok")],
)
def test_an_incomplete_directory_is_refused(copy: Path, gone: str, message: str) -> None:
    (copy / "manifest.json").unlink()
    (copy / gone).unlink()
    with pytest.raises(SiloError, match=message) as caught:
        LanguageModel.open(copy)
    assert caught.value.code == "not-a-model"


def test_no_directory_no_model(tmp_path: Path) -> None:
    with pytest.raises(SiloError) as caught:
        LanguageModel.open(tmp_path / "nowhere")
    assert caught.value.code == "input-missing"


def test_saving_never_replaces_a_model_and_leaves_no_half_of_one(
    saved: Path, tokenizer_file: Path, tmp_path: Path
) -> None:
    network = make_network(TINY, vocabulary=257, begin=256, seed=0)
    with pytest.raises(SiloError) as caught:
        save_model(network, tokenizer_file, saved, {})
    assert caught.value.code == "out-exists"
    with pytest.raises(SiloError):
        save_model(network, tmp_path / "no.json", tmp_path / "model", {})
    assert not (tmp_path / "model").exists()
    save_model(network, tokenizer_file, tmp_path / "model", {})
    assert [item.name for item in tmp_path.iterdir()] == ["model"]


def test_settings_of_the_tokenizer_are_made_where_there_are_none(tokenizer_file: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.json"
    alone.write_bytes(tokenizer_file.read_bytes())
    save_model(make_network(TINY, vocabulary=257, begin=256, seed=0), alone, tmp_path / "model", {})
    assert AutoTokenizer.from_pretrained(tmp_path / "model").bos_token_id == 256
