"""Documents as one stream of tokens to be scored: each led by the beginning-of-text token; masks are not scored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silo.text.masks import MASK
from silo.text.normalise import normalise
from silo.text.tokenizer import Ids, Tokenizer


@dataclass(frozen=True, slots=True)
class TokenStream:
    """Tokens of documents end to end, which of them are scored, and how many bytes of text those stand for."""

    ids: Ids
    scored: NDArray[np.bool_]
    bytes: int


def merged_stream(texts: Iterable[str], tokenizer: Tokenizer) -> TokenStream:
    """Documents end to end, each led by the beginning-of-text token; the inside of a `[** **]` mask is not scored."""
    ids: list[Ids] = []
    scored: list[NDArray[np.bool_]] = []
    size = 0
    for text in texts:
        ids.append(np.array([tokenizer.begin], dtype=np.uint32))
        scored.append(np.zeros(1, dtype=np.bool_))
        pieces = list(_split_masks(normalise(text)))
        for (piece, counts), tokens in zip(pieces, tokenizer.encode([piece for piece, _ in pieces]), strict=True):
            ids.append(tokens)
            scored.append(np.full(len(tokens), counts))
            size += len(piece.encode()) if counts else 0
    if not ids:
        return TokenStream(np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.bool_), 0)
    return TokenStream(np.concatenate(ids), np.concatenate(scored), size)


def _split_masks(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, True where a piece is scored."""
    at = 0
    for mask in MASK.finditer(text):
        if mask.start() > at:
            yield text[at : mask.start()], True
        yield mask.group(), False
        at = mask.end()
    if at < len(text):
        yield text[at:], True


def first_tokens(stream: TokenStream, most: int) -> TokenStream:
    """The beginning of a stream; bytes in proportion."""
    kept = stream.ids[:most]
    return TokenStream(kept, stream.scored[:most], stream.bytes * len(kept) // max(1, len(stream.ids)))
