"""Perplexity and bits per byte over one merged stream, in windows as the paper scores them; masks are not scored.

A document begins with the beginning-of-text token, which is context and never scored.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from silo.files import fingerprint, write_atomic
from silo.lm.manifest import Key
from silo.lm.model import LanguageModel
from silo.lm.windows import Windows
from silo.progress import Advance
from silo.text.stream import TokenStream
from silo.text.tokenizer import Ids

_CHUNK_LOGITS = 1 << 22
_ALIGN = 64


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


def score(
    model: LanguageModel, stream: TokenStream, windows: Windows, *, batch: int = 2, advance: Advance = lambda *_: None
) -> Score:
    """Score a stream; the first token of all has no context and counts nowhere."""
    logs = token_log_probabilities(model, stream.ids, windows, batch=batch, advance=advance)
    counted = stream.scored.copy()
    counted[:1] = False
    return Score(float(logs[counted].sum()), int(counted.sum()), stream.bytes)


def token_log_probabilities(
    model: LanguageModel, ids: Ids, windows: Windows, *, batch: int = 2, advance: Advance = lambda *_: None
) -> NDArray[np.float64]:
    """log P(token | what its window shows before it) for every token; 0 for the first of all."""
    logs = np.zeros(len(ids), dtype=np.float64)
    if len(ids) < 2:
        return logs
    every = list(windows.over(len(ids)))
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


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """An input of the network; its tokens from `first` (at least 1) on are scored."""

    tokens: NDArray[np.int64]
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class RowScores:
    """Per scored token: its log-probability, the probability of the likeliest token there, and the key before it."""

    logs: NDArray[np.float64]
    peaks: NDArray[np.float64]
    keys: NDArray[np.float32]


def score_rows(model: LanguageModel, rows: Sequence[Row], length: int, *, key: Key | None = None) -> list[RowScores]:
    """Score rows padded to one length; keys of that kind are given back where one is named.

    A model that keeps scores reads no row twice.
    """
    if model.kept_scores is None:
        return _read_rows(model, rows, length, key)
    return [_find_or_read(model, model.kept_scores, row, length, key) for row in rows]


def _find_or_read(model: LanguageModel, folder: Path, row: Row, length: int, key: Key | None) -> RowScores:
    """The kept scores of a row, or new ones, which are kept; keys only where a kind is named."""
    known_by = [model.fingerprint, str(model.placement), length, key, row.first, row.tokens.tolist()]
    file = folder / f"{fingerprint(known_by)}.npz"
    if file.exists():
        with np.load(file, allow_pickle=False) as kept:
            return RowScores(kept["logs"], kept["peaks"], kept["keys"])
    (read,) = _read_rows(model, [row], length, key)
    content = io.BytesIO()
    np.savez(content, logs=read.logs, peaks=read.peaks, keys=read.keys if key else read.keys[:, :0])
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(file, content.getvalue())
    return read


@torch.inference_mode()
def _read_rows(model: LanguageModel, rows: Sequence[Row], length: int, key: Key | None) -> list[RowScores]:
    """Score rows of one length.

    The head runs on the states that scored tokens need, a cache-sized part each. Parts are cut at fixed places, so that
    neither the other rows nor the number of threads show in a result.
    """
    ids = model.stack([row.tokens for row in rows], length)
    states, keys, head = _states_and_head(model, ids, key)
    size = max(_ALIGN, _CHUNK_LOGITS // model.vocabulary // _ALIGN * _ALIGN)
    scores = []
    for at, row in enumerate(rows):
        first, end = row.first - 1, len(row.tokens) - 1
        begin = first // _ALIGN * _ALIGN
        parts = [
            _token_scores(
                head(states[at, start : min(start + size, -(-end // _ALIGN) * _ALIGN)]).float(), ids[at, start + 1 :]
            )
            for start in range(begin, end, size)
        ]
        logs, peaks = (
            torch.cat(part)[first - begin : end - begin].cpu().double().numpy() for part in zip(*parts, strict=True)
        )
        scores.append(RowScores(logs, np.exp(peaks), keys[at, first:end].float().cpu().numpy()))
    return scores


def _token_scores(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the tokens, as far as there are some, and of the likeliest ones."""
    logits = logits[: len(tokens)]
    total = logits.logsumexp(1)
    return logits.gather(1, tokens[: len(logits)].unsqueeze(1)).squeeze(1) - total, logits.amax(1) - total


def _states_and_head(
    model: LanguageModel, ids: torch.Tensor, key: Key | None
) -> tuple[torch.Tensor, torch.Tensor, Callable[..., torch.Tensor]]:
    """What is left to do per position: the head, or nothing where a network does more than apply it."""
    if model.plain_head:
        states = model.states(ids, key=key or "final")
        return states.hidden, states.keys, model.network.get_output_embeddings()
    if key in (None, "final"):
        output = model.forward(ids)
        return output.logits, output.hidden, nn.Identity()
    return model.forward(ids).logits, model.keys(ids, key), nn.Identity()
