"""Every hostile input ends in its named code, and the records beside it survive."""

from __future__ import annotations

from pathlib import Path

import pytest

from silo.errors import CODES, SiloError
from silo.recipe import Limits
from silo.records import Quarantined
from silo.sources import plan, read
from tests.corpus.hostile import CASES, Case, recipe_for

_NEEDS = {"warc": "fastwarc"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hostile_input_costs_only_itself(case: Case, tmp_path: Path) -> None:
    if case.kind in _NEEDS:
        pytest.importorskip(_NEEDS[case.kind])
    case.write(tmp_path)
    codes: list[str] = []
    survived = 0
    try:
        parts = plan(recipe_for(case), tmp_path)
    except SiloError as error:
        parts = []
        codes.append(error.code)
    for part in parts:
        for item in read(part, Limits()):
            if isinstance(item, Quarantined):
                codes.append(item.code)
                assert item.message and str(tmp_path) not in item.where + item.message
                item.message.encode()
            else:
                survived += 1
                item.text.encode()
                item.external_id.encode()
    assert (sorted(codes), survived) == (sorted(case.expect_codes), case.good)


def test_the_collection_is_large_and_well_formed() -> None:
    names = [case.name for case in CASES]
    assert len(names) >= 45
    assert len(set(names)) == len(names)
    assert {code for case in CASES for code in case.expect_codes} <= set(CODES)


def test_an_unreadable_signal_counts_as_a_no(tmp_path: Path) -> None:
    signals = [case for case in CASES if case.name in ("robots-binary", "tdmrep-invalid", "rsl-billion-laughs")]
    assert len(signals) == 3
    for case in signals:
        base = tmp_path / case.name
        base.mkdir()
        case.write(base)
        (item,) = [item for part in plan(recipe_for(case), base) for item in read(part, Limits())]
        assert not isinstance(item, Quarantined)
        assert {"train", "store"} <= {right for evidence in item.evidence for right in evidence.denies}, case.name
