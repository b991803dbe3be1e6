from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from silo.errors import SiloError
from silo.recipe import SourceRecipe
from silo.sources import plan
from silo.sources.hub import card_evidence
from tests.sources.reading import good, read_source, write

CARD = "---\nlicense: apache-2.0\nlanguage:\n- en\n---\n# Open License Corpus\n"


def test_a_local_copy_of_a_dataset_is_read(tmp_path: Path) -> None:
    """Laid out like the published Open License Corpus: one folder per subset, records without ids."""
    law = gzip.compress(b'{"text": "A law."}\n{"text": "Another law.", "id": "7", "license": "CC0-1.0"}\n')
    write(tmp_path, {"olc/README.md": CARD, "olc/data/pd_law/0.jsonl.gz": law, "olc/dataset_infos.json": "{}"})
    (tmp_path / "olc/data/sw_github").mkdir()
    table = pa.table({"text": ["code"], "metadata": [{"license": "MIT"}]})
    pq.write_table(table, tmp_path / "olc/data/sw_github/0.parquet")
    parts = plan(SourceRecipe("hub", ("olc",)), tmp_path)
    assert [part.label for part in parts] == ["olc/data/pd_law/0.jsonl.gz", "olc/data/sw_github/0.parquet"]
    first, second, third = good(read_source(tmp_path, "hub", "olc"))
    assert [first.source, first.domain, third.domain] == ["olc", "pd_law", "sw_github"]
    assert first.external_id.startswith("text:") and second.external_id == "7"
    assert [(item.method, item.confidence <= 0.3) for item in first.evidence] == [("hub-tag", True)]
    assert [item.spdx for item in third.evidence] == ["MIT", "Apache-2.0"]


@pytest.mark.parametrize(
    ("front", "tags"),
    [
        ("license: mit", ["mit"]),
        ("license:\n- mit\n- 'cc-by-4.0'\nlanguage:\n- en", ["mit", "cc-by-4.0"]),
        ("license: [mit, other]", ["mit", "other"]),
        ("pretty_name: x", []),
    ],
)
def test_licence_tags_of_a_card(tmp_path: Path, front: str, tags: list[str]) -> None:
    write(tmp_path, {"README.md": f"---\n{front}\n---\n"})
    assert [item.asserted for item in card_evidence(tmp_path)] == tags


def test_a_missing_extra_or_folder_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SiloError) as caught:
        plan(SourceRecipe("hub", ("owner/dataset",)), tmp_path)
    assert caught.value.code == "extra-missing" and "silo-lm[hub]" in caught.value.hint
    with pytest.raises(SiloError) as missing:
        plan(SourceRecipe("hub", ("no such folder",)), tmp_path)
    assert missing.value.code == "input-missing"
