"""Text of evaluation files by domain, as one stream of tokens that remembers its documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from silo.sources.evaluation import read_scored
from silo.text.stream import TokenStream, first_tokens, merged_stream
from silo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class DomainText:
    """Text of one domain as one stream; `documents` numbers the document of every token, `labels` names them."""

    domain: str
    stream: TokenStream
    documents: NDArray[np.int64]
    labels: tuple[str, ...]

    @property
    def counted(self) -> NDArray[np.bool_]:
        """The tokens that are scored: the first of all has nothing to be predicted from."""
        counted = self.stream.scored.copy()
        counted[:1] = False
        return counted


@dataclass(frozen=True, slots=True)
class TextLimits:
    """About so many tokens of a domain, in whole documents, each cut to its first `document_tokens`; 0 is no limit."""

    tokens: int = 0
    document_tokens: int = 0


def read_domains(files: Iterable[Path], tokenizer: Tokenizer, limits: TextLimits) -> dict[str, DomainText]:
    """The documents of some files by domain."""
    parts: dict[str, list[tuple[str, TokenStream]]] = {}
    sizes: dict[str, int] = {}
    for record in read_scored(files):
        if limits.tokens and sizes.get(record.domain, 0) >= limits.tokens:
            continue
        document = merged_stream([record.text], tokenizer)
        if limits.document_tokens:
            document = first_tokens(document, limits.document_tokens + 1)
        parts.setdefault(record.domain, []).append((record.label, document))
        sizes[record.domain] = sizes.get(record.domain, 0) + len(document.ids)
    return {domain: _join(domain, documents) for domain, documents in sorted(parts.items())}


def read_domain(file: Path, domain: str, tokenizer: Tokenizer, *, tokens: int, document_tokens: int) -> DomainText:
    """The documents of one domain; the limits are those of `TextLimits`."""
    return read_domains([file], tokenizer, TextLimits(tokens, document_tokens))[domain]


def first_of_each(texts: Sequence[DomainText], tokens: int) -> TokenStream:
    """The beginnings of some texts, about so many tokens in all and as many of each."""
    return _join("", [("", first_tokens(text.stream, max(1, tokens // len(texts)))) for text in texts]).stream


def _join(domain: str, documents: Sequence[tuple[str, TokenStream]]) -> DomainText:
    streams = [stream for _, stream in documents]
    whole = TokenStream(
        np.concatenate([stream.ids for stream in streams]),
        np.concatenate([stream.scored for stream in streams]),
        np.concatenate([stream.sizes for stream in streams]),
    )
    numbers = np.repeat(np.arange(len(streams)), [len(stream.ids) for stream in streams])
    return DomainText(domain, whole, numbers, tuple(label for label, _ in documents))
