"""`silo credits` as people and scripts see it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from silo.cli import main
from silo.store.erasure.erase import accept
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.usage import Share, Usage, append_usage
from tests.store.small import document, small_store

ANN = document("a", "A first text about winter.", owner="ann")
BOB = document("b", "A second text about summer.", owner="bob")
NOBODY = document("n", "A third text, found in the street.")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with three requests: two in January, one in February."""
    store = small_store(tmp_path / "store")
    store.add([ANN, BOB, NOBODY])
    for month, day, parts in ((1, 5, (2.0, 1.0, 0.0)), (1, 31, (0.5, 0.0, 0.25)), (2, 1, (0.0, 4.0, 0.0))):
        shares = {
            item.id: Share(item.owner, item.license, part)
            for item, part in zip((ANN, BOB, NOBODY), parts, strict=True)
            if part
        }
        append_usage(store.paths, Usage(datetime(2026, month, day, 23, tzinfo=UTC), 10, shares), held=store.held)
    store.close()
    return str(store.root)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str, status: int = 0) -> Any:
        assert main(["credits", *arguments, "--json"]) == status
        return json.loads(capsys.readouterr().out)

    return call


def test_everybody_has_a_statement_and_the_parts_make_the_whole(path: str, run: Any) -> None:
    found = run(path)
    assert (found["requests"], found["tokens"], found["from"], found["to"]) == (3, 30, None, None)
    assert found["owners"] == [
        {"owner": "bob", "requests": 2, "tokens": 5.0, "documents": 1, "share": pytest.approx(5 / 30)},
        {"owner": "ann", "requests": 2, "tokens": 2.5, "documents": 1, "share": pytest.approx(2.5 / 30)},
        {"owner": "", "requests": 1, "tokens": 0.25, "documents": 1, "share": pytest.approx(0.25 / 30)},
    ]
    assert found["language_model"]["tokens"] == 22.25
    assert found["erased"] == {"requests": 0, "tokens": 0.0, "share": 0.0}


def test_a_period_ends_before_the_day_it_names(path: str, run: Any) -> None:
    january = run(path, "--from", "2026-01-01", "--to", "2026-02-01")
    february = run(path, "--from", "2026-02-01", "--to", "2026-03-01")
    assert (january["requests"], february["requests"]) == (2, 1)
    assert january["to"] == february["from"] == "2026-02-01T00:00:00+00:00"
    zoned = run(path, "--from", "2026-02-01T00:00+01:00", "--to", "2026-02-02")
    assert zoned["requests"] == 2


def test_one_owner_alone(path: str, run: Any) -> None:
    found = run(path, "--owner", "ann")
    assert [item["owner"] for item in found["owners"]] == ["ann"]
    assert found["tokens"] == 30
    assert run(path, "--owner", "nobody of that name", status=3)["owners"] == []


def test_a_table_for_people(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["credits", path, "--from", "2026-01-01", "--to", "2026-02-01"]) == 0
    shown = capsys.readouterr().out
    for words in ("ann", "12.50%", "(no owner named)", "(erased documents)", "(language model and other stores)"):
        assert words in shown
    assert "2 requests, 20 tokens" in " ".join(shown.split())
    assert main(["credits", path, "--owner", "ann"]) == 0
    assert "language model" not in capsys.readouterr().out


def test_an_accepted_erasure_is_finished_before_anybody_is_named(path: str, run: Any) -> None:
    store = Store.open(Path(path))
    with store.reading() as view:
        ids = [item.id for item in view.documents(Selector(owner="ann"))]
        accept(store.paths, view.generation, ids, store.log(), suppress=True)
    store.close()
    found = run(path)
    assert [item["owner"] for item in found["owners"]] == ["bob", ""]
    assert (found["erased"]["tokens"], found["language_model"]["tokens"]) == (2.5, 22.25)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--from", "yesterday"), "usage", "'yesterday' is not a date"),
        (("--from", "2026-02-01", "--to", "2026-02-01"), "usage", "the period is empty"),
    ],
)
def test_a_wrong_period_is_explained(path: str, run: Any, options: tuple[str, ...], code: str, said: str) -> None:
    error = run(path, *options, status=2)["error"]
    assert error["code"] == code
    assert said in error["message"]


def test_a_store_without_a_ledger_says_how_to_make_one(tmp_path: Path, run: Any) -> None:
    small_store(tmp_path / "store").close()
    error = run(str(tmp_path / "store"), status=3)["error"]
    assert (error["code"], "silo generate --ledger" in error["hint"]) == ("input-missing", True)
    assert run(str(tmp_path / "nothing"), status=3)["error"]["code"] == "not-a-store"
