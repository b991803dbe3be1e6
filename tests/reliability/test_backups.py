"""Backups while somebody writes, and killed backups and restores: one moment or nothing, and nothing erased returns.

Counts come from SILO_BACKUPS (4 backups and 12 kills in `make test`; 60 and 180 in `make reliability`); the figures are
printed.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.store.backup import back_up, restore
from silo.store.manifest import read_generation
from silo.store.paths import StorePaths
from silo.store.selector import Selector
from silo.store.store import Store
from tests.reliability.disk import watched
from tests.reliability.helper import Helper
from tests.reliability.test_store_histories import POOL
from tests.store.small import SmallEncoder, small_store, tree

BACKUPS = int(os.environ.get("SILO_BACKUPS", "4"))
KILLS = 3 * BACKUPS
_WRITER = """
import sys, time
from pathlib import Path
from silo.errors import SiloError
from silo.store.selector import Selector
from silo.store.store import Store
from tests.reliability.test_store_histories import POOL
from tests.store.small import SmallEncoder

root, changes = Path(sys.argv[1]), 0
store = Store.open(root, SmallEncoder())
print("ready", flush=True)
while not (root.parent / "stop").exists():
    for act in (
        lambda: store.add(POOL[6:14]),
        lambda: store.erase(Selector(document=POOL[7].id)),
        lambda: store.allow(POOL[7].id),
        lambda: store.erase(Selector(owner="o1"), suppress=False),
        lambda: store.compact(),
    ):
        while True:
            try:
                act()
            except SiloError as error:
                assert error.code == "busy", error
                time.sleep(0.01)
            else:
                changes += 1
                break
print(changes, flush=True)
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Helper]:
    with closing(Helper("tests.reliability.nursery")) as made:
        yield made


def test_a_backup_made_while_somebody_writes_is_of_one_moment(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    store.add(POOL[:8])
    store.close()
    command = [sys.executable, "-c", _WRITER, str(store.root)]
    home = Path(__file__).parents[2]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=home)
    made: list[tuple[int, int]] = []
    try:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
        for number in range(BACKUPS):
            opened = Store.open(store.root)
            before = _entries(store.root)
            back_up(opened, tmp_path / f"copy{number}")
            made.append((before, _entries(store.root)))
            opened.close()
        (tmp_path / "stop").touch()
        said, complaint = writer.communicate(timeout=120)
    finally:
        writer.kill()
    assert writer.returncode == 0, complaint
    for number, (before, after) in enumerate(made):
        copy = tmp_path / f"copy{number}"
        generation = read_generation(StorePaths(copy)).fingerprint
        log = Store.open(store.root).log().entries
        last = _entries(copy)
        assert before <= last <= after
        assert generation in [entry.content.get("generation") for entry in log[:last]]
        assert (copy / "log.jsonl").read_bytes() == b"".join(_lines(store.root)[:last])
        assert Store.open(copy).verify().problems == ()
    print(f"{len(made)} backups during {int(said)} changes, each of one moment")


def _lines(root: Path) -> list[bytes]:
    return (root / "log.jsonl").read_bytes().splitlines(keepends=True)


def _entries(root: Path) -> int:
    return sum(line.endswith(b"\n") for line in _lines(root))


def _count_calls(act: Callable[[], object]) -> int:
    """How many writes, fsyncs, renames and so on something makes."""
    calls = 0

    def count(number: int, _name: str, _arguments: object) -> None:
        nonlocal calls
        calls = number

    with watched(count):
        act()
    return calls


def _places(calls: int) -> list[int]:
    """Calls to be killed before: the last ones, which rename and remove, and some others."""
    last = min(KILLS // 2, 12)
    rest = range(1, calls - last + 1)
    return sorted({*range(calls - last + 1, calls + 1), *random.Random(1).sample(rest, min(KILLS - last, len(rest)))})


def test_a_killed_backup_leaves_nothing_that_looks_like_one(nursery: Helper, tmp_path: Path) -> None:
    place = tmp_path / "base"
    small_store(place / "store").add(POOL[:8])
    shutil.copytree(place, tmp_path / "counted")
    calls = _count_calls(lambda: back_up(Store.open(tmp_path / "counted/store"), tmp_path / "counted/copy"))
    kills = whole = 0
    for call in _places(calls):
        here = tmp_path / f"k{call}"
        shutil.copytree(place, here)
        kills += nursery.ask(here / "store", "backup", 0, call, 0) != "done"
        if (here / "copy").exists():
            whole += 1
        else:
            with pytest.raises(SiloError, match="not-a-store"):
                Store.open(here / "copy")
            back_up(Store.open(here / "store"), here / "copy")
        assert sorted(path.name for path in here.iterdir()) == ["copy", "store"]
        assert tree(here / "copy/data") == tree(place / "store/data")
        for name in ("copy", "store"):
            assert Store.open(here / name).verify().problems == ()
        shutil.rmtree(here)
    print(f"proven kills {kills} of a backup of {calls} calls, {whole} after it was there, half a backup 0")
    assert kills >= min(KILLS, calls) - 3


def test_a_killed_restore_is_finished_by_the_same_command(nursery: Helper, tmp_path: Path) -> None:
    place = tmp_path / "base"
    store = small_store(place / "store")
    store.add(POOL[:8])
    back_up(store, place / "copy")
    store.erase(Selector(owner="o1"))
    expected = tree(place / "store/data")
    store.close()
    next((place / "store/data/buckets").iterdir()).unlink()
    shutil.copytree(place, tmp_path / "counted")
    calls = _count_calls(lambda: restore(tmp_path / "counted/copy", tmp_path / "counted/store"))
    kills = old = 0
    for call in _places(calls):
        here = tmp_path / f"k{call}"
        shutil.copytree(place, here)
        kills += nursery.ask(here / "store", "restore", 0, call, 0) != "done"
        try:
            Store.open(here / "store").close()
        except SiloError as error:
            assert error.code in ("store-damaged", "not-a-store")
            old += 1
            restore(here / "copy", here / "store")
        else:
            with pytest.raises(SiloError, match="without any damage"):
                restore(here / "copy", here / "store")
        assert sorted(path.name for path in here.iterdir()) == ["copy", "store"]
        assert tree(here / "store/data") == expected
        assert Store.open(here / "store", SmallEncoder()).verify().problems == ()
        shutil.rmtree(here)
    print(f"proven kills {kills} of a restore of {calls} calls, {old} before the end, erased and back 0")
    assert kills >= min(KILLS, calls) - 3
