"""The main experiment from data to page, killed in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.experiments.harness.lab import Lab
from silo.experiments.harness.report import write_report
from silo.experiments.harness.result import load_result
from silo.experiments.run import EXPERIMENTS, run_experiment
from tests.experiments.small import reopen, write_recipe


def _write_recipe(lab: Lab, domains: str) -> None:
    write_recipe(
        lab,
        "nonparametric",
        f"""
        question = "Does it run?"
        paper = "tab:none"
        models = ["pdsw"]
        references = {{ pdsw = "all" }}
        domains = [{domains}]
        methods = ["lm", "ric", "knn", "ngram", "knn+ngram"]
        neighbours = 64
        sample = {{ document_tokens = 50 }}
        fine_tuning_epochs = {{ pdsw = 0.2 }}
        """,
    )


def test_from_data_to_page(lab: Lab, tmp_path: Path) -> None:
    _write_recipe(lab, '"notes", "mail"')
    result, place = run_experiment(lab, "nonparametric")
    loaded = load_result(place)
    assert (loaded.answer, loaded.tables, loaded.plot) == (result.answer, result.tables, result.plot)
    assert "pdsw with knn+ngram closes" in result.answer
    rows = result.facts["domains"]["pdsw"]["notes"]["rows"]
    assert {
        "lm",
        "ric",
        "knn",
        "knn, fixed",
        "ngram, no lm",
        "fine-tuned",
        "reference",
        "reference + knn+ngram",
    } <= set(rows)
    assert result.plot.startswith(b"\x89PNG")
    assert "nonparametric" in write_report(lab.folder / "results", tmp_path / "page", EXPERIMENTS)
    page = (tmp_path / "page" / "report.html").read_text()
    assert result.answer in page and "://" not in page
    assert "report-nonparametric.png" in (tmp_path / "page" / "report.md").read_text()


def test_a_run_goes_on_where_it_was(lab: Lab) -> None:
    _write_recipe(lab, '"notes"')
    first, _ = run_experiment(lab, "nonparametric")
    _write_recipe(lab, '"notes", "laws"')
    told: list[str] = []
    again = reopen(lab, talk=told.append)
    second, _ = run_experiment(again, "nonparametric")
    assert [text.partition(":")[0] for text in told] == ["store", "store pdsw-laws-all", "perplexity", "perplexity"]
    assert second.facts["domains"]["pdsw"]["notes"] == first.facts["domains"]["pdsw"]["notes"]


def test_other_fine_tuning_measures_nothing_else_again(lab: Lab) -> None:
    _write_recipe(lab, '"notes"')
    first, _ = run_experiment(lab, "nonparametric")
    recipe = lab.recipes / "nonparametric.toml"
    recipe.write_text(recipe.read_text().replace("pdsw = 0.2", "pdsw = 8.0"))
    told: list[str] = []
    second, _ = run_experiment(reopen(lab, talk=told.append), "nonparametric")
    assert len(told) == 1 and "epochs 8.0" in told[0]
    old, new = (result.facts["domains"]["pdsw"]["notes"]["rows"] for result in (first, second))
    assert old.pop("fine-tuned") != new.pop("fine-tuned") and old == new


def test_what_is_known_needs_neither_models_nor_stores(lab: Lab, tmp_path: Path) -> None:
    _write_recipe(lab, '"notes"')
    elsewhere = reopen(lab, kept=tmp_path / "kept")
    first, _ = run_experiment(elsewhere, "nonparametric")
    told: list[str] = []
    bare = reopen(lab, tmp_path / "bare", kept=tmp_path / "kept", talk=told.append)
    second, place = run_experiment(bare, "nonparametric")
    assert second.facts == first.facts and place.is_relative_to(tmp_path / "kept")
    assert [text.partition(":")[0] for text in told] == ["corpus"]
    assert not (bare.folder / "models").exists() and not (bare.folder / "stores").exists()


def test_some_of_the_models_are_run_alone(lab: Lab, tmp_path: Path) -> None:
    _write_recipe(lab, '"notes"')
    recipe = lab.recipes / "nonparametric.toml"
    recipe.write_text(recipe.read_text().replace('["pdsw"]', '["pdsw", "smollm2"]'))
    alone = reopen(lab, only={"models": ["pdsw"]})
    result, _ = run_experiment(alone, "nonparametric")
    assert list(result.facts["domains"]) == ["pdsw"]
    write_report(lab.folder / "results", tmp_path, EXPERIMENTS)
    report = (tmp_path / "report.md").read_text()
    assert "`silo experiment nonparametric --models pdsw`" in report
    assert "Not measured yet: corpus-stats," in report
    with pytest.raises(SiloError, match="has no model pd") as caught:
        run_experiment(reopen(lab, only={"models": ["pd", "pdsw"]}), "nonparametric")
    assert caught.value.hint == "it has pdsw, smollm2"
    with pytest.raises(SiloError, match="usage"):
        run_experiment(alone, "corpus-stats")


def test_some_of_the_domains_are_run_alone(lab: Lab) -> None:
    _write_recipe(lab, '"notes", "mail"')
    result, _ = run_experiment(reopen(lab, only={"domains": ["notes"]}), "nonparametric")
    assert list(result.facts["domains"]["pdsw"]) == ["notes"]
    assert result.command == "silo experiment nonparametric --domains notes"
    result, _ = run_experiment(reopen(lab, only={"domains": ["laws"]}), "nonparametric")  # the recipe does not name it
    assert list(result.facts["domains"]["pdsw"]) == ["laws"]
    with pytest.raises(SiloError, match="has no domain news"):
        run_experiment(reopen(lab, only={"domains": ["news"]}), "nonparametric")


def test_models_that_are_not_there_are_asked_for(lab: Lab) -> None:
    with pytest.raises(SiloError, match="input-missing") as caught:
        lab.model("smollm2")
    assert "silo lm import" in caught.value.hint


def test_there_is_nothing_to_report_before_anything_was_run(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="input-missing"):
        write_report(tmp_path, tmp_path / "page", EXPERIMENTS)
