"""A sketch tells how much of a text is in another, near enough, from a small part of its runs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from silo.text.normalise import text_hash
from silo.text.sketch import RUN, Sketches, chance_to_miss, sketch
from silo.text.words import ngram_hashes
from tests.conftest import words


def _sketches(*texts: str) -> Sketches:
    return Sketches.of((text_hash(text), sketch(text)) for text in texts)


def _share(part: str, whole: str) -> float:
    """The share by all runs."""
    runs = set(ngram_hashes(part, RUN).tolist())
    return len(runs & set(ngram_hashes(whole, RUN).tolist())) / len(runs)


def test_a_short_text_is_kept_whole_and_a_long_one_in_proportion() -> None:
    assert len(sketch(words(1, 30))) == 30 - RUN + 1
    assert len(sketch(words(1, 500))) == 32
    assert 800 < len(sketch(words(2, 32_000))) < 1200
    assert len(sketch("")) == 0


@pytest.mark.parametrize("size", [60, 400, 3000, 8000])
def test_the_estimate_is_near_the_share_of_all_runs(size: int) -> None:
    rng = random.Random(size)
    errors = []
    texts = [words(seed, size) for seed in range(20)]
    known = _sketches(*texts)
    for text in texts:
        blocks = [text.split()[at : at + 30] for at in range(0, size, 30)]
        mixed = " ".join(" ".join(block) if rng.random() < 0.6 else words(rng.randrange(10**9), 30) for block in blocks)
        found = known.find(mixed)
        errors.append(found.share - _share(mixed, text))
        assert found.text == text_hash(text) or found.hits == 0
    assert abs(float(np.mean(errors))) < 0.05
    assert float(np.mean(np.abs(errors))) < 0.08


def test_a_part_of_a_long_text_and_a_text_of_many_parts_are_found() -> None:
    book = words(1, 20_000)
    chapters = [" ".join(book.split()[at : at + 1000]) for at in range(0, 20_000, 1000)]
    assert _sketches(book, words(2, 500)).find(chapters[7]).share == 1.0
    assert _sketches(*chapters).find(book).share > 0.9
    assert _sketches(chapters[3]).find(book).contained == 1.0
    assert _sketches(book).find(words(9, 3000)).share == 0.0


def test_a_short_text_may_be_missed_and_says_so() -> None:
    assert chance_to_miss("a few words") > 0.9
    assert chance_to_miss(words(1, 200)) < 0.01


def test_bytes_come_back_and_are_the_same_in_any_order() -> None:
    texts = [words(seed, 40 * seed) for seed in range(1, 8)] + [""]
    one, two = _sketches(*texts), _sketches(*reversed(texts), texts[0])
    assert one.as_bytes() == two.as_bytes()
    again = Sketches.from_bytes(one.as_bytes())
    assert [(text, list(part)) for text, part in again.items()] == [(text, list(part)) for text, part in one.items()]
    assert [text for text, _ in one.select({text_hash(texts[2])}).items()] == [text_hash(texts[2])]
    assert Sketches.from_bytes(Sketches.of([]).as_bytes()).find("some text").hits == 0


def test_what_are_no_sketches_is_refused() -> None:
    data = _sketches(words(1, 100), words(2, 100)).as_bytes()
    rng = random.Random(1)
    for content in (b"", b"nonsense", data[:50], np.arange(3).tobytes()):
        with pytest.raises(ValueError, match="not sketches"):
            Sketches.from_bytes(content)
    for _ in range(300):
        broken = bytearray(data)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        try:
            Sketches.from_bytes(bytes(broken)).find(words(1, 100))
        except ValueError:
            continue
