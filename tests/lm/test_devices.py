"""Networks on any device: a path keeps its tensors where the network is, and the processor has the bits it had."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from silo.cli import main
from silo.corpus.corpus import Corpus
from silo.errors import SiloError
from silo.evaluation.perplexity import PplOptions, evaluate_perplexity
from silo.evaluation.tune import tune, validation_text
from silo.inference.predict import open_predictor
from silo.inference.session import open_session
from silo.inference.settings import Settings
from silo.lm.codec import sample_keys
from silo.lm.model import LanguageModel
from silo.lm.network import Preset
from silo.lm.scoring import score
from silo.lm.training import presets
from silo.lm.training.train import train
from silo.lm.windows import Windows
from silo.pairing import create_store, open_store
from silo.placement import CPU, NOT_ASKED, Placement, ask_for
from silo.recipe import TrainRecipe
from silo.text.stream import merged_stream
from tests.conftest import record, write_jsonl
from tests.inference.world import TEXTS, documents, make_model, make_store
from tests.lm.other_device import WrongDeviceError, other_device

TINY = Preset("tiny", 32, 2, 2, 64, vocabulary=257, context=64, tied=True)
TEXT = "The quick brown fox jumps over the wide sea, and the lazy dog sleeps all day long. "


@pytest.fixture(autouse=True)
def _nothing_asked() -> Iterator[None]:
    yield
    ask_for(NOT_ASKED)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("devices")
    make_model(root, key="ffn").rename(root / "lm")
    make_store(root / "store", root / "lm").close()
    write_jsonl(root / "validation.jsonl", [record(str(n), TEXT * 2) for n in range(2)])
    write_jsonl(root / "scored.jsonl", [record(str(n), TEXT * 2) for n in range(3)])
    write_jsonl(
        root / "task" / "test.jsonl", [{"text": text, "label": at % 2} for at, text in enumerate(TEXTS.values())]
    )
    (root / "task" / "task.json").write_text(json.dumps({"template": "{text} It", "label_words": ["is", "was"]}))
    return root


def _scored(place: Path, _: Path) -> Any:
    session = open_session(place / "lm", place / "store", method="knn+ngram")
    return session.score(TEXT).logs.tobytes()


def _scored_alone(place: Path, _: Path) -> Any:
    model = LanguageModel.open(place / "lm")
    return score(model, merged_stream([TEXT], model.tokenizer), Windows(32, 16))


def _generated(place: Path, _: Path) -> Any:
    session = open_session(place / "lm", place / "store", method="knn+ngram+ric")
    return session.answer("The quick", max_tokens=8).as_json()


def _keys(place: Path, _: Path) -> Any:
    return sample_keys(place / "lm", Corpus.open(place / "corpus"), key="ffn", keys=200).tobytes()


def _filled(place: Path, folder: Path) -> Any:
    store = create_store(folder / "filled", place / "lm", passage_tokens=16)
    store.add(documents())
    verified = open_store(folder / "filled", encoding=True).verify(keys=True)
    assert verified.problems == ()
    shutil.rmtree(folder / "filled")
    return verified.digest


def _tuned(place: Path, _: Path) -> Any:
    predictor = open_predictor(place / "lm", [place / "store"], settings=Settings(k=16))
    text = validation_text([place / "validation.jsonl"], predictor.tokenizer, 400)
    return tune(predictor, text).figures


def _compared(place: Path, folder: Path) -> Any:
    files, validation = (place / "scored.jsonl",), (place / "validation.jsonl",)
    options = PplOptions(
        stores=(place / "store",), files=files, validation=validation, tokens=200, fine_tune="yes", methods=("knn",)
    )
    figures = evaluate_perplexity(place / "lm", folder / "home", replace(options, validation_tokens=100))[0]
    shutil.rmtree(folder / "home")
    return {name: item["perplexity"] for name, item in figures["domains"]["prose"]["rows"].items()}


def _tasks(place: Path, folder: Path) -> Any:
    from silo.evaluation.tasks.evaluate import TaskOptions, evaluate_tasks
    from silo.evaluation.tasks.report import report
    from silo.evaluation.tasks.task import load_tasks

    predictor = open_predictor(place / "lm", [place / "store"], method="knn+ngram+ric", settings=Settings(k=16))
    options = TaskOptions(methods=("lm", "knn", "ric"), expand=True)
    return report(list(evaluate_tasks(predictor, load_tasks([place / "task"]), options)), seed=0)


def _trained(place: Path, folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(presets.PRESETS, "tiny", TINY)
        recipe = TrainRecipe(
            corpus=str(place / "corpus"),
            tiers=("pd",),
            preset="tiny",
            tokenizer=str(place / "tokenizer"),
            max_tokens=1024,
            batch_tokens=256,
            micro_batch=2,
            validation=(str(place / "validation.jsonl"),),
            evaluate_every=512,
        )
        train(recipe, folder / "trained", base=folder, stop_after=2)
        summary = train(recipe, folder / "trained", base=folder)
    shutil.rmtree(folder / "trained")
    return summary["fingerprint"]


PATHS = [_scored, _scored_alone, _generated, _keys, _filled, _tuned, _compared, _tasks, _trained]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_a_path_keeps_its_tensors_on_the_device_of_the_network(
    path: Callable[[Path, Path], Any], place: Path, tmp_path: Path
) -> None:
    expected = path(place, tmp_path)
    with other_device():
        assert path(place, tmp_path) == expected, "the same bits, wherever the network is"


def test_a_tensor_on_the_wrong_device_is_noticed(place: Path) -> None:
    model = LanguageModel.open(place / "lm")
    ids = np.arange(5)
    with other_device(), torch.inference_mode():
        with pytest.raises(WrongDeviceError):
            model.hidden(torch.from_numpy(ids)[None])
        with pytest.raises(WrongDeviceError):
            model.hidden(torch.zeros((1, 5), dtype=torch.long))
        hidden = model.hidden(model.stack([ids], 5))
        with pytest.raises(WrongDeviceError):
            hidden.numpy()
        assert hidden.cpu().numpy().shape == (1, 5, 32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_number_formats_give_nearly_the_same(dtype: str, place: Path, tmp_path: Path) -> None:
    exact = open_session(place / "lm", place / "store", method="knn+ngram").score(TEXT).logs
    ask_for(Placement(dtype=dtype))
    assert LanguageModel.open(place / "lm").placement == Placement("cpu", dtype)
    session = open_session(place / "lm", place / "store", method="knn+ngram+ric")
    assert session.answer("The quick", max_tokens=4).text
    rough = open_session(place / "lm", place / "store", method="knn+ngram").score(TEXT).logs
    assert not np.array_equal(rough, exact)
    assert np.abs(rough - exact).mean() < 0.2


def test_a_store_keeps_to_the_format_its_keys_were_made_in(place: Path, tmp_path: Path) -> None:
    plain = json.loads((place / "store" / "data" / "manifest.json").read_bytes())
    assert plain["config"]["encoded_on"] == "engine"
    ask_for(Placement(dtype="bfloat16"))
    store = create_store(tmp_path / "store", place / "lm", passage_tokens=16)
    assert store.config.encoded_on == "cpu bfloat16"
    store.add(documents())
    digest = store.digest()
    store.close()
    ask_for(NOT_ASKED)
    again = open_store(tmp_path / "store", encoding=True)
    assert again.verify(keys=True).problems == (), "what the store was made with is taken without being asked for"
    again.close()
    assert digest != open_store(place / "store").digest()
    for asked, root in ((CPU, tmp_path / "store"), (Placement("cuda"), place / "store")):
        ask_for(asked)
        with pytest.raises(SiloError, match="makes other bits") as caught:
            open_store(root, encoding=True)
        assert caught.value.code == "store-mismatch"
    ask_for(Placement("auto", "auto"))
    open_store(tmp_path / "store", encoding=True).close()


def test_the_command_line_asks_for_a_device(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate = ["generate", "x", "--model", str(place / "lm"), "--max-tokens", "2", "--json"]
    answers = []
    for options in ([], ["--device", "cpu"], ["--device", "auto", "--dtype", "auto"], ["--dtype", "float32"]):
        assert main([*generate, *options]) == 0
        answers.append(capsys.readouterr().out)
    assert len(set(answers)) == (1 if not torch.cuda.is_available() else 2)
    if not torch.cuda.is_available():
        assert main([*generate, "--device", "cuda"]) == 6
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "device-missing"
    assert main([*generate, "--dtype", "float8"]) == 2


def test_names_of_devices_are_checked() -> None:
    for wrong in ({"device": "gpu"}, {"dtype": "half"}):
        with pytest.raises(SiloError):
            Placement(**wrong)
    assert Placement("auto").agrees(CPU) and not Placement("cuda").agrees(CPU)
    assert Placement(dtype="bfloat16").over(CPU) == Placement("cpu", "bfloat16")
