"""A row is traced to the document, the position and the token that plain indexing gives, wherever the tokens lie."""

from __future__ import annotations

import numpy as np
import pytest

from silo.search.places import TokenTable


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_look_up_is_plain_indexing(dtype: str) -> None:
    rng = np.random.default_rng(3)
    buckets = []
    for documents in (5, 1, 300):
        lengths = rng.integers(1, 40, documents)
        tokens = rng.integers(0, 60_000, lengths.sum()).astype(dtype)
        buckets.append((tokens, np.cumsum([0, *lengths[:-1]]).astype(np.uint32)))
    numbers = rng.integers(-1, 3, (7, 50)).astype(np.int32)
    places = np.array([rng.integers(0, len(buckets[number][0])) for number in numbers.ravel()], dtype=np.uint32)
    rows, positions, values = TokenTable(buckets).look_up(numbers, places.reshape(7, 50))
    before = np.cumsum([0, *(len(firsts) for _, firsts in buckets)])
    for number, place, row, position, value in zip(
        numbers.ravel(), places, rows.ravel(), positions.ravel(), values.ravel(), strict=True
    ):
        if number < 0:
            assert [int(row), int(position), int(value)] == [-1, -1, -1]
            continue
        tokens, firsts = buckets[number]
        document = int(np.searchsorted(firsts, place, side="right")) - 1
        expected = [before[number] + document, place - firsts[document], tokens[place]]
        assert [int(row), int(position), int(value)] == list(map(int, expected))


def test_the_tokens_of_a_bucket_are_not_copied() -> None:
    tokens = np.arange(10, dtype=np.uint16)
    table = TokenTable([(tokens, np.zeros(1, dtype=np.uint32))])
    tokens[4] = 99
    assert table.look_up(np.zeros(1, dtype=np.int32), np.array([4], dtype=np.uint32))[2].tolist() == [99]
    assert TokenTable([]).look_up(np.full(2, -1, np.int32), np.zeros(2, np.uint32))[0].tolist() == [-1, -1]
