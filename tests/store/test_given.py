"""What Python gives a store: documents, mappings and paths, each judged as a record of a file would be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.records import UNLIMITED, Document, Evidence, Quarantined, Rights, Tier, document_id
from silo.store.adding.given import Given, as_documents
from silo.store.store import Store
from tests.store.small import document, small_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return small_store(tmp_path / "store")


def _one(given: Any) -> Document:
    (found,) = as_documents(given, [])
    return found


def test_a_store_takes_documents_mappings_and_paths_together(store: Store, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("A note in a folder.")
    lines = tmp_path / "mail.jsonl"
    lines.write_text(json.dumps({"id": "m", "text": "A letter."}) + "\nno json\n")
    given: list[Given] = [
        Document("one", "A text with an id."),
        {"id": "two", "text": "A mapping.", "license": "MIT", "metadata": {"page": 3}},
        str(lines),
        tmp_path / "notes",
        document("three", "A document that was judged before."),
    ]
    done = store.add(given)
    assert (done.added, len(done.quarantined)) == (5, 1)
    held = {item.external_id: item for item in store.documents()}
    assert held.keys() == {"one", "two", "m", "a.txt", "three"}
    assert [held[name].source for name in ("one", "two", "m", "a.txt")] == ["python", "python", "mail", "notes"]
    assert (held["two"].tier, held["two"].meta) == (Tier.sw, {"page": 3})
    assert store.add(given).unchanged == 5
    assert store.add({"id": "two", "text": "A mapping."}, update=True).replaced == 1


def test_a_file_is_the_document_that_its_folder_would_have(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# Title\n\nA note.")
    (tmp_path / "notes" / "b.bin").write_bytes(b"\0\1")
    (tmp_path / "notes" / "metadata.jsonl").write_text(json.dumps({"path": "a.md", "license": "CC0-1.0"}))
    assert _one(tmp_path / "notes" / "a.md") == _one(tmp_path / "notes")
    assert _one(tmp_path / "notes").tier == Tier.pd
    unreadable: list[Quarantined] = []
    assert list(as_documents(tmp_path / "notes" / "b.bin", unreadable)) == []
    assert [item.where for item in unreadable] == ["notes/b.bin"]


def test_a_document_needs_a_text_and_an_id_and_is_restricted_then() -> None:
    found = _one(Document("mine", "Some words."))
    assert (found.id, found.external_id) == (document_id("python", "mine"), "mine")
    assert (found.tier, found.license) == (Tier.restricted, "NOASSERTION")
    assert found.rights.store and not found.rights.train and found.rights.quote < UNLIMITED
    assert found == _one({"id": "mine", "text": "Some words."})
    hexadecimal = "0123456789abcdef" * 2
    assert _one(Document(hexadecimal, "Some words.")).external_id == hexadecimal


def test_a_licence_is_a_statement_and_nothing_more() -> None:
    assert _one(Document("a", "Some words.", license="CC0-1.0")).tier == Tier.pd
    assert _one(Document("a", "Some words.", license="whatever I like")).tier == Tier.restricted
    header = "# SPDX-License-Identifier: GPL-3.0-only\nprint(1)\n"
    assert _one(Document("a", header, license="CC0-1.0")).tier == Tier.restricted
    assert _one(Document("a", "Some words.", license="CC0-1.0", tier=Tier.by)).tier == Tier.by


EVERYTHING = Rights(train=True, store=True, quote=UNLIMITED, index=True)


def test_no_licence_can_be_brought_along() -> None:
    """Tier, rights and licence are what the evidence grants, whatever a document says of itself."""
    claim = Document("a", "Some words.", tier=Tier.pd, rights=EVERYTHING, license="")
    assert (_one(claim).tier, _one(claim).rights.train) == (Tier.restricted, False)
    judged = document("b", "Some words.")
    forged = _one(replace(judged, license="CC0-1.0", tier=Tier.pd, rights=EVERYTHING))
    assert (forged.license, forged.tier, forged.rights) == (judged.license, judged.tier, judged.rights)
    assert "claims CC0-1.0 as pd" in forged.conflicts[-1]
    narrowed = replace(judged, rights=Rights(store=True))
    assert _one(narrowed) is narrowed, "less than the evidence grants is fine"
    assert _one(judged) is judged
    weak = Evidence("MIT", "a guess", "guess", 0.3, Tier.sw, "MIT")
    assert _one(Document("c", "Some words.", evidence=(weak,))).tier == Tier.restricted


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"text": "no id"}, "field-missing"),
        ({"id": "a"}, "field-missing"),
        (Document("", "no id"), "field-missing"),
        (Document("a", 5), "field-type"),  # type: ignore[arg-type]
        ({"id": "a", "text": "x", "metadata": {"when": object()}}, "field-type"),
        ({"id": "a", "text": "half \ud800"}, "surrogate-lone"),
        ({"id": "a", "text": "x", "metadata": {"n": float("nan")}}, "field-type"),
        ({"id": "a", "text": "nul \0"}, "nul-byte"),
        (5, "field-type"),
        ("no such file.jsonl", "input-missing"),
        ("no such folder", "input-missing"),
    ],
)
def test_what_cannot_be_taken_is_an_error_with_a_code_and_nothing_is_written(
    store: Store, given: Any, code: str
) -> None:
    with pytest.raises(SiloError) as caught:
        store.add([{"id": "fine", "text": "This one is fine."}, given])
    assert caught.value.code == code
    assert list(store.documents()) == []


def test_a_mistake_names_the_document(store: Store) -> None:
    with pytest.raises(SiloError, match="document 2: the record has no id"):
        store.add([{"id": "a", "text": "x"}, {"text": "y"}])
