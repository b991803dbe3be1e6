"""A store of many documents is browsed page by page: 2,000 here, `SILO_MANY_DOCUMENTS=100000` for the whole thing.

`--log-cli-level=INFO` shows the processor times. What the index knows costs no reading; words are looked for in every
record.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from silo.pairing import create_store
from silo.records import Document
from silo.server.app import build_app
from silo.server.config import ModelRecipe, ServerRecipe
from tests.server.conftest import Served

_LOG = logging.getLogger(__name__)
COUNT = int(os.environ.get("SILO_MANY_DOCUMENTS", "2000"))
LICENSES = ("MIT", "CC0-1.0", "CC-BY-4.0", "")
RARE = COUNT // 2
SECONDS = 1.0


def make_many(place: Path, model: Path) -> Path:
    """A store of short documents, of a few thousand owners; one of them has a rare word and a rare licence."""

    def document(number: int) -> Document:
        rare = number == RARE
        text = f"Letter {number} tells of {'a zebra' if rare else 'the weather'} and of the harvest of year {number}."
        stated = "GPL-3.0-only" if rare else LICENSES[number % len(LICENSES)]
        return Document(f"letter {number}", text, owner=f"writer {number % 5000}", license=stated, source="letters")

    store = create_store(place, model, searches=("ngram", "bm25"))
    store.add(document(number) for number in range(COUNT))
    store.close()
    return place


@pytest.fixture(scope="module")
def many(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    place = tmp_path_factory.mktemp("many")
    store = make_many(place / "letters", served.place / "model")
    model = ModelRecipe(str(served.place / "model"), (str(store),), method="ngram")
    app = build_app(ServerRecipe({"tiny": model}, home=str(place / "home")))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def _timed(many: TestClient, what: str, path: str, **query: Any) -> tuple[dict[str, Any], float]:
    begin = time.process_time()
    answer = many.get(path, params=query)
    seconds = time.process_time() - begin
    assert answer.status_code == 200
    _LOG.info("%-48s %8.1f ms of processor time", what, 1000 * seconds)
    found: dict[str, Any] = answer.json()
    return found, seconds


def test_many_documents_are_listed_filtered_searched_and_paged(many: TestClient) -> None:
    path = "/v1/silo/documents"
    _LOG.info("a store of %d documents", COUNT)
    first, seconds = _timed(many, "the first page of 50", path, limit=50)
    assert len(first["data"]) == 50 and first["has_more"]
    assert seconds < SECONDS
    second, seconds = _timed(many, "the next page", path, limit=50, after=first["last_id"])
    assert second["data"][0]["id"] > first["last_id"]
    assert seconds < SECONDS
    last, seconds = _timed(many, "the last page", path, limit=50, after="fe" + "0" * 30)
    assert len(last["data"]) > 0
    assert seconds < SECONDS
    mine, seconds = _timed(many, "one owner", path, owner="writer 7", limit=50)
    assert [item["owner"] for item in mine["data"]] == ["writer 7"] * len(mine["data"])
    assert seconds < SECONDS
    rare, seconds = _timed(many, "a rare licence", path, license="GPL-3.0-only", limit=50)
    assert [item["external_id"] for item in rare["data"]] == [f"letter {RARE}"]
    assert seconds < SECONDS
    tier, seconds = _timed(many, "one tier", path, tier="by", limit=50)
    assert {item["tier"] for item in tier["data"]} == {"by"}
    assert seconds < SECONDS
    common, seconds = _timed(many, "a frequent word", path, query="harvest", limit=50)
    assert len(common["data"]) == 50
    assert seconds < SECONDS
    word, _ = _timed(many, "a rare word: every record is read", path, query="Zebra", limit=50)
    assert [item["external_id"] for item in word["data"]] == [f"letter {RARE}"]
    _timed(many, "statements that disagree: every record is read", path, conflicts=True, limit=50)
    again, seconds = _timed(many, "the same again", path, conflicts=True, limit=50)
    assert again["data"] == []
    assert seconds < SECONDS
    contents, seconds = _timed(many, "contents by tier, licence, owner, source", "/v1/silo/contents")
    assert contents["names"]["owner"] == min(COUNT, 5000)
    assert len(contents["owner"]) == min(COUNT, 1000)
    assert seconds < SECONDS
    _, seconds = _timed(many, "one document", f"{path}/{first['last_id']}")
    assert seconds < SECONDS
    _, seconds = _timed(many, "one text under two licences", "/v1/silo/same-texts")
    assert seconds < SECONDS


def test_all_pages_together_are_all_documents(many: TestClient) -> None:
    seen, after, has_more = 0, "", True
    while has_more:
        page = many.get("/v1/silo/documents", params={"limit": 1000, "after": after}).json()
        seen, after, has_more = seen + len(page["data"]), page["last_id"], page["has_more"]
    assert seen == COUNT
