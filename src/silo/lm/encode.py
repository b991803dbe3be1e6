"""Keys of a document: a state of the model after each of its prefixes, computed from that document alone.

A document is encoded from its own beginning in windows, so that its keys do not depend on other documents, on what is
read together with it, or on the number of threads. Two kinds of network read windows: the decode engine, whose sums run
in one written order, and that of torch, which is given windows that are padded at the right to a length that depends on
that document alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.lm.manifest import Key, key_fingerprint, read_key
from silo.lm.windows import Window, Windows, padded_length
from silo.placement import CPU, ENGINE, NOT_ASKED, Placement, asked_threads
from silo.text.tokenizer import Ids, Tokenizer

if TYPE_CHECKING:
    from silo.lm.engine.decoder import DecodingModel

Keys = NDArray[np.float32]
Multiply = Callable[[Keys, Keys], Keys]
Quantise = Callable[[Keys, Multiply], tuple[NDArray[Any], ...]]
"""Makes arrays of keys, one row for each, with the help of a matrix product."""
Item = TypeVar("Item")
Made = TypeVar("Made")

_LONGEST = 1024


class KeyNetwork(Protocol):
    """A network that gives keys: `LanguageModel` or `EngineNetwork`."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def context(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def mark(self) -> str:
        """What a store remembers of keys that it made: others of the same text may differ in their last bits."""

    @property
    def batch_tokens(self) -> int:
        """Tokens that it is best given at once."""

    def window_keys(self, windows: Sequence[Ids], key: Key) -> list[Keys]:
        """The keys of all places of some windows, which have one padded length."""

    def multiply(self, left: Keys, right: Keys) -> Keys:
        """The matrix product, on the cores of this thread alone."""

    def map_on_cores(self, work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """The results of all items, as many at a time as there are cores."""

    def choose_key(self) -> Key:
        """The kind of key that found better neighbours in all domains it was measured on, if the network offers it."""

    def require_finite(self) -> None:
        """Refuse a network with a weight that is no number, or whose keys are none."""


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

    def __init__(self, network: KeyNetwork, key: Key = "final") -> None:
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
    """A model directory, with the kind of key its codec was learned for.

    `mark` is that of the keys a store has, None for a new one: then it is the engine wherever that may compute them.
    """
    return DocumentEncoder(open_network(root, mark, verify=verify), read_key(root)[0])


def open_network(root: Path, mark: str | None = None, *, verify: bool = False) -> KeyNetwork:
    """What `open_encoder` encodes with."""
    if mark not in (None, ENGINE):
        from silo.lm.model import LanguageModel

        place = Placement.of_mark(mark)
        return LanguageModel.open(root, verify=verify, device=place.device, dtype=place.dtype)
    from silo.lm.engine.decoder import DecodingModel

    placement, threads = NOT_ASKED if mark is None else CPU, asked_threads() or None
    opened = DecodingModel.open(root, verify=verify, threads=threads, placement=placement)
    return network_of(opened, ENGINE if opened.engine else mark)


def network_of(opened: DecodingModel, mark: str | None) -> KeyNetwork:
    """What makes keys like those that a store has; torch is loaded where that is needed."""
    if mark != ENGINE:
        return opened.language_model
    from silo.lm.engine.keys import EngineNetwork

    if opened.engine is None:
        message = f"the decode engine made the keys of the store, and does not compute {opened.root} here"
        raise SiloError("store-mismatch", message, "leave --device and --dtype out, or make a store there")
    return EngineNetwork(opened, opened.engine)
