"""From what comes after prompts to scores of labels.

For a text x, a label with word w and word set V, the mixture P, and the domain premise d:

    plain         log P(w | x), the product over all tokens of w
    pmi           log P(w | x) - log P(w | d): domain-conditional PMI (Holtzman et al., 2021)
    fuzzy         log of the sum of P(v | x) over V
    pmi+fuzzy     the mean over V of log P(v | x) - log P(v | d)

P is the full next-token distribution that the method gives, mixed before anything else, at the premise as at the text:
for kNN that is kNN-Prompt (Shi et al., 2022), whose code takes the sum where this takes the mean: the same decision for
sets of one size, and no label is helped by the size of its set otherwise. Probabilities count as 1e-10 at least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from silo.evaluation.tasks.task import Example, Task
from silo.evaluation.tasks.verbalise import Verbaliser
from silo.inference.prompts.observe import Prompt
from silo.text.tokenizer import Tokenizer

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_LEAST = 1e-10


@dataclass(frozen=True, slots=True)
class Variant:
    """How labels are scored; `words` names the kind of word set, none for the label word alone."""

    pmi: bool
    words: str = ""

    @property
    def name(self) -> str:
        return "+".join(filter(None, ("pmi" if self.pmi else "", self.words))) or "plain"


def variants(task: Task, verbaliser: Verbaliser) -> list[Variant]:
    """All ways that the task offers."""
    return [
        Variant(pmi, words)
        for words in ("", *verbaliser.sets)
        for pmi in (False, True)
        if not pmi or task.premise is not None
    ]


def headline(task: Task, verbaliser: Verbaliser) -> Variant:
    """The way that speaks for a method, fixed before any figure is seen: with all that the task brings along."""
    return Variant(task.premise is not None, "fuzzy" if "fuzzy" in verbaliser.sets else "")


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where in the entries of one example the words of labels are: `columns` come first, read right after the prompt.

    Later tokens of words that have several follow, each read after the word's earlier tokens.
    """

    columns: Indices
    words: tuple[Indices, ...]
    sets: Mapping[str, tuple[Indices, ...]]
    long_words: tuple[Indices, ...]
    size: int

    @classmethod
    def of(cls, verbaliser: Verbaliser) -> Layout:
        firsts = [word[:1] for word in verbaliser.words]
        in_sets = [tokens for sets in verbaliser.sets.values() for tokens in sets]
        columns = np.unique(np.concatenate([*firsts, *in_sets]))
        long_words = tuple(word for word in verbaliser.words if len(word) > 1)
        ends = np.cumsum([len(columns), *(len(word) - 1 for word in long_words)])
        later = iter([np.arange(first, end) for first, end in pairwise(ends)])
        nothing = np.empty(0, dtype=np.int64)
        words = tuple(
            np.concatenate([np.searchsorted(columns, word[:1]), next(later) if len(word) > 1 else nothing])
            for word in verbaliser.words
        )
        sets = {
            name: tuple(np.searchsorted(columns, tokens) for tokens in labels)
            for name, labels in verbaliser.sets.items()
        }
        return cls(columns, words, sets, long_words, int(ends[-1]))


def make_prompts(task: Task, examples: Sequence[Example], layout: Layout, tokenizer: Tokenizer) -> list[Prompt]:
    """The prompts of all examples, and then of the premise if there is one; entries are as the layout says."""
    texts = [task.prompt(example.text, example.text2) for example in examples]
    queries = [f"{example.text}\n{example.text2}" for example in examples]
    if task.premise is not None:
        texts.append(task.premise.rstrip(" "))
        queries.append("")
    encoded = zip(tokenizer.encode(texts), tokenizer.encode(queries), strict=True)
    return [prompt for text, query in encoded for prompt in _prompts_of(text, query, layout)]


def _prompts_of(text: NDArray[np.uint32], query: NDArray[np.uint32], layout: Layout) -> list[Prompt]:
    """One prompt, or one for each word of several tokens, of which the first reads the columns too."""
    tokens, words = text.astype(np.int64), query.astype(np.int64)
    if not layout.long_words:
        return [Prompt(tokens, (layout.columns,), query=words)]
    prompts = []
    for at, word in enumerate(layout.long_words):
        later = tuple(word[number : number + 1] for number in range(1, len(word)))
        wanted = later if at else (layout.columns, *later)
        prompts.append(Prompt(tokens, wanted, word[:-1], words))
    return prompts


def label_scores(probabilities: Floats, layout: Layout, variant: Variant, *, premise: bool) -> Floats:
    """Scores [examples, labels] from the entries of all examples; with `premise` the last ones are those of it."""
    table = np.maximum(probabilities.reshape(-1, layout.size), _LEAST)
    if not variant.words:
        scores = np.stack([np.log(table[:, word]).sum(axis=1) for word in layout.words], axis=1)
    elif variant.pmi:
        scores = np.stack([np.log(table[:, words]).mean(axis=1) for words in layout.sets[variant.words]], axis=1)
    else:
        scores = np.stack([np.log(table[:, words].sum(axis=1)) for words in layout.sets[variant.words]], axis=1)
    if not premise:
        return scores
    return scores[:-1] - scores[-1] if variant.pmi else scores[:-1]
