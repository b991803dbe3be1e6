"""Power cuts: whatever part of the unsynced writes and names is lost, the old state or the new is there, and what was
acknowledged stays.

Counts come from SILO_POWER_CUTS (60 in `make test`, 1,000 and more in `make reliability`); the figures are printed.
"""

from __future__ import annotations

import itertools
import operator
import os
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.records import Document
from silo.store.selector import Selector
from silo.store.store import Store
from tests.reliability.power_loss import Disk, power_cuts, recording
from tests.reliability.test_store_histories import POOL
from tests.store.small import SmallEncoder, small_store, tree

CUTS = int(os.environ.get("SILO_POWER_CUTS", "60"))
PLANTED = 600
"""States to try before a missing fsync counts as not noticed."""
BASE = POOL[:8]

NEWER = [replace(item, text=f"{item.text} And more of it.") for item in BASE[:3]]
Held = frozenset[tuple[str, str]]
"""Names and texts of documents."""

JOBS: dict[str, tuple[Callable[[Store], object], list[Document]]] = {
    "add": (lambda store: store.add(POOL[8:12]), POOL[:12]),
    "erase": (lambda store: store.erase(Selector(owner="o1")), [item for item in BASE if item.owner != "o1"]),
    "update": (lambda store: store.add(NEWER, update=True), [*NEWER, *BASE[3:]]),
}


def _held(documents: Iterable[Document]) -> Held:
    return frozenset((item.external_id, item.text) for item in documents)


def _record(root: Path, job: str, forget: Callable[[str], bool] = lambda _: False) -> Disk:
    """What the disk is told during a job on a store of `BASE`."""
    small_store(root).add(BASE)
    store = Store.open(root, SmallEncoder())
    with recording(root, forget) as disk:
        JOBS[job][0](store)
        disk.acknowledge()
    store.close()
    return disk


def _problem(disk: Disk, root: Path, until: int, job: str, twins: dict[Held, dict[str, bytes]]) -> str:
    """What is wrong with a store after a power cut; "" if nothing is."""
    before, after = _held(BASE), _held(JOBS[job][1])
    done = disk.acknowledged is not None and until >= disk.acknowledged
    if done and job != "add" and tree(root / "data") != twins[after]:
        return "done, and yet bytes of what left are there"
    if done and any((root / name).exists() for name in ("erasing", "pending.json")):
        return "done, and yet what was kept until then is there"
    try:
        store = Store.open(root, SmallEncoder())
    except (SiloError, OSError, ValueError, KeyError) as error:
        return f"cannot be opened: {error}"
    try:
        held = _held(store.documents())
        if done and held != after:
            return f"acknowledged and lost: {held}"
        if not done and job != "add" and held not in (before, after):
            return f"a state between: {held}"
        if not done and job == "add" and not before <= held <= after:
            return f"documents lost: {held}"
        if job == "erase" and held == after and done and store.add([POOL[1]]).added:
            return "an erased work came back"
        if job != "add" and held == after and "not checked" in _last_receipt(store):
            return "checks were not made"
        store.compact()
        if problems := store.verify().problems:
            return problems[0]
        if held in twins and tree(root / "data") != twins[held]:
            return "other bytes than a store that never lost power"
    except (SiloError, OSError, ValueError, KeyError) as error:
        return f"cannot be used: {error}"
    finally:
        store.close()
    return ""


def _last_receipt(store: Store) -> str:
    return max(store.paths.receipts.iterdir()).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> dict[Held, dict[str, bytes]]:
    made = {}
    for documents in (BASE, *(after for _, after in JOBS.values())):
        root = tmp_path_factory.mktemp("twin") / "store"
        small_store(root).add(documents)
        made[_held(documents)] = tree(root / "data")
    return made


def _cut(
    disk: Disk, place: Path, job: str, twins: dict[Held, dict[str, bytes]], most: int, *, first: bool = False
) -> tuple[int, list[str]]:
    """How many states were tried, and what was wrong with any of them."""
    rng, tried, wrong = random.Random(7), 0, []
    for cut in itertools.islice(power_cuts(disk, rng), most):
        root = place / f"cut{tried}"
        root.mkdir(parents=True)
        disk.lay_out(cut, root)
        if problem := _problem(disk, root, cut.until, job, twins):
            wrong.append(f"{job}, cut before call {cut.until}: {problem}")
        shutil.rmtree(root)
        tried += 1
        if first and wrong:
            break
    return tried, wrong


@pytest.mark.parametrize("job", JOBS)
def test_a_power_cut_leaves_the_old_state_or_the_new(
    job: str, tmp_path: Path, twins: dict[Held, dict[str, bytes]]
) -> None:
    disk = _record(tmp_path / "store", job)
    tried, wrong = _cut(disk, tmp_path / "cuts", job, twins, CUTS // len(JOBS))
    print(f"power cuts during {job}: {tried} states after {len(disk.operations)} calls, {len(wrong)} wrong")
    assert wrong == []
    assert tried >= CUTS // len(JOBS)


HARMLESS = {
    "add: files.sync_directory < manifest.remove_buckets": "what was to be removed goes at the next opening",
    "before.forget_before < store._finish_erasure": "the first receipt's folder is synced after it, in the same folder",
}
"""Fsyncs whose loss no power cut of these jobs can show, and why."""


@pytest.mark.skipif(CUTS < 200, reason="takes minutes; make reliability runs it")
def test_every_fsync_is_needed(tmp_path: Path, twins: dict[Held, dict[str, bytes]]) -> None:
    """Planted bugs: each fsync in turn is left out, and some power cut shows it."""
    missed, planted = [], 0
    for job in JOBS:
        disk = _record(tmp_path / job, job)
        for site in dict.fromkeys(done.site for done in disk.operations if done.kind.startswith("sync")):
            place = tmp_path / f"{job}{planted}"
            careless = _record(place / "store", job, partial(operator.eq, site))
            tried, wrong = _cut(careless, place / "cuts", job, twins, PLANTED, first=True)
            planted += 1
            name = f"{job}: {site}"
            if not wrong and not any(harmless in name for harmless in HARMLESS):
                missed.append(f"{name} ({tried} states)")
            shutil.rmtree(place)
    print(f"left out {planted} fsyncs in turn, not noticed: {missed or 0}")
    assert missed == []
