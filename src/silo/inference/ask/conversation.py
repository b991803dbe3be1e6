"""A conversation that is answered from stores: what is found for the last thing its user said stands before that.

Where too little is found, the conversation is answered as it is. Conversation and excerpts have half of the model's
context: earlier turns give way to what was found.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from silo.inference.ask.asker import EXCERPTS, FOUND_FROM
from silo.inference.ask.cite import cite
from silo.inference.ask.evidence import Excerpt
from silo.inference.ask.prompt import PARAGRAPH, TASK, AnswerWindows, Lookup, Tokens, Turn
from silo.inference.ask.reply import Citation
from silo.inference.ask.support import find_support
from silo.inference.context import InContext
from silo.inference.retrieval import Retriever
from silo.lm.windows import Window
from silo.text.chat import ChatFormat, Message
from silo.text.sentences import Sentence, split_sentences

if TYPE_CHECKING:
    from silo.inference.predict import Predictor


class Conversation:
    """Messages for one model; the last one of the user is the question."""

    def __init__(self, format: ChatFormat, messages: Sequence[Message]) -> None:
        self._format = format
        asked = [at for at, item in enumerate(messages) if item.role == "user"]
        last = asked[-1] if asked else len(messages)
        head = next((at for at, item in enumerate(messages) if item.role != "system"), last)
        self._head, self._earlier = list(messages[:head]), list(messages[head:last])
        self._question, self._tail = messages[last:][:1], list(messages[last + 1 :])
        self._turns = sorted({0, *(at - head for at in asked), len(self._earlier)})
        """Where the earlier messages may begin if there is no room for all of them."""
        before = [Turn(messages[at].text, "", frozenset()) for at in asked[-2:-1]]
        self._lookup = Lookup(messages[last].text if asked else "", before)

    def encode(self, texts: Sequence[str] = (), left_out: int = 0) -> Tokens:
        """Ids up to where the answer begins, with texts before the question and without so many earlier turns.

        A model that reads texts and has no system message of its own is told what to do with them, as by `silo ask`.
        """
        question = [Message(item.role, PARAGRAPH.join([*texts, item.text])) for item in self._question]
        task = [Message("system", TASK)] if texts and not self._head and self._format.takes_system else []
        talk = [*task, *self._head, *self._earlier[self._turns[left_out] :], *question, *self._tail]
        return self._format.encode(talk).astype(np.int64)

    def fit(self, excerpts: Sequence[Excerpt], room: int) -> tuple[Tokens, Sequence[Excerpt]] | None:
        """The prompt with as many earlier turns as there is room for, and then with as many excerpts; None if none."""
        most = len(self._turns) - 1
        fewer_turns = [(left_out, len(excerpts)) for left_out in range(most)]
        fewer_excerpts = [(most, count) for count in range(len(excerpts), -1, -1)]
        ways = [*fewer_turns, *fewer_excerpts]

        def prompt(way: tuple[int, int]) -> Tokens:
            left_out, count = way
            return self.encode([item.text for item in reversed(excerpts[:count])], left_out)

        if len(whole := prompt(ways[0])) <= room:
            return whole, excerpts
        # each is shorter than the one before: a long conversation is not encoded once for every turn
        fitting = bisect_left(ways, True, lo=1, key=lambda way: len(prompt(way)) <= room)
        return (prompt(ways[fitting]), excerpts[: ways[fitting][1]]) if fitting < len(ways) else None

    def excerpts(self, retriever: Retriever) -> list[Excerpt]:
        """What the stores hold on the question now; nothing if that is too little."""
        evidence = self._lookup.evidence(retriever)
        return evidence.excerpts(EXCERPTS) if evidence.strength >= FOUND_FROM else []

    def read_by(self, predictor: Predictor, begin: int) -> Predictor | None:
        """A predictor that has read what was found when it begins to answer at a place of the text.

        None if there is no question, or one that fills the room for all that stands before an answer.
        """
        windows = AnswerWindows(predictor.opened.context, begin)
        if not self._question or self.fit([], windows.room) is None:
            return None
        return predictor.with_context(_ConversationContext(self, windows, begin))

    def citations(
        self, answer: str, read: Collection[str], retriever: Retriever, *, most: int | None = None
    ) -> Iterator[tuple[Sentence, Citation]]:
        """The sentences of an answer that rest on documents which were `read`; quotes have at most so many tokens."""
        question = self._lookup.evidence(retriever).question
        excerpts = [item for item in self.excerpts(retriever) if item.source.document.id in read]
        for sentence in split_sentences(answer):
            support = find_support(sentence.text, question, excerpts)
            if support is not None:
                source = support.excerpt.source
                tokenizer = retriever.stores[source.store].tokenizer
                yield sentence, cite(source, support.sentences, tokenizer, most=most)


class _ConversationContext:
    """Has the network read the conversation with what was found, where the text has the conversation alone.

    So token searches and the guard see the text that they would see without passages.
    """

    def __init__(self, conversation: Conversation, windows: AnswerWindows, begin: int) -> None:
        self._conversation, self._windows, self._begin = conversation, windows, begin

    def window_at(self, position: int) -> Window:
        """Windows of the answer."""
        return self._windows.at(position)

    def find(self, text: Tokens, window: Window, retriever: Retriever) -> list[InContext]:  # noqa: ARG002
        """The same for every window, as long as the stores do not change."""
        excerpts = self._conversation.excerpts(retriever)
        if not excerpts and self._begin <= self._windows.room:
            return [InContext(text[: self._begin])]
        fitted = self._conversation.fit(excerpts, self._windows.room)
        assert fitted is not None, "the question alone fits, or nobody reads the conversation like this"
        ids, read = fitted
        return [InContext(ids, passages=tuple(excerpt.found for excerpt in read))]
