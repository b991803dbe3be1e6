"""The recipes of the published corpora, on folders laid out as their datasets are."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from silo.corpus.build import build
from silo.corpus.corpus import Corpus
from silo.corpus.report.stats import corpus_stats
from silo.recipe import CorpusRecipe, SourceRecipe, load_recipe
from silo.records import Tier
from silo.rights import classify
from silo.sources import plan, read_documents
from tests.conftest import words

RECIPES = Path(__file__).parent.parent.parent / "recipes"
BY = "Creative Commons - Attribution - https://creativecommons.org/licenses/by/4.0/"
BY_SA = "Creative Commons - Attribution Share-Alike - https://creativecommons.org/licenses/by-sa/3.0/"


def _put(file: Path, records: list[dict[str, object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode()))


def _tiers(corpus: Corpus) -> dict[str, set[Tier]]:
    found: dict[str, set[Tier]] = {}
    for document in corpus.documents():
        found.setdefault(document.domain, set()).add(document.tier)
    return found


def test_folders_of_the_open_license_corpus_have_the_licences_of_the_paper(tmp_path: Path) -> None:
    recipe = load_recipe(RECIPES / "open-license-corpus.toml", CorpusRecipe)
    root = tmp_path / "kernelmachine" / "open-license-corpus"
    folders = [path.partition(":")[2] for source in recipe.source for path in source.paths]
    for at, folder in enumerate(folders):
        _put(root / folder / "0000.jsonl.gz", [{"text": words(at, 60)}])
    (root / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    build(replace(recipe, workers=1), tmp_path / "corpus", base=tmp_path)
    corpus = Corpus.open(tmp_path / "corpus")
    expected = {"pd": Tier.pd, "sw": Tier.sw, "ccby": Tier.by}
    assert len(folders) == 15
    assert _tiers(corpus) == {
        name: {expected[name.partition("_")[0]]} for name in (folder.removeprefix("data/") for folder in folders)
    }
    groups = {spread.group for spread in corpus_stats(corpus).distribution}
    assert groups == set(recipe.groups) and len(groups) == 8


def test_a_card_that_restricts_counts_beside_a_stated_licence(tmp_path: Path) -> None:
    _put(tmp_path / "olc" / "data" / "pd_law" / "0.jsonl.gz", [{"text": words(0, 60)}])
    (tmp_path / "olc" / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    source = SourceRecipe("hub", ("olc:data/pd_law",), license="Public Domain")
    (document,) = read_documents(source, tmp_path, [])
    assert (document.domain, document.tier) == ("pd_law", Tier.restricted)


def test_records_of_the_common_pile_have_their_own_licences(tmp_path: Path) -> None:
    recipe = load_recipe(RECIPES / "common-pile.toml", CorpusRecipe)
    licences = {
        "pubmed": BY,
        "stackexchange": BY_SA,
        "usgpo": "Public Domain",
        "stackv2_edu": "MIT License",
        "wikiteam": "No License",
    }
    for at, (name, licence) in enumerate(licences.items()):
        record: dict[str, object] = {
            "id": str(at),
            "text": words(at, 60),
            "source": name,
            "metadata": {"license": licence},
        }
        _put(tmp_path / "common-pile" / f"{name}_filtered" / "00000_x.jsonl.gz", [record])
    some = tuple(source for source in recipe.source if source.domain in licences)
    build(replace(recipe, source=some, workers=1), tmp_path / "corpus", base=tmp_path)
    assert _tiers(Corpus.open(tmp_path / "corpus")) == {
        "pubmed": {Tier.by},
        "stackexchange": {Tier.by},
        "usgpo": {Tier.pd},
        "stackv2_edu": {Tier.sw},
        "wikiteam": {Tier.restricted},
    }
    grouped = [domain for members in recipe.groups.values() for domain in members]
    assert sorted(grouped) == sorted(source.domain for source in recipe.source)


def test_a_folder_of_a_dataset_is_fetched_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[list[str]] = []

    def fetch(name: str, *, repo_type: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        _put(tmp_path / "cache" / "data" / "pd_law" / "0.jsonl.gz", [{"text": "A law."}])
        _put(tmp_path / "cache" / "data" / "sw_github" / "0.jsonl.gz", [{"text": "code"}])
        return str(tmp_path / "cache")

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    parts = plan(SourceRecipe("hub", ("owner/name:data/pd_law",)), tmp_path)
    assert [part.label for part in parts] == ["owner/name/data/pd_law/0.jsonl.gz"]
    assert asked[0][0] == "README.md" and all(item.startswith("data/pd_law/*") for item in asked[0][1:])


@pytest.mark.parametrize("licence", ["Creative Commons - All rights reserved", "Creative Commons - Attribution NC"])
def test_a_dash_after_creative_commons_hides_nothing(licence: str) -> None:
    assert classify(licence).tier == Tier.restricted
