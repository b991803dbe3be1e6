"""A server under load while documents come and go: no answer names one whose erasure was accepted before it was asked
for, every token is one that a state of the store between question and answer gives, nothing fails, and nothing grows.
Killed under load, the server comes back with all that it had acknowledged.

Seconds come from SILO_SERVER_SECONDS (4 in `make test`, 600 in `make reliability`); the figures are printed.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray

from silo.cli import main
from silo.errors import ExitStatus
from silo.inference.generate import GenerateOptions, Step, generate
from silo.inference.predict import Predictor, open_predictor
from silo.inference.settings import Settings, parse_method
from silo.store.policy import Policy
from tests.server.conftest import make_place

SECONDS = float(os.environ.get("SILO_SERVER_SECONDS", "4"))
KILLS = max(1, round(SECONDS / 60))
CLIENTS = 4
CHANGES, COMPARED = (6, 40) if SECONDS < 60 else (60, 1000)
"""Answers are compared with those of single states for so many changes of the store, and so many answers at most."""
_CLOCK = time.monotonic
_WORDS = ("river", "stone", "garden", "window", "paper", "bridge", "candle", "market", "silver", "forest", "letter")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_place(tmp_path_factory.mktemp("load"))
    model = f'[models.tiny]\nmodel = "{root / "model"}"\nstores = ["{root / "store"}"]\n'
    (root / "serve.toml").write_text(f'port = 0\nhome = "{root / "home"}"\n{model}[limits]\nslots = 8\nqueue = 8\n')
    return root


@dataclass
class Server:
    """A running `silo serve`."""

    run: subprocess.Popen[bytes]
    http: httpx2.Client

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the server answers; where too much waits already, it is asked again when it says."""
        end = _CLOCK() + 120
        while (answer := self.http.post(path, json=body)).status_code == 429 and _CLOCK() < end:
            time.sleep(float(answer.headers["retry-after"]))
        assert answer.status_code < 300, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def finished(self, job: dict[str, Any]) -> dict[str, Any]:
        """A job when it is over."""
        end = _CLOCK() + 120
        while job["state"] not in ("done", "failed"):
            assert _CLOCK() < end, f"a job is not over: {job}"
            time.sleep(0.05)
            answer = self.http.get(f"/v1/silo/jobs/{job['id']}")
            assert answer.status_code == 200, answer.text
            job = answer.json()
        return job

    def names(self) -> set[str]:
        """The documents that were added by these tests and are there."""
        answer = self.http.get("/v1/silo/documents", params={"source": "load", "limit": 1000})
        return {item["external_id"] for item in answer.json()["data"]}

    def sizes(self) -> tuple[float, int]:
        """Memory in MB, and open files."""
        status = Path(f"/proc/{self.run.pid}/status").read_text()
        resident = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert resident is not None
        return int(resident[1]) / 1024, len(list(Path(f"/proc/{self.run.pid}/fd").iterdir()))


@contextmanager
def serving(place: Path) -> Iterator[Server]:
    """A server until the end of the block, or until somebody kills it."""
    log = place / "serve.log"
    command = [sys.executable, "-m", "silo", "serve", str(place / "serve.toml")]
    with log.open("wb") as stream, subprocess.Popen(command, stderr=stream) as run:
        try:
            while not (found := re.search(r"at (http://[^/\s]+)", log.read_text())):
                assert run.poll() is None, log.read_text()
                time.sleep(0.05)
            with httpx2.Client(base_url=found[1], timeout=60) as http:
                yield Server(run, http)
        finally:
            run.terminate()
            run.wait(60)


def text_of(name: str) -> str:
    rng = random.Random(name)
    return f"{name} tells of " + " and the ".join(rng.choices(_WORDS, k=9)) + "."


def record_of(name: str) -> dict[str, Any]:
    return {"id": name, "text": text_of(name), "license": "MIT", "owner": "load", "source": "load"}


class Change(NamedTuple):
    """A document that was added, or erased: when that was asked for, and when it was acknowledged."""

    kind: str
    name: str
    asked: float
    acknowledged: float


class Reply(NamedTuple):
    """What was asked and answered, and when."""

    body: dict[str, Any]
    choice: dict[str, Any]
    asked: float
    answered: float


@dataclass
class History:
    """What was acknowledged, what was seen, and when."""

    live: list[str] = field(default_factory=list)
    erased: dict[str, float] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    answers: int = 0
    credited: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)

    def check(self, begun: float, answer: dict[str, Any]) -> None:
        """No document is named whose erasure was accepted before the question."""
        named = {item.get("external_id") for item in answer["choices"][0]["silo"]["documents"]}
        self.wrong += [f"{name} after its erasure" for name in named if self.erased.get(str(name), begun) < begun]
        self.credited += bool(named & {*self.live, *self.erased})
        self.answers += 1

    @contextmanager
    def changing(self, kind: str, name: str) -> Iterator[None]:
        """A change of the store, which is acknowledged at the end of the block."""
        asked = _CLOCK()
        yield
        self.changes.append(Change(kind, name, asked, _CLOCK()))

    def states_of(self, reply: Reply) -> range:
        """The states that the store may have had between a question and its answer: so many changes were made."""
        before = sum(change.acknowledged < reply.asked for change in self.changes)
        begun = sum(change.asked <= reply.answered for change in self.changes)
        return range(before, begun + 1)

    def compared(self) -> list[Reply]:
        """Replies of the first changes, from all of their time."""
        early = [reply for reply in self.replies if self.states_of(reply).stop <= CHANGES + 1]
        return early[:: -(-len(early) // COMPARED) or 1]


class States:
    """The store after every change, made anew from how it was before the first: what is asked there has one answer."""

    def __init__(self, place: Path, first: Path, changes: list[Change]) -> None:
        self._place, self._first, self._changes = place, first, changes
        self._opened: list[Predictor] = []

    def predictor(self, number: int) -> Predictor:
        """The model and the store after so many changes."""
        while len(self._opened) <= number:
            self._opened.append(self._open(len(self._opened)))
        return self._opened[number]

    def _open(self, number: int) -> Predictor:
        root = self._first.with_name(f"state-{number}")
        if number:
            before, change = self._first.with_name(f"state-{number - 1}"), self._changes[number - 1]
            shutil.copytree(before, root)
            (_add_by_command if change.kind == "add" else _erase_by_command)(self._place, root, change.name)
        else:
            shutil.copytree(self._first, root)
        return open_predictor(self._place / "model", [root])

    def unexplained(self, reply: Reply, states: range) -> str:
        """The first token of a reply that none of the states gives after what is before it; empty if there is none.

        A text sees the store as it is at each token, so that a later token has the same state or a later one.
        """
        body, shown = reply.body, reply.choice["logprobs"]
        method, policy = parse_method(body["silo"]["method"]), Policy.parse(body["silo"]["policy"])
        ids = self.predictor(0).tokenizer.encode([body["prompt"]])[0].astype(np.int64)
        for at, text in enumerate(shown["tokens"]):
            for state in states:
                asked = self.predictor(state).with_options(method, Settings(), policy)
                step = next(iter(generate(asked, ids, GenerateOptions.of(max_tokens=1))))
                if self._is_same(step, text, shown["token_logprobs"][at], shown["silo"][at], reply):
                    break
            else:
                return f"token {at} of {reply.body} is that of none of the states {states}: {text!r}"
            states = range(state, states.stop)
            ids = np.append(ids, step.token)
        return ""

    def _is_same(self, step: Step, text: str, log: float, shares: dict[str, Any], reply: Reply) -> bool:
        """The same token, with the same bits of its probability and of every share that is named."""
        documents = reply.choice["silo"]["documents"]
        named = [(documents[number]["document"], share) for number, share in shares["docs"]]
        owed = [(item.document, item.share) for item in step.credits.first(8) if item.share > 0]
        if (step.log_probability, step.lm_share, len(owed)) != (log, shares["lm"], len(named)):
            return False
        pairs = zip(named, owed, strict=True)
        same = all(shown in (None, name) and part == share for (shown, part), (name, share) in pairs)
        return same and self._shown(step) in ("", text)

    def _shown(self, step: Step) -> str:
        """A token's text; empty where it is shown otherwise."""
        tokens: NDArray[np.uint32] = np.array([max(step.token, 0)], dtype=np.uint32)
        text = self.predictor(0).tokenizer.decode(tokens)
        return "" if step.token < 0 or "\N{REPLACEMENT CHARACTER}" in text else text


@contextmanager
def working(*workers: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Every worker over and over in a thread of its own, until the end of the block; errors end their worker."""
    stop, errors = threading.Event(), list[BaseException]()

    def repeat(work: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=[work], daemon=True) for work in workers]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)


class Client:
    """Asks for texts that documents, old and new, have something to say to."""

    def __init__(self, server: Server, history: History, seed: int) -> None:
        self._server, self._history, self._rng = server, history, random.Random(seed)

    def __call__(self) -> None:
        rng, history = self._rng, self._history
        known = [*history.live[-3:], *list(history.erased)[-3:]]
        prompt = text_of(rng.choice(known or ["nothing"]))[: rng.randrange(8, 40)]
        silo = {"method": rng.choice(["ngram", "knn", "knn+ngram"]), "policy": rng.choice(["", 'owner != "f"'])}
        asked = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 0, "silo": silo}
        begun = _CLOCK()
        answer = self._server.http.post("/v1/completions", json=asked)
        if answer.status_code == 429:
            history.refused += 1
            return
        assert answer.status_code == 200, answer.text
        history.check(begun, answer.json())
        if len(history.changes) < CHANGES:
            history.replies.append(Reply(asked, answer.json()["choices"][0], begun, _CLOCK()))


class Writer:
    """Adds a document and erases one, over HTTP or, every few times, with the commands of a shell."""

    def __init__(self, server: Server, history: History, place: Path) -> None:
        self._server, self._history, self._place = server, history, place
        self._turn = 0

    def __call__(self) -> None:
        self._turn += 1
        name = f"document-{self._turn}"
        by_command = self._turn % 4 == 2
        store = self._place / "store"
        with self._history.changing("add", name):
            _add_by_command(self._place, store, name) if by_command else self._add(name)
        self._history.live.append(name)
        if len(self._history.live) > 2:
            leaving = self._history.live[0]
            with self._history.changing("erase", leaving):
                _erase_by_command(self._place, store, leaving) if by_command else self._erase(leaving)
            self._history.erased[leaving] = _CLOCK()
            self._history.live.pop(0)

    def _add(self, name: str) -> None:
        job = self._server.finished(self._server.post("/v1/silo/documents", {"documents": [record_of(name)]}))
        assert job["result"]["added"] == 1, job

    def _erase(self, name: str) -> None:
        job = self._server.post("/v1/silo/erase", {"document": name})
        assert job["stage"] == "accepted" or job["state"] == "done", job


def _add_by_command(place: Path, store: Path, *names: str) -> None:
    source = place / "given.jsonl"
    source.write_text("".join(json.dumps(record_of(name)) + "\n" for name in names))
    _run("store", "add", store, "--jsonl", source, "--source", "load", "--quiet")


def _erase_by_command(_: Path, store: Path, name: str) -> None:
    _run("store", "erase", store, "--document", name, "--quiet")


def _run(*words: Any) -> None:
    """A command; somebody else may be writing."""
    with redirect_stdout(io.StringIO()):
        while (status := main([str(word) for word in words])) == ExitStatus.BUSY:
            time.sleep(0.1)
    assert status == 0, words


def _wait(seconds: float, is_enough: Callable[[], bool]) -> None:
    """So long, and longer where the machine has so much else to do that nothing has happened yet."""
    time.sleep(seconds)
    end = _CLOCK() + 240
    while not is_enough() and _CLOCK() < end:
        time.sleep(0.1)


def test_a_document_that_is_named_too_late_is_noticed() -> None:
    answer = {"choices": [{"silo": {"documents": [{"external_id": "gone"}, {"document": None, "erased": True}]}}]}
    history = History(erased={"gone": 2.0})
    history.check(1.0, answer)
    assert history.wrong == []
    history.check(3.0, answer)
    assert history.wrong == ["gone after its erasure"]


def test_answers_while_documents_come_and_go(place: Path) -> None:
    history, sizes = History(), list[tuple[float, int]]()
    shutil.copytree(place / "store", place / "before")
    with serving(place) as server:
        writer, clients = Writer(server, history, place), [Client(server, history, number) for number in range(CLIENTS)]

        def look() -> None:
            sizes.append(server.sizes())
            time.sleep(SECONDS / 40)

        writer()
        with working(writer, look, *clients) as errors:
            _wait(SECONDS, lambda: bool(errors) or (bool(history.credited) and len(history.erased) >= 4))
        quarter = len(sizes) // 4
        memory, files = map(statistics.median, zip(*sizes[quarter : 2 * quarter], strict=True))
        memory_after, files_after = map(statistics.median, zip(*sizes[-quarter:], strict=True))
        print(
            f"server: {history.answers:,} answers to {CLIENTS} clients, {history.credited:,} named documents that came "
            f"and went, during {len(history.erased):,} erasures; {len(history.wrong)} wrong, {len(errors)} errors; "
            f"{memory:.0f} MB and {files:.0f} files before half time, {memory_after:.0f} MB and {files_after:.0f} at "
            "the end"
        )
        assert errors == []
        assert history.wrong == []
        assert len(history.erased) >= 4
        assert history.credited
        assert server.names() == set(history.live)
    assert files_after < files + 10
    if SECONDS >= 60:
        assert memory_after < 1.1 * memory + 20
    _require_single_states(place, history)


def _require_single_states(place: Path, history: History) -> None:
    """Every token that was compared is that of one state; one that is changed in its last bit is noticed."""
    states, compared = States(place, place / "before", history.changes), history.compared()
    wrong = [found for reply in compared if (found := states.unexplained(reply, history.states_of(reply)))]
    tokens = sum(len(reply.choice["logprobs"]["tokens"]) for reply in compared)
    during = sum(len(history.states_of(reply)) > 1 for reply in compared)
    print(
        f"server: {len(compared):,} answers of {tokens:,} tokens compared with those of single states, {during:,} of "
        f"them given during a change; {len(wrong)} wrong"
    )
    assert wrong == []
    assert compared
    reply = compared[-1]
    logs = reply.choice["logprobs"]["token_logprobs"]
    logs[-1] = float(np.nextafter(logs[-1], 0))
    assert f"token {len(logs) - 1} " in states.unexplained(reply, history.states_of(reply))


@pytest.mark.skipif(SECONDS < 60, reason="takes minutes; make reliability runs it")
def test_a_killed_server_has_lost_nothing_that_it_acknowledged(place: Path) -> None:
    rng = random.Random(5)
    jobs: dict[str, dict[str, Any]] = {}
    erased: list[str] = []
    _add_by_command(place, place / "store", *(f"before-{number}" for number in range(2 * KILLS)))
    for life in range(KILLS):
        with serving(place) as server:
            history = History(live=sorted(server.names()))
            with working(*(Client(server, history, number) for number in range(2))):
                for turn in range(3):
                    names = [f"life-{life}-{turn}-{number}" for number in range(4)]
                    job = server.post("/v1/silo/documents", {"documents": [record_of(name) for name in names]})
                    jobs[job["id"]] = {"kind": "add", "names": names}
                for name in (f"before-{2 * life}", f"before-{2 * life + 1}"):
                    job = server.post("/v1/silo/erase", {"document": name})
                    jobs[job["id"]] = {"kind": "erase", "names": [name]}
                    erased += [name] if job["stage"] == "accepted" or job["state"] == "done" else []
                time.sleep(rng.random() * 0.5)
                server.run.send_signal(signal.SIGKILL)
                server.run.wait()
    with serving(place) as server:
        ended = {name: server.finished({"id": name, "state": "unknown"}) for name in jobs}
        there = server.names()
        failed = {name: job["error"] for name, job in ended.items() if job["state"] == "failed"}
        print(
            f"server: {KILLS} kills under load, {len(jobs)} jobs acknowledged, {len(failed)} named as failed: {failed}"
        )
        for name, job in jobs.items():
            if ended[name]["state"] == "done":
                assert there.issuperset(job["names"]) if job["kind"] == "add" else there.isdisjoint(job["names"])
        assert there.isdisjoint(erased)
        assert any(job["resumed"] for job in ended.values())
