"""`silo eval ppl` on a small store: rows that agree with `silo score`, honest baselines, and a record of used text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from silo.cli.main import main
from silo.evaluation.figures import MATCHES
from silo.evaluation.perplexity import USES, PplOptions, evaluate_perplexity
from silo.evaluation.scoring import Contestants, domain_mark, score_domain, store_tokens, unigrams
from silo.evaluation.texts import TextLimits, first_of_each, read_domains
from silo.inference.context import RicContext
from silo.inference.observe import observe
from silo.inference.predict import open_predictor
from silo.inference.score import score_text
from silo.inference.settings import Ric, Settings, save_settings
from silo.lm.engine.decoder import DecodingModel
from silo.lm.model import LanguageModel, save_model
from silo.lm.network import make_network
from silo.lm.training.finetune import FineTuning, fine_tune
from silo.lm.windows import Windows
from silo.pairing import create_store, open_store
from silo.sources.evaluation import read_scored
from silo.text.stream import merged_stream
from tests.byte_tokenizer import write_byte_tokenizer
from tests.conftest import record, write_jsonl
from tests.inference.world import SHAPE, TEXTS, make_model, make_store

TEST = (
    "The quick brown fox jumps over the wide sea, and the lazy dog sleeps.",
    "Hot water is poured over the ship. The licensee shall not sell the tea.",
    "A day long and wide. The fox does not sell hot water to the dog.",
)
VALIDATION = (
    "The quick brown fox jumps over the wide sea. The licensee shall not sell the tea.",
    "Hot water is poured over the lazy dog. The ship sails over the leaves of tea.",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    make_store(root / "store", make_model(root)).close()
    make_model(root / "other", seed=2)
    for name, texts in (("test", TEST), ("validation", VALIDATION)):
        records = [record(f"{name}{n}", text, domain="prose") for n, text in enumerate(texts)]
        write_jsonl(root / f"prose.{name}.jsonl", records)
    write_jsonl(root / "more.test.jsonl", [record("m", "Another tale of the sea.", domain="tales")])
    (root / "same.jsonl").write_bytes((root / "prose.test.jsonl").read_bytes())
    write_jsonl(root / "empty.jsonl", [{"text": " "}])
    (root / "damaged").mkdir()
    (root / "damaged" / USES).write_text("[]\n")
    letters = write_byte_tokenizer(root / "letters")
    content = json.loads(letters.read_text())
    content["model"]["vocab"] |= {"a": 98, "b": 97}
    letters.write_text(json.dumps(content))
    save_model(make_network(SHAPE, vocabulary=257, begin=256, seed=1), letters, root / "letters" / "model", {})
    create_store(root / "foreign", root / "letters" / "model", searches=("ngram",)).close()
    return root


@pytest.fixture(scope="module")
def figures(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    options = PplOptions(
        stores=(place / "store",),
        references=(place / "other" / "model",),
        files=(place / "prose.test.jsonl", place / "more.test.jsonl"),
        validation=(place / "prose.validation.jsonl",),
        neighbours=64,
    )
    found, documents = evaluate_perplexity(place / "model", tmp_path_factory.mktemp("home"), options)
    return {**found, "by_document": documents}


def test_the_honest_rows_are_always_there(figures: dict[str, Any]) -> None:
    rows = list(figures["domains"]["prose"]["rows"])
    assert rows == [
        "lm", "ric", "lm, context of ric", "knn", "ngram", "knn+ngram", "knn, fixed", "ngram, no lm",
        "fine-tuned", "reference", "reference + knn+ngram",
    ]  # fmt: skip
    assert list(figures["average_gap_closed"]) == [row for row in rows if row not in ("lm", "reference")]


def test_the_average_gap_is_that_of_mean_perplexities(figures: dict[str, Any]) -> None:
    """A domain without a gap would decide a mean of gaps."""
    rows = [item["rows"] for item in figures["domains"].values()]
    plain, knn, reference = (
        sum(item[row]["perplexity"]["value"] for item in rows) / len(rows) for row in ("lm", "knn", "reference")
    )
    expected = (plain - knn) / (plain - reference)
    assert figures["average_gap_closed"]["knn"]["all"]["value"] == pytest.approx(expected)


def test_rows_are_what_score_finds(place: Path, figures: dict[str, Any]) -> None:
    model = LanguageModel.open(place / "model")
    text = merged_stream(TEST, model.tokenizer)
    alone = score_text(open_predictor(place / "model", method="lm"), text).total
    row = figures["domains"]["prose"]["rows"]["lm"]
    assert row["perplexity"]["value"] == pytest.approx(alone.perplexity, rel=1e-6)
    assert row["bits_per_byte"]["value"] == pytest.approx(alone.bits_per_byte, rel=1e-6)
    ric = score_text(open_predictor(place / "model", [place / "store"], method="ric"), text).total
    assert figures["domains"]["prose"]["rows"]["ric"]["perplexity"]["value"] == pytest.approx(ric.perplexity, rel=1e-6)


def test_passages_and_text_are_no_longer_than_the_window_of_the_model_alone(place: Path) -> None:
    model, window = DecodingModel.open(place / "model"), Windows(16, 8)
    assert model.context > window.length
    (text,) = read_domains([place / "prose.test.jsonl"], model.tokenizer, TextLimits()).values()
    contestants = Contestants(model, [open_store(place / "store")], None, ("lm", "ric"), {}, windows=window)
    found = score_domain(contestants, text, None).logs["ric"]
    provider = RicContext(window.length, Ric(), model.tokenizer)
    predictor = open_predictor(place / "model", [place / "store"], method="ric", context=lambda _: provider)
    np.testing.assert_allclose(np.exp(found[1:]), observe(predictor, text.stream.ids).lm[1:])


def test_every_figure_has_an_interval_around_it(figures: dict[str, Any]) -> None:
    for row in figures["domains"]["prose"]["rows"].values():
        for name in ("perplexity", "bits_per_byte", "clean"):
            assert row[name]["low"] <= row[name]["value"] <= row[name]["high"]


def test_tokens_are_split_by_what_the_store_holds(figures: dict[str, Any]) -> None:
    prose = figures["domains"]["prose"]
    assert sum(prose["matches"].values()) == prose["tokens"] == sum(len(text) for text in TEST)
    assert list(prose["matches"]) == list(MATCHES)
    matched = prose["rows"]["ngram"]["by_match"]
    assert matched["13+"]["value"] < matched["1-4"]["value"]


def test_documents_add_up_to_the_whole(figures: dict[str, Any]) -> None:
    documents = [item for item in figures["by_document"] if item["domain"] == "prose"]
    assert [item["document"] for item in documents] == [f"prose.test.jsonl#test{n}" for n in range(3)]
    logs = sum(item["tokens"] * np.log(item["perplexity"]["knn"]) for item in documents)
    tokens = sum(item["tokens"] for item in documents)
    whole = figures["domains"]["prose"]["rows"]["knn"]["perplexity"]["value"]
    assert np.exp(logs / tokens) == pytest.approx(whole, rel=1e-6)


def test_the_baseline_without_a_model_knows_the_store_alone(place: Path, figures: dict[str, Any]) -> None:
    shares = unigrams([open_store(place / "store")], 257)
    assert shares.sum() == pytest.approx(1)
    assert shares[ord("e")] > shares[ord("q")] > shares[0]
    rows = figures["domains"]["prose"]["rows"]
    assert rows["ngram, no lm"]["perplexity"]["value"] < rows["lm"]["perplexity"]["value"]


def test_fine_tuning_learns_the_store_and_leaves_the_model_alone(place: Path) -> None:
    model = LanguageModel.open(place / "model")
    before = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    tokens = store_tokens([open_store(place / "store")], model.tokenizer.begin)
    assert (tokens == model.tokenizer.begin).sum() == len(TEXTS)
    how = FineTuning(epochs=20, length=32, batch_tokens=128)
    adapted, report = fine_tune(model, tokens, merged_stream(VALIDATION, model.tokenizer), how)
    assert report["best"] < report["validation"][0][1]
    assert all((tensor == before[name]).all() for name, tensor in model.network.state_dict().items())
    assert any((tensor != before[name]).any() for name, tensor in adapted.network.state_dict().items())


def test_limits_cut_documents_and_domains(place: Path) -> None:
    tokenizer = LanguageModel.open(place / "model").tokenizer
    found = read_domains([place / "prose.test.jsonl"], tokenizer, TextLimits(tokens=30, document_tokens=20))
    assert len(found["prose"].labels) == 2
    assert len(found["prose"].stream.ids) == 2 * 21


def test_a_domain_is_named_by_its_file_where_the_records_do_not(place: Path, tmp_path: Path) -> None:
    files = [
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": "a"}]) for name in ("own.test", "own.validation", "mine")
    ]
    assert [record.domain for record in read_scored(files)] == ["own", "own", "mine"]


def test_a_domain_without_validation_text_is_tuned_on_that_of_all(place: Path, tmp_path: Path) -> None:
    tokenizer = LanguageModel.open(place / "model").tokenizer
    texts = {"b.validation": VALIDATION[0], "a.validation": VALIDATION[1]}
    files = [write_jsonl(tmp_path / f"{name}.jsonl", [{"text": text}]) for name, text in texts.items()]
    every = list(read_domains(files, tokenizer, TextLimits()).values())
    assert tokenizer.decode(first_of_each(every, 40).ids) == VALIDATION[1][:19] + VALIDATION[0][:19]
    options = PplOptions(
        stores=(place / "store",), methods=("ngram",), files=(place / "prose.test.jsonl",), validation=tuple(files)
    )
    found, _ = evaluate_perplexity(place / "model", tmp_path / "home", options)
    assert "no validation text of prose: settings were chosen on a, b" in found["notes"]


def test_one_document_has_no_interval(figures: dict[str, Any]) -> None:
    found = figures["domains"]["tales"]["rows"]["knn"]["perplexity"]
    assert found["value"] > 1
    assert found["low"] is found["high"] is None


def test_marks_come_from_the_training_manifest() -> None:
    manifest = {"training": {"domains": {"legal": 5}, "groups": {"code": ["a", "b"], "law": ["legal", "courts"]}}}
    marks = [domain_mark(manifest, domain) for domain in ("legal", "courts", "a")]
    assert marks == ["in", "near", "out"]
    assert domain_mark({"origin": "imported"}, "legal") == "unknown"


def test_text_that_was_scored_before_is_said_to_have_been(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", "ppl", "--model", str(place / "model"), "--jsonl", str(place / "prose.test.jsonl")]
    for times in range(3):
        assert main([*command, "--home", str(tmp_path), "--json", "--quiet"]) == 0
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert any(f"scored before, {times} time" in note for note in notes) == (times > 0)
    assert len((tmp_path / USES).read_text().splitlines()) == 3


def test_the_command_prints_tables_and_documents(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", "ppl", "--model", str(place / "model"), "--store", str(place / "store"), "--home", str(tmp_path)]
    command += ["--jsonl", str(place / "prose.test.jsonl"), "--method", "lm,ngram", "--quiet"]
    assert main([*command, "--documents", str(tmp_path / "documents.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "prose (unknown)" in out
    assert "not run: the model fine-tuned" in out
    assert "the defaults were used" in out
    assert len((tmp_path / "documents.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--jsonl", "missing.jsonl"], "input-missing"),
        (["--method", "knm"], "usage"),
        (["--method", "knn"], "search-missing"),
        (["--reference", "nowhere"], "input-missing"),
        (["--tokens", "-5"], "usage"),
        (["--k", "0"], "usage"),
        (["--k", "1000000"], "settings-invalid"),
        (["--seed", "-1"], "usage"),
        (["--jsonl", "{place}/prose.test.jsonl"], "usage"),
        (["--store", "{place}/store", "--store", "{place}/store"], "usage"),
        (["--store", "{place}/foreign"], "store-mismatch"),
        (["--validation", "{place}/prose.test.jsonl"], "tuning-refused"),
        (["--validation", "{place}/same.jsonl"], "tuning-refused"),
        (["--home", "{place}/same.jsonl"], "not-writable"),
        (["--home", "/proc/nowhere"], "not-writable"),
        (["--home", "{place}/damaged"], "settings-invalid"),
        (["--jsonl", "{place}/empty.jsonl"], "input-empty"),
    ],
)
def test_bad_input_is_refused(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: str
) -> None:
    command = ["eval", "ppl", "--model", str(place / "model"), "--home", str(tmp_path), "--json"]
    command += ["--jsonl", str(place / "prose.test.jsonl")]
    assert main([*command, *(option.format(place=place) for option in options)]) != 0
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert not (tmp_path / USES).exists()


def test_named_settings_are_used(place: Path, tmp_path: Path) -> None:
    save_settings(tmp_path, "half", {"knn": Settings(k=8, tau=1.0).with_values(lam=0.5)}, {})
    options = PplOptions(
        stores=(place / "store",), methods=("knn",), files=(place / "prose.test.jsonl",), settings="half"
    )
    found, _ = evaluate_perplexity(place / "model", tmp_path, options)
    text = merged_stream(TEST, LanguageModel.open(place / "model").tokenizer)
    settings = Settings(k=8, tau=1.0).with_values(lam=0.5)
    wanted = score_text(open_predictor(place / "model", [place / "store"], method="knn", settings=settings), text)
    assert found["domains"]["prose"]["rows"]["knn"]["perplexity"]["value"] == pytest.approx(wanted.total.perplexity)
