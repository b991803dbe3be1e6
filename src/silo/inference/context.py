"""What is put before a text for the language model to read.

`RicContext` is the paper's RIC-LM (Section 4.2, Appendix C): passages found by BM25 with the text's own words, looked
up every `stride` tokens with the last `query_tokens` of what stands before. `concat-next` takes the tokens that really
follow the passage in its document.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from silo.inference.retrieval import Retriever
from silo.inference.settings import Ric
from silo.lm.windows import Window, Windows
from silo.store.view import Passage
from silo.text.tokenizer import Tokenizer

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class InContext:
    """Tokens before the text, its share of the prediction, and the passages (with the number of their store)."""

    tokens: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    weight: float = 1.0
    passages: tuple[tuple[int, Passage], ...] = ()


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
        wanted = 1 if self._ric.variant in ("basic", "concat-next") else self._ric.passages
        best = retriever.passages(words, wanted) if len(query) else []
        if not best:
            return [InContext()]
        match self._ric.variant:
            case "ensemble":
                shares = _shares([passage.score for _, passage in best], self._ric.weighting)
                return [self._join([item], [item[1].tokens], share) for item, share in zip(best, shares, strict=True)]
            case "concat":
                each = self.room // self._ric.passages
                return [self._join(best, [item.tokens[:each] for _, item in reversed(best)])]
            case "concat-next":
                return [self._join(best, [_with_next(retriever, best[0], self.room)])]
        return [self._join(best, [best[0][1].tokens])]

    def _join(
        self, passages: list[tuple[int, Passage]], parts: list[NDArray[np.uint32]], weight: float = 1.0
    ) -> InContext:
        begin = np.array([self._tokenizer.begin], dtype=np.int64)
        tokens = np.concatenate([part.astype(np.int64) for part in parts])[: self.room]
        return InContext(np.concatenate([begin, tokens]), weight, tuple(passages))


def _with_next(retriever: Retriever, best: tuple[int, Passage], room: int) -> NDArray[np.uint32]:
    """The first half of the room from the passage, the rest from what follows in its document."""
    store, passage = best
    first = min(passage.end, passage.first + room // 2)
    before = passage.tokens[: room // 2]
    return np.concatenate(
        [before, retriever.views[store].document_tokens(passage.row)[first : first + room - len(before)]]
    )


def _shares(scores: list[float], weighting: str) -> list[float]:
    """Equal shares, or softmax of the retrieval scores (as in REPLUG)."""
    logits = np.array(scores) if weighting == "score" else np.zeros(len(scores))
    weights = np.exp(logits - logits.max())
    return list(map(float, weights / weights.sum()))
