"""Measurements say on what they were made, and repeat nothing that is known."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from silo import placement
from silo.errors import SiloError
from silo.experiments.harness.data import SPLITS
from silo.experiments.harness.lab import Lab
from silo.experiments.run import run_experiment
from silo.lm.engine.decoder import DecodingModel
from silo.lm.engine.reading import EngineNetwork
from silo.lm.reading import Row
from silo.lm.scoring import score_rows
from silo.lm.training.finetune import FineTuning, fine_tune
from silo.placement import Placement
from silo.text.stream import merged_stream
from tests.experiments.small import reopen


def test_a_result_tells_how_many_measurements_were_not_made_in_float32(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = reopen(lab, kept=tmp_path / "usual")
    assert "measurements were made" not in run_experiment(usual, "parametric")[0].differences
    with monkeypatch.context() as patch:
        patch.setattr(placement, "_asked", Placement(dtype="bfloat16"))
        run_experiment(reopen(lab, kept=tmp_path / "short"), "parametric")
    found, _ = run_experiment(reopen(lab, kept=tmp_path / "short"), "parametric")
    assert re.search(r" (\d+) of \1 measurements were made on cpu in bfloat16\.", found.differences)


def test_data_without_public_domain_text_have_a_tokenizer_of_what_there_is(lab: Lab, tmp_path: Path) -> None:
    for split in SPLITS:
        for domain in ("code", "notes"):
            name = f"{domain}.{split}.jsonl"
            (tmp_path / name).write_bytes((lab.data / name).read_bytes())
    mine = Lab(tmp_path / "work", tmp_path, recipes=lab.recipes, workers=1, codec=lab.codec_settings)
    assert DecodingModel.open(mine.model("all", codec=False)).manifest["training"]["tokenizer"]["tiers"] == ["sw"]
    with pytest.raises(SiloError, match="no text that pd may learn from"):
        mine.model("pd", codec=False)


def test_a_store_grown_from_a_smaller_one_is_the_one_filled_at_once(lab: Lab, tmp_path: Path) -> None:
    small = lab.store("pdsw", "notes", 500)
    grown = lab.store("pdsw", "notes", 1000, grown_from=small)
    alone = reopen(lab, kept=tmp_path / "alone").store("pdsw", "notes", 1000, variant="alone")
    assert small.tokens < grown.tokens == alone.tokens
    assert grown.digest == alone.digest
    files = [path.relative_to(alone.fill()) for path in sorted((alone.fill() / "data").rglob("*")) if path.is_file()]
    assert files and all((grown.fill() / file).read_bytes() == (alone.fill() / file).read_bytes() for file in files)


def test_what_was_read_before_is_not_read_again(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(np.arange(5, 45), 1), Row(np.arange(7, 40), 9)]
    opened = [DecodingModel.open(lab.model("pdsw")) for _ in range(2)]
    opened[1].kept_scores = tmp_path / "scores"
    fresh, first = (score_rows(item.network, rows, 64, key="ffn") for item in opened)
    assert lab.open_model("pdsw").network.kept_scores == lab.folder / "scores"
    monkeypatch.setattr(EngineNetwork, "read_rows", None)
    again = score_rows(opened[1].network, rows, 64, key="ffn")
    for one, other, third in zip(fresh, first, again, strict=True):
        for part in ("logs", "peaks", "keys"):
            assert np.array_equal(getattr(one, part), getattr(other, part))
            assert np.array_equal(getattr(one, part), getattr(third, part))
    with pytest.raises(TypeError):
        score_rows(opened[1].network, rows, 128, key="ffn")


def test_changed_weights_do_not_find_the_scores_of_the_ones_before(lab: Lab) -> None:
    model = lab.open_model("pdsw")
    text = merged_stream(["some words of a text that is to be learned " * 20], model.tokenizer)
    adapted, _ = fine_tune(model.language_model, text.ids, text, FineTuning(epochs=3.0, length=32, batch_tokens=64))
    rows = [Row(text.ids[:32].astype(np.int64), 1)]
    (before,), (after,) = score_rows(model.network, rows, 64), score_rows(adapted, rows, 64)
    assert after.logs.sum() > before.logs.sum()
