"""Documents as one stream of tokens to be scored: each led by the beginning-of-text token; masks are not scored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from silo.text.masks import MASK
from silo.text.normalise import normalise
from silo.text.tokenizer import Ids, Sizes, Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class TokenStream:
    """Tokens of documents end to end, which of them are scored, and how many bytes of text each stands for.

    A document is from one beginning-of-text token to the next. `sizes` is 0 where a token is not scored.
    """

    ids: Ids
    scored: NDArray[np.bool_]
    sizes: Sizes

    @property
    def bytes(self) -> int:
        """Bytes of all scored text."""
        return int(self.sizes.sum(dtype=np.int64))


def merged_stream(texts: Iterable[str], tokenizer: Tokenizer) -> TokenStream:
    """Documents end to end, each led by the beginning-of-text token; the inside of a `[** **]` mask is not scored."""
    none = np.empty(0, dtype=np.uint32)
    parts = [TokenStream(none, none.astype(np.bool_), none)]
    parts += [part for text in texts for part in _document_parts(text, tokenizer)]
    return TokenStream(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.scored for part in parts]),
        np.concatenate([part.sizes for part in parts]),
    )


def _document_parts(text: str, tokenizer: Tokenizer) -> Iterator[TokenStream]:
    """The beginning-of-text token and the pieces of a document between and inside its masks."""
    yield TokenStream(np.array([tokenizer.begin], dtype=np.uint32), np.zeros(1, np.bool_), np.zeros(1, np.uint32))
    pieces = list(_split_masks(normalise(text)))
    for (_, counts), (ids, sizes) in zip(pieces, tokenizer.measure([piece for piece, _ in pieces]), strict=True):
        yield TokenStream(ids, np.full(len(ids), counts), sizes if counts else np.zeros_like(sizes))


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
    """The beginning of a stream."""
    return TokenStream(stream.ids[:most], stream.scored[:most], stream.sizes[:most])
