"""The usage ledger: nothing acknowledged is lost, totals are exact, and an erased document loses its name."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from silo.errors import SiloError
from silo.files import exclusive
from silo.records import Document
from silo.store import usage as ledger
from silo.store.erasure.receipt import check_receipt, read_receipt
from silo.store.manifest import read_generation
from silo.store.paths import StorePaths
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.usage import UNITS, Share, Usage, append_usage, redact_usage, statements
from tests.reliability.disk import fail_at, watched
from tests.reliability.helper import Helper
from tests.reliability.nursery import leaving
from tests.reliability.test_store_histories import POOL
from tests.store.small import SmallEncoder, document, small_store, tree

LEDGER, LOCK = "ledger.jsonl", "ledger.lock"

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
A, B, C = (f"{number:032x}" for number in (10, 11, 12))


def _usage(tokens: int = 8, *, at: datetime = NOON, **shares: float) -> Usage:
    names = {"a": (A, "ann"), "b": (B, "ann"), "c": (C, "bob")}
    given = {names[key][0]: Share(names[key][1], "MIT", part) for key, part in shares.items()}
    return Usage(at, tokens, given)


def _append(root: Path, usage: Usage) -> None:
    append_usage(StorePaths(root), usage, held=frozenset)


def _rows(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / LEDGER).read_bytes().splitlines()]


def _totals(root: Path) -> list[tuple[str, int, int]]:
    """Time, tokens and the sum of the shares of each line: what no redaction may change."""
    return [(row["time"], row["tokens"], sum(item[2] for item in row["shares"].values())) for row in _rows(root)]


def test_statements_of_owners_the_language_model_and_the_period(tmp_path: Path) -> None:
    _append(tmp_path, _usage(8, a=1.5, b=0.5, c=3.0))
    _append(tmp_path, _usage(4, a=0.25, at=NOON + timedelta(hours=1)))
    found = statements(StorePaths(tmp_path))
    assert (found.requests, found.tokens) == (2, 12)
    bob, ann = found.owners
    assert (bob.owner, bob.requests, bob.documents, bob.tokens, bob.share) == ("bob", 1, 1, 3.0, 0.25)
    assert (ann.owner, ann.requests, ann.documents, ann.tokens) == ("ann", 2, 2, 2.25)
    assert (found.language_model.tokens, found.erased.tokens) == (6.75, 0.0)
    later = statements(StorePaths(tmp_path), NOON + timedelta(minutes=1))
    assert (later.requests, later.owners[0].tokens) == (1, 0.25)
    assert statements(StorePaths(tmp_path), NOON, NOON + timedelta(hours=1)).tokens == 8
    assert statements(StorePaths(tmp_path), NOON + timedelta(days=1)).owners == ()


def test_adjoining_periods_add_up_to_a_naive_exact_sum(tmp_path: Path) -> None:
    rng = random.Random(3)
    naive: dict[str, Fraction] = {}
    for number in range(60):
        tokens = rng.choice([1, 64, 20_000])
        owners = rng.sample(range(9), 4)
        shares = {}
        for owner in owners:
            part = rng.randrange(tokens * UNITS // 4) / UNITS
            shares[f"{owner:032x}"] = Share(f"owner{owner % 4}", "", part)
            naive[f"owner{owner % 4}"] = naive.get(f"owner{owner % 4}", Fraction()) + Fraction(part)
        _append(tmp_path, Usage(NOON + timedelta(minutes=number), tokens, shares))
    found = statements(StorePaths(tmp_path))
    assert {item.owner: item.tokens for item in found.owners} == {name: float(sum_) for name, sum_ in naive.items()}
    parts = [*found.owners, found.erased, found.language_model]
    assert sum(item.share for item in parts) == pytest.approx(1.0, abs=1e-12)
    middle = NOON + timedelta(minutes=31)
    halves = statements(StorePaths(tmp_path), None, middle), statements(StorePaths(tmp_path), middle)
    assert [half.requests for half in halves] == [31, 29]
    assert sum(half.tokens for half in halves) == found.tokens


def test_the_ledger_holds_ids_owners_licences_and_numbers_only(tmp_path: Path) -> None:
    _append(tmp_path, _usage(2, a=2.0**-40))
    (row,) = _rows(tmp_path)
    assert row.pop("check")
    assert row == {"time": "2026-03-01T12:00:00.000000+00:00", "tokens": 2, "shares": {A: ["ann", "MIT", 1]}}


@pytest.mark.parametrize(
    ("time", "tokens", "name", "share"),
    [
        (NOON.replace(tzinfo=None), 1, A, 0.5),
        (NOON, 1, "not an id", 0.5),
        (NOON, 1, A, 0.1),
        (NOON, 1, A, -0.5),
        (NOON, 1, A, 1.5),
        (NOON, 1, A, float("nan")),
    ],
)
def test_what_could_not_be_summed_is_refused(time: datetime, tokens: int, name: str, share: float) -> None:
    with pytest.raises(ValueError, match=r"zone|id|multiple|more than"):
        Usage(time, tokens, {name: Share("ann", "", share)})


def test_a_torn_last_line_is_passed_over_and_cut_off_by_the_next_append(tmp_path: Path) -> None:
    _append(tmp_path, _usage(a=1.0))
    one = (tmp_path / LEDGER).read_bytes()
    for size in range(1, len(one)):
        (tmp_path / LEDGER).write_bytes(one + one[:size])
        assert statements(StorePaths(tmp_path)).requests == 1
        _append(tmp_path, _usage(c=1.0))
        assert statements(StorePaths(tmp_path)).requests == 2
        assert (tmp_path / LEDGER).read_bytes().startswith(one)


def test_every_changed_byte_of_a_whole_line_is_noticed(tmp_path: Path) -> None:
    _append(tmp_path, _usage(a=1.0))
    _append(tmp_path, _usage(c=1.0))
    whole = (tmp_path / LEDGER).read_bytes()
    for at in range(len(whole)):
        (tmp_path / LEDGER).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(SiloError, match="store-damaged"):
            statements(StorePaths(tmp_path))
    with pytest.raises(SiloError, match="end of the last line"):
        _append(tmp_path, _usage(a=1.0))
    redact_usage(StorePaths(tmp_path), frozenset([bytes.fromhex(C)]))
    assert C.encode() not in (tmp_path / LEDGER).read_bytes()


_MANY = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from silo.store.paths import StorePaths
from silo.store.usage import Share, Usage, append_usage
number = int(sys.argv[2])
for _ in range(25):
    shares = {f"{number:032x}": Share(f"owner{number}", "", 0.5)}
    append_usage(StorePaths(Path(sys.argv[1])), Usage(datetime.now(UTC), 1, shares), held=frozenset)
"""


def test_several_processes_append_while_another_redacts(tmp_path: Path) -> None:
    crowd = [subprocess.Popen([sys.executable, "-c", _MANY, str(tmp_path), str(number)]) for number in range(4)]
    gone = frozenset([bytes.fromhex(f"{3:032x}")])
    while any(process.poll() is None for process in crowd):
        redact_usage(StorePaths(tmp_path), gone)
        time.sleep(0.01)
    assert [process.returncode for process in crowd] == [0] * 4
    redact_usage(StorePaths(tmp_path), gone)
    found = statements(StorePaths(tmp_path))
    assert {(item.owner, item.requests, item.tokens) for item in found.owners} == {
        (f"owner{number}", 25, 12.5) for number in range(3)
    }
    assert (found.requests, found.erased.tokens, found.erased.requests) == (100, 12.5, 25)


def test_a_redaction_changes_the_lines_that_name_the_document_and_no_total(tmp_path: Path) -> None:
    for usage in (_usage(a=1.0, b=2.0, c=0.5), _usage(c=1.0), _usage(a=0.25), _usage(b=0.0)):
        _append(tmp_path, usage)
    before, lines = _totals(tmp_path), (tmp_path / LEDGER).read_bytes().splitlines()
    (tmp_path / LEDGER).write_bytes((tmp_path / LEDGER).read_bytes() + lines[0][:-5])
    redact_usage(StorePaths(tmp_path), frozenset(map(bytes.fromhex, (A, B))))
    once = (tmp_path / LEDGER).read_bytes()
    assert _totals(tmp_path) == before
    assert once.splitlines()[1] == lines[1]
    assert [row["shares"] for row in _rows(tmp_path)] == [
        {"": ["", "", 3 * UNITS], C: ["bob", "MIT", UNITS // 2]},
        {C: ["bob", "MIT", UNITS]},
        {"": ["", "", UNITS // 4]},
        {},
    ]
    redact_usage(StorePaths(tmp_path), frozenset(map(bytes.fromhex, (A, B))))
    assert (tmp_path / LEDGER).read_bytes() == once
    redact_usage(StorePaths(tmp_path), frozenset([bytes.fromhex(C)]))
    assert _totals(tmp_path) == before
    assert statements(StorePaths(tmp_path)).erased.tokens == 4.75
    assert sorted(path.name for path in tmp_path.iterdir()) == [LEDGER, LOCK]


def test_a_damaged_line_that_names_an_erased_document_goes_and_is_still_noticed(tmp_path: Path) -> None:
    _append(tmp_path, _usage(a=1.0))
    (tmp_path / LEDGER).write_bytes((tmp_path / LEDGER).read_bytes().replace(b"MIT", b"MIX"))
    redact_usage(StorePaths(tmp_path), frozenset([bytes.fromhex(A)]))
    assert A.encode() not in (tmp_path / LEDGER).read_bytes()
    with pytest.raises(SiloError, match="line 1 is not as it was written"):
        statements(StorePaths(tmp_path))


@pytest.mark.parametrize("kind", ["eio", "enospc", "short"])
def test_a_failing_disk_loses_no_line_and_adds_none(tmp_path: Path, kind: str) -> None:
    failures = 0
    for number in range(1, 9):
        root = tmp_path / str(number)
        _append(root, _usage(a=1.0))
        (root / LEDGER).write_bytes((root / LEDGER).read_bytes() + b'{"check":')
        try:
            with watched(fail_at(number, kind)):
                _append(root, _usage(c=1.0))
            noted = 2
        except (SiloError, OSError):
            noted, failures = 1, failures + 1
        assert statements(StorePaths(root)).requests == noted
        _append(root, _usage(b=1.0))
        assert statements(StorePaths(root)).requests == noted + 1
    assert failures


# with a store


def _request(*documents: Document) -> Usage:
    return Usage(NOON, 8, {item.id: Share(item.owner, item.license, 1.5) for item in documents})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = small_store(tmp_path / "store")
    made.add(POOL[:8])
    for at in range(8):
        append_usage(made.paths, _request(*POOL[max(0, at - 2) : at + 1]), held=made.held)
    yield made
    made.close()


def _names(root: Path, item: Document) -> list[str]:
    """Files of a store that name a document."""
    forms = (item.id.encode(), bytes.fromhex(item.id))
    return [name for name, data in tree(root).items() if any(form in data for form in forms)]


def test_an_erasure_takes_the_document_out_of_the_ledger_and_passes_its_checks(store: Store) -> None:
    before, tokens = _totals(store.root), statements(StorePaths(store.root)).tokens
    assert LEDGER in _names(store.root, POOL[3])
    done = store.erase(Selector(document="p3"))
    assert done.receipt
    receipt = read_receipt(done.receipt)
    assert check_receipt(receipt)["failed_checks"] == []
    assert receipt["checks"]["residue-windows"] > 100
    assert _names(store.root, POOL[3]) == []
    assert _totals(store.root) == before
    found = statements(StorePaths(store.root))
    assert (found.tokens, found.erased.tokens, found.erased.requests) == (tokens, 4.5, 3)


def test_an_id_left_in_the_ledger_would_be_noticed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the ledger is forgotten."""
    monkeypatch.setattr("silo.store.store.redact_usage", lambda *_: None)
    done = store.erase(Selector(document="p3"))
    assert done.receipt
    assert read_receipt(done.receipt)["checks"]["residue-hits"] == 1


def test_a_text_that_names_an_owner_who_stays_is_no_residue(store: Store) -> None:
    """The owner's name is in buckets and in the ledger, rightly so."""
    owner = "Wilhelmina van der Long"
    work, praise = document("w", "Quite another text.", owner=owner), document("x", f"A tale told by {owner} at night.")
    store.add([work, praise])
    append_usage(store.paths, _request(work, praise), held=store.held)
    done = store.erase(Selector(document="x"))
    assert done.receipt
    assert read_receipt(done.receipt)["checks"]["residue-hits"] == 0


def test_a_late_request_cannot_bring_an_erased_document_back(store: Store) -> None:
    reader = Store.open(store.root)
    eraser = Thread(target=store.erase, args=(Selector(document="p3"),))
    with reader.reading():  # its request began before
        eraser.start()
        while POOL[3].id.encode() in (store.root / LEDGER).read_bytes():
            time.sleep(0.01)
        assert (store.root / "pending.json").exists()
        append_usage(store.paths, _request(POOL[3], POOL[4]), held=reader.held)
    eraser.join()
    named = {name: item[0] for name, item in _rows(store.root)[-1]["shares"].items()}
    assert named == {"": "", POOL[4].id: "o1"}
    assert _totals(store.root)[-1][2] == 3 * UNITS
    assert _names(store.root, POOL[3]) == []
    reader.close()


def test_an_erasure_waits_for_a_line_that_is_being_written_and_redacts_it(store: Store) -> None:
    asked, go = Event(), Event()

    def slowly(names: Iterable[str]) -> frozenset[str]:
        asked.set()
        go.wait(60)
        return frozenset(names)

    before = read_generation(store.paths).fingerprint
    writer = Thread(target=append_usage, args=(store.paths, _request(POOL[3])), kwargs={"held": slowly})
    writer.start()
    asked.wait(60)
    eraser = Thread(target=store.erase, args=(Selector(document="p3"),))
    eraser.start()
    while read_generation(store.paths).fingerprint == before:
        time.sleep(0.01)
    eraser.join(0.5)
    assert eraser.is_alive()
    go.set()
    writer.join()
    eraser.join()
    assert len(_rows(store.root)) == 9
    assert _names(store.root, POOL[3]) == []


def test_an_erasure_that_could_not_get_at_the_ledger_is_finished_by_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "WAIT_SECONDS", 0.05)
    with exclusive(store.root / LOCK), pytest.raises(SiloError, match="busy"):
        store.erase(Selector(document="p3"))
    store.erase(Selector(document="p5"))
    assert sorted(item.external_id for item in store.documents()) == ["p0", "p1", "p2", "p4", "p6", "p7"]
    assert _names(store.root, POOL[3]) == _names(store.root, POOL[5]) == []
    assert len(list((store.root / "receipts").iterdir())) == 2


def _ledger_calls(store: Store, *, suppress: bool) -> list[int]:
    """Numbers of the disk calls of an erasure that touch the ledger, and of the one after."""
    found: list[int] = []

    def on_call(count: int, name: str, arguments: tuple[Any, ...]) -> None:
        handle = name in ("write", "fsync")
        path = Path(f"/proc/self/fd/{arguments[0]}").readlink() if handle else arguments[0]
        if Path(path).name.startswith(LEDGER):
            found.append(count)

    with watched(on_call):
        store.erase(Selector(owner="o1"), suppress=suppress)
    return [*found, found[-1] + 1]


def test_kill_9_within_a_redaction_is_finished_at_the_next_opening(store: Store, tmp_path: Path) -> None:
    base = shutil.copytree(store.root, tmp_path / "base")
    before = _totals(base)
    gone = [item for item in POOL[:8] if item.owner == "o1"]
    calls = _ledger_calls(store, suppress=True)
    assert leaving(9) == Selector(owner="o1")
    with closing(Helper("tests.reliability.nursery")) as nursery:
        for number in calls:
            root = shutil.copytree(base, tmp_path / f"killed{number}")
            assert nursery.ask(root, "erase", 9, number, 0) == "killed"
            Store.open(root, SmallEncoder()).close()
            assert [_names(root, item) for item in gone] == [[]] * len(gone)
            assert _totals(root) == before
            assert not list(root.glob("*.partial"))
            assert (root / LEDGER).read_bytes() == (store.root / LEDGER).read_bytes()
    assert len(calls) >= 5


@pytest.mark.parametrize("kind", ["eio", "enospc", "short"])
def test_a_disk_that_fails_within_a_redaction_is_made_up_for(store: Store, tmp_path: Path, kind: str) -> None:
    base = shutil.copytree(store.root, tmp_path / "base")
    for number in _ledger_calls(store, suppress=False):
        root = shutil.copytree(base, tmp_path / f"failed{number}")
        broken = Store.open(root, SmallEncoder())
        try:
            with watched(fail_at(number, kind)):
                broken.erase(Selector(owner="o1"), suppress=False)
        except (SiloError, OSError):
            assert broken.failed
        broken.close()
        Store.open(root, SmallEncoder()).close()
        assert (root / LEDGER).read_bytes() == (store.root / LEDGER).read_bytes()
        assert not (root / "pending.json").exists()
