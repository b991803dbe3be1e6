"""How a document becomes tokens, keys and codes, each from its own text alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from silo.store.bucket import EncodedDocument, unpack
from silo.store.write import SpooledDocument
from silo.text.tokenizer import Ids, Tokenizer, token_dtype

if TYPE_CHECKING:
    from silo.search.knn.codec import Codec

Keys = NDArray[np.float32]
Quantise = Callable[[Keys, Callable[[Keys, Keys], Keys]], tuple[NDArray[Any], ...]]
"""Makes arrays of keys, one row for each, with the help of a matrix product."""

_FIRST_TOKENS, _BATCH_TOKENS = 1 << 11, 1 << 15
"""Batches grow to this size from a small one, after which one knows how long the rest will take."""


class Encoder(Protocol):
    """What a store needs of a language model: its tokenizer, and what is made of the keys of documents."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def context(self) -> int: ...

    @property
    def mark(self) -> str:
        """What makes the keys, as a store's configuration has it: others of the same text may differ in a last bit."""

    def codes(self, documents: Sequence[Ids], quantise: Quantise) -> Iterator[tuple[NDArray[Any], ...]]: ...


@dataclass(frozen=True, slots=True)
class DocumentPipeline:
    """An encoder with the codec of a store, None where the store has no token search."""

    encoder: Encoder
    codec: Codec | None

    def encode(
        self, documents: Sequence[SpooledDocument], note: Callable[[Sequence[EncodedDocument]], None] = lambda _: None
    ) -> list[EncodedDocument]:
        """The documents in their order; `note` is shown some at a time, as they are ready."""
        tokenizer = self.encoder.tokenizer
        begin = np.array([tokenizer.begin], dtype=np.uint32)
        ready: list[EncodedDocument] = []
        batch: list[tuple[SpooledDocument, Ids]] = []
        size, most = 0, _FIRST_TOKENS
        for item in documents:
            (ids,) = tokenizer.encode([json.loads(unpack(item.record))["text"]])
            batch.append((item, np.concatenate([begin, ids])))
            size += len(ids)
            if size >= most:
                ready += self._encode_batch(batch, note)
                batch, size, most = [], 0, min(2 * most, _BATCH_TOKENS)
        return ready + self._encode_batch(batch, note)

    def _encode_batch(
        self, batch: list[tuple[SpooledDocument, Ids]], note: Callable[[Sequence[EncodedDocument]], None]
    ) -> list[EncodedDocument]:
        dtype = token_dtype(self.encoder.tokenizer.vocabulary)
        codes: Iterator[tuple[NDArray[Any], ...]]
        if self.codec is None:
            codes = iter([(np.empty(0, dtype=np.int32), np.empty((0, 0), dtype=np.uint8))] * len(batch))
        else:
            codes = self.encoder.codes([ids for _, ids in batch], self.codec.quantise)
        documents = [
            EncodedDocument(item.id, item.text_hash, item.record, item.text_bytes, ids.astype(dtype), *code)
            for (item, ids), code in zip(batch, codes, strict=True)
        ]
        note(documents)
        return documents
