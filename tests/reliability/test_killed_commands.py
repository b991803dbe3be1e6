"""`kill -9` of `store tune`, `generate --ledger`, `score` and `lm train` at any disk call or instant.

The store is as it was, settings are the old ones or the new, the ledger has whole requests and all that were
acknowledged, and a training that goes on ends with the bytes of one that was never killed. Counts come from
SILO_COMMAND_KILLS (2 of each in `make test`, 60 in `make reliability`); the figures are printed.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from silo.inference.settings import Settings, load_settings, parse_method, save_settings
from silo.store.paths import StorePaths
from silo.store.store import Store
from silo.store.usage import statements
from tests.reliability.helper import Helper
from tests.store.small import tree

KILLS = int(os.environ.get("SILO_COMMAND_KILLS", "2"))


@pytest.fixture(scope="module")
def nursery() -> Iterator[Helper]:
    made = Helper("tests.reliability.command_nursery")
    yield made
    made.close()


@pytest.fixture
def folder(nursery: Helper, memory: Path) -> Path:
    assert nursery.ask(memory, "make", 0, 0) == "done"
    return memory


def _timed(nursery: Helper, folder: Path, job: str) -> float:
    """The seconds that a command takes, at best: the first one may have to compile."""
    seconds = []
    for _ in range(2):
        shutil.rmtree(folder / "trained", ignore_errors=True)
        begin = time.monotonic()
        assert nursery.ask(folder, job, 0, 0) == "done"
        seconds.append(time.monotonic() - begin)
    return min(seconds)


def _kill(nursery: Helper, folder: Path, job: str, rng: random.Random, seconds: float, calls: int) -> bool:
    """Kill a command at a random call or instant; True if it came to its end before."""
    timed = rng.random() < 0.5
    end = nursery.ask(
        folder, job, 0 if timed else rng.randint(1, calls), rng.uniform(0.05, 1) * seconds if timed else 0
    )
    assert end in ("done", "killed")
    return end == "done"


def test_killed_tuning_leaves_the_old_settings_or_the_new(nursery: Helper, folder: Path) -> None:
    rng, kills = random.Random(3), 0
    seconds = _timed(nursery, folder, "tune")
    path, before = folder / "home" / "settings" / "tuned.json", tree(folder / "store")
    new = path.read_bytes()
    old = save_settings(folder / "home", "tuned", {"knn+ngram": Settings()}, {}).read_bytes()
    while kills < KILLS:
        path.write_bytes(old)
        done = _kill(nursery, folder, "tune", rng, seconds, 6)
        kills += not done
        assert path.read_bytes() in ([new] if done else [old, new])
        load_settings(folder / "home", "tuned", parse_method("knn+ngram"))
        assert _data(tree(folder / "store")) == _data(before)
        assert nursery.ask(folder, "tune", 0, 0) == "done"
        assert tree(path.parent) == {"tuned.json": new}
    assert Store.open(folder / "store").verify().problems == ()
    print(f"`store tune` killed: {kills} proven, settings lost 0, stores changed 0")


def _data(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if not name.startswith("readers/")}


@pytest.mark.parametrize("job", ["generate", "score"])
def test_a_killed_request_is_noted_whole_or_not_at_all(nursery: Helper, folder: Path, job: str) -> None:
    rng, kills = random.Random(job), 0
    noting = job == "generate"
    assert nursery.ask(folder, "generate", 0, 0) == "done"
    seconds, before = _timed(nursery, folder, job), _data(tree(folder / "store"))
    noted = _requests(folder)
    before.pop("ledger.jsonl")
    while kills < KILLS:
        done = _kill(nursery, folder, job, rng, seconds, 6)
        kills += not done
        more = _requests(folder) - noted
        assert more in (((1,) if done else (0, 1)) if noting else (0,))
        noted += more
        after = _data(tree(folder / "store"))
        after.pop("ledger.jsonl")
        assert after == before
    assert nursery.ask(folder, "generate", 0, 0) == "done"
    assert _requests(folder) == noted + 1
    assert Store.open(folder / "store").verify().problems == ()
    print(f"`{job}` killed: {kills} proven, {noted} requests noted, 0 lost, 0 in part, stores changed 0")


def _requests(folder: Path) -> int:
    return statements(StorePaths(folder / "store")).requests


@pytest.mark.slow
def test_a_killed_training_goes_on_to_the_same_bytes(nursery: Helper, folder: Path) -> None:
    rng, kills = random.Random(5), 0
    seconds = _timed(nursery, folder, "train")
    out = folder / "trained"
    whole = tree(out)
    while kills < KILLS:
        shutil.rmtree(out)
        for _ in range(rng.randint(1, 3)):
            kills += not _kill(nursery, folder, "train", rng, seconds, 60)
            if out.exists():  # it may be killed after it put the model there
                break
        expected = "failed" if out.exists() else "done"
        assert nursery.ask(folder, "train", 0, 0) == expected
        assert tree(out) == whole
        assert not (folder / "trained.building").exists()
    print(f"`lm train` killed: {kills} proven, {len(whole)} files the same each time")
