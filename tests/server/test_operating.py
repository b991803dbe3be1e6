"""What operators and owners look at: some of a model's stores, the price of an opt-out, uses, refusals and corpora."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from silo.errors import SiloError
from silo.records import Candidate, Document
from silo.rights import assess
from silo.server.access import create_key
from silo.server.app import build_app
from silo.server.config import ModelRecipe, ServerRecipe, read_config
from silo.sources import judge
from tests.inference.world import documents, make_store
from tests.server.conftest import LIMITS, Served

TEXT = "The quick brown fox sings in the rain."


def _document(name: str, license: str) -> Document:
    return judge(Candidate(name, TEXT, "songs", "prose", (assess(license, where="record"),), owner="s"))


@pytest.fixture(scope="module")
def recipe(served: Served) -> ServerRecipe:
    """Two stores of one model, which has text to measure on, and the corpus that the model's codec is from."""
    place = served.place
    make_store(place / "first", place / "model", documents()).close()
    make_store(place / "songs", place / "model", [_document("mine", "MIT"), _document("copy", "CC-BY-4.0")]).close()
    (place / "validation.jsonl").write_text('{"text": "The quick brown fox jumps."}\n{"text": "A lazy dog."}\n')
    model = ModelRecipe(str(place / "model"), (str(place / "first"), str(place / "songs")))
    held_out = replace(model, validation=str(place / "validation.jsonl"))
    file = place / "others.json"
    return ServerRecipe(
        {"tiny": held_out, "plain": model},
        keys=str(file),
        home=str(place / "operating"),
        corpora=(str(place / "corpus"),),
        limits=LIMITS,
    )


@pytest.fixture(scope="module")
def two(served: Served, recipe: ServerRecipe) -> Iterator[Served]:
    file = Path(recipe.keys)
    roles: dict[str, dict[str, Any]] = {
        "operator": {"roles": ["operator"]},
        "fox": {"roles": ["owner"], "owner": "f"},
        "dog": {"roles": ["owner"], "owner": "d"},
    }
    keys = {name: create_key(file, name=name, **facts)[1] for name, facts in roles.items()}
    app = build_app(recipe)
    with TestClient(app, base_url="http://127.0.0.1"):
        yield Served("", served.place, app, keys)


def _ask(two: Served, headers: dict[str, str] | None = None, **silo: Any) -> Any:
    request = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 12, "temperature": 0}
    silo = {"method": "ngram", **silo}
    return two.client().post("/v1/completions", json={**request, "silo": silo}, headers=headers or {})


def _used(answer: Any) -> set[str]:
    return {item["external_id"] for item in answer.json()["choices"][0]["silo"]["documents"]}


def test_a_request_reads_the_stores_that_it_names(two: Served) -> None:
    def digest(store: str) -> str:
        return str(two.client().get("/v1/silo/digest", params={"store": store}).json()["digest"])

    assert _used(_ask(two)) >= {"fox", "mine", "copy"}
    songs = _ask(two, stores=["songs"])
    assert _used(songs) == {"mine", "copy"}
    assert songs.json()["system_fingerprint"] == digest("songs")
    assert "fox" in (first := _used(_ask(two, {"x-silo-stores": "first"})))
    assert not first & {"mine", "copy"}
    both = _ask(two, {"x-silo-stores": "first, songs"}, stores=["songs"])
    assert _used(both) == {"mine", "copy"}


def test_a_store_that_the_model_does_not_read_is_refused(two: Served) -> None:
    unknown = _ask(two, stores=["store"])
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "silo.stores")
    assert _ask(two, {"x-silo-stores": "first"}, stores=["songs"]).status_code == 400
    assert _ask(two, stores=[]).status_code == 400


def test_an_opt_out_is_priced_on_the_text_that_the_operator_named(two: Served) -> None:
    asked = {"model": "tiny", "owner": "f", "store": "first"}
    price = two.client("fox").post("/v1/silo/opt-out-price", json=asked).json()
    assert price["documents"] == 1
    assert price["tokens"] == len("The quick brown fox jumps.") + len("A lazy dog.")
    assert price["perplexity"]["with"] < price["perplexity"]["without"]
    assert two.client("fox").post("/v1/silo/opt-out-price", json={**asked, "model": "plain"}).status_code == 400
    assert two.client("fox").post("/v1/silo/opt-out-price", json={**asked, "store": "songs"}).status_code == 404
    shown = {item["id"]: item["silo"]["validation_tokens"] for item in two.client().get("/v1/models").json()["data"]}
    assert shown == {"tiny": price["tokens"], "plain": 0}


def test_a_test_split_is_no_validation_text(served: Served, recipe: ServerRecipe) -> None:
    wrong = served.place / "books.test.jsonl"
    wrong.write_text('{"text": "secret"}\n')
    tiny = replace(recipe.models["tiny"], validation=str(wrong))
    with pytest.raises(SiloError, match="test split"):
        build_app(replace(recipe, models={"tiny": tiny}))


def test_an_owner_sees_where_a_document_was_used_and_nobody_else_does(two: Served) -> None:
    listed = two.client().get("/v1/silo/documents", params={"store": "first", "owner": "f"}).json()["data"]
    place = f"/v1/silo/documents/{listed[0]['id']}/uses"
    before = two.client("fox").get(place, params={"store": "first"}).json()
    assert before == {"requests": 0, "tokens": 0.0, "last": []}
    for _ in range(2):
        assert _ask(two, ledger=True).status_code == 200
    uses = two.client("fox").get(place, params={"store": "first", "limit": 1}).json()
    assert uses["requests"] == 2
    assert len(uses["last"]) == 1
    (last,) = uses["last"]
    assert last["tokens"] == 12
    assert uses["tokens"] == pytest.approx(2 * last["document_tokens"])
    assert 0 < last["document_tokens"] <= 12
    assert two.client("dog").get(place, params={"store": "first"}).status_code == 404


def test_one_text_under_two_licences_is_listed(two: Served) -> None:
    (group,) = two.client().get("/v1/silo/same-texts", params={"store": "songs"}).json()["data"]
    assert {(item["external_id"], item["license"]) for item in group["documents"]} == {
        ("mine", "MIT"),
        ("copy", "CC-BY-4.0"),
    }
    assert two.client().get("/v1/silo/same-texts", params={"store": "first"}).json()["data"] == []


def test_what_a_corpus_took_in_and_left_out(two: Served) -> None:
    assert [item["corpus"] for item in two.client().get("/v1/silo/corpora").json()["data"]] == ["corpus"]
    shown = two.client().get("/v1/silo/corpora/corpus").json()
    counts = shown["counts"]
    assert counts["read"] == counts["accepted"] + counts["rejected"] + counts["quarantined"] == 30
    assert shown["tier"] == [{"name": "pd", "documents": counts["accepted"], "tokens": shown["tier"][0]["tokens"]}]
    assert shown["laundering"] == {"total": 0, "data": []}
    assert two.client().get("/v1/silo/corpora/other").status_code == 404


def _refused(two: Served) -> list[tuple[str, str]]:
    jobs = two.client().get("/v1/silo/jobs").json()["data"]
    found = (item for job in jobs for item in (job["result"] or {}).get("rejected_documents", []))
    return sorted((item["reason"], item["external_id"]) for item in found)


def test_refusals_are_there_after_a_restart_without_names_of_what_is_stored(two: Served, recipe: ServerRecipe) -> None:
    masked = {"id": "masked", "text": "[**NAME**] [**NAME**] [**NAME**] said", "license": "MIT"}
    first = {"id": "oak", "text": "An oak grows slowly.", "license": "MIT"}
    for record in (masked, first, {**first, "text": "An oak grows fast."}):
        job = two.client().post("/v1/silo/documents", json={"store": "songs", "documents": [record]}).json()
        _finish(two, job)
    assert _refused(two) == [("mostly-masked", "masked"), ("other-record", "oak")]
    with TestClient(build_app(recipe), base_url="http://127.0.0.1") as client:
        again = Served("", two.place, client.app, two.keys)  # type: ignore[arg-type]
        assert _refused(again) == [("mostly-masked", "masked"), ("other-record", "")]


def test_a_document_that_comes_in_or_is_erased_is_named_by_no_refusal(two: Served) -> None:
    def add(text: str) -> None:
        record = {"id": "birch", "text": text, "license": "MIT"}
        _finish(two, two.client().post("/v1/silo/documents", json={"store": "songs", "documents": [record]}).json())

    add("[**NAME**] [**NAME**] [**NAME**] said")
    assert ("mostly-masked", "birch") in _refused(two)
    add("A birch is white.")
    assert ("mostly-masked", "birch") not in _refused(two)
    add("A birch is black.")
    assert ("other-record", "birch") in _refused(two)
    erase = {"store": "songs", "document": "external:birch"}
    _finish(two, two.client().post("/v1/silo/erase", json=erase).json())
    assert ("other-record", "birch") not in _refused(two)
    assert not any("birch" in file.read_text() for file in (two.place / "operating" / "jobs").iterdir())


def _finish(two: Served, job: dict[str, Any]) -> None:
    end = time.monotonic() + 60
    while job["state"] not in ("done", "failed"):
        assert time.monotonic() < end
        time.sleep(0.02)
        job = two.client().get(f"/v1/silo/jobs/{job['id']}").json()
    assert job["state"] == "done"


def test_paths_of_a_configuration_are_relative_to_its_file(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('corpora = ["c"]\n[models.m]\nmodel = "m"\nstores = ["s"]\nvalidation = "v.jsonl"\n')
    read = read_config(file)
    assert read.corpora == (str(tmp_path / "c"),)
    assert read.models["m"].validation == str(tmp_path / "v.jsonl")
