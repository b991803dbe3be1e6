"""Keys of a document: a state of the model after each of its prefixes, computed from that document alone.

A document is encoded from its own beginning in windows padded at the right to a length that depends on that document
alone, so that its keys do not depend on other documents, on the batch they share, or on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from silo.corpus.tokens import Ids, Tokenizer
from silo.files import fingerprint
from silo.lm.model import Key, LanguageModel
from silo.lm.scoring import Windows, window_starts

Keys = NDArray[np.float32]

_STEP = 64
"""Windows are padded to a multiple of this: every length is one that was tested to give the same bits in any batch."""

_BATCH_TOKENS = 4096
_LONGEST = 1024


@dataclass(frozen=True, slots=True)
class _Window:
    """A piece of a document: where it starts, and the tokens before `until` whose keys it gives, from `scored` on."""

    document: int
    start: int
    scored: int
    until: int
    padded: int


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
        model = self.model.fingerprint
        return model if self.key == "final" else fingerprint({"model": model, "key": self.key})

    @property
    def width(self) -> int:
        """Numbers in a key."""
        return self.model.hidden_size

    @property
    def context(self) -> int:
        """The longest window."""
        return self.windows.length

    def keys(self, documents: Sequence[Ids]) -> Iterator[Keys]:
        """Per document, for every token but the first: the key of the tokens before it."""
        found = [np.empty((max(len(ids) - 1, 0), self.width), dtype=np.float32) for ids in documents]
        pieces = [piece for at, ids in enumerate(documents) for piece in self._pieces(at, len(ids))]
        pieces.sort(key=lambda piece: piece.padded)
        at = 0
        while at < len(pieces):
            padded = pieces[at].padded
            group = pieces[at : at + max(1, _BATCH_TOKENS // padded)]
            group = [piece for piece in group if piece.padded == padded]
            keys = self._window_keys(documents, group, padded)
            for row, piece in enumerate(group):
                begin = max(piece.scored, 1)
                span = slice(begin - piece.start - 1, piece.until - piece.start - 1)
                found[piece.document][begin - 1 : piece.until - 1] = keys[row, span]
            at += len(group)
        return iter(found)

    def _pieces(self, document: int, tokens: int) -> Iterator[_Window]:
        for start, scored in window_starts(tokens, self.windows):
            until = min(start + self.windows.length, tokens)
            padded = min(-(-(until - start) // _STEP) * _STEP, self.windows.length)
            yield _Window(document, start, scored, until, padded)

    @torch.inference_mode()
    def _window_keys(self, documents: Sequence[Ids], group: list[_Window], padded: int) -> Keys:
        rows = torch.zeros((len(group), padded), dtype=torch.long)
        for at, piece in enumerate(group):
            ids = documents[piece.document][piece.start : piece.until].astype(np.int64)
            rows[at, : len(ids)] = torch.from_numpy(ids)
        keys: Keys = self.model.states(rows, self.key).keys.float().numpy()
        return keys


def document_keys(model: LanguageModel, ids: Ids) -> tuple[Keys, Ids]:
    """For every token but the first: the state after the tokens before it (the key), and the token (the value)."""
    return next(DocumentEncoder(model).keys([ids])), ids[1:]
