"""Does what a model wrote stand in what it read? An answer rests on one or two sentences in a row, or on nothing.

Small models invent numbers, names and dates that no sentence holds. So every number and name of an answer must stand
in the sentences it rests on, nearly all of its other words too, and it must say something that the question does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from silo.inference.ask.evidence import Excerpt, Question
from silo.inference.ask.words import stem, stems
from silo.text.sentences import Sentence

LEAST_HELD = 0.8
"""The share of an answer's words that the sentences it rests on, their title and the question must hold."""

_NUMBER = re.compile(r"\d[\d.,:/-]*\d|\d")
_NAME = re.compile(r"(?<![.!?:\"'“‘(] )(?<!^)\b[A-Z\u00c0-\u00de][\w-]*")
"""A word in capitals that does not begin a sentence."""


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """Sentences of an excerpt on which something rests, and how well they hold it."""

    excerpt: Excerpt
    sentences: tuple[Sentence, ...]
    strength: float


def find_support(answer: str, question: Question, excerpts: Sequence[Excerpt]) -> Support | None:
    """The sentence that a sentence of an answer rests on, two in a row where one is not enough; None if none do."""
    for count in (1, 2):
        every = (_weigh(answer, question, excerpt, run) for excerpt in excerpts for run in _runs(excerpt, count))
        found = [item for item in every if item is not None]
        if found:
            return max(found, key=lambda item: item.strength)
    return None


def _runs(excerpt: Excerpt, count: int) -> Iterator[tuple[Sentence, ...]]:
    """So many sentences in a row."""
    every = excerpt.sentences
    return (every[at : at + count] for at in range(len(every) - count + 1))


def _weigh(answer: str, question: Question, excerpt: Excerpt, run: tuple[Sentence, ...]) -> Support | None:
    """How well sentences hold an answer; None if it does not rest on them."""
    text = " ".join(sentence.text for sentence in run)
    said, held, title = stems(answer), stems(text), excerpt.source.title
    given = held | stems(title) | question.weights.keys()
    news = said & (held - question.weights.keys())
    if not news or len(said & given) < LEAST_HELD * len(said):
        return None
    if not _holds_exactly(answer, f"{text}\n{title}\n{question.text}"):
        return None
    return Support(excerpt, run, len(said & held) / len(said) + question.covered(held))


def _holds_exactly(answer: str, known: str) -> bool:
    """Are all numbers of an answer in a text, digit for digit, and all its names?"""
    numbers = set(_NUMBER.findall(known))
    words = stems(known) | {stem(word.lower()) for word in re.findall(r"\w+", known)}
    names = (part for name in _NAME.findall(answer) for part in re.findall(r"[^\W_]+", name))
    return set(_NUMBER.findall(answer)) <= numbers and all(stem(name.lower()) in words for name in names)
