"""`kill -9` of whoever adds to a store, erases from it, replaces documents or recovers it: what was acknowledged
is there, nothing erased comes back, there is one version of a document at any time, nothing is repaired by hand.

Counts come from SILO_STORE_KILLS (20 in `make test`, 1,000 in `make reliability`); the figures are printed. A kill is
proven if the process had not acknowledged its work and did not end by itself.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from silo.records import Document
from silo.store.erasure.receipt import check_receipt, read_receipt
from silo.store.store import Store
from tests.reliability.helper import Helper
from tests.reliability.nursery import BASE, changed, coming, leaving
from tests.store.small import SmallEncoder, small_store, tree

SHARDS = 2
KILLS = int(os.environ.get("SILO_STORE_KILLS", "20")) // SHARDS
RECOVERY_CALLS = (3, 10, 50)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Helper]:
    made = Helper("tests.reliability.nursery")
    yield made
    made.close()


@dataclass(slots=True)
class _Killing:
    """Stores that are copied, killed and looked at; counts what happened."""

    nursery: Helper
    place: Path
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    twins: dict[frozenset[tuple[str, str]], dict[str, bytes]] = field(default_factory=dict)

    def kill(self, job: str, seed: int, call: int) -> bool:
        """One kill, at a call or every fourth time at a random instant; True if the job was done before its call."""
        root = self.place / "store"
        shutil.copytree(self.place / "base", root)
        timed = call % 4 == 0
        seconds = self.rng.random() * 0.15 if timed else 0
        end = self.nursery.ask(root, job, seed, 0 if timed else call, seconds)
        self._count(end)
        if end != "done" and self.rng.random() < 0.5:
            self._recover(root)
        self._look(root, job, seed, done=end == "done")
        shutil.rmtree(root)
        return end == "done" and not timed

    def _count(self, end: str) -> None:
        assert end in ("done", "killed", "in-commit")
        self.counts[end] += 1

    def _recover(self, root: Path) -> None:
        """Kill who recovers, again and again, until one comes to its end."""
        for _ in range(3):
            if self.nursery.ask(root, "recover", 0, self.rng.randint(1, self.rng.choice(RECOVERY_CALLS)), 0) == "done":
                return
            self.counts["recovering"] += 1

    def _look(self, root: Path, job: str, seed: int, *, done: bool) -> None:
        store = Store.open(root, SmallEncoder())
        held = list(store.documents())
        texts = _texts(held)
        after = _texts(AFTER[job](seed))
        if job == "add":
            assert BEFORE.items() <= texts.items() <= after.items()
        elif job == "update":
            assert {name: texts[name] for name in BEFORE} in (BEFORE, {name: after[name] for name in BEFORE})
            assert texts.keys() <= after.keys()
        else:
            assert texts in (BEFORE, after)
        assert not done or texts == after
        assert not (root / "pending.json").exists()
        store.compact()
        assert store.verify().problems == ()
        if job == "erase" and texts == after:
            gone = [item for item in BASE if item.external_id not in after]
            assert store.add(gone, update=True).added == 0
        if job == "update" and {name: texts[name] for name in BEFORE} != BEFORE:
            (receipt,) = map(read_receipt, store.paths.receipts.iterdir())
            assert (receipt["kind"], "not checked" in receipt["checks"].values()) == ("replacement", False)
            assert check_receipt(receipt, log=store.paths.log)["failed_checks"] == []
        store.close()
        assert tree(root / "data") == self.twin(held)

    def twin(self, held: list[Document]) -> dict[str, bytes]:
        """The data of a store that only ever held these documents."""
        name = frozenset(_texts(held).items())
        if name not in self.twins:
            store = small_store(self.place / "twin")
            store.add(held)
            store.close()
            self.twins[name] = tree(store.root / "data")
            shutil.rmtree(store.root)
        return self.twins[name]


def _texts(documents: Iterable[Document]) -> dict[str, str]:
    return {item.external_id: item.text for item in documents}


def _left(seed: int) -> list[Document]:
    selector = leaving(seed)
    return [item for item in BASE if selector.document != item.external_id and selector.owner != item.owner]


BEFORE = _texts(BASE)
AFTER: dict[str, Callable[[int], list[Document]]] = {
    "add": lambda seed: [*BASE, *coming(seed)],
    "erase": _left,
    "update": lambda seed: list({item.id: item for item in (*BASE, *changed(seed))}.values()),
}
"""What a store of `BASE` holds when a job is done."""


@pytest.mark.parametrize("shard", range(SHARDS))
def test_kill_9_at_any_call_or_time_loses_nothing(nursery: Helper, memory: Path, shard: int) -> None:
    """Each call in turn of an add, of an erasure and of an update of other documents each time."""
    killing = _Killing(nursery, memory, random.Random(shard))
    small_store(memory / "base").add(BASE)
    jobs = tuple(AFTER)
    counts, calls = killing.counts, dict.fromkeys(jobs, 1)
    seeds = dict.fromkeys(jobs, shard)
    while counts["killed"] + counts["in-commit"] < KILLS:
        for job in jobs:
            calls[job] += 1 if KILLS > 100 else 3
            if killing.kill(job, seeds[job], calls[job]):
                calls[job], seeds[job] = 0, seeds[job] + SHARDS
    print(
        f"stores killed: {counts['killed'] + counts['in-commit']} proven ({counts['in-commit']} inside a commit, "
        f"{counts['recovering']} recoveries killed again, {counts['done']} more came too late), 0 lost, 0 back"
    )
    assert 3 * counts["in-commit"] >= KILLS or KILLS < 100  # few kills may miss a third of them by chance
    assert counts["recovering"] > 0
