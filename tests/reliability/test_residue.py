"""Erasure upon erasure, and after each no trace of the document is left: not in the store, not in the home of silo, not
in temporary files, not in caches.

Counts come from SILO_ERASURES (10 in `make test`, 500 in `make reliability`); the figures are printed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.reliability.eraser import PLACES
from tests.reliability.helper import Helper

SHARDS = 2
ERASURES = int(os.environ.get("SILO_ERASURES", "10")) // SHARDS


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_erasure_leaves_a_trace_anywhere(memory: Path, shard: int) -> None:
    names = PLACES if ERASURES > 100 else PLACES[:-1]  # compiling everything anew takes half a minute
    places = {name: str(memory / name) for name in names}
    for place in places.values():
        Path(place).mkdir()
    eraser = Helper("tests.reliability.eraser", **places)
    found = json.loads(eraser.ask(memory, ERASURES, shard))
    eraser.close()
    print(
        f"residue: {found['erasures']} erasures, {found['windows']:,} windows looked for in {found['files']:,} files "
        f"of the store and of {', '.join(names)}, {len(found['hits'])} found"
    )
    assert found["hits"] == []
    assert found["erasures"] >= ERASURES
