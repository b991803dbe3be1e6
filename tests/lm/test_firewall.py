"""Nothing restricted, opted out or without the train right shapes a model, and a model says what did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zstandard

from silo.corpus.build import build
from silo.corpus.corpus import Corpus
from silo.corpus.shards import RECORDS, read_lines
from silo.errors import SiloError
from silo.files import file_sha256, write_manifest
from silo.lm.audit import audit
from silo.lm.firewall import (
    CODEC,
    DOCUMENTS,
    TOKENIZER,
    WEIGHTS,
    Permit,
    load_seen,
    merge_seen,
    seen_file,
    seen_rows,
    what_it_shaped,
)
from silo.lm.manifest import FORMAT
from silo.lm.training.data import prepare_streams
from silo.recipe import CorpusRecipe, SourceRecipe
from silo.records import Evidence, Right, document_id
from silo.rights import assess
from silo.text.normalise import text_hash
from tests.conftest import build_from, record, words, write_jsonl


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    records = [record(f"p{n}", words(n, 30), license="CC0-1.0") for n in range(6)]
    records += [record(f"r{n}", words(n + 90, 30), license="all rights reserved") for n in range(3)]
    build_from([write_jsonl(tmp_path / "in.jsonl", records)], tmp_path / "corpus")
    return Corpus.open(tmp_path / "corpus")


def _prepare(corpus: Corpus, tmp_path: Path, *tiers: str) -> None:
    prepare_streams(corpus, Permit.of(tiers), "", tmp_path / "tokens", advance=lambda *_: None)


def _slip_in(corpus: Corpus, **changes: object) -> None:
    """Change one record of a public-domain shard behind the corpus's back."""
    (shard,) = corpus.shards(tiers=["pd"])  # type: ignore[list-item]
    path = shard.root / (shard.stem + RECORDS)
    lines = [json.loads(line) for line in read_lines(path)]
    lines[2].update(changes)
    path.write_bytes(zstandard.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines)))


def test_the_restricted_tier_is_never_permitted() -> None:
    with pytest.raises(SiloError, match="training-refused"):
        Permit.of(["pd", "restricted"])
    with pytest.raises(SiloError, match="recipe-value"):
        Permit.of([])
    with pytest.raises(SiloError, match="recipe-value"):
        Permit.of(["free"])
    assert Permit.of(["pd", "restricted"], reference=True).reference


def test_a_restricted_document_that_slipped_in_stops_the_run(corpus: Corpus, tmp_path: Path) -> None:
    _slip_in(corpus, tier="restricted")
    with pytest.raises(SiloError, match="training-refused") as caught:
        _prepare(corpus, tmp_path, "pd")
    assert "is restricted" in caught.value.message


def test_a_document_whose_rights_contradict_its_index_stops_the_run(corpus: Corpus, tmp_path: Path) -> None:
    _slip_in(corpus, rights={"train": False, "store": True, "quote": 5, "index": True})
    with pytest.raises(SiloError, match="training-refused"):
        _prepare(corpus, tmp_path, "pd")


@pytest.mark.parametrize("licence", ["all rights reserved", "GPL-3.0-only", "CC-BY-NC-4.0"])
def test_a_record_that_claims_a_laxer_tier_than_its_evidence_stops_the_run(
    corpus: Corpus, tmp_path: Path, licence: str
) -> None:
    _slip_in(corpus, evidence=[assess(licence, where="LICENSE").as_json()])
    with pytest.raises(SiloError, match="claims to be pd, its evidence makes it") as caught:
        _prepare(corpus, tmp_path, "pd")
    assert caught.value.code == "training-refused"


def test_a_record_that_claims_a_right_its_evidence_denies_stops_the_run(corpus: Corpus, tmp_path: Path) -> None:
    signal = Evidence("train-ai=n", "robots.txt", "aipref", 1.0, denies=frozenset({Right.train}))
    granted = assess("CC0-1.0", where="LICENSE")
    _slip_in(corpus, evidence=[granted.as_json(), signal.as_json()])
    with pytest.raises(SiloError, match="claims rights that its evidence does not grant"):
        _prepare(corpus, tmp_path, "pd")


def test_a_record_without_evidence_stops_the_run(corpus: Corpus, tmp_path: Path) -> None:
    _slip_in(corpus, evidence=[])
    with pytest.raises(SiloError, match="training-refused"):
        _prepare(corpus, tmp_path, "pd")


def test_documents_without_the_train_right_are_left_out(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [record("a", words(1, 30), license="CC0-1.0")])
    source = SourceRecipe("jsonl", (str(file),), deny=("train",))
    build(CorpusRecipe((source,), workers=1), tmp_path / "corpus", base=tmp_path)
    with pytest.raises(SiloError, match="input-empty"):
        _prepare(Corpus.open(tmp_path / "corpus"), tmp_path, "pd")


def test_a_model_answers_what_a_document_shaped(tmp_path: Path) -> None:
    one, two = document_id("s", "1"), document_id("s", "2")
    rows = merge_seen(
        seen_rows([(one, bytes(16))], TOKENIZER), seen_rows([(one, bytes(16)), (two, bytes(16))], WEIGHTS)
    )
    np.save(tmp_path / DOCUMENTS, merge_seen(rows, seen_rows([(two, bytes(16))], CODEC)))
    assert what_it_shaped(tmp_path, one) == ["tokenizer", "weights"]
    assert what_it_shaped(tmp_path, two) == ["weights", "codec"]
    assert what_it_shaped(tmp_path, document_id("s", "3")) == []
    with pytest.raises(SiloError, match="usage"):
        what_it_shaped(tmp_path, "nonsense")
    with pytest.raises(SiloError, match="model-unknown-data"):
        what_it_shaped(tmp_path / "elsewhere", one)


def test_a_damaged_list_of_documents_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"\x93NUMPY", b"nonsense"):
        (tmp_path / DOCUMENTS).write_bytes(content)
        with pytest.raises(SiloError, match="model-damaged"):
            load_seen(tmp_path)
    np.save(tmp_path / DOCUMENTS, np.zeros(3))
    with pytest.raises(SiloError, match="model-damaged"):
        load_seen(tmp_path)


def test_a_list_of_documents_that_its_manifest_does_not_name_is_refused(tmp_path: Path) -> None:
    kept = seen_file(seen_rows([(document_id("s", "1"), bytes(16))], WEIGHTS))
    (tmp_path / DOCUMENTS).write_bytes(kept)
    mark = file_sha256(tmp_path / DOCUMENTS)
    write_manifest(tmp_path, {"format": FORMAT, "files": {DOCUMENTS: mark}})
    assert len(load_seen(tmp_path)) == 1
    (tmp_path / DOCUMENTS).write_bytes(seen_file(seen_rows([], WEIGHTS)))
    with pytest.raises(SiloError, match="differs from the manifest"):
        load_seen(tmp_path)
    (tmp_path / DOCUMENTS).unlink()
    with pytest.raises(SiloError, match="model-damaged"):
        load_seen(tmp_path)


def test_an_audit_finds_what_is_missing_changed_restricted_or_opted_out(corpus: Corpus, tmp_path: Path) -> None:
    documents = {document.external_id: document for document in corpus.documents()}
    seen = [(documents[name].id, text_hash(documents[name].text)) for name in ("p0", "p1", "p2")]
    np.save(tmp_path / DOCUMENTS, seen_rows(seen, WEIGHTS))
    permit = Permit.of(["pd"])
    clean = audit(tmp_path, corpus, permit)
    assert (clean.documents, clean.tiers, clean.violations) == (3, {"pd": 3}, [])
    bad = [
        (documents["p3"].id, bytes(16)),
        (documents["r0"].id, text_hash(documents["r0"].text)),
        (document_id("no", "where"), bytes(16)),
    ]
    np.save(tmp_path / DOCUMENTS, seen_rows(seen + bad, WEIGHTS))
    corpus.opt_out([documents["p1"].id])
    problems = " ".join(audit(tmp_path, corpus, permit).violations)
    for words_ in ("another text", "is restricted and may not train", "not in the corpus", "has opted out since"):
        assert words_ in problems
