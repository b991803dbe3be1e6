"""The words that carry what a text says, and what different forms of a word have in common."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_WORD = re.compile(r"[\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
"""A run of letters and digits, or one ideograph or kana, as passage search cuts words."""


def content_words(text: str) -> list[str]:
    """The words of a text, in lower case, that are not function words of English; all of them if there is no other."""
    words = [match[0].lower() for match in _WORD.finditer(text)]
    return [word for word in words if word not in function_words()] or words


def stems(text: str) -> frozenset[str]:
    """The content words of a text as stems."""
    return frozenset(map(stem, content_words(text)))


@cache
def function_words() -> frozenset[str]:
    """Words that say how others belong together, and those by which a question asks."""
    return frozenset(files("silo.inference.ask").joinpath("function-words.txt").read_text(encoding="utf-8").split())


def stem(word: str) -> str:
    """A word without the endings by which English varies it: erase, erased, erases and erasing are one.

    Words are compared by their stems, never shown as such; that a few different ones fall together does little harm.
    """
    if len(word) > 3 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 3 and word.endswith("s") and word[-2] not in "sui":
        word = word[:-1]
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
        word = word[:-1]
    return word.removesuffix("e") if len(word) > 3 else word
