"""Labels as tokens: the tokens of each label's word, and sets of single tokens that speak for a label.

Sets come from the task (`fuzzy`), or from the model itself (`expanded`): the words whose output embeddings are nearest
to the label word's. In a set only words that are one token count, as in the code of kNN-Prompt (Shi et al., 2022):
first tokens of longer words are beginnings such as "un", which say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from silo.evaluation.tasks.task import Task
from silo.text.tokenizer import Ids, Tokenizer

if TYPE_CHECKING:
    from silo.lm.engine.decoder import DecodingModel

Tokens = NDArray[np.int64]

EXPANDED = 5
"""Words of an expanded set, the label's own included."""
_CANDIDATES = 1000
_SHORTEST = 3


@dataclass(frozen=True, slots=True, eq=False)
class Verbaliser:
    """Per label the tokens of its word; by name of the kind of set, per label the tokens of its set."""

    words: tuple[Tokens, ...]
    sets: Mapping[str, tuple[Tokens, ...]]
    notes: tuple[str, ...]


def verbalise(task: Task, model: DecodingModel, *, expand: bool = False) -> Verbaliser:
    """The labels of a task for a model; sets are expanded if the task has none or somebody asks for it."""
    anchor = task.prompt("a", "a")
    words = word_tokens(model.tokenizer, anchor, task.label_words)
    sets, notes = {}, []
    if task.word_sets is not None:
        per_label = [word_tokens(model.tokenizer, anchor, words) for words in task.word_sets]
        sets["fuzzy"], note = _single_tokens(per_label)
        notes.append(note)
    else:
        notes.append("no fuzzy_verbalizer: word sets are expanded from the model's embeddings")
    if task.word_sets is None or expand:
        sets["expanded"] = _expand(model, words, anchor)
    return Verbaliser(tuple(words), sets, tuple(notes))


def word_tokens(tokenizer: Tokenizer, anchor: str, words: Sequence[str]) -> list[Tokens]:
    """The tokens of words as they follow a text: what the text with the word has beyond the text alone."""
    (before,) = tokenizer.encode([anchor])
    between = separator(anchor)
    found = []
    for whole, alone in zip(
        tokenizer.encode([anchor + between + word for word in words]),
        tokenizer.encode([between + word for word in words]),
        strict=True,
    ):
        follows = len(whole) > len(before) and np.array_equal(whole[: len(before)], before)
        found.append((whole[len(before) :] if follows else alone).astype(np.int64))
    return found


def separator(before: str) -> str:
    """What stands between a text and the next word."""
    return "" if not before or before[-1].isspace() else " "


def _single_tokens(per_label: Sequence[Sequence[Tokens]]) -> tuple[tuple[Tokens, ...], str]:
    """The single-token words of every label; if a label has none, the first tokens of all words."""
    single = [[word for word in words if len(word) == 1] for words in per_label]
    kept, total = sum(map(len, single)), sum(map(len, per_label))
    if all(single):
        return tuple(_first_tokens(words) for words in single), f"{kept} of {total} words of the sets are one token"
    note = "a label has no set word of one token: first tokens are taken of all"
    return tuple(_first_tokens(words) for words in per_label), note


def _first_tokens(words: Sequence[Tokens]) -> Tokens:
    return np.unique([word[0] for word in words])


def _expand(model: DecodingModel, words: Sequence[Tokens], anchor: str) -> tuple[Tokens, ...]:
    """Per label as many nearest words as every label has, each in the set of the label it is nearest to."""
    similarities = model.language_model.token_similarities(words)[:, : model.tokenizer.vocabulary]
    nearest_label = similarities.argmax(axis=0)
    last = model.tokenizer.encode([anchor])[0][-1:]
    sets = []
    for label, word in enumerate(words):
        order = np.argsort(-similarities[label], kind="stable")[:_CANDIDATES]
        near = (int(token) for token in order if nearest_label[token] == label and token != word[0])
        found = islice((token for token in near if _is_word(model.tokenizer, last, token, anchor)), EXPANDED - 1)
        sets.append([int(word[0]), *found])
    least = min(map(len, sets))
    return tuple(np.array(tokens[:least], dtype=np.int64) for tokens in sets)


def _is_word(tokenizer: Tokenizer, last: Ids, token: int, anchor: str) -> bool:
    """A whole word of letters that may follow the text, whose last token is given."""
    text = tokenizer.decode(np.append(last, np.uint32(token)))
    piece = text.removeprefix(tokenizer.decode(last))
    word = piece.removeprefix(separator(anchor))
    return piece.startswith(separator(anchor)) and len(word) >= _SHORTEST and word.isalpha()
