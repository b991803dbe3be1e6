"""Stage 1 of a build: the records of one part of a source -> judged documents in sorted runs.

On disk, in a directory per part: the runs (see `runs.py`) and `quarantined.zst`, the records that cannot be read.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from silo.corpus.runs import RunWriter
from silo.corpus.shards import open_line_writer
from silo.corpus.workers import tick
from silo.files import remove_tree
from silo.recipe import Limits
from silo.records import Candidate, Right
from silo.sources import SourcePart, judge, read
from silo.sources.reader.plan import packing

QUARANTINED = "quarantined.zst"


def read_part(part: SourcePart, directory: str, limits: Limits) -> dict[str, Any]:
    """Read one part from the beginning and report counts; unreadable records are set aside with their code."""
    start = time.perf_counter()
    target = Path(directory)
    remove_tree(target)
    target.mkdir(parents=True)
    runs = RunWriter(target)
    records = text_bytes = derived_ids = 0
    codes: Counter[str] = Counter()
    deny = tuple(map(Right, part.recipe.deny))
    progress = _PartProgress(part)
    with open_line_writer(target / QUARANTINED) as quarantined:
        for item in read(part, limits):
            records += 1
            if isinstance(item, Candidate):
                derived_ids += item.id_is_derived
                text_bytes += runs.add(judge(item, deny))
            else:
                codes[item.code] += 1
                quarantined.write(json.dumps(item.as_json(), ensure_ascii=True).encode() + b"\n")
            progress.update(text_bytes)
    runs.flush()
    progress.finish()
    return {
        "read": records,
        "quarantined": sum(codes.values()),
        "codes": dict(codes),
        "derived_ids": derived_ids,
        "bytes": text_bytes,
        "seconds": time.perf_counter() - start,
    }


class _PartProgress:
    """Tells how much of a part's file is read, guessed from the text that came out of it."""

    def __init__(self, part: SourcePart) -> None:
        self._packing = packing(part)
        self._size = part.bytes
        self._told = 0

    def update(self, text_bytes: int) -> None:
        self._tell(min(self._size, int(text_bytes / self._packing)))

    def finish(self) -> None:
        self._tell(self._size)

    def _tell(self, amount: int) -> None:
        tick(amount - self._told)
        self._told = amount
