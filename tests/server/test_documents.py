"""Stores over HTTP: owners see and erase what is theirs, jobs survive, and a change takes effect at the next token."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from silo.pairing import open_store
from silo.server.access import create_key
from silo.server.app import build_app
from silo.server.config import ModelRecipe, ServerRecipe
from silo.server.engine import Request
from silo.server.jobs import Job, Jobs, give_way
from silo.store.selector import Selector
from tests.inference.world import TEXTS
from tests.server.conftest import LIMITS, Served, make_place


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of its own, whose store these tests change, in this process."""
    place = make_place(tmp_path_factory.mktemp("own"))
    file = place / "keys.json"
    keys = {
        "operator": create_key(file, roles=["operator"])[1],
        "fox": create_key(file, roles=["owner"], owner="f")[1],
        "dog": create_key(file, roles=["owner"], owner="d", permissions=["text"])[1],
        "reader": create_key(file, roles=["reader"])[1],
    }
    model = ModelRecipe(str(place / "model"), (str(place / "store"),))
    app = build_app(ServerRecipe({"tiny": model}, keys=str(file), home=str(place / "home"), limits=LIMITS))
    with TestClient(app, base_url="http://127.0.0.1"):
        yield Served("", place, app, keys)


def finished(own: Served, job: dict[str, Any], role: str) -> dict[str, Any]:
    end = time.monotonic() + 60
    while job["state"] not in ("done", "failed") and time.monotonic() < end:
        time.sleep(0.05)
        job = own.client(role).get(f"/v1/silo/jobs/{job['id']}").json()
    return job


def test_an_owner_sees_their_own_documents_and_nothing_else(own: Served) -> None:
    everything = own.client().get("/v1/silo/documents", params={"limit": 2}).json()
    assert everything["has_more"]
    rest = own.client().get("/v1/silo/documents", params={"after": everything["last_id"]}).json()
    ids = {item["external_id"]: item["id"] for item in everything["data"] + rest["data"]}
    assert set(ids) == set(TEXTS)
    mine = own.client("fox").get("/v1/silo/documents").json()["data"]
    assert [item["external_id"] for item in mine] == ["fox"]
    assert own.client("fox").get("/v1/silo/documents", params={"owner": "d"}).status_code == 404
    for wrong in (ids["dog"], "0" * 32, "not-an-id", "id:" + ids["fox"]):
        assert own.client("fox").get(f"/v1/silo/documents/{wrong}").status_code == 404
    assert "text" not in own.client("fox").get(f"/v1/silo/documents/{ids['fox']}").json()
    assert own.client("dog").get(f"/v1/silo/documents/{ids['dog']}").json()["text"] == TEXTS["dog"]


def test_is_my_text_in_here(own: Served) -> None:
    text = {"text": "THE QUICK  brown fox"}
    assert {item["owner"] for item in own.client().post("/v1/silo/documents/find", json=text).json()["data"]} == {
        "f",
        "d",
    }
    assert [item["owner"] for item in own.client("dog").post("/v1/silo/documents/find", json=text).json()["data"]] == [
        "d"
    ]


def test_what_an_opt_out_would_cost(own: Served) -> None:
    asked = {"model": "tiny", "text": TEXTS["fox"], "owner": "f"}
    price = own.client("fox").post("/v1/silo/opt-out-price", json=asked).json()
    assert price["perplexity"]["with"] < price["perplexity"]["without"]
    assert own.client("dog").post("/v1/silo/opt-out-price", json=asked).status_code == 404
    long = own.client("fox").post("/v1/silo/opt-out-price", json={**asked, "text": "a " * 1001})
    assert (long.status_code, long.json()["error"]["param"]) == (400, "text")


def test_the_price_of_an_opt_out_counts_as_a_text_of_the_key(own: Served) -> None:
    file = own.place / "keys.json"
    _, secret = create_key(file, roles=["owner", "reader"], owner="f", texts=1)
    engine, asked = own.app.state.service.engine, {"model": "tiny", "text": TEXTS["fox"], "owner": "f"}
    me = own.client("", authorization=f"Bearer {secret}").get("/v1/silo/me").json()["id"]
    waits = threading.Event()

    def steps() -> Iterator[Any]:
        while not waits.wait(0.01):
            yield "a step"

    under_way = Request(me, steps, lambda _: None)  # type: ignore[arg-type]
    engine.submit([under_way])
    refused = own.client("", authorization=f"Bearer {secret}").post("/v1/silo/opt-out-price", json=asked)
    waits.set()
    assert refused.status_code == 429


def test_white_space_is_no_text_to_look_for(own: Served) -> None:
    assert own.client().post("/v1/silo/documents/find", json={"text": " \n"}).json()["data"] == []
    answer = own.client().post("/v1/silo/erase", json={"query": " \t", "dry_run": True})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "nothing-selected")


def test_documents_are_added_and_erased_with_a_receipt(own: Served) -> None:
    record = {"id": "new", "text": "A zebra walks over the plain and over the hill.", "license": "MIT", "owner": "d"}
    job = own.client("fox").post("/v1/silo/documents", json={"documents": [record, {"id": "broken"}]}).json()
    done = finished(own, job, "fox")
    assert done["result"]["added"] == 1
    assert len(done["result"]["quarantined"]) == 1
    assert own.client("dog").get(f"/v1/silo/jobs/{job['id']}").status_code == 404
    mine = own.client("fox").get("/v1/silo/documents").json()["data"]
    assert {item["external_id"] for item in mine} == {"fox", "new"}

    request = {"query": "A zebra walks"}
    listed = own.client("fox").post("/v1/silo/erase", json={**request, "dry_run": True}).json()
    assert [item["external_id"] for item in listed["documents"]] == ["new"]
    assert own.client("dog").post("/v1/silo/erase", json=request).status_code == 404
    accepted = own.client("fox").post("/v1/silo/erase", json=request)
    assert accepted.status_code == 202
    assert not own.client().post("/v1/silo/documents/find", json={"text": "A zebra walks"}).json()["data"]
    erased = finished(own, accepted.json(), "fox")["result"]
    receipt = own.client("fox").get(f"/v1/silo/receipts/{erased['receipt']}").json()
    assert own.client("dog").get(f"/v1/silo/receipts/{erased['receipt']}").status_code == 404
    assert own.client("fox").get("/v1/silo/receipts/..%2Flog.jsonl").status_code == 404
    ((document, salt),) = erased["salts"].items()
    asked = {"receipt": receipt, "document": document, "salt": salt}
    assert own.client("dog").post("/v1/silo/receipts/verify", json=asked).json()["document_proven"]
    forged = own.client("dog").post("/v1/silo/receipts/verify", json={"receipt": {**receipt, "store": "x"}})
    assert forged.json()["error"]["param"] == "receipt"
    kept = json.loads((own.place / "home" / "jobs" / f"{accepted.json()['id']}.json").read_text())
    assert document not in json.dumps(kept)
    assert not list((own.place / "home" / "jobs").glob("*.jsonl"))


def test_a_job_tells_how_far_it_is_until_it_is_over(own: Served) -> None:
    record = {"id": "again", "text": "The plain and the hill are wide.", "license": "MIT"}
    job = own.client().post("/v1/silo/documents", json={"documents": [record]}).json()
    with own.client().stream("GET", f"/v1/silo/jobs/{job['id']}", headers={"accept": "text/event-stream"}) as stream:
        lines = [line for line in stream.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["state"] == "done"
    assert finished(own, own.client().post("/v1/silo/erase", json={"document": "again"}).json(), "operator")["result"]


def test_credits_of_requests_that_were_noted(own: Served) -> None:
    request = {"model": "tiny", "prompt": "The quick brown", "max_tokens": 5, "temperature": 0}
    request |= {"silo": {"ledger": True}}
    assert own.client("reader").post("/v1/completions", json=request).status_code == 200
    everything = own.client().get("/v1/silo/credits").json()
    assert everything["requests"] == 1
    assert {item["owner"] for item in everything["owners"]} >= {"f"}
    mine = own.client("fox").get("/v1/silo/credits").json()
    assert [item["owner"] for item in mine["owners"]] == ["f"]
    assert "language_model" not in mine
    later = own.client("fox").get("/v1/silo/credits", params={"from": "2999-01-01T00:00:00"}).json()
    assert later["requests"] == 0


def test_an_erasure_by_another_process_takes_effect_at_the_next_token(own: Served) -> None:
    client, store = own.client("reader"), open_store(own.place / "store")
    request = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 64, "temperature": 0, "stream": True}
    request |= {"silo": {"method": "ngram"}}
    before = store.digest()
    answer = client.post("/v1/completions", json={**request, "stream": False}).json()
    assert "f" in {item["owner"] for item in answer["choices"][0]["silo"]["documents"]}
    assert answer["system_fingerprint"] == before
    store.erase(Selector(owner="f"))
    after = client.post("/v1/completions", json={**request, "stream": False}).json()
    assert "f" not in {item["owner"] for item in after["choices"][0]["silo"]["documents"]}
    assert after["system_fingerprint"] == store.digest() != before
    kept = client.get(f"/v1/silo/attributions/{answer['id']}").json()["choices"][0]
    assert kept["erased_share"] > 0
    store.close()


def test_stats_and_digest(own: Served) -> None:
    stats = own.client().get("/v1/silo/stats").json()
    assert stats["store"] == "store"
    assert own.client("reader").get("/v1/silo/digest").json()["digest"] == stats["digest"]
    assert own.client().get("/v1/silo/digest", params={"store": "other"}).status_code == 404


def test_documents_that_are_sent_again_are_the_same(own: Served) -> None:
    records = [
        {"id": "twice", "text": "A lamp burns in the tower all night.", "license": "MIT"},
        {"text": "A record without a name of its own."},
    ]
    shown = own.client("dog").post("/v1/silo/documents", json={"documents": records, "dry_run": True}).json()
    done = [
        finished(own, own.client("dog").post("/v1/silo/documents", json={"documents": records}).json(), "dog")["result"]
        for _ in range(2)
    ]
    assert [(item["added"], item["unchanged"], item["rejected"]) for item in done] == [(2, 0, 0), (0, 2, 0)]
    mine = own.client("dog").get("/v1/silo/documents", params={"source": "owner:d"}).json()["data"]
    held = [own.client("dog").get(f"/v1/silo/documents/{item['id']}").json() for item in mine]
    assert {item["external_id"]: item["evidence"] for item in held} == {
        item["external_id"]: item["evidence"] for item in shown["documents"]
    }
    assert not list((own.place / "home" / "jobs").glob("*.jsonl"))


def test_whoever_has_many_jobs_waiting_sends_no_more_documents(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    me = own.client("dog").get("/v1/silo/me").json()["id"]
    jobs: Jobs = own.app.state.service.jobs
    waiting = [Job(f"{number:024}", "add", "other", me, "d", {}) for number in range(16)]
    monkeypatch.setitem(jobs._waiting, "other", waiting)
    body = {"documents": [{"id": "more", "text": "One more document."}]}
    assert own.client("dog").post("/v1/silo/documents", json=body).status_code == 429
    assert own.client("dog").post("/v1/silo/erase", json={"query": "no such text"}).status_code == 404
    waiting.pop()
    assert own.client("dog").post("/v1/silo/documents", json=body).status_code == 202


def _unfinished(folder: Path, jobs: Jobs, lines: bytes) -> Job:
    """A job as a server that was killed leaves it."""
    job = Job("1" * 24, "add", "store", "caller", "", {}, state="running")
    folder.mkdir()
    (folder / f"{job.id}.json").write_text(json.dumps(job.as_json() | {"caller": "caller", "owner": ""}))
    if lines:
        (folder / f"{job.id}.jsonl").write_bytes(lines)
    return job


def _over(jobs: Jobs, job: Job) -> Job:
    """The job once it has ended."""
    now: Job | None = job
    while now is not None and not now.is_over:
        now = asyncio.run(jobs.changed(now, 10))
    assert now is not None
    return now


@pytest.mark.parametrize("lines", [b"{}\n", b""])
def test_a_job_that_was_cut_off_is_begun_again_or_reported(tmp_path: Path, lines: bytes) -> None:
    def work(job: Job, documents: Path, advance: Any) -> dict[str, Any]:
        advance("read", 1, 2)
        return {"read": documents.read_bytes().decode()}

    jobs = Jobs(tmp_path / "jobs", work)
    job = _unfinished(tmp_path / "jobs", jobs, lines)
    jobs.start()
    now = _over(jobs, job)
    jobs.close()
    assert now.resumed
    assert (now.state, now.result) == (("done", {"read": "{}\n"}) if lines else ("failed", None))


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own here")
def test_adding_steps_back_with_all_its_threads_and_nobody_else_does() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def both() -> list[int]:
        with ThreadPoolExecutor(1) as pool:
            return [niceness(), pool.submit(niceness).result()]

    before = niceness()
    assert give_way(both) == [min(19, before + 5)] * 2
    assert niceness() == before
    with pytest.raises(ZeroDivisionError):
        give_way(lambda: 1 // 0)


def test_an_erasure_overtakes_what_is_being_added(tmp_path: Path) -> None:
    order: list[str] = []
    adding = threading.Event()

    def work(job: Job, documents: Path, advance: Any) -> dict[str, Any]:
        order.append(job.kind)
        if job.kind == "erase":
            return {}
        adding.set()
        for done in range(1, 1000 if len(order) == 1 else 2):
            advance("encode", done, 1000)
            time.sleep(0.01)
        return {"text": documents.read_bytes().decode()}

    jobs = Jobs(tmp_path / "jobs", work)
    jobs.start()
    add, later = (jobs.create("add", "store", caller="", owner="", given={}, lines=b"{}") for _ in range(2))
    assert adding.wait(10)
    erase = jobs.create("erase", "store", caller="", owner="", given={})
    for job in (erase, add, later):
        assert _over(jobs, job).state == "done"
    assert order[:2] == ["add", "erase"]
    assert sorted(order[2:]) == ["add", "add"]
    jobs.close()


def test_a_stopping_server_leaves_what_it_was_adding_for_the_next_one(tmp_path: Path) -> None:
    adding = threading.Event()

    def endless(job: Job, documents: Path, advance: Any) -> dict[str, Any]:
        adding.set()
        while True:
            advance("encode", 1, 2)

    first = Jobs(tmp_path / "jobs", endless)
    first.start()
    job = first.create("add", "store", caller="", owner="", given={}, lines=b"{}")
    assert adding.wait(10)
    first.close()
    second = Jobs(tmp_path / "jobs", lambda _, documents, __: {"text": documents.read_bytes().decode()})
    second.start()
    left = _over(second, job)
    assert (left.state, left.result, left.resumed) == ("done", {"text": "{}"}, True)
    second.close()


def test_documents_that_no_job_waits_for_are_not_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    jobs = Jobs(folder, lambda *_: {})
    _unfinished(folder, jobs, b"{}\n")
    ended = Job("2" * 24, "add", "store", "caller", "", {}, state="done")
    (folder / f"{ended.id}.json").write_text(json.dumps(ended.as_json() | {"caller": "caller", "owner": ""}))
    for name in (f"{ended.id}.jsonl", "3" * 24 + ".jsonl", "4" * 24 + ".jsonl.partial"):
        (folder / name).write_text("text of a document, where a kill left it")
    jobs.start()
    _over(jobs, Job("1" * 24, "add", "store", "caller", "", {}, state="running"))
    jobs.close()
    assert sorted(file.name for file in folder.iterdir()) == ["1" * 24 + ".json", f"{ended.id}.json"]
    assert jobs.find(ended.id) == ended


def test_a_disk_that_fails_keeps_jobs_from_being_created_and_none_from_being_done(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    begun, disk_is_full = threading.Event(), threading.Event()

    def work(job: Job, documents: Path, advance: Any) -> dict[str, Any]:
        begun.set()
        assert disk_is_full.wait(10)
        return {"kind": job.kind}

    jobs = Jobs(folder, work)
    jobs.start()
    first, second = (jobs.create("erase", "store", caller="", owner="", given={}) for _ in range(2))
    assert begun.wait(10)
    folder.rename(tmp_path / "aside")
    folder.write_text("where a folder can be made no more")
    disk_is_full.set()
    assert [_over(jobs, job).state for job in (first, second)] == ["done", "done"]
    with pytest.raises(OSError):
        jobs.create("erase", "store", caller="", owner="", given={})
    jobs.close()


def test_many_who_watch_a_job_hold_up_nobody(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than there are threads for routes that wait for the disk."""
    jobs: Jobs = served.app.state.service.jobs
    job = Job("5" * 24, "add", "store", "caller", "", {}, state="running")
    monkeypatch.setitem(jobs._known, job.id, job)
    key = {"authorization": f"Bearer {served.keys['operator']}"}
    with ExitStack() as watching:
        for _ in range(60):
            client = watching.enter_context(closing(HTTPConnection(served.address.removeprefix("http://"))))
            client.request("GET", f"/v1/silo/jobs/{job.id}", headers={**key, "accept": "text/event-stream"})
            assert client.getresponse().status == 200
        begun = time.monotonic()
        with closing(HTTPConnection(served.address.removeprefix("http://"))) as client:
            client.request("GET", "/v1/silo/stores", headers=key)
            assert client.getresponse().status == 200
        assert time.monotonic() - begun < 2
