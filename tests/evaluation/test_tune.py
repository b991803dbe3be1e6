"""Tuning on a small real store: settings that help, are kept by name, and never come from a test split."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from silo.errors import SiloError
from silo.evaluation.tune import Tuned, neighbour_grid, tune, validation_text
from silo.files import write_marked
from silo.inference.predict import Predictor, open_predictor
from silo.inference.score import score_text
from silo.inference.settings import Ric, Settings, load_settings, parse_method, save_settings
from silo.text.stream import TokenStream, first_tokens
from tests.conftest import record, write_jsonl
from tests.inference.world import make_model, make_store

VALIDATION = (
    "The quick brown fox jumps over the wide sea. The licensee shall not sell the tea.",
    "Hot water is poured over the lazy dog. The ship sails over the leaves of tea.",
    "A lazy dog sleeps. The sea is deep, and the quick brown fox sleeps all day long.",
)
METHODS = ("knn", "ngram", "knn+ngram")
NEIGHBOURS = (4, 16, 64)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    make_store(root / "store", make_model(root)).close()
    write_jsonl(root / "validation.jsonl", [record(str(n), text) for n, text in enumerate(VALIDATION)])
    return root


def opened(place: Path, method: str | None = None, settings: Settings | None = None) -> Predictor:
    return open_predictor(
        place / "model", [place / "store"], method=method, settings=settings or Settings(k=NEIGHBOURS[-1])
    )


@pytest.fixture(scope="module")
def text(place: Path) -> TokenStream:
    return validation_text([place / "validation.jsonl"], opened(place).tokenizer, 10_000)


@pytest.fixture(scope="module")
def tuned(place: Path, text: TokenStream) -> Tuned:
    return tune(opened(place), text, neighbours=NEIGHBOURS)


def test_every_method_beats_the_model_alone_by_the_figures_that_score_finds(
    place: Path, text: TokenStream, tuned: Tuned
) -> None:
    alone = score_text(opened(place, "lm"), text).total.perplexity
    assert tuned.figures["lm"] == pytest.approx(alone)
    assert tuple(tuned.settings) == METHODS
    for method, settings in tuned.settings.items():
        found = score_text(opened(place, method, settings), text).total.perplexity
        assert found <= alone
        assert found == pytest.approx(tuned.figures[method]["all"], rel=1e-5)
    assert tuned.figures["knn+ngram"]["all"] < tuned.figures["knn"]["all"]


def test_k_and_tau_are_the_best_of_those_around(place: Path, text: TokenStream, tuned: Tuned) -> None:
    """With one lambda for all tokens, as the grid compares them."""
    chosen = tuned.settings["knn"]
    assert chosen.k in NEIGHBOURS

    def perplexity(k: int, tau: float) -> float:
        found = (opened(place, "knn", Settings(k=k, tau=tau).with_values(lam=lam)) for lam in np.linspace(0.9, 1, 6))
        return min(score_text(predictor, text).total.perplexity for predictor in found)

    best = perplexity(chosen.k, chosen.tau)
    for k, tau in ((NEIGHBOURS[0], chosen.tau), (chosen.k, chosen.tau * 4), (chosen.k, chosen.tau / 4)):
        assert best <= perplexity(k, tau)


@pytest.mark.parametrize(
    ("most", "tried"),
    [
        (1024, (16, 64, 256, 1024)),
        (4096, (16, 64, 256, 1024, 4096)),
        (100, (16, 64, 100)),
        (16, (16,)),
        (3, (3,)),
        (32_768, (16, 64, 256, 1024, 4096, 16_384, 32_768)),
    ],
)
def test_the_grid_reaches_the_k_that_is_asked(most: int, tried: tuple[int, ...]) -> None:
    assert neighbour_grid(most) == tried


def test_as_many_neighbours_are_tried_as_are_asked(place: Path, text: TokenStream) -> None:
    figures = tune(opened(place, "knn", Settings(k=4096)), first_tokens(text, 60)).figures
    assert figures["neighbours"] == [16, 64, 256, 1024, 4096]


def test_saved_settings_score_the_same_to_the_bit(place: Path, text: TokenStream, tuned: Tuned, tmp_path: Path) -> None:
    save_settings(tmp_path, "mine", tuned.settings, {"figures": tuned.figures})
    for method in METHODS:
        again = load_settings(tmp_path, "mine", parse_method(method))
        before = score_text(opened(place, method, tuned.settings[method]), text)
        assert (score_text(opened(place, method, again), text).logs == before.logs).all()
    assert not (place / "store" / "settings").exists()
    assert load_settings(tmp_path, "mine", parse_method("ric+knn")).tau == tuned.settings["knn"].tau
    assert load_settings(tmp_path, "mine", parse_method("lm")).as_json() == Settings().as_json()


def test_text_of_one_short_document_is_halved_too(place: Path, text: TokenStream) -> None:
    found = tune(opened(place), first_tokens(text, 40), neighbours=(16,)).figures
    assert found["tokens"] == 39
    assert all(np.isfinite(list(found[method]["held_out"].values())).all() for method in METHODS)


@pytest.mark.parametrize("name", ["books.test.jsonl", "test.jsonl", "Test-2.jsonl", "my_TEST.jsonl"])
def test_a_file_that_is_called_a_test_is_refused(place: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(SiloError, match="tuning-refused"):
        validation_text([write_jsonl(tmp_path / name, [record("a", "text")])], opened(place).tokenizer, 10)


def test_a_record_of_a_test_split_is_refused(place: Path, tmp_path: Path) -> None:
    records = [record("a", "text", split="validation"), record("b", "text", split="Test")]
    with pytest.raises(SiloError, match="tuning-refused"):
        validation_text([write_jsonl(tmp_path / "latest.jsonl", records)], opened(place).tokenizer, 10)
    kept = validation_text([write_jsonl(tmp_path / "contest.jsonl", records[:1])], opened(place).tokenizer, 3)
    assert len(kept.ids) == 3


def test_too_little_text_and_an_empty_store_are_told(place: Path, text: TokenStream, tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="too few to tune"):
        tune(opened(place), first_tokens(text, 2))
    make_store(tmp_path / "empty", place / "model", []).close()
    with pytest.raises(SiloError, match="is the store empty"):
        tune(open_predictor(place / "model", [tmp_path / "empty"]), text)


def test_settings_that_are_not_there_name_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="settings-missing") as caught:
        load_settings(tmp_path, "mine", frozenset({"knn"}))
    assert "silo store tune" in caught.value.hint
    save_settings(tmp_path, "other", {"knn": Settings()}, {})
    with pytest.raises(SiloError, match="settings-missing") as caught:
        load_settings(tmp_path, "mine", frozenset({"knn"}))
    assert "known are other" in caught.value.hint


@pytest.mark.parametrize("name", ["", "../mine", ".mine", "a/b", "a b"])
def test_names_stay_in_their_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(SiloError, match="settings-invalid"):
        save_settings(tmp_path, name, {}, {})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: {**found, "format": "silo-settings-0"},
        lambda found: {"format": found["format"]},
        lambda found: _with(found, k=10.5),
        lambda found: _with(found, k="many"),
        lambda found: _with(found, tau=-1),
        lambda found: _with(found, unheard_of=1),
        lambda found: _with(found, ric={"variant": "odd"}),
        lambda found: _with(found, knn={"nodes": [], "weights": 1.5}),
        lambda found: _with(found, knn={"nodes": [[1, 0]], "weights": [0.5, 0.5]}),
    ],
)
def test_a_spoilt_file_is_refused(tmp_path: Path, spoil: Callable[[Any], Any]) -> None:
    path = save_settings(tmp_path, "mine", {"knn": Settings()}, {})
    found = json.loads(path.read_text())
    del found["fingerprint"]
    write_marked(path, spoil(found))
    with pytest.raises(SiloError, match="settings-invalid"):
        load_settings(tmp_path, "mine", frozenset({"knn"}))


@pytest.mark.parametrize("content", [b"[]", b"", b"{}"])
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    save_settings(tmp_path, "mine", {"knn": Settings()}, {}).write_bytes(content)
    with pytest.raises(SiloError, match="settings-invalid"):
        load_settings(tmp_path, "mine", frozenset({"knn"}))


def _with(found: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**found, "methods": {"knn": {**found["methods"]["knn"], **values}}}


def test_half_a_file_and_a_method_without_settings_are_refused(tmp_path: Path) -> None:
    path = save_settings(tmp_path, "mine", {"knn": Settings()}, {})
    with pytest.raises(SiloError, match="has settings for knn only"):
        load_settings(tmp_path, "mine", frozenset({"ngram"}))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(SiloError, match="settings-invalid"):
        load_settings(tmp_path, "mine", frozenset({"knn"}))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Settings(k=0),
        lambda: Settings(tau=float("nan")),
        lambda: Settings(probes=0),
        lambda: Settings(skip=0),
        lambda: Settings().with_values(lam=1.5),
        lambda: Ric(passages=0),
        lambda: Ric(weighting="odd"),
        lambda: Ric(query_tokens=-1),
    ],
)
def test_wrong_values_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(SiloError, match="settings-invalid"):
        make()
