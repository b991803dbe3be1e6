"""A record gets the same verdict wherever it is read, and nothing unreadable passes unnoticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.recipe import PiiRecipe, SourceRecipe
from silo.records import Candidate, Quarantined, Right, Tier
from silo.rights import assess
from silo.sources import judge, read_documents
from tests.sources.reading import write

MIT = assess("MIT", where="test")


def test_the_text_is_normalised_and_the_evidence_decides() -> None:
    document = judge(Candidate("1", " e\u0301\r\nx\0 ", "s", "d", (MIT,), owner="ann", url="http://a/"))
    assert (document.text, document.license, document.tier) == ("é\nx", "MIT", Tier.sw)
    assert (document.owner, document.url, document.evidence) == ("ann", "http://a/", (MIT,))


def test_the_head_of_a_document_counts_as_evidence() -> None:
    document = judge(Candidate("1", "# SPDX-License-Identifier: GPL-3.0-only\n", "s", "d", (MIT,)))
    assert document.tier is Tier.restricted
    assert [item.where for item in document.evidence if item is not MIT] == ["text:1"]
    assert document.conflicts


def test_a_denied_right_is_gone_and_a_stated_tier_only_narrows() -> None:
    candidate = Candidate("1", "x", "s", "d", (MIT,), stated_tier="restricted")
    assert judge(candidate).tier is Tier.restricted
    assert judge(Candidate("1", "x", "s", "d", (MIT,)), (Right.train,)).rights.train is False


def test_documents_of_a_source_are_judged_and_masked_and_the_rest_is_noted(tmp_path: Path) -> None:
    records = [{"id": "1", "text": "write to a@b.com", "license": "MIT"}, {"id": "2"}]
    write(tmp_path, {"in.jsonl": "\n".join(map(json.dumps, records))})
    source = SourceRecipe("jsonl", ("in.jsonl",), deny=("train",))
    unreadable: list[Quarantined] = []
    (document,) = read_documents(source, tmp_path, unreadable, pii=PiiRecipe(mask=("email",)))
    assert (document.text, document.tier, document.rights.train) == ("write to [**email**]", Tier.sw, False)
    assert [(item.where, item.code) for item in unreadable] == [("in.jsonl:line 2", "field-missing")]
    with pytest.raises(SiloError, match="recipe-value"):
        next(read_documents(source, tmp_path, unreadable, pii=PiiRecipe(mask=("shoe size",))))
