"""A passage as people read it: its characters in the document, the place where they stand, and the best sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from silo.records import Document, place_at
from silo.store.view import Passage, View
from silo.text.sentences import best_sentence
from silo.text.tokenizer import Tokenizer

_SPLIT = 4
"""Characters by which a place may be off where a passage begins within a character."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The characters `start` to `end` of a document that was found by some words.

    `sentence_start` to `sentence_end` is the sentence of theirs that holds most of the words.
    """

    document: Document
    start: int
    end: int
    sentence_start: int
    sentence_end: int
    score: float

    @property
    def text(self) -> str:
        return self.document.text[self.start : self.end]

    @property
    def sentence(self) -> str:
        return self.document.text[self.sentence_start : self.sentence_end]

    @property
    def place(self) -> str:
        """Where its best sentence stands, in words such as `p. 12`; empty if the document does not say."""
        return place_at(self.document, self.sentence_start)

    def as_json(self) -> dict[str, Any]:
        names = ("external_id", "source", "owner", "license")
        return {
            "document": self.document.id,
            **{name: getattr(self.document, name) for name in names},
            "tier": str(self.document.tier),
            "place": self.place,
            "characters": [self.start, self.end],
            "score": round(self.score, 4),
            "text": self.text,
            "sentence": self.sentence,
        }


def read_passage(view: View, passage: Passage, tokenizer: Tokenizer, query: str) -> Excerpt:
    """What a passage that was found by some words says."""
    document = view.document(passage.row)
    start, end = locate_tokens(document.text, view, passage, tokenizer)
    return Excerpt(document, start, end, *best_sentence(document.text, start, end, query), passage.score)


def locate_tokens(text: str, view: View, passage: Passage, tokenizer: Tokenizer) -> tuple[int, int]:
    """Where the tokens of a passage stand in the text of its document, in characters.

    Most tokenizers give a text back as it was, and the place follows from the text before. Where one does not, the
    whole text is measured once more.
    """
    before = len(tokenizer.decode(view.document_tokens(passage.row)[: passage.first]))
    shown = tokenizer.decode(passage.tokens).strip("\N{REPLACEMENT CHARACTER}")
    start = text.find(shown, max(0, before - _SPLIT), before + _SPLIT + len(shown))
    if start >= 0:
        return start, start + len(shown)
    ((_, sizes),) = tokenizer.measure([text])
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    data = text.encode()
    first, last = (len(data[: ends[at]].decode(errors="ignore")) for at in (passage.first, passage.end))
    return first, last
