"""The pipeline end to end on small files: the books balance, the right copy wins, and equal input gives equal bytes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from silo.corpus.build import build
from silo.corpus.corpus import Corpus
from silo.corpus.shards import read_lines
from silo.errors import SiloError
from silo.recipe import CorpusRecipe, DecontaminationRecipe, DedupRecipe, PiiRecipe, SourceRecipe
from silo.records import Tier, document_id
from silo.text.tokenizer import load_tokenizer
from tests.conftest import build_from, record, words, write_jsonl


def _tree(root: Path) -> dict[str, bytes]:
    """Every file of a corpus but the one that holds times."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "build.json"
    }


def _rejected(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted((root / "rejected").glob("*")) for line in read_lines(path)]


def _texts(root: Path, *tiers: Tier) -> set[str]:
    return {document.text for document in Corpus.open(root).documents(tiers=tiers or tuple(Tier))}


def test_books_balance_and_every_drop_has_a_reason(tmp_path: Path) -> None:
    file = write_jsonl(
        tmp_path / "in.jsonl",
        [
            record("a", words(1, 50)),
            record("b", words(1, 50).upper()),
            record("c", words(1, 49) + " end"),
            record("d", ""),
            record("e", words(5, 50)),
            record("e", words(6, 50)),
            record("f", words(7, 50), license="GPL-3.0-only"),
            record("g", words(8, 50)),
        ],
    )
    with file.open("a") as stream:
        stream.write('{"id": "x", "text": 5}\nnot json\n')
    evaluation = write_jsonl(tmp_path / "test.jsonl", [record("g", words(8, 50))])
    summary = build_from([file], tmp_path / "out", decontaminate=DecontaminationRecipe(files=(str(evaluation),)))
    assert summary["read"] == summary["accepted"] + summary["rejected"] + summary["quarantined"] == 10
    assert summary["quarantine_codes"] == {"field-type": 1, "json-invalid": 1}
    assert summary["reasons"] == {
        "contaminated": 1,
        "duplicate-id": 1,
        "exact-duplicate": 1,
        "near-duplicate": 1,
        "too-short": 1,
    }
    assert summary["tiers"] == {"pd": 0, "sw": 2, "by": 0, "restricted": 1}
    assert {item["external_id"]: item["reason"] for item in _rejected(tmp_path / "out")}["g"] == "contaminated"
    quarantined = [json.loads(line) for line in read_lines(tmp_path / "out" / "quarantined.jsonl.zst")]
    assert [item["where"] for item in quarantined] == ["in.jsonl:line 9", "in.jsonl:line 10"]
    assert "not json" not in json.dumps(quarantined)
    Corpus.open(tmp_path / "out").verify()


@pytest.mark.parametrize("change", ["", " and one more"], ids=["exact", "near"])
@pytest.mark.parametrize("first", ["risky", "safe"])
def test_the_lower_risk_copy_wins_whatever_comes_first(tmp_path: Path, first: str, change: str) -> None:
    text = words(1, 200)
    risky = record("risky", text, license="all rights reserved")
    safe = record("safe", text + change, license="CC0-1.0")
    file = write_jsonl(tmp_path / "in.jsonl", [risky, safe] if first == "risky" else [safe, risky])
    build_from([file], tmp_path / "out")
    assert [document.external_id for document in Corpus.open(tmp_path / "out").documents()] == ["safe"]


def test_the_same_text_under_two_licences_is_flagged(tmp_path: Path) -> None:
    file = write_jsonl(
        tmp_path / "in.jsonl",
        [record("a", words(1, 30), license="MIT"), record("b", words(1, 30), license="GPL-2.0-only")],
    )
    assert build_from([file], tmp_path / "out")["laundering"] == 1
    (pair,) = json.loads((tmp_path / "out" / "laundering.json").read_text())
    assert (pair["kept_license"], pair["dropped_license"]) == ("MIT", "GPL-2.0-only")


def test_slices_find_the_same_repeats_as_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from silo.corpus import exact

    files = [write_jsonl(tmp_path / f"{n}.jsonl", _mixed_records(random.Random(n))) for n in range(3)]
    build_from(files, tmp_path / "whole")
    monkeypatch.setattr(exact, "_SLICE_ROWS", 7)
    build_from(files, tmp_path / "sliced")
    assert _tree(tmp_path / "whole") == _tree(tmp_path / "sliced")


def test_near_duplicates_are_looked_for_within_a_domain_only(tmp_path: Path) -> None:
    file = write_jsonl(
        tmp_path / "in.jsonl",
        [record("a", words(1, 200), domain="one"), record("b", words(1, 200) + " more", domain="two")],
    )
    assert build_from([file], tmp_path / "out")["accepted"] == 2


def test_a_stated_tier_is_checked_and_never_believed_alone(tmp_path: Path) -> None:
    file = write_jsonl(
        tmp_path / "in.jsonl",
        [
            record("a", words(1, 30), license="GPL-3.0-only", tier="pd"),
            record("b", words(2, 30), license="MIT", tier="restricted"),
            record("c", words(3, 30), license="", tier="pd"),
            record("d", words(4, 30), license="MIT", tier="sw"),
        ],
    )
    summary = build_from([file], tmp_path / "out")
    assert summary["tiers"] == {"pd": 0, "sw": 1, "by": 0, "restricted": 3}
    assert summary["conflicts"] == 3


def test_a_licence_header_in_the_text_outweighs_the_record(tmp_path: Path) -> None:
    text = "# SPDX-License-Identifier: GPL-3.0-or-later\n" + words(1, 40)
    file = write_jsonl(tmp_path / "in.jsonl", [record("a", text, license="MIT")])
    assert build_from([file], tmp_path / "out")["tiers"]["restricted"] == 1


def test_rights_can_be_denied_by_the_recipe(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [record("a", words(1, 30)), record("b", words(2, 30))])
    source = SourceRecipe("jsonl", (str(file),), deny=("train",))
    build(CorpusRecipe((source,), workers=1), tmp_path / "out", base=tmp_path)
    assert [document.rights.train for document in Corpus.open(tmp_path / "out").documents()] == [False, False]
    both = SourceRecipe("jsonl", (str(file),), deny=("train", "store"))
    with pytest.raises(SiloError, match=r"none of 2 records is left: no-rights \(2\)"):
        build(CorpusRecipe((both,), workers=1), tmp_path / "none", base=tmp_path)


def test_personal_data_is_masked_and_mostly_masked_notes_are_dropped(tmp_path: Path) -> None:
    file = write_jsonl(
        tmp_path / "in.jsonl",
        [record("a", "write to a@b.com please"), record("b", "[**Name**] [**Date**] seen")],
    )
    summary = build_from([file], tmp_path / "out", pii=PiiRecipe(mask=("email",)))
    assert summary["reasons"] == {"mostly-masked": 1}
    assert summary["masked"] == 1
    assert _texts(tmp_path / "out") == {"write to [**email**] please"}


def test_shards_remember_their_documents(tmp_path: Path) -> None:
    records = [record(f"d{number}", words(number, 20), license="CC-BY-SA-4.0") for number in range(50)]
    file = write_jsonl(tmp_path / "in.jsonl", records)
    summary = build_from([file], tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    (shard,) = corpus.shards(tiers=[Tier.by])
    bytes_tokenizer = load_tokenizer(None)
    index, documents = shard.index(), list(shard.documents())
    assert [entry["id"].tobytes().hex() for entry in index] == sorted(
        document_id("test", item["id"]) for item in records
    )
    for entry, document in zip(index, documents, strict=True):
        ids = shard.document_tokens(entry)
        assert ids[0] == bytes_tokenizer.begin
        assert bytes_tokenizer.decode(ids) == document.text
        assert entry["train"] == document.rights.train
    assert summary["tokens"] == len(shard.tokens()) == sum(len(item["text"]) + 1 for item in records)


def test_small_shards_hold_the_same_documents_as_one_large_shard(tmp_path: Path, monkeypatch: Any) -> None:
    from silo.corpus import clean

    file = write_jsonl(tmp_path / "in.jsonl", [record(f"d{n}", words(n, 200)) for n in range(40)])
    build_from([file], tmp_path / "large")
    monkeypatch.setattr(clean, "MIB", 4000)
    build_from([file], tmp_path / "small", shard_mb=1)
    assert len(Corpus.open(tmp_path / "small").shards()) > 5
    assert _texts(tmp_path / "small") == _texts(tmp_path / "large")


def test_an_opted_out_document_is_never_yielded(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [record("a", words(1, 30)), record("b", words(2, 30))])
    build_from([file], tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    corpus.opt_out([document_id("test", "a")])
    assert [document.external_id for document in Corpus.open(tmp_path / "out").documents()] == ["b"]


def test_a_finished_corpus_is_reused_and_another_is_not_overwritten(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [record("a", words(1, 30))])
    assert build_from([file], tmp_path / "out")["reused"] is False
    assert build_from([file], tmp_path / "out")["reused"] is True
    with pytest.raises(SiloError, match="out-exists"):
        build_from([file], tmp_path / "out", min_chars=5)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious.txt").write_text("mine")
    with pytest.raises(SiloError, match="out-exists"):
        build_from([file], tmp_path / "other")
    with pytest.raises(SiloError, match="out-exists"):
        build(CorpusRecipe((SourceRecipe("jsonl", (str(file),)),)), tmp_path / "other", base=tmp_path, force=True)
    assert (tmp_path / "other" / "precious.txt").read_text() == "mine"


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="input-missing"):
        build_from([tmp_path / "none.jsonl"], tmp_path / "out")
    empty = write_jsonl(tmp_path / "empty.jsonl", [])
    with pytest.raises(SiloError, match="input-empty"):
        build_from([empty], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"dedup": DedupRecipe(threshold=0.0)},
        {"dedup": DedupRecipe(ngram=0)},
        {"dedup": DedupRecipe(false_positive_rate=2.0)},
        {"pii": PiiRecipe(mask=("name",))},
        {"shard_mb": 0},
    ],
)
def test_senseless_settings_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [record("a", "text")])
    with pytest.raises(SiloError, match="recipe-value"):
        build_from([file], tmp_path / "out", **settings)


def test_damage_is_noticed(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [record("a", words(1, 30))])
    build_from([file], tmp_path / "out")
    corpus = Corpus.open(tmp_path / "out")
    tokens = next((tmp_path / "out").rglob("*.tokens"))
    tokens.write_bytes(tokens.read_bytes()[:-2] + b"xx")
    with pytest.raises(SiloError, match="corpus-damaged"):
        corpus.verify()
    (shard,) = corpus.shards()
    for suffix, read in ((".jsonl.zst", lambda: list(shard.documents())), (".index.npy", shard.index)):
        path = shard.root / (shard.stem + suffix)
        path.write_bytes(b"broken")
        with pytest.raises(SiloError, match="corpus-damaged"):
            read()
    tokens.unlink()
    with pytest.raises(SiloError, match="corpus-damaged"):
        shard.tokens()
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"accepted": 1', '"accepted": 2'))
    with pytest.raises(SiloError, match="corpus-damaged"):
        Corpus.open(tmp_path / "out")
    with pytest.raises(SiloError, match="not-a-corpus"):
        Corpus.open(tmp_path)


def _mixed_records(rng: random.Random) -> list[dict[str, Any]]:
    licenses = ["MIT", "CC0-1.0", "CC-BY-4.0", "GPL-3.0-only", "", "unknown"]
    records = []
    for number in range(rng.randint(1, 40)):
        text = words(rng.randint(0, 12), 60)
        if rng.random() < 0.5:
            text += f" {words(rng.randint(100, 110), rng.choice([1, 5, 40]))}"
        domain = rng.choice(["one", "two", "Odd / name"])
        records.append(record(f"d{rng.randint(0, 50)}", text, license=rng.choice(licenses), domain=domain))
        del number
    return records


@settings(max_examples=12)
@example(seed=15025034)
@given(seed=st.integers(0, 2**32))
def test_order_and_division_of_the_input_do_not_matter(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    place = tmp_path_factory.mktemp("order")
    records = _mixed_records(rng)
    build_from([write_jsonl(place / "in.jsonl", records)], place / "a")
    rng.shuffle(records)
    build_from([write_jsonl(place / "again" / "in.jsonl", records)], place / "b")
    assert _tree(place / "a") == _tree(place / "b")
    cut = rng.randint(0, len(records))
    files = [write_jsonl(place / "x.jsonl", records[:cut]), write_jsonl(place / "y.jsonl", records[cut:])]
    build_from([file for file in files if file.stat().st_size], place / "c")
    assert Corpus.open(place / "a").manifest["counts"] == Corpus.open(place / "c").manifest["counts"]
    assert _texts(place / "a") == _texts(place / "c")


def test_two_processes_give_the_bytes_of_one(tmp_path: Path) -> None:
    rng = random.Random(3)
    files = [write_jsonl(tmp_path / f"{number}.jsonl", _mixed_records(rng)) for number in range(4)]
    build_from(files, tmp_path / "one", workers=1)
    build_from(files, tmp_path / "two", workers=2)
    assert _tree(tmp_path / "one") == _tree(tmp_path / "two")


class Stop(BaseException):
    """What interrupts a build in the tests below."""


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 25), min_size=1, max_size=4))
def test_an_interrupted_build_ends_as_an_uninterrupted_one(
    tmp_path_factory: pytest.TempPathFactory, seed: int, stops: list[int]
) -> None:
    rng = random.Random(seed)
    place = tmp_path_factory.mktemp("resume")
    files = [write_jsonl(place / f"{number}.jsonl", _mixed_records(rng)) for number in range(3)]
    build_from(files, place / "whole")
    recipe = CorpusRecipe((SourceRecipe("jsonl", tuple(map(str, files))),), workers=1)
    for stop in stops:
        calls = iter(range(10**6))

        def advance(*_: Any, calls: Any = calls, stop: int = stop) -> None:
            if next(calls) == stop:
                raise Stop

        try:
            build(recipe, place / "resumed", base=place, advance=advance)
        except Stop:
            assert not (place / "resumed").exists()
    build(recipe, place / "resumed", base=place)
    assert _tree(place / "resumed") == _tree(place / "whole")
    assert not (place / "resumed.building").exists()


def test_a_changed_input_starts_the_build_again(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [record("a", words(1, 30))])

    def stop_at_tokens(stage: str, *_: int) -> None:
        if stage == "tokens":
            raise Stop

    recipe = CorpusRecipe((SourceRecipe("jsonl", (str(file),)),), workers=1)
    with pytest.raises(Stop):
        build(recipe, tmp_path / "out", base=tmp_path, advance=stop_at_tokens)
    write_jsonl(file, [record("b", words(2, 30)), record("c", words(3, 30))])
    assert build(recipe, tmp_path / "out", base=tmp_path)["accepted"] == 2


def test_a_corpus_whose_every_record_is_rejected_is_an_error(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [record(str(n), "short") for n in range(3)])
    with pytest.raises(SiloError, match=r"none of 3 records is left: exact-duplicate \(2\), too-short") as caught:
        build_from([file], tmp_path / "out", min_chars=100)
    assert caught.value.code == "input-empty"
    assert not (tmp_path / "out").exists()
