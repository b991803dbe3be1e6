"""What is put before a text for the language model to read.

`RicContext` is the paper's RIC-LM (Section 4.2, Appendix C): blocks found by BM25 with the text's own words, looked up
every `stride` tokens with the last `query_tokens` of what stands before. With room for L tokens, `basic` and `ensemble`
take blocks of L, `concat` blocks of L / k, `concat-next` a block of L / 2 and what really follows it in its document.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from silo.inference.retrieval import CANDIDATES, Found, Retriever, leave_out_overlaps
from silo.inference.settings import Ric
from silo.lm.windows import Window, Windows
from silo.search.bm25.index import Bm25Index
from silo.search.bm25.passages import build, cut
from silo.store.view import Passage, View
from silo.text.tokenizer import Tokenizer
from silo.text.words import terms

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class InContext:
    """Tokens before the text, its share of the prediction, and the passages they come from."""

    tokens: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    weight: float = 1.0
    passages: tuple[Found, ...] = ()


class ContextProvider(Protocol):
    """Decides what stands before a text. Window and context are functions of the position and what stands before it."""

    def window_at(self, position: int) -> Window:
        """What the network sees of the text when it predicts a token."""

    def find(self, text: Tokens, window: Window, retriever: Retriever) -> list[InContext]:
        """What stands before a window of a text; one empty item where nothing is found."""


class RicContext:
    """Passages for one model, as the settings of RIC say."""

    def __init__(self, context: int, ric: Ric, tokenizer: Tokenizer) -> None:
        self.room = min(ric.passage_tokens or context // 2, context - 3)
        length = context - self.room - 1
        self.windows = Windows(length, min(ric.stride or max(1, length // 2), length - 1))
        self.query_tokens = ric.query_tokens or self.windows.stride
        self._ric = ric
        self._tokenizer = tokenizer

    def window_at(self, position: int) -> Window:
        return self.windows.segment_at(position)

    def find(self, text: Tokens, window: Window, retriever: Retriever) -> list[InContext]:
        query = text[max(0, window.first - self.query_tokens) : window.first]
        words = self._tokenizer.decode(query.astype(np.uint32))
        wanted, length = self._blocks()
        best = self._find_blocks(words, wanted, length, retriever) if len(query) else []
        if not best:
            return [InContext()]
        match self._ric.variant:
            case "ensemble":
                shares = _shares([passage.score for _, passage in best], self._ric.weighting)
                return [self._join([item], share) for item, share in zip(best, shares, strict=True)]
            case "concat-next":
                store, passage = best[0]
                return [self._join([(store, _take_span(retriever.views[store], passage, passage.first, self.room))])]
        return [self._join(best)]

    def _blocks(self) -> tuple[int, int]:
        """How many blocks the variant reads, and how long one is."""
        match self._ric.variant:
            case "ensemble":
                return self._ric.passages, self.room
            case "concat":
                return self._ric.passages, max(1, self.room // self._ric.passages)
            case "concat-next":
                return 1, max(1, self.room // 2)
        return 1, self.room

    def _find_blocks(self, words: str, wanted: int, length: int, retriever: Retriever) -> list[Found]:
        """The best blocks of so many tokens, best first; none overlaps another.

        Passages of the store that are longer are cut, and their parts ranked once more; shorter ones get what stands
        around them in their document.
        """
        best = retriever.passages(words, CANDIDATES * wanted)
        if any(len(passage.tokens) > length for _, passage in best):
            best = self._rank_parts(best, words, length)
        blocks = ((store, _widen(retriever.views[store], passage, length)) for store, passage in best)
        return leave_out_overlaps(blocks, wanted)

    def _rank_parts(self, passages: list[Found], words: str, length: int) -> list[Found]:
        """The parts of some passages, best first, by a BM25 of their own."""
        spans = cut([len(passage.tokens) for _, passage in passages], length=length, stride=max(1, length // 2))
        parts = [
            (passages[number][0], _part(passages[number][1], int(first), int(end)))
            for number, first, end in zip(spans.documents, spans.firsts, spans.ends, strict=True)
        ]
        index = Bm25Index([build([terms(self._tokenizer.decode(part.tokens)) for _, part in parts], spans)])
        hits = index.search(terms(words), len(parts))
        return [
            (parts[number][0], replace(parts[number][1], score=score))
            for number, score in zip(hits.passages.tolist(), hits.scores.tolist(), strict=True)
        ]

    def _join(self, blocks: list[Found], weight: float = 1.0) -> InContext:
        """Blocks one after the other, the best last."""
        begin = np.array([self._tokenizer.begin], dtype=np.int64)
        tokens = np.concatenate([passage.tokens.astype(np.int64) for _, passage in reversed(blocks)])[: self.room]
        return InContext(np.concatenate([begin, tokens]), weight, tuple(blocks))


def _part(passage: Passage, first: int, end: int) -> Passage:
    return replace(passage, first=passage.first + first, end=passage.first + end, tokens=passage.tokens[first:end])


def _widen(view: View, passage: Passage, length: int) -> Passage:
    """A passage with as much before as after it, up to a length or the ends of its document."""
    missing = length - len(passage.tokens)
    if missing <= 0:
        return passage
    size = len(view.document_tokens(passage.row))
    return _take_span(view, passage, max(0, min(passage.first - missing // 2, size - length)), length)


def _take_span(view: View, passage: Passage, first: int, length: int) -> Passage:
    """So many tokens of the passage's document."""
    tokens = view.document_tokens(passage.row)[first : first + length]
    return replace(passage, first=first, end=first + len(tokens), tokens=tokens)


def _shares(scores: list[float], weighting: str) -> list[float]:
    """Equal shares, or softmax of the retrieval scores (as in REPLUG)."""
    logits = np.array(scores) if weighting == "score" else np.zeros(len(scores))
    weights = np.exp(logits - logits.max())
    return list(map(float, weights / weights.sum()))
