"""Readers and writers of one store that are stopped and killed at random: every answer is that of one state that the
store had between question and answer, and what was accepted for erasure is in no later answer.

Seconds come from SILO_TOGETHER_SECONDS (8 in `make test`, 600 in `make reliability`); the figures are printed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from silo.store.store import Store
from tests.reliability.helper import Helper
from tests.reliability.linear import Operation, Request, check
from tests.reliability.together import PLANTS, READERS, WRITERS, History, Truth, read_history
from tests.store.small import SmallEncoder, tree

SECONDS = float(os.environ.get("SILO_TOGETHER_SECONDS", "8"))
PLANTED_SECONDS = 1.5


@pytest.fixture(scope="module")
def stage() -> Iterator[Helper]:
    made = Helper("tests.reliability.together")
    yield made
    made.close()


@pytest.fixture
def truth(memory: Path) -> Truth:
    return Truth(memory / "truth")


def _lived(stage: Helper, folder: Path, seconds: float, seed: int, plant: str = "none") -> History:
    assert stage.ask(folder, seconds, seed, plant) == "done"
    return read_history(folder)


def test_every_answer_is_of_one_state_of_its_time(stage: Helper, truth: Truth, memory: Path) -> None:
    history = _lived(stage, memory, SECONDS, 1)
    verdict = check(history.operations, history.requests, truth.fits)
    changes = sum(bool(item.changed) for item in history.operations)
    cut_off = sum(item.changed is None for item in history.operations)
    print(
        f"together: {len(history.requests):,} answers of {READERS} readers during {changes:,} changes of {WRITERS} "
        f"writers ({cut_off} more cut off), {truth.states} states, {history.stops} stopped, {history.kills} killed, "
        f"{len(verdict.wrong)} answers of no state of their time, {len(history.errors)} errors"
    )
    assert history.errors == []
    assert verdict.wrong == ()
    assert changes > SECONDS / 4  # a busy machine makes few
    assert len(history.requests) > 20 * SECONDS
    _ends_well(history, memory / "store", truth, verdict.last)


def _ends_well(history: History, root: Path, truth: Truth, last: frozenset[int]) -> None:
    """Whoever opens the store next finds one of the states it may be in, whole, and a receipt of each erasure."""
    store = Store.open(root, SmallEncoder())
    held = [item.external_id for item in store.documents()]
    twins = {state: truth.store(state) for state in last}
    (state,) = (state for state, twin in twins.items() if [item.external_id for item in twin.documents()] == held)
    store.compact()
    assert store.verify().problems == ()
    assert tree(root / "data") == tree(twins[state].root / "data")
    erasures = [item.changed for item in history.operations if not item.adds]
    receipts = len(list(store.paths.receipts.iterdir()))
    assert sum(bool(changed) for changed in erasures) <= receipts
    assert receipts <= sum(changed is None or changed > 0 for changed in erasures)


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_noticed(stage: Helper, truth: Truth, memory: Path, plant: str) -> None:
    """A reader that keeps its view, a writer that loses what it adds, readers that overlook an accepted erasure."""
    history = _lived(stage, memory, PLANTED_SECONDS, 2, plant)
    assert check(history.operations, history.requests, truth.fits).wrong != ()


def _is(request: Request, state: int) -> bool:
    return int(request.answer) == state


ADD = Operation(10, 20, adds=True, steps=(1, 2), changed=2)


@pytest.mark.parametrize(
    ("operations", "answers", "fine"),
    [
        ([ADD], [(0, 5, 0), (12, 15, 2), (16, 30, 3)], True),
        ([ADD], [(21, 22, 2)], False),
        ([ADD], [(0, 5, 3)], False),
        ([ADD], [(12, 13, 3), (14, 15, 0)], False),
        ([ADD], [(11, 16, 3), (12, 15, 0)], True),
        ([ADD, Operation(30, 40, adds=False, steps=(3,), changed=2)], [(31, 39, 0), (35, 50, 0)], True),
        ([ADD, Operation(30, 40, adds=False, steps=(3,), changed=2)], [(31, 39, 1)], False),
        ([ADD, Operation(30, 40, adds=False, steps=(3,), changed=2)], [(41, 50, 3)], False),
        ([ADD, Operation(30, 40, adds=False, steps=(3,), changed=1)], [], False),
        ([Operation(10, 20, adds=True, steps=(1,), changed=None)], [(21, 22, 1), (23, 24, 1)], True),
        ([Operation(10, 20, adds=True, steps=(1,), changed=None)], [(21, 22, 0), (23, 24, 0)], True),
        ([Operation(10, 20, adds=True, steps=(1,), changed=None)], [(21, 22, 0), (23, 24, 1)], False),
    ],
)
def test_the_checker_knows_what_fits(
    operations: list[Operation], answers: list[tuple[int, int, int]], *, fine: bool
) -> None:
    requests = [Request(start, end, "state", str(state)) for start, end, state in answers]
    assert (check(operations, requests, _is).wrong == ()) is fine
