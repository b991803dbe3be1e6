"""Word and n-gram hashes against a naive reading of words, and against what they have always been."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.text.words import ngram_hashes, terms, word_hashes

TEXTS = st.text(alphabet=st.sampled_from("abcXYZ019 .,\n-é中文か한Ωß“’—。 ₀ꓐ"), max_size=80)


def naive_words(text: str) -> list[str]:
    text = re.sub("[\u0080-\u00bf\u2000-\u207f\u3000-\u303f]", " ", text)
    found = re.findall(r"[\u2e80-\ua4bf\uac00-\ud7ff]|[A-Za-z0-9\u0080-\u2e7f\ua4c0-\uabff\ud800-\U0010ffff]+", text)
    return [re.sub("[A-Z]", lambda letter: letter[0].lower(), word) for word in found]


def naive_ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    found = naive_words(text)
    width = min(n, len(found))
    return [tuple(found[at : at + width]) for at in range(len(found) - width + 1)] if found else []


@given(TEXTS)
def test_words_are_those_of_the_naive_reading(text: str) -> None:
    hashes, expected = word_hashes(text), naive_words(text)
    assert len(hashes) == len(expected)
    assert len(set(hashes.tolist())) == len(set(expected))


@given(TEXTS, TEXTS, st.integers(1, 5))
def test_ngrams_are_equal_exactly_where_their_words_are(one: str, other: str, n: int) -> None:
    pairs = list(zip(ngram_hashes(one, n).tolist(), naive_ngrams(one, n), strict=True))
    pairs += zip(ngram_hashes(other, n).tolist(), naive_ngrams(other, n), strict=True)
    assert len({mark for mark, _ in pairs}) == len({gram for _, gram in pairs}) == len(set(pairs))


def test_case_and_punctuation_do_not_matter() -> None:
    assert ngram_hashes("The cat, sat!", 3).tolist() == ngram_hashes("the CAT sat", 3).tolist()
    assert ngram_hashes("“The cat’s—sat…", 4).tolist() == ngram_hashes("the cat's sat", 4).tolist()


def test_text_without_spaces_has_many_ngrams() -> None:
    assert len(ngram_hashes("東京都は日本の首都である", 3)) == 10


FROZEN = [
    (
        "The Cat, sat!",
        [10383438331419178197, 12377401618073479058, 15641062104614165835],
        [10383438331419178197, 12377401618073479058, 15641062104614165835],
        [10428071618045723930, 4203371981435820680],
    ),
    (
        "Größe ÉCOLE naïve_x",
        [13731609136773574632, 5313865286317689577, 16027049320462047264, 3204358148266727566],
        [13731609136773574632, 2049717247414522471, 16027049320462047264, 3204358148266727566],
        [16199688404446975158, 2560329334362933354, 13024708241108515337],
    ),
    (
        "東京 한국 ꓐ",
        [7000065904061295752, 15376162244518004097, 4283440488008410034, 16870231412959292401, 17665685152652495240],
        [7000065904061295752, 15376162244518004097, 12482438459590968816, 17665685152652495240],
        [4601479426109009122, 12243166050452661989, 12678623018091381010, 15764484500875385848],
    ),
    (
        "e\u0301 ½ ₀ 𠀀b",
        [14662325865889826133, 12254880315379358913, 17151250806211366808],
        [
            *(14662325865889826133, 14987294761410816090, 12254880315379358913),
            *(3231982051670890775, 4482684837372322821),
        ],
        [5612205318439616478, 8634918547030891988],
    ),
]
"""Text, its words as bytes, its words as characters (terms), its pairs of words: stores and receipts depend on them."""


@pytest.mark.parametrize(("text", "words", "characters", "pairs"), FROZEN)
def test_hashes_never_change(text: str, words: list[int], characters: list[int], pairs: list[int]) -> None:
    assert word_hashes(text).tolist() == words
    assert terms(text).tolist() == characters
    assert ngram_hashes(text, 2).tolist() == pairs
