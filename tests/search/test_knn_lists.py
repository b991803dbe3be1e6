"""Nearest lists in order, whatever the sketches say; the smallest of many floats, by counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from silo.search.dtypes import Float32s
from silo.search.knn.kernel import (
    DIGITS,
    ListTables,
    bound_lists,
    find_ceiling,
    lay_out_lists,
    make_list_scratch,
    order_lists,
    sort_pairs,
)


def ordered(tables: ListTables, query: Float32s, count: int) -> NDArray[np.int64]:
    lists = len(tables.centroids)
    work, spare, keys = make_list_scratch(lists), np.empty(lists, np.int64), np.empty((2, lists), np.uint64)
    errors = bound_lists(query, tables, work)
    order_lists(query, tables, errors, count, work, spare, keys, np.empty(DIGITS, np.int64))
    return work.order[:count].copy()


@pytest.mark.parametrize("shift", [0.0, 30.0, 1e4])
@pytest.mark.parametrize(("lists", "width"), [(2000, 3), (2000, 24), (1500, 64), (1500, 200)])
def test_a_few_lists_are_the_first_of_all(lists: int, width: int, shift: float) -> None:
    rng = np.random.default_rng(lists + width)
    scales = rng.random(width) ** 3
    centroids = (rng.standard_normal((lists, width)) * scales + shift).astype(np.float32)
    centroids[lists // 2 :: 3] = centroids[: len(centroids[lists // 2 :: 3])]
    tables = lay_out_lists(centroids)
    for query in (rng.standard_normal((40, width)) * scales + shift).astype(np.float32):
        every = ordered(tables, query, lists)
        assert np.array_equal(np.sort(every), np.arange(lists))
        for count in (1, 2, 8, 61, 700):
            assert np.array_equal(ordered(tables, query, count), every[:count])


ordinary = st.floats(0, 2.0**100, width=32)


@settings(max_examples=200)
@given(
    values=st.lists(st.one_of(ordinary, st.sampled_from([0.0, 1.0, 1.0000001, 2.0])), min_size=1, max_size=300),
    data=st.data(),
)
def test_pairs_are_sorted_and_a_ceiling_holds(values: list[float], data: st.DataObject) -> None:
    floats = np.array(values, dtype=np.float32)
    count = data.draw(st.integers(1, len(floats)))
    most = data.draw(st.integers(count, len(floats)))
    digits = np.empty(DIGITS, dtype=np.int64)
    ceiling = find_ceiling(floats, count, most, digits)
    below = int((floats <= ceiling).sum())
    assert below >= count
    assert below <= most or (ceiling == np.sort(floats)[count - 1] and (floats < ceiling).sum() < count)
    tags = np.random.default_rng(len(floats)).permutation(len(floats)).astype(np.int64)
    order = np.lexsort((tags, floats))
    expected = floats[order], tags[order]
    spare, keys = np.empty(len(floats), np.int64), np.empty((2, len(floats)), np.uint64)
    sort_pairs(floats, tags, spare, keys, digits)
    assert np.array_equal(floats, expected[0])
    assert np.array_equal(tags, expected[1])
