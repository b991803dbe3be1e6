"""The demo and the quick start, on a small corpus: every stage, a second run, the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from silo.cli import main
from silo.journeys.demo import Findings, Sizes, run_demo
from silo.journeys.demo_report import write_report
from silo.recipe import SourceRecipe
from tests.conftest import record, words, write_jsonl

TINY = Sizes(
    vocabulary=300,
    context=64,
    train_tokens=4096,
    codec_keys=2000,
    codec_lists=8,
    store_tokens=20_000,
    owner_tokens=8_000,
    tuning_tokens=1500,
    test_tokens=1500,
    written_tokens=12,
)


def _source(place: Path) -> SourceRecipe:
    open_text = [record(f"o{n}", words(n, 150), license="MIT") for n in range(12)]
    closed = [
        record(
            f"c{n}", words(900 + n % 9, 60) + f" number {n} " + words(5000 + n, 60), license="", owner=f"owner{n % 3}"
        )
        for n in range(60)
    ]
    return SourceRecipe("jsonl", (str(write_jsonl(place / "in.jsonl", [*open_text, *closed])),))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def found(home: Path) -> Findings:
    return run_demo(home / "home", sizes=TINY, source=_source(home))


def test_every_stage_leaves_what_the_report_needs(found: Findings, home: Path) -> None:
    facts = found.facts
    assert set(facts["methods"]) == {"lm", "ric", "knn", "ngram", "knn+ngram"}
    assert facts["methods"]["knn+ngram"] < facts["methods"]["lm"]
    assert facts["proof"]["failed_checks"] == [] and facts["proof"]["store_problems"] == []
    assert facts["proof"]["documents_it_should_not_have_seen"] == 0
    assert facts["proof"]["share_of_the_owner_after"] == 0.0
    assert facts["opt_out"]["documents"] > 0
    write_report(found, home / "report.html")
    page = (home / "report.html").read_text(encoding="utf-8")
    assert "opts out" in page and "verifies" in page
    assert "<script" not in page and "src=" not in page and "href=" not in page
    json.dumps(facts)


@pytest.mark.slow
def test_a_second_run_puts_the_owner_back_and_trains_nothing(found: Findings, home: Path) -> None:
    before = (home / "home" / "models" / "demo" / "manifest.json").read_bytes()
    again = run_demo(home / "home", sizes=TINY, source=_source(home))
    assert (home / "home" / "models" / "demo" / "manifest.json").read_bytes() == before
    assert again.facts["store"]["digest"] == found.facts["store"]["digest"]
    assert again.facts["methods"] == found.facts["methods"]


def test_a_folder_becomes_attributed_text_in_one_command(
    found: Findings, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home / "mine [1]"
    folder.mkdir()
    (folder / "odd.xyz").write_text("skipped")
    (folder / "noise.txt").write_bytes(bytes(range(256)) * 20)
    (folder / "note.txt").write_text("the boat goes over the water and the boat goes home again", encoding="utf-8")
    model = str(home / "home" / "models" / "demo")
    command = ["quickstart", str(folder), "--model", model, "--prompt", "the boat goes over the", "--json", "--quiet"]
    assert main(command) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["added"] == 1
    assert [(item["ending"], item["files"]) for item in answer["skipped_files"]] == [(".xyz", 1)]
    assert [item["where"].rpartition("/")[2] for item in answer["quarantined_records"]] == ["noise.txt"]
    assert any(token["lm_share"] < 1 for token in answer["tokens"])
    assert main([*command[:2], "--model", str(home / "nowhere"), "--json"]) == 3
    capsys.readouterr()
    assert main(["quickstart", str(home / "nothing"), "--model", model, "--json"]) == 3
