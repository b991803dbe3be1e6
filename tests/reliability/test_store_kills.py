"""`kill -9` of whoever adds to a store, erases from it or recovers it: nothing acknowledged is lost, nothing erased
comes back, nothing is repaired by hand.

Counts come from SILO_STORE_KILLS (20 in `make test`, 1,000 in `make reliability`); the figures are printed. A kill is
proven if the process had not acknowledged its work and did not end by itself.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from silo.store.store import Store
from tests.reliability.helper import Helper
from tests.reliability.nursery import BASE, coming, leaving
from tests.reliability.test_store_histories import POOL
from tests.store.small import SmallEncoder, small_store, tree

SHARDS = 2
KILLS = int(os.environ.get("SILO_STORE_KILLS", "20")) // SHARDS
RECOVERY_CALLS = (3, 10, 50)
BEFORE = {item.external_id for item in BASE}


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
    twins: dict[frozenset[str], dict[str, bytes]] = field(default_factory=dict)

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
        held = {item.external_id for item in store.documents()}
        if job == "add":
            after = BEFORE | {item.external_id for item in coming(seed)}
            assert BEFORE <= held <= after
        else:
            after = BEFORE - self.erased(seed)
            assert held in (BEFORE, after)
        assert not done or held == after
        assert not (root / "pending.json").exists()
        store.compact()
        assert store.verify().problems == ()
        if job == "erase" and held == after:
            assert store.add([item for item in BASE if item.external_id in self.erased(seed)]).added == 0
        store.close()
        assert tree(root / "data") == self.twin(frozenset(held))

    def erased(self, seed: int) -> set[str]:
        selector = leaving(seed)
        return {
            item.external_id for item in BASE if selector.document == item.external_id or selector.owner == item.owner
        }

    def twin(self, names: frozenset[str]) -> dict[str, bytes]:
        """The data of a store that only ever held these documents."""
        if names not in self.twins:
            store = small_store(self.place / "twin")
            store.add([item for item in POOL if item.external_id in names])
            store.close()
            self.twins[names] = tree(store.root / "data")
            shutil.rmtree(store.root)
        return self.twins[names]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_kill_9_at_any_call_or_time_loses_nothing(nursery: Helper, memory: Path, shard: int) -> None:
    """Each call in turn of an add and of an erasure of other documents each time."""
    killing = _Killing(nursery, memory, random.Random(shard))
    small_store(memory / "base").add(BASE)
    jobs = ("add", "erase")
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
    assert 3 * counts["in-commit"] >= KILLS
    assert counts["recovering"] > 0
