"""The decode engine as what reads whole texts: without torch, and with the bits that generation has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from silo.errors import SiloError
from silo.lm.engine.engine import Engine, multiply
from silo.lm.engine.kernel import score_tokens, softmax
from silo.lm.manifest import Key
from silo.lm.reading import Floats, Keys, Row, RowScores, Tokens
from silo.placement import ENGINE
from silo.text.tokenizer import Tokenizer

Item = TypeVar("Item")
Made = TypeVar("Made")

_FEW_TOKENS = 64
_LEAST = 5e-324
"""Taken for a probability of nothing, so that its logarithm is a number."""


class EngineNetwork:
    """A model that the engine computes. Nothing is padded, since no sum depends on what is beside it."""

    mark = ENGINE
    batch_tokens = 1024
    """A window at a time: the engine's pace does not grow with more, and it keeps what it read until it is done."""

    def __init__(
        self,
        engine: Engine,
        root: Path,
        tokenizer: Tokenizer,
        fingerprint: str,
        *,
        kept_scores: Path | None = None,
        modest: bool = False,
    ) -> None:
        self.engine = engine
        self.root = root
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        self.kept_scores = kept_scores
        self.modest = modest
        """Are passes of one thread, which nobody who reads with the same engine waits for?"""
        self._here = threading.local()

    @property
    def context(self) -> int:
        """The longest input the network was made for."""
        return self.engine.shape.context

    @property
    def hidden_size(self) -> int:
        """Numbers in a key."""
        return self.engine.shape.width

    @property
    def vocabulary(self) -> int:
        """The width of the logits."""
        return self.engine.shape.vocabulary

    @property
    def cores(self) -> int:
        """How many cores this thread may use."""
        return getattr(self._here, "cores", self.engine.threads)

    @property
    def _threads(self) -> int:
        return 1 if self.modest else self.cores

    def map_on_cores(self, work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """The results of all items, in their order: each core takes whole ones."""
        if len(items) == 1 or self.cores == 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(self.cores, initializer=self._take_one_core) as pool:
            return list(pool.map(work, items))

    def _take_one_core(self) -> None:
        self._here.cores = 1

    def window_keys(self, windows: Sequence[Tokens], key: Key) -> list[Keys]:
        """The keys of all places of some windows."""
        keys = self.engine.keys(windows, key, threads=self._threads)
        return np.split(keys, np.cumsum([len(window) for window in windows])[:-1])

    def read_rows(self, rows: Sequence[Row], _length: int, key: Key | None) -> list[RowScores]:
        """Score rows; keys only where a kind is named."""
        return self.map_on_cores(lambda row: self._read_row(row, key), rows)

    def _read_row(self, row: Row, key: Key | None) -> RowScores:
        if row.tokens.max() >= self.vocabulary:
            raise ValueError(f"a token is outside of the vocabulary of {self.vocabulary}")
        first, count = row.first - 1, len(row.tokens) - row.first
        probabilities, peaks = np.empty(count), np.empty(count)
        keys = np.empty((count, self.hidden_size if key else 0), dtype=np.float32)
        for start, found in self.engine.read_text(row.tokens[:-1], first, threads=self._threads):
            here = slice(start - first, start - first + len(found.logits))
            targets = row.tokens[start + 1 : start + 1 + len(found.logits)].astype(np.int64)
            score_tokens(np.ascontiguousarray(found.logits), targets, probabilities[here], peaks[here])
            if key:
                keys[here] = found.final if key == "final" else found.feed_forward
        return RowScores(np.log(np.maximum(probabilities, _LEAST)), peaks, keys)

    def predict_ends(
        self, rows: Sequence[tuple[Tokens, int]], _length: int, key: Key | None
    ) -> list[tuple[Floats, Keys]]:
        """For each row, given as tokens and a number of last positions: log-probabilities after these, and keys."""
        found = []
        for tokens, count in rows:
            parts = [part for _, part in self.engine.read_text(tokens, len(tokens) - count, threads=self._threads)]
            logits = np.concatenate([part.logits for part in parts])
            probabilities = np.empty(logits.shape)
            for at, line in enumerate(logits):
                softmax(line, probabilities[at])
            keys = np.concatenate([part.feed_forward if key == "ffn" else part.final for part in parts])
            found.append((np.log(np.maximum(probabilities, _LEAST)), keys))
        return found

    def multiply(self, left: Keys, right: Keys) -> Keys:
        """The matrix product, on one core."""
        return multiply(left, right)

    def choose_key(self) -> Key:
        """The better kind, which every network of the engine offers."""
        return "ffn"

    def require_finite(self) -> None:
        """Refuse a network whose keys are no numbers; weights that are none were refused when it was opened."""
        tokens = np.arange(min(self.context, _FEW_TOKENS)) % self.tokenizer.vocabulary
        if not np.isfinite(self.engine.keys([tokens], "final")).all():
            hint = "train or import the model again: its training may have diverged"
            raise SiloError("not-a-model", f"{self.root} has keys that are not finite", hint)
