"""What stands before an answer: a conversation with the excerpts that were found and the question.

A model that was taught to chat gets it in its own format, another one as plain text. What was found is looked up again
whenever the stores change, also within an answer: an erased document is not read for the next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.inference.ask.evidence import Evidence, Excerpt
from silo.inference.ask.words import content_words
from silo.inference.context import InContext
from silo.inference.retrieval import Retriever
from silo.lm.windows import Window, Windows
from silo.text.chat import ChatFormat, Message, encode_text
from silo.text.tokenizer import Tokenizer

Tokens = NDArray[np.int64]

TASK = "Answer the question with the words of the text."
PARAGRAPH = "\n\n"
_POINTING = frozenset(
    {
        *("he", "she", "it", "they", "him", "her", "them", "his", "its", "their"),
        *("this", "that", "these", "those", "there", "then", "one", "ones", "and"),
    }
)
"""Words by which a question points to the one before."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question that was answered, and the documents its answer rests on."""

    question: str
    answer: str
    documents: frozenset[str]


class Prompt:
    """How one model is asked."""

    def __init__(self, root: Path, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._format = ChatFormat.open(root, tokenizer)

    @property
    def stops(self) -> tuple[str, ...]:
        """What ends an answer."""
        return (*self._format.stops, PARAGRAPH) if self._format else ("\n",)

    def encode(self, texts: Sequence[str], question: str, turns: Sequence[Turn] = ()) -> Tokens:
        """Ids up to where the answer begins; the last text stands next to the question."""
        if self._format is None:
            return self._encode_plain(texts, question, turns)
        talk = [Message("system", TASK)]
        for turn in turns:
            talk += [Message("user", turn.question), Message("assistant", turn.answer)]
        talk.append(Message("user", PARAGRAPH.join([*texts, question])))
        return self._format.encode(talk).astype(np.int64)

    def _encode_plain(self, texts: Sequence[str], question: str, turns: Sequence[Turn]) -> Tokens:
        earlier = [f"Question: {turn.question}\nAnswer: {turn.answer}" for turn in turns]
        whole = PARAGRAPH.join([*texts, *earlier, f"Question: {question}\nAnswer:"])
        ids = encode_text(whole, self._tokenizer).astype(np.int64)
        return np.concatenate([np.array([self._tokenizer.begin], dtype=np.int64), ids])


class Lookup:
    """What the stores hold on one question, looked up anew when they have changed."""

    def __init__(self, question: str, turns: Sequence[Turn]) -> None:
        self.question = question
        self.turns = tuple(turns)
        self._found: tuple[Any, Evidence] | None = None

    def evidence(self, retriever: Retriever) -> Evidence:
        """What they hold now."""
        found = self._found
        if found is None or found[0] != retriever.content:
            earlier = self.turns[-1].question if self.turns and _leans(self.question) else ""
            found = retriever.content, Evidence.gather(self.question, retriever, earlier=earlier)
            self._found = found  # in one piece: other threads look it up too
        return found[1]


def _leans(question: str) -> bool:
    """Can a question be understood only together with the one before?"""
    words = question.lower().split()
    return bool(_POINTING & {word.strip("?.,!'\"") for word in words}) or len(content_words(question)) < 2


class NoRoomError(SiloError):
    """A question and one excerpt are more than a model reads at once."""


class AnswerWindows:
    """A model's context, shared out: half is `room` for what stands before an answer, the rest for the answer.

    The answer begins at a place of the text, and what the text has before that is not in its windows.
    """

    def __init__(self, context: int, begin: int = 1) -> None:
        self.room = min(context // 2, context - 3)
        length = context - self.room - 1
        self._windows = Windows(length, max(1, length // 2))
        self._before = begin - 1

    def at(self, position: int) -> Window:
        """The window that predicts the token at a position of the text."""
        window, before = self._windows.at(position - self._before), self._before
        return Window(max(1, window.start) + before, window.first + before, window.until + before)


class AnswerContext:
    """Puts the prompt of one question before its answer, which has the other half of the model's context."""

    def __init__(self, prompt: Prompt, lookup: Lookup, *, context: int, excerpts: int) -> None:
        self._prompt, self._lookup, self._count = prompt, lookup, excerpts
        self._windows = AnswerWindows(context)

    def window_at(self, position: int) -> Window:
        """Windows of the answer, without the beginning-of-text token: the prompt has one where the model wants it."""
        return self._windows.at(position)

    def find(self, text: Tokens, window: Window, retriever: Retriever) -> list[InContext]:  # noqa: ARG002
        """The same for every window, as long as the stores do not change."""
        ids, read = self._fit(self._lookup.evidence(retriever).excerpts(self._count))
        return [InContext(ids, passages=tuple(excerpt.found for excerpt in read))]

    def _fit(self, excerpts: Sequence[Excerpt]) -> tuple[Tokens, Sequence[Excerpt]]:
        """A prompt that leaves room for the answer: earlier turns go first, then what was rated last."""
        turns, most = self._lookup.turns, len(excerpts)
        fewer_turns = [(turns[at:], most) for at in range(len(turns) + 1)]
        fewer_excerpts = [((), count) for count in range(most - 1, 0, -1)]
        for kept, count in [*fewer_turns, *fewer_excerpts]:
            texts = [item.text for item in reversed(excerpts[:count])]
            ids = self._prompt.encode(texts, self._lookup.question, kept)
            if len(ids) <= self._windows.room:
                return ids, excerpts[:count]
        room = self._windows.room
        raise NoRoomError("usage", f"the question leaves no room for what was found in {room} tokens of context")
