"""Corpus statistics: sums that add up, groups, references and the picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from silo.corpus.build import build
from silo.corpus.corpus import Corpus
from silo.corpus.report.plots import plot_distribution
from silo.corpus.report.stats import COLUMNS, Reference, corpus_stats, load_reference
from silo.corpus.weights import SETS
from silo.errors import SiloError
from silo.recipe import CorpusRecipe, DedupRecipe, SourceRecipe

PNG = b"\x89PNG\r\n\x1a\n"

# (domain, source, licence, text); with the byte tokenizer a text is one token per byte and one to begin with
RECORDS = [
    ("court", "cases", "CC0-1.0", "a" * 49),
    ("court", "cases", "CC0-1.0", "b" * 29),
    ("statute", "code of law", "CC0-1.0", "c" * 19),
    ("python", "wheels", "MIT", "d" * 59),
    ("python", "wheels", "GPL-3.0-only", "e" * 9),
    ("wiki", "dump", "CC-BY-SA-4.0", "f" * 29),
]
GROUPS = {"legal": ["court", "statute"], "code": ["python"]}


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return make_corpus(tmp_path, RECORDS)


def make_corpus(place: Path, records: list[tuple[str, str, str, str]]) -> Corpus:
    lines = [
        json.dumps({"id": str(at), "text": text, "source": source, "domain": domain, "license": spdx})
        for at, (domain, source, spdx, text) in enumerate(records)
    ]
    (place / "records.jsonl").write_text("\n".join(lines))
    source = SourceRecipe(kind="jsonl", paths=("records.jsonl",))
    build(CorpusRecipe(source=(source,), workers=1, dedup=DedupRecipe(enabled=False)), place / "corpus", base=place)
    return Corpus.open(place / "corpus")


def with_groups(corpus: Corpus, groups: Mapping[str, list[str]]) -> Corpus:
    return replace(corpus, manifest={**corpus.manifest, "recipe": {**corpus.manifest["recipe"], "groups": groups}})


def shares(stats: Any, name: str) -> dict[str, float]:
    return {spread.group: spread.sets[name].share for spread in stats.distribution if spread.sets[name].tokens}


def test_counts_by_every_column_add_up_to_the_totals(corpus: Corpus) -> None:
    stats = corpus_stats(corpus)
    assert (stats.totals.documents, stats.totals.bytes, stats.totals.tokens) == (6, 194, 200)
    assert set(stats.by) == set(COLUMNS)
    for counts in stats.by.values():
        assert sum(count.documents for count in counts) == 6
        assert sum(count.bytes for count in counts) == 194
        assert sum(count.tokens for count in counts) == 200
        assert sum(count.share for count in counts) == pytest.approx(1)
        assert [count.tokens for count in counts] == sorted((count.tokens for count in counts), reverse=True)


def test_tiers_come_from_the_licences(corpus: Corpus) -> None:
    tiers = {count.name: (count.documents, count.tokens, count.share) for count in corpus_stats(corpus).by["tier"]}
    assert tiers == {"pd": (3, 100, 0.5), "sw": (1, 60, 0.3), "by": (1, 30, 0.15), "restricted": (1, 10, 0.05)}


def test_every_domain_is_a_group_of_its_own_without_a_mapping(corpus: Corpus) -> None:
    stats = corpus_stats(corpus)
    assert [spread.group for spread in stats.distribution] == ["court", "python", "wiki", "statute"]
    assert shares(stats, "pd") == {"court": 0.8, "statute": 0.2}


def test_groups_gather_domains_and_shares_are_of_each_training_set(corpus: Corpus) -> None:
    stats = corpus_stats(with_groups(corpus, GROUPS))
    assert shares(stats, "pd") == {"legal": 1.0}
    assert shares(stats, "pdsw") == {"legal": 100 / 160, "code": 60 / 160}
    assert shares(stats, "pdswby") == {"legal": 100 / 190, "code": 60 / 190, "wiki": 30 / 190}
    assert shares(stats, "all") == {"legal": 100 / 200, "code": 70 / 200, "wiki": 30 / 200}


def test_a_domain_in_two_groups_is_refused(corpus: Corpus) -> None:
    with pytest.raises(SiloError, match="'court' is in both 'law' and 'legal'") as caught:
        corpus_stats(with_groups(corpus, {"law": ["court"], "legal": ["court"]}))
    assert caught.value.code == "recipe-value"


def test_overview_has_a_row_per_group_and_tier(corpus: Corpus) -> None:
    rows = corpus_stats(with_groups(corpus, GROUPS)).overview
    assert [(row.group, str(row.tier), row.sources, row.licenses, row.tokens) for row in rows] == [
        ("legal", "pd", ("cases", "code of law"), ("CC0-1.0",), 100),
        ("code", "sw", ("wheels",), ("MIT",), 60),
        ("code", "restricted", ("wheels",), ("GPL-3.0-only",), 10),
        ("wiki", "by", ("dump",), ("CC-BY-SA-4.0",), 30),
    ]


@pytest.mark.parametrize(("sources", "ending"), [(5, "s4"), (6, "and 2 more")])
def test_long_lists_of_sources_are_cut_short(tmp_path: Path, sources: int, ending: str) -> None:
    records = [("python", f"s{at}", "MIT", chr(97 + at) * (30 - at)) for at in range(sources)]
    (row,) = corpus_stats(make_corpus(tmp_path, records)).overview
    assert row.sources == ("s0", "s1", "s2", "s3", ending)


def test_the_reference_stands_beside_the_corpus(corpus: Corpus) -> None:
    stats = corpus_stats(with_groups(corpus, GROUPS), reference=Reference("other", {"code": 30, "web": 10}))
    beside = {spread.group: spread.reference.share for spread in stats.distribution if spread.reference}
    assert beside == {"legal": 0, "code": 0.75, "wiki": 0, "web": 0.25}
    assert stats.distribution[-1].sets["all"].tokens == 0


def test_json_holds_everything_and_names_no_reference_that_is_not_there(corpus: Corpus) -> None:
    plain = corpus_stats(corpus).as_json()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["totals"] == {"documents": 6, "bytes": 194, "tokens": 200}
    assert plain["counts"]["accepted"] == 6
    assert plain["weights"] == corpus.manifest["weights"]
    assert plain["reference"] is None
    assert plain["distribution"][0]["reference"] is None
    assert set(plain["distribution"][0]["sets"]) == set(SETS)


def test_the_pile_is_known_with_the_shares_of_the_paper() -> None:
    pile = load_reference("pile")
    everything = sum(pile.tokens.values())
    assert everything == pytest.approx(331.9e9)
    assert pile.tokens["code"] / everything == pytest.approx(0.098, abs=0.001)
    assert pile.tokens["science"] / everything == pytest.approx(0.26, abs=0.001)


def test_a_corpus_can_be_the_reference(corpus: Corpus) -> None:
    assert load_reference(corpus.root).tokens == {"court": 80, "statute": 20, "python": 70, "wiki": 30}


@pytest.mark.parametrize(("name", "text"), [("r.json", '{"code": 3, "web": 1.5}'), ("r.toml", "code = 3\nweb = 1.5")])
def test_a_reference_can_be_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert load_reference(str(tmp_path / name)) == Reference("r", {"code": 3, "web": 1.5})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.json", "{"),
        ("r.json", "[1]"),
        ("r.json", "{}"),
        ("r.json", '{"code": "3"}'),
        ("r.json", '{"code": true}'),
        ("r.json", '{"code": -1}'),
        ("r.json", '{"code": NaN}'),
        ("r.json", '{"code": 0}'),
        ("r.json", "[" * 100_000),
        ("r.toml", "code ="),
        ("r.toml", "[code]\npython = 3"),
        ("r.csv", "code,3"),
    ],
)
def test_a_reference_file_that_makes_no_sense_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SiloError) as caught:
        load_reference(tmp_path / name)
    assert caught.value.code == "recipe-value"


def test_an_unknown_reference_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="pile") as caught:
        load_reference("c4")
    assert caught.value.code == "input-missing"
    with pytest.raises(SiloError) as caught:
        load_reference(tmp_path)
    assert caught.value.code == "not-a-corpus"


def test_the_plot_is_a_picture_and_always_the_same(corpus: Corpus, tmp_path: Path) -> None:
    grouped = with_groups(corpus, {"$x_^$ & <legal>": ["court"], "a very long name " * 9: ["python"]})
    stats = corpus_stats(grouped, reference=load_reference("pile"))
    for suffix, start in ((".png", PNG), (".svg", b"<?xml")):
        first, second = tmp_path / f"deep/first{suffix}", tmp_path / f"second{suffix}"
        plot_distribution(stats, first)
        plot_distribution(stats, second)
        assert first.read_bytes().startswith(start)
        assert first.read_bytes() == second.read_bytes()


def test_a_plot_of_another_kind_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(SiloError, match=r"\.png or \.svg") as caught:
        plot_distribution(corpus_stats(corpus), tmp_path / "plot.bmp")
    assert caught.value.code == "recipe-value"
    assert not (tmp_path / "plot.bmp").exists()
