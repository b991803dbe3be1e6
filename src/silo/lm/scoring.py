"""Perplexity and bits per byte over one merged stream, in windows as the paper scores them; masks are not scored.

A document begins with the beginning-of-text token, which is context and never scored.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silo.files import fingerprint, write_atomic
from silo.lm.manifest import Key
from silo.lm.reading import ReadingNetwork, Row, RowScores
from silo.lm.windows import Windows
from silo.progress import Advance
from silo.text.stream import TokenStream
from silo.text.tokenizer import Ids


@dataclass(frozen=True, slots=True)
class Score:
    """Totals over scored tokens: natural log-probability, tokens, bytes of text."""

    log_probability: float
    tokens: int
    bytes: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(-self.log_probability / max(self.tokens, 1), 700.0))

    @property
    def bits_per_byte(self) -> float:
        return -self.log_probability / math.log(2) / max(self.bytes, 1)

    def as_json(self) -> dict[str, float | int]:
        """What `silo lm eval --json` prints."""
        return {"tokens": self.tokens, "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}


def score(model: ReadingNetwork, stream: TokenStream, windows: Windows, *, advance: Advance = lambda *_: None) -> Score:
    """Score a stream; the first token of all has no context and counts nowhere."""
    logs = token_log_probabilities(model, stream.ids, windows, advance=advance)
    counted = stream.scored.copy()
    counted[:1] = False
    return Score(float(logs[counted].sum()), int(counted.sum()), stream.bytes)


def token_log_probabilities(
    model: ReadingNetwork, ids: Ids, windows: Windows, *, advance: Advance = lambda *_: None
) -> NDArray[np.float64]:
    """log P(token | what its window shows before it) for every token; 0 for the first of all."""
    logs = np.zeros(len(ids), dtype=np.float64)
    if len(ids) < 2:
        return logs
    every, batch = list(windows.over(len(ids))), max(2, model.cores)
    for at in range(0, len(every), batch):
        group = every[at : at + batch]
        rows = [
            Row(ids[window.start : window.until].astype(np.int64), window.targets.start - window.start)
            for window in group
        ]
        for window, scores in zip(group, score_rows(model, rows, windows.length), strict=True):
            logs[window.targets] = scores.logs
        advance("score", at + len(group), len(every))
    return logs


def score_rows(model: ReadingNetwork, rows: Sequence[Row], length: int, *, key: Key | None = None) -> list[RowScores]:
    """Score rows, which torch is given padded to one length; keys of that kind are given back where one is named.

    A model that keeps scores reads no row twice.
    """
    if model.kept_scores is None:
        return model.read_rows(rows, length, key)
    return [_find_or_read(model, model.kept_scores, row, length, key) for row in rows]


def _find_or_read(model: ReadingNetwork, folder: Path, row: Row, length: int, key: Key | None) -> RowScores:
    """The kept scores of a row, or new ones, which are kept; keys only where a kind is named."""
    known_by = [model.fingerprint, model.mark, length, key, row.first, row.tokens.tolist()]
    file = folder / f"{fingerprint(known_by)}.npz"
    if file.exists():
        with np.load(file, allow_pickle=False) as kept:
            return RowScores(kept["logs"], kept["peaks"], kept["keys"])
    (read,) = model.read_rows([row], length, key)
    content = io.BytesIO()
    np.savez(content, logs=read.logs, peaks=read.peaks, keys=read.keys if key else read.keys[:, :0])
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(file, content.getvalue())
    return read
