"""Keys of a document: a state of the model after each of its prefixes, computed from that document alone.

A document is encoded from its own beginning in windows, so that its keys do not depend on other documents, on what is
read together with it, or on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.lm.engine.decoder import open_network
from silo.lm.manifest import Key, key_fingerprint, read_key
from silo.lm.reading import Keys, ReadingNetwork
from silo.lm.windows import Window, Windows, padded_length
from silo.text.tokenizer import Ids, Tokenizer

Quantise = Callable[[Keys, Callable[[Keys, Keys], Keys]], tuple[NDArray[Any], ...]]
"""Makes arrays of keys, one row for each, with the help of a matrix product."""

_LONGEST = 1024


@dataclass(frozen=True, slots=True)
class _Piece:
    """A window of one of several documents, and the length it is padded to."""

    document: int
    window: Window
    padded: int

    @property
    def rows(self) -> int:
        """How many keys it gives."""
        return self.window.until - self.window.targets.start


class DocumentEncoder:
    """Turns documents into keys of one kind with one network.

    Windows overlap by an eighth, which later tokens have as context.
    """

    def __init__(self, network: ReadingNetwork, key: Key = "final") -> None:
        length = min(network.context, _LONGEST)
        self.network = network
        self.key: Key = key
        self.windows = Windows(length, max(1, length - length // 8))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.network.tokenizer

    @property
    def fingerprint(self) -> str:
        """Names the model and the kind of key; the model alone for `final`."""
        return key_fingerprint(self.network.fingerprint, self.key)

    @property
    def mark(self) -> str:
        """What makes the keys."""
        return self.network.mark

    @property
    def width(self) -> int:
        """Numbers in a key."""
        return self.network.hidden_size

    @property
    def context(self) -> int:
        """What the model reads at once."""
        return self.network.context

    def keys(self, documents: Sequence[Ids]) -> Iterator[Keys]:
        """Per document, for every token but the first: the key of the tokens before it."""
        return (keys for (keys,) in self._map_keys(documents, lambda keys: (keys,)))

    def codes(self, documents: Sequence[Ids], quantise: Quantise) -> Iterator[tuple[NDArray[Any], ...]]:
        """What `quantise` makes of the keys of each document; every core does so right after the keys."""
        return self._map_keys(documents, lambda keys: quantise(keys, self.network.multiply))

    def _map_keys(
        self, documents: Sequence[Ids], make: Callable[[Keys], tuple[NDArray[Any], ...]]
    ) -> Iterator[tuple[NDArray[Any], ...]]:
        """Per document the arrays, one row for each token but the first, that are made of its keys."""
        pieces = [piece for at, ids in enumerate(documents) for piece in self._cut(at, len(ids))]
        pieces.sort(key=lambda piece: -piece.padded)
        batches = list(_batches(pieces, self.network.batch_tokens))
        by_window: dict[tuple[int, Window], tuple[NDArray[Any], ...]] = {}
        results = self.network.map_on_cores(lambda batch: make(self._batch_keys(documents, batch)), batches)
        for batch, arrays in zip(batches, results, strict=True):
            ends = np.cumsum([piece.rows for piece in batch])[:-1]
            for piece, *rows in zip(batch, *(np.split(array, ends) for array in arrays), strict=True):
                by_window[piece.document, piece.window] = tuple(rows)
        for at, ids in enumerate(documents):
            parts = [by_window[at, piece.window] for piece in self._cut(at, len(ids))]
            yield tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))

    def _cut(self, document: int, tokens: int) -> Iterator[_Piece]:
        for window in self.windows.over(tokens):
            yield _Piece(document, window, padded_length(window.until - window.start, self.windows.length))

    def _batch_keys(self, documents: Sequence[Ids], batch: list[_Piece]) -> Keys:
        """The keys that windows of one length give, one after the other."""
        windows = [documents[piece.document][piece.window.start : piece.window.until] for piece in batch]
        keys = self.network.window_keys(windows, self.key)
        return np.concatenate([rows[piece.window.states] for rows, piece in zip(keys, batch, strict=True)])


def _batches(pieces: list[_Piece], most: int) -> Iterator[list[_Piece]]:
    """Pieces of one padded length at a time, up to a number of tokens."""
    for padded, same in groupby(pieces, key=lambda piece: piece.padded):
        while group := list(islice(same, max(1, most // padded))):
            yield group


def open_encoder(root: Path, mark: str | None = None, *, verify: bool = False) -> DocumentEncoder:
    """A model directory, with the kind of key its codec was learned for; `mark` is as for `open_network`."""
    return DocumentEncoder(open_network(root, mark, verify=verify), read_key(root)[0])
