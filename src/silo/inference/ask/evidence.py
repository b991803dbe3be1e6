"""What the stores hold on a question: sentences in the order in which they may answer it, and how much they cover.

The passages that BM25 finds for the content words of a question are cut into sentences. Each word weighs what it
weighs in the search, its idf over the allowed passages; one that no passage holds weighs as much as one that a single
passage holds. A sentence is rated by the words of the question that it holds. Words of its document's title count for
every sentence of the document, and words of the sentence before it count in part, since "it" and "the ferry" may stand
for them. The best sentences, each with what stands around it, are the excerpts that a model reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from silo.inference.ask.words import content_words, stem, stems
from silo.inference.retrieval import Found, Retriever
from silo.records import Document
from silo.store.excerpt import locate_tokens
from silo.store.view import Passage
from silo.text.sentences import Sentence, split_sentences

_SEARCHED = 6
"""Passages whose sentences are looked at."""
_MARGIN = 400
"""Characters before and after a passage that belong to it: an answer often stands behind the words of the question."""
_TITLE = 120
"""Characters of the longest first line that may be a title."""
_LONGEST_EXCERPT = 500
"""Characters of an excerpt, unless its best sentence is longer."""


TITLE_SHARE, BEFORE_SHARE = 0.8, 0.6
"""What a word of the title, and one of the sentence before, counts for a sentence, compared with its own."""
_EARLIER_SHARE = 0.25
"""What a word of the question before counts, where a question leans on it."""
_SAYS_NOTHING = 1.0
"""Taken from the rating of a sentence with hardly a word that neither question nor title has, such as a heading."""
_RANK = 0.03
"""Taken from it for every passage that the search found better."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and what each stem of its content words weighs."""

    text: str
    weights: Mapping[str, float]

    @classmethod
    def weigh(cls, text: str, earlier: str, retriever: Retriever) -> Question:
        """Look up how rare its words are in the stores; those of an earlier question count in part."""
        own, words = set(content_words(text)), list(dict.fromkeys(content_words(f"{text} {earlier}")))
        counts, total = retriever.count_passages(words)
        held = np.maximum(counts, 1)  # in few documents a word that nobody wrote would outweigh all others
        idf = np.log1p((total - held + 0.5) / (held + 0.5))
        weights: dict[str, float] = {}
        for word, weight in zip(words, idf.tolist(), strict=True):
            share = 1.0 if word in own else _EARLIER_SHARE
            weights[stem(word)] = max(share * weight, weights.get(stem(word), 0.0))
        return cls(text, weights)

    def covered(self, words: Iterable[str]) -> float:
        """The share of the question's weight that some stems hold, 0 to 1."""
        total = sum(self.weights.values())
        return sum(self.weights[word] for word in self.weights.keys() & set(words)) / total if total else 0.0


@dataclass(frozen=True, eq=False)
class Source:
    """The part of a document around passages that were found."""

    store: int
    passage: Passage
    document: Document
    start: int
    end: int

    def touches(self, store: int, document: str, start: int, end: int) -> bool:
        """Is another part of a document in one with this?"""
        return (store, document) == (self.store, self.document.id) and start <= self.end and self.start <= end

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        """Its whole sentences."""
        text = self.document.text
        every = split_sentences(text[self.start : self.end])
        whole = every[1 if self.start else 0 : len(every) - (1 if self.end < len(text) else 0)] or every
        return tuple(Sentence(item.start + self.start, item.end + self.start, item.text) for item in whole)

    @cached_property
    def title(self) -> str:
        """The name of the document, and its first line if more follow it, which says what it is about."""
        first, _, rest = self.document.text.strip().partition("\n")
        return f"{self.document.external_id}\n{first if rest and len(first) <= _TITLE else ''}"


@dataclass(frozen=True, slots=True, eq=False)
class Rated:
    """A sentence, the stems it holds, and how well it may answer the question."""

    source: Source
    number: int
    words: frozenset[str]
    rating: float

    @property
    def sentence(self) -> Sentence:
        return self.source.sentences[self.number]


@dataclass(frozen=True, slots=True, eq=False)
class Excerpt:
    """Sentences `first` to `last` of a source, which are read together."""

    source: Source
    first: int
    last: int

    @property
    def sentences(self) -> tuple[Sentence, ...]:
        return self.source.sentences[self.first : self.last + 1]

    @property
    def text(self) -> str:
        """As it stands in the document."""
        return self.source.document.text[self.sentences[0].start : self.sentences[-1].end]

    @property
    def found(self) -> Found:
        """The passage it was found by, with the number of its store."""
        return self.source.store, self.source.passage


class Evidence:
    """What was found for a question."""

    def __init__(self, question: Question, sources: Sequence[Source]) -> None:
        self.question = question
        self._sources = sources

    @classmethod
    def gather(cls, question: str, retriever: Retriever, *, earlier: str = "") -> Evidence:
        """Search the stores as they are now; `earlier` is a question that this one follows and may lean on."""
        found = retriever.passages_apart(" ".join(content_words(f"{question} {earlier}")), _SEARCHED)
        return cls(Question.weigh(question, earlier, retriever), _read_sources(found, retriever))

    @cached_property
    def rated(self) -> tuple[Rated, ...]:
        """Sentences, best first."""
        every = [item for rank, source in enumerate(self._sources) for item in self._rate(source, rank)]
        return tuple(sorted(every, key=lambda item: -item.rating))

    def _rate(self, source: Source, rank: int) -> Iterable[Rated]:
        title, before, covered = stems(source.title), frozenset[str](), self.question.covered
        for number, sentence in enumerate(source.sentences):
            own = stems(sentence.text)
            rating = covered(own - title) + TITLE_SHARE * covered(title) + BEFORE_SHARE * covered(before - own - title)
            if len(own - title - self.question.weights.keys()) < 2 and not _is_whole(sentence.text):
                rating -= _SAYS_NOTHING
            yield Rated(source, number, own, rating - _RANK * rank)
            before = own

    def excerpts(self, count: int) -> list[Excerpt]:
        """What is read: the best sentences that are in none before them, each with what stands around it."""
        chosen: list[Excerpt] = []
        for item in self.rated:
            inside = (part.source is item.source and part.first <= item.number <= part.last for part in chosen)
            if len(chosen) < count and not any(inside):
                chosen.append(_widen(item, chosen))
        return chosen

    @property
    def strength(self) -> float:
        """The rating of the best sentence, 0 if there is none."""
        return max(0.0, self.rated[0].rating) if self.rated else 0.0


def _is_whole(text: str) -> bool:
    """Is it a sentence as in a grammar, and no heading?"""
    return text.rstrip("\"')”’").endswith((".", "!", "?")) and len(text.split()) > 2


def _widen(item: Rated, taken: Sequence[Excerpt]) -> Excerpt:
    """A sentence with those after and before it in turn, as far as they are free and fit."""
    others = [part for part in taken if part.source is item.source]
    last_free = min((part.first for part in others if part.first > item.number), default=len(item.source.sentences)) - 1
    first_free = max((part.last for part in others if part.last < item.number), default=-1) + 1
    sentences, first, last = item.source.sentences, item.number, item.number
    after = True
    while first > first_free or last < last_free:
        after = (after or first == first_free) and last < last_free
        new_first, new_last = (first, last + 1) if after else (first - 1, last)
        if sentences[new_last].end - sentences[new_first].start > _LONGEST_EXCERPT:
            break
        first, last, after = new_first, new_last, not after
    return Excerpt(item.source, first, last)


def _read_sources(found: Iterable[Found], retriever: Retriever) -> list[Source]:
    """What stands in and around some passages; those that touch each other become one, in the place of the better."""
    sources: list[Source] = []
    for store, passage in found:
        view = retriever.views[store]
        document = view.document(passage.row)
        start, end = locate_tokens(document.text, view, passage, retriever.stores[store].tokenizer)
        start, end = max(0, start - _MARGIN), min(len(document.text), end + _MARGIN)
        near = (at for at, other in enumerate(sources) if other.touches(store, document.id, start, end))
        at = next(near, len(sources))
        if at < len(sources):
            passage, start, end = sources[at].passage, min(start, sources[at].start), max(end, sources[at].end)
        sources[at : at + 1] = [Source(store, passage, document, start, end)]
    return sources
