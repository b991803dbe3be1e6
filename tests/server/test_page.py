"""What the page is served with, and the routes that it needs besides those of every client."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import silo.server.routes.page as routes
from tests.inference.world import TEXTS
from tests.server.conftest import Served

FOLDER = Path(routes.__file__).parent.parent / "page"


def test_a_browser_may_run_the_files_of_the_page_and_nothing_else(served: Served) -> None:
    page = served.client("").get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "require-trusted-types-for 'script'" in policy
    for name in re.findall(r'(?:src|href)="/page/([^"]+)"', page.text):
        assert served.client("").get(f"/page/{name}").status_code == 200
    for name in ("nothing.js", "..%2Fapp.py", "%2e%2e%2fapp.py", ".", "app.py"):
        assert served.client("").get(f"/page/{name}").status_code == 404


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.js")), ids=lambda file: file.name)
def test_no_file_of_the_page_makes_markup_of_text_or_asks_others(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert danger not in text
    assert not re.search(r"https?://", text)


def test_a_key_learns_what_it_may(served: Served) -> None:
    reader = served.client("reader").get("/v1/silo/me").json()
    assert (reader["roles"], reader["permissions"], reader["name"]) == (["reader"], ["logprobs"], "reader")
    assert "sha256" not in reader
    assert served.client("operator").get("/v1/silo/me").json()["permissions"] == ["logprobs", "text"]
    assert served.client("").get("/v1/silo/me").status_code == 401


def test_a_model_says_how_it_is_asked(served: Served) -> None:
    silo = served.client("reader").get("/v1/models/tiny").json()["silo"]
    assert silo["stores"] == ["store"] and silo["chats"] and silo["method"] == "knn+ngram"
    assert silo["searches"] == ["bm25", "knn", "ngram"] and silo["settings"] == []


def test_contents_are_counted_and_an_owner_counts_their_own(served: Served) -> None:
    everything = served.client().get("/v1/silo/contents").json()
    assert {item["name"]: item["documents"] for item in everything["tier"]} == {"sw": 2, "restricted": 2, "by": 1}
    assert sum(item["tokens"] for item in everything["owner"]) == sum(len(text) for text in TEXTS.values())
    assert [item["name"] for item in served.client("owner").get("/v1/silo/contents").json()["owner"]] == ["f"]
    assert served.client("reader").get("/v1/silo/contents").status_code == 403


def test_documents_are_found_by_their_words_and_tier(served: Served) -> None:
    def names(**wanted: str) -> set[str]:
        found = served.client().get("/v1/silo/documents", params=wanted).json()["data"]
        return {item["external_id"] for item in found}

    assert names(query="HOT  water") == {"tea"}
    assert names(tier="sw") == {"fox", "dog"}
    assert names(conflicts="true") == set()


def test_a_verdict_comes_before_anything_is_stored(served: Served) -> None:
    before = served.client().get("/v1/silo/digest").json()
    given = {
        "documents": [{"id": "new", "text": "Some words.", "license": "CC-BY-4.0"}, {"id": "odd"}],
        "dry_run": True,
    }
    verdict = served.client("owner").post("/v1/silo/documents", json=given).json()
    (document,) = verdict["documents"]
    assert (document["tier"], document["owner"], document["rights"]["train"]) == ("by", "f", True)
    assert "text" not in document and len(verdict["quarantined"]) == 1
    assert served.client().get("/v1/silo/digest").json() == before


def test_keys_jobs_and_the_log_are_for_those_who_run_the_server(served: Served) -> None:
    keys = served.client().get("/v1/silo/keys").json()["data"]
    assert {key["name"] for key in keys} >= {"reader", "plain", "owner", "operator"}
    assert not any("sha256" in key for key in keys)
    log = served.client().get("/v1/silo/log", params={"limit": 1}).json()
    assert log["data"][0]["n"] >= 1
    assert served.client("owner").get("/v1/silo/jobs").json()["data"] == []
    for path in ("keys", "log"):
        assert served.client("owner").get(f"/v1/silo/{path}").status_code == 403
    assert served.client("reader").get("/v1/silo/jobs").status_code == 403
