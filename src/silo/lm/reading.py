"""Networks that read whole texts: the decode engine wherever it computes a network, else torch's.

The engine's sums run in one written order: its keys, and the scores of next tokens, are to the bit those of generation.
torch is given inputs that are padded at the right, to lengths that depend on the text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from silo.lm.manifest import Key
from silo.text.tokenizer import Tokenizer

Keys = NDArray[np.float32]
Floats = NDArray[np.float64]
Tokens = NDArray[np.integer[Any]]
Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """An input of the network; its tokens from `first` (at least 1) on are scored."""

    tokens: NDArray[np.int64]
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class RowScores:
    """Per scored token: its log-probability, the probability of the likeliest token there, and the key before it."""

    logs: Floats
    peaks: Floats
    keys: Keys


class ReadingNetwork(Protocol):
    """`EngineNetwork` or `LanguageModel`."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def context(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def mark(self) -> str:
        """What a store remembers of keys that it made: others of the same text may differ in their last bits."""

    @property
    def batch_tokens(self) -> int:
        """Tokens that `window_keys` is best given at once."""

    @property
    def kept_scores(self) -> Path | None:
        """A folder in which scores of rows are kept for whoever reads the same text again; see `score_rows`."""

    @property
    def cores(self) -> int:
        """How many cores this thread may use."""

    def map_on_cores(self, work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """The results of all items, as many at a time as this thread may use cores; one item gets all."""

    def window_keys(self, windows: Sequence[Tokens], key: Key) -> list[Keys]:
        """The keys of all places of some windows, which have one padded length."""

    def read_rows(self, rows: Sequence[Row], length: int, key: Key | None) -> list[RowScores]:
        """Score rows, which are padded to one length; keys only where a kind is named."""

    def predict_ends(
        self, rows: Sequence[tuple[Tokens, int]], length: int, key: Key | None
    ) -> list[tuple[Floats, Keys]]:
        """For each row, given as tokens and a number of last positions: log-probabilities after these, and keys."""

    def multiply(self, left: Keys, right: Keys) -> Keys:
        """The matrix product, on the cores of this thread alone."""

    def choose_key(self) -> Key:
        """The kind of key that found better neighbours in all domains it was measured on, if the network offers it."""

    def require_finite(self) -> None:
        """Refuse a network with a weight that is no number, or whose keys are none."""
