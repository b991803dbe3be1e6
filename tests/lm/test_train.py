"""Training: a stopped run ends with the weights of an uninterrupted one, learns, and saves an ordinary model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from silo.cli import main
from silo.corpus.corpus import Corpus
from silo.errors import SiloError
from silo.files import file_sha256
from silo.lm import network as presets
from silo.lm.audit import verify_model
from silo.lm.firewall import what_it_shaped
from silo.lm.manifest import open_manifest
from silo.lm.model import LanguageModel
from silo.lm.network import Preset, parameter_count
from silo.lm.scoring import score
from silo.lm.training.distributed import ProcessGroup
from silo.lm.training.loss import Objective
from silo.lm.training.optimiser import Optimiser, learning_rate
from silo.lm.training.request import Shape
from silo.lm.training.train import _continue_or_restart, train
from silo.lm.windows import Windows
from silo.recipe import DedupRecipe, TrainRecipe, load_recipe
from silo.records import Tier
from silo.text.stream import merged_stream
from tests.byte_tokenizer import write_byte_tokenizer
from tests.conftest import build_from, record, write_jsonl

TINY = Preset("tiny", 32, 2, 2, 64, vocabulary=300, context=32, tied=True)
SENTENCES = ["the cat sat on the mat and looked at the dog", "a dog ran over the hill and did not look back at all"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(presets.PRESETS, "tiny", TINY)
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("train")
    records = [
        record(f"p{n}", f"story {n}. " + ". ".join(SENTENCES[(n + k) % 2] for k in range(8)), license="CC0-1.0")
        for n in range(40)
    ]
    records += [record(f"r{n}", f"secret {n} " * 20, license="", domain="mail") for n in range(5)]
    build_from([write_jsonl(root / "in.jsonl", records)], root / "corpus", dedup=DedupRecipe(enabled=False))
    write_jsonl(root / "valid.jsonl", [record("v", ". ".join(SENTENCES * 4))])
    return root


RECIPE = TrainRecipe(
    corpus="corpus",
    tiers=("pd",),
    preset="tiny",
    max_tokens=32 * 8 * 30,
    batch_tokens=32 * 8,
    micro_batch=4,
    learning_rate=1e-2,
    validation=("valid.jsonl",),
    evaluate_every=32 * 8 * 10,
    checkpoint_every=32 * 8 * 4,
    dtype="float32",  # weights are compared to the bit; left open, a processor that computes bf16 would train in it
)


def _weights(model: Path) -> dict[str, torch.Tensor]:
    return load_file(model / "model.safetensors")


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    presets.PRESETS["tiny"] = TINY
    torch.set_num_threads(1)
    out = place / "whole"
    train(RECIPE, out, base=place)
    return out


def test_the_loss_falls_and_the_model_is_an_ordinary_directory(whole: Path, place: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    curve = json.loads((whole / "curve.json").read_text())
    assert curve["training"][-1][1] < 0.7 * curve["training"][0][1]
    assert (whole / "curve.png").read_bytes().startswith(b"\x89PNG")
    network = AutoModelForCausalLM.from_pretrained(whole)
    tokenizer = AutoTokenizer.from_pretrained(whole)
    model = LanguageModel.open(whole)
    ids = torch.tensor([tokenizer("the cat sat")["input_ids"]])
    with torch.inference_mode():
        assert torch.equal(network(ids).logits, model.forward(ids).logits)
    assert not (place / "whole.building").exists()


@pytest.mark.parametrize("stops", [[5], [4, 9], [1, 1, 13]])
def test_stop_and_resume_gives_the_same_bits(whole: Path, place: Path, tmp_path: Path, stops: list[int]) -> None:
    out = tmp_path / "resumed"
    said: list[str] = []
    for stop in stops:
        assert train(RECIPE, out, base=place, stop_after=stop, talk=said.append)["finished"] is False
        assert not out.exists()
    train(RECIPE, out, base=place, talk=said.append)
    assert len(said) == 1 + sum(stop > 1 for stop in stops), "every start says how long it takes, after two steps"
    assert all(text.startswith("training takes about ") for text in said)
    assert "going on after step" in said[-1]
    expected, found = _weights(whole), _weights(out)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert (out / "curve.json").read_bytes() == (whole / "curve.json").read_bytes()


def test_the_model_says_what_it_saw_and_verifies(whole: Path, place: Path) -> None:
    corpus = Corpus.open(place / "corpus")
    found = verify_model(whole, corpus=str(place / "corpus"))
    assert (found["permitted"], found["violations"], found["document_tiers"]) == (True, [], {"pd": 40})
    for document in corpus.documents():
        shaped = what_it_shaped(whole, document.id)
        assert shaped == (["tokenizer", "weights"] if document.tier == "pd" else [])


SHORT = replace(RECIPE, max_tokens=32 * 8 * 2, validation=())


def test_a_tokenizer_of_a_model_brings_its_documents_along(whole: Path, place: Path, tmp_path: Path) -> None:
    train(replace(SHORT, tokenizer=str(whole / "tokenizer.json")), tmp_path / "second", base=place)
    found = verify_model(tmp_path / "second", corpus=str(place / "corpus"))
    assert (found["permitted"], found["tokenizer"], found["violations"]) == (True, "learned here", [])
    for document in Corpus.open(place / "corpus").documents(tiers=[Tier.pd]):
        assert "tokenizer" in what_it_shaped(tmp_path / "second", document.id)
    facts = open_manifest(tmp_path / "second")["training"]["tokenizer"]
    assert (facts["documents"], facts["tiers"]) == (40, ["pd"])
    assert facts["fingerprint"] == file_sha256(whole / "tokenizer.json")


def test_a_tokenizer_of_unknown_origin_leaves_a_model_unpermitted(whole: Path, place: Path, tmp_path: Path) -> None:
    file = tmp_path / "theirs.json"
    file.write_bytes((whole / "tokenizer.json").read_bytes())
    train(replace(SHORT, tokenizer=str(file)), tmp_path / "second", base=place)
    found = verify_model(tmp_path / "second")
    assert (found["permitted"], found["permitted_weights"], found["tokenizer"]) == (False, True, "unknown")
    stated = replace(SHORT, tokenizer=str(file), tokenizer_provenance="learned from our own letters")
    train(stated, tmp_path / "third", base=place)
    found = verify_model(tmp_path / "third")
    assert (found["permitted"], found["tokenizer"]) == (True, "stated")
    again = replace(SHORT, tokenizer=str(tmp_path / "third"))
    train(again, tmp_path / "fourth", base=place)
    facts = open_manifest(tmp_path / "fourth")["training"]["tokenizer"]
    assert (facts["provenance"], facts["statement"]) == ("stated", "learned from our own letters")


def test_a_tokenizer_of_bytes_was_learned_from_nothing(place: Path, tmp_path: Path) -> None:
    file = write_byte_tokenizer(tmp_path / "bytes")
    train(replace(SHORT, tokenizer=str(file)), tmp_path / "model", base=place)
    found = verify_model(tmp_path / "model")
    assert (found["permitted"], found["tokenizer"]) == (True, "bytes")


def test_a_tokenizer_learned_from_what_a_run_may_not_use_is_refused(place: Path, tmp_path: Path) -> None:
    train(replace(SHORT, tiers=("pd", "restricted"), reference=True), tmp_path / "all", base=place)
    with pytest.raises(SiloError, match="the tokenizer was learned from pd, restricted") as caught:
        train(replace(SHORT, tokenizer=str(tmp_path / "all")), tmp_path / "no", base=place)
    assert caught.value.code == "training-refused"


def test_a_reference_model_is_marked(place: Path, tmp_path: Path) -> None:
    recipe = replace(RECIPE, tiers=("pd", "restricted"), max_tokens=32 * 8 * 4)
    with pytest.raises(SiloError, match="training-refused"):
        train(recipe, tmp_path / "no", base=place)
    train(replace(recipe, reference=True), tmp_path / "yes", base=place)
    assert verify_model(tmp_path / "yes")["permitted"] is False


def test_patience_keeps_the_best_weights(place: Path, tmp_path: Path) -> None:
    recipe = replace(RECIPE, learning_rate=0.3, evaluate_every=32 * 8 * 2, patience=2, seed=3)
    summary = train(recipe, tmp_path / "out", base=place)
    curve = json.loads((tmp_path / "out" / "curve.json").read_text())
    best = min(item["loss"] for item in curve["validation"])
    assert summary["validation"]["loss"] == best
    assert summary["steps"] <= 30


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_checkpoint(place: Path, tmp_path: Path) -> None:
    recipe = replace(RECIPE, learning_rate=1e30, clip=1e30, checkpoint_every=32 * 8, validation=())
    with pytest.raises(SiloError, match="training-diverged"):
        train(recipe, tmp_path / "out", base=place)
    kept = load_file(tmp_path / "out.building" / "checkpoint" / "weights.safetensors")
    assert kept


def test_results_do_not_depend_on_the_micro_batch_much(place: Path, tmp_path: Path) -> None:
    short = replace(RECIPE, max_tokens=32 * 8 * 3, validation=())
    for micro in (1, 8):
        train(replace(short, micro_batch=micro), tmp_path / str(micro), base=place)
    one, other = _weights(tmp_path / "1"), _weights(tmp_path / "8")
    assert all(torch.allclose(one[name], other[name], atol=2e-3) for name in one)


def test_gradient_checkpointing_gives_the_same_losses(place: Path, tmp_path: Path) -> None:
    short = replace(RECIPE, max_tokens=32 * 8 * 3, validation=())
    train(short, tmp_path / "plain", base=place)
    train(replace(short, gradient_checkpointing=True), tmp_path / "saved", base=place)
    curves = [json.loads((tmp_path / name / "curve.json").read_text())["training"] for name in ("plain", "saved")]
    assert [loss for _, loss in curves[0]] == pytest.approx([loss for _, loss in curves[1]], rel=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_muon_learns_and_goes_on_to_the_bit(place: Path, tmp_path: Path, dtype: str) -> None:
    recipe = replace(RECIPE, optimiser="muon", dtype=dtype)
    train(recipe, tmp_path / "whole", base=place)
    train(recipe, tmp_path / "resumed", base=place, stop_after=9)
    train(recipe, tmp_path / "resumed", base=place)
    losses = [loss for _, loss in json.loads((tmp_path / "whole" / "curve.json").read_text())["training"]]
    assert losses[-1] < 0.7 * losses[0]
    whole, resumed = (_weights(tmp_path / name) for name in ("whole", "resumed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert {item.dtype for item in whole.values()} == {torch.float32}


def test_muon_moves_the_matrices_of_the_layers_and_adamw_the_rest() -> None:
    network = presets.make_network("tiny", vocabulary=300, begin=0, seed=0)
    adam, muon = Optimiser(network, replace(RECIPE, optimiser="muon")).parts
    turned = {id(item) for group in muon.param_groups for item in group["params"]}
    names = {name for name, item in network.named_parameters() if id(item) in turned}
    assert names == {name for name, item in network.named_parameters() if ".layers." in name and item.dim() == 2}
    assert sum(len(group["params"]) for group in adam.param_groups) == len(list(network.parameters())) - len(names)


def test_optimisers_that_do_not_exist_or_cannot_be_sharded_are_refused(place: Path, tmp_path: Path) -> None:
    for change in ({"optimiser": "sgd"}, {"optimiser": "muon", "shard": True}):
        with pytest.raises(SiloError, match="recipe-value"):
            train(replace(RECIPE, **change), tmp_path / "no", base=place)


def test_the_chunked_loss_has_the_value_and_gradients_of_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("silo.lm.training.loss._CHUNK_LOGITS", 300 * 5)  # five rows at a time, the last chunk shorter
    ids = torch.randint(0, 300, (3, 15), generator=torch.Generator().manual_seed(1))
    found = []
    for tied in (True, False):
        for chunked in (True, False):
            network = presets.make_network(replace(TINY, tied=tied), vocabulary=300, begin=0, seed=0).double()
            if chunked:
                loss = Objective(network)(ids)
            else:
                logits = network(input_ids=ids[:, :-1]).logits
                loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 300), ids[:, 1:].reshape(-1))
            (2 * loss).backward()
            found.append((loss.item(), [item.grad for item in network.parameters() if item.grad is not None]))
    for (mine, gradients), (plain, wanted) in zip(found[::2], found[1::2], strict=True):
        assert mine == pytest.approx(plain, rel=1e-6)
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-8) for a, b in zip(gradients, wanted, strict=True))


def test_models_of_several_tiers_share_a_tokenizer_only_from_tiers_they_may_use(place: Path, tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="training-refused"):
        train(replace(RECIPE, tokenizer_tiers=("pd", "sw")), tmp_path / "no", base=place)
    both = replace(RECIPE, tiers=("pd", "restricted"), reference=True, max_tokens=32 * 8 * 2, tokenizer_tiers=("pd",))
    train(both, tmp_path / "all", base=place)
    train(replace(both, tiers=("pd",), reference=False), tmp_path / "pd", base=place)
    files = [(tmp_path / name / "tokenizer.json").read_bytes() for name in ("all", "pd")]
    assert files[0] == files[1]
    restricted = next(item.id for item in Corpus.open(place / "corpus").documents() if item.tier == "restricted")
    assert what_it_shaped(tmp_path / "all", restricted) in ([], ["weights"])


def test_warm_up_and_cosine() -> None:
    recipe = TrainRecipe(corpus="", learning_rate=1.0, warmup_share=0.1, final_rate=0.1)
    rates = [learning_rate(recipe, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == 1.0
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


def test_a_run_shorter_than_a_step_is_refused() -> None:
    with pytest.raises(SiloError, match="recipe-value"):
        Shape.of(TrainRecipe(corpus="", max_tokens=10), 32, 1, 1)


def test_a_run_goes_on_however_it_is_divided_but_not_with_steps_of_another_size(place: Path, tmp_path: Path) -> None:
    corpus, shape = Corpus.open(place / "corpus"), Shape.of(RECIPE, 32, 1, 1)
    _continue_or_restart(RECIPE, shape, corpus, tmp_path)
    (tmp_path / "checkpoint").mkdir()
    _continue_or_restart(replace(RECIPE, shard=True), Shape.of(RECIPE, 32, 2, 1), corpus, tmp_path)
    assert (tmp_path / "checkpoint").exists()
    _continue_or_restart(RECIPE, Shape.of(RECIPE, 32, 3, 1), corpus, tmp_path)  # two sequences each, six in a step
    assert not (tmp_path / "checkpoint").exists()


class _CountingGroup(ProcessGroup):
    """A group that says at the end of a run how many numbers each process held."""

    def wrap(self, network: Any, optimisers: list[Any]) -> tuple[Any, list[Any]]:
        self.wrapped = super().wrap(network, optimisers)
        return self.wrapped

    def unsharded(self, network: Any) -> Any:
        moments = [item for state in self.wrapped[1][0].state.values() for item in state.values() if item.dim()]
        held = {"weights": _held(network.parameters()), "moments": _held(moments), "all": parameter_count(network)}
        Path(f"held-{self.rank}.json").write_text(json.dumps(held))
        return super().unsharded(network)


def _held(tensors: Iterable[torch.Tensor]) -> int:
    return sum((item.to_local() if isinstance(item, DTensor) else item).numel() for item in tensors)


def _compare_gradients(preset: Preset, *, shard: bool) -> None:
    """Rows divided among processes and small batches have the gradients, and the norm, of all rows at once."""
    ids = torch.randint(0, 300, (8, 17), generator=torch.Generator().manual_seed(1))
    alone, ours = (presets.make_network(preset, vocabulary=300, begin=0, seed=1).train() for _ in range(2))
    Objective(alone)(ids).backward()
    group = ProcessGroup(shard=shard)
    objective, _ = group.wrap(Objective(ours), [torch.optim.AdamW(ours.parameters())])
    mine = ids[4 * group.rank : 4 * group.rank + 4]
    group.add_gradients(objective, [(mine[:1], 0.25), (mine[1:2], 0.25), (mine[2:], 0.5)])
    assert group.clip_gradients(ours, 0.01) == pytest.approx(group.clip_gradients(alone, 0.01), rel=1e-5)
    found = group.gather_full((name, item.grad) for name, item in ours.named_parameters() if item.grad is not None)
    for name, item in alone.named_parameters() if group.is_leader else ():
        torch.testing.assert_close(found[name], item.grad, rtol=1e-4, atol=1e-8)


def take_part(recipe_file: str) -> None:
    """What each process does: a run, one that is stopped and put back, one that is only stopped, one that diverges."""
    presets.PRESETS["tiny"] = TINY
    pytest.MonkeyPatch().setattr("silo.lm.training.train.ProcessGroup", _CountingGroup)
    assert main(["lm", "train", recipe_file, "--out", "several", "--json"]) == 0
    recipe = load_recipe(Path(recipe_file), TrainRecipe)
    for name, stop in (("resumed", 5), ("resumed", None), ("moved", 5)):
        train(recipe, Path(name), base=Path(), stop_after=stop)
    with pytest.raises(SiloError, match="training-diverged"):
        train(replace(recipe, learning_rate=1e30, clip=1e30), Path("diverged"), base=Path())
    for tied in (True, False):
        _compare_gradients(replace(TINY, tied=tied), shard=recipe.shard)


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True], ids=["copies", "shards"])
def test_two_processes_train_one_model(place: Path, tmp_path: Path, shard: bool) -> None:
    """Two processes on gloo, joined through accelerate, see the same data as one and end almost equal."""
    recipe = replace(
        RECIPE,
        corpus=str(place / "corpus"),
        validation=(str(place / "valid.jsonl"),),
        max_tokens=32 * 8 * 8,
        micro_batch=2,
        evaluate_every=32 * 8 * 2,
        checkpoint_every=32 * 8 * 3,
        shard=shard,
    )
    settings = [f"{name} = {json.dumps(value)}\n" for name, value in asdict(recipe).items()]
    (tmp_path / "recipe.toml").write_text("".join(settings))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command += ["-m", "tests.lm.test_train", "recipe.toml"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = json.loads(done.stdout)  # by the leader alone

    one = train(recipe, tmp_path / "one", base=place)
    assert json.loads((tmp_path / "moved.building" / "checkpoint" / "state.json").read_text())["step"] == 3
    train(recipe, tmp_path / "moved", base=place)  # alone, from the checkpoint that two had made
    alone, several, resumed, moved = (_weights(tmp_path / name) for name in ("one", "several", "resumed", "moved"))
    losses = [json.loads((tmp_path / name / "curve.json").read_text())["training"] for name in ("several", "moved")]
    assert losses[0][:3] == losses[1][:3]
    assert (printed["steps"], printed["parameters"]) == (one["steps"], one["parameters"])
    assert printed["validation"]["loss"] == pytest.approx(one["validation"]["loss"], rel=1e-4)
    for name, weight in alone.items():
        assert torch.allclose(several[name], weight, atol=1e-4)
        assert torch.allclose(moved[name], weight, atol=1e-4)
        assert torch.equal(resumed[name], several[name])
    assert (tmp_path / "several" / "config.json").read_bytes() == (tmp_path / "one" / "config.json").read_bytes()
    part = 0.5 if shard else 1.0
    for process in range(2):
        held = json.loads((tmp_path / f"held-{process}.json").read_text())
        assert held["weights"] == pytest.approx(part * held["all"], rel=0.02)
        assert held["moments"] == 2 * held["weights"]


def test_scoring_equals_a_float64_reference(whole: Path) -> None:
    model = LanguageModel.open(whole)
    text = merged_stream([SENTENCES[0] + " [**Name**] " + SENTENCES[1] * 2, SENTENCES[1]], model.tokenizer)
    windows = Windows(16, 8)
    network = model.network.double()
    total, count = 0.0, 0
    covered = 0
    start = 0
    while covered < len(text.ids):
        ids = torch.from_numpy(text.ids[start : start + 16].astype("int64")).unsqueeze(0)
        with torch.inference_mode():
            logs = torch.log_softmax(network(ids).logits[0], dim=-1)
        for place_ in range(covered, start + ids.shape[1]):
            if place_ and text.scored[place_]:
                total += float(logs[place_ - start - 1, int(text.ids[place_])])
                count += 1
        covered = start + ids.shape[1]
        start += 8
    network.float()
    found = score(model, text, windows)
    assert found.tokens == count
    assert found.log_probability == pytest.approx(total, rel=1e-5)
    assert found.bytes == len((SENTENCES[0] + "  " + SENTENCES[1] * 3).encode())


if __name__ == "__main__":
    take_part(sys.argv[1])
