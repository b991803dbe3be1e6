"""Keys of a document: a state of the model after each of its prefixes, computed from that document alone.

A document is encoded from its own beginning in windows padded at the right to a length that depends on that document
alone, so that its keys do not depend on other documents, on the batch they share, or on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.lm.manifest import Key, key_fingerprint
from silo.lm.model import LanguageModel
from silo.lm.parallel import map_on_cores
from silo.lm.windows import Window, Windows
from silo.text.tokenizer import Ids, Tokenizer

Keys = NDArray[np.float32]
Quantise = Callable[[Keys, Callable[[Keys, Keys], Keys]], tuple[NDArray[Any], ...]]
"""Makes arrays of keys, one row for each, with the help of a matrix product."""

_STEP = 64
"""Windows are padded to a multiple of this: every length is one that was tested to give the same bits in any batch."""

_BATCH_TOKENS = 2048
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
    """Turns documents into keys of one kind with one model.

    Windows overlap by an eighth, which later tokens have as context.
    """

    def __init__(self, model: LanguageModel, key: Key = "final") -> None:
        length = min(model.context, _LONGEST)
        self.model = model
        self.key: Key = key
        self.windows = Windows(length, max(1, length - length // 8))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @property
    def fingerprint(self) -> str:
        """Names the model and the kind of key; the model alone for `final`."""
        return key_fingerprint(self.model.fingerprint, self.key)

    @property
    def width(self) -> int:
        """Numbers in a key."""
        return self.model.hidden_size

    @property
    def context(self) -> int:
        """What the model reads at once."""
        return self.model.context

    def require_finite_keys(self) -> None:
        """Refuse a network with a weight that is no number, or whose keys are none."""
        tokens = np.arange(_STEP, dtype=np.uint32) % self.tokenizer.vocabulary
        (keys,) = self.keys([np.concatenate([np.array([self.tokenizer.begin], dtype=np.uint32), tokens])])
        weights = (bool(weight.isfinite().all()) for weight in self.model.network.parameters())
        if not np.isfinite(keys).all() or not all(weights):
            hint = "train or import the model again: its training may have diverged"
            raise SiloError("not-a-model", f"{self.model.root} has keys or weights that are not finite", hint)

    def keys(self, documents: Sequence[Ids]) -> Iterator[Keys]:
        """Per document, for every token but the first: the key of the tokens before it."""
        return (keys for (keys,) in self._map_keys(documents, lambda keys: (keys,)))

    def codes(self, documents: Sequence[Ids], quantise: Quantise) -> Iterator[tuple[NDArray[Any], ...]]:
        """What `quantise` makes of the keys of each document; every core does so right after the keys."""
        return self._map_keys(documents, lambda keys: quantise(keys, _multiply))

    def _map_keys(
        self, documents: Sequence[Ids], make: Callable[[Keys], tuple[NDArray[Any], ...]]
    ) -> Iterator[tuple[NDArray[Any], ...]]:
        """Per document the arrays, one row for each token but the first, that are made of its keys."""
        pieces = [piece for at, ids in enumerate(documents) for piece in self._cut(at, len(ids))]
        pieces.sort(key=lambda piece: -piece.padded)
        batches = list(_batches(pieces))
        by_window: dict[tuple[int, Window], tuple[NDArray[Any], ...]] = {}
        results = map_on_cores(lambda batch: make(self._batch_keys(documents, batch)), batches)
        for batch, arrays in zip(batches, results, strict=True):
            ends = np.cumsum([piece.rows for piece in batch])[:-1]
            for piece, *rows in zip(batch, *(np.split(array, ends) for array in arrays), strict=True):
                by_window[piece.document, piece.window] = tuple(rows)
        for at, ids in enumerate(documents):
            parts = [by_window[at, piece.window] for piece in self._cut(at, len(ids))]
            yield tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))

    def _cut(self, document: int, tokens: int) -> Iterator[_Piece]:
        for window in self.windows.over(tokens):
            padded = min(-(-(window.until - window.start) // _STEP) * _STEP, self.windows.length)
            yield _Piece(document, window, padded)

    @torch.inference_mode()
    def _batch_keys(self, documents: Sequence[Ids], batch: list[_Piece]) -> Keys:
        """The keys that windows of one length give, one after the other."""
        rows = torch.zeros((len(batch), batch[0].padded), dtype=torch.long)
        for at, piece in enumerate(batch):
            ids = documents[piece.document][piece.window.start : piece.window.until].astype(np.int64)
            rows[at, : len(ids)] = torch.from_numpy(ids)
        keys: Keys = self.model.keys(rows, self.key).float().numpy()
        return np.concatenate([keys[at, piece.window.states] for at, piece in enumerate(batch)])


def _multiply(left: Keys, right: Keys) -> Keys:
    """The matrix product on the cores of this thread; numpy's takes all there are."""
    product: Keys = torch.mm(torch.from_numpy(left), torch.from_numpy(right)).numpy()
    return product


def _batches(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces of one padded length at a time, up to a number of tokens."""
    for padded, same in groupby(pieces, key=lambda piece: piece.padded):
        while group := list(islice(same, max(1, _BATCH_TOKENS // padded))):
            yield group
