"""The smallest of many floats that are not negative: a ceiling for some of them, and pairs in their order.

Floats that are not negative sort like their bits, so both count digits instead of comparing. The time is linear, and
equal values cost no more than others.

numba keeps compiled loops by the file of the caller: after a change here, change the time stamp of `scan.py`.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from silo.search.knn.quantise import Floats

Words = NDArray[np.uint32]
Numbers = NDArray[np.int64]
Keys = NDArray[np.uint64]

DIGITS = 4096
"""Values of one digit; the loops take a scratch array of as many counters."""


@numba.njit(cache=True, nogil=True)
def _range(bits: Words) -> tuple[np.int64, np.int64]:
    smallest, largest = bits[0], bits[0]
    for value in bits:
        smallest = min(smallest, value)
        largest = max(largest, value)
    return np.int64(smallest), np.int64(largest)


@numba.njit(cache=True, nogil=True)
def _float(bits: np.int64) -> np.float32:
    one = np.array([bits], dtype=np.uint32)
    value: np.float32 = one.view(np.float32)[0]
    return value


@numba.njit(cache=True, nogil=True)
def ceiling_of(values: Floats, count: int, most: int, digits: Numbers) -> np.float32:
    """A ceiling for at least `count` of the values, and for at most `most` unless they are equal.

    A histogram of the leading bits in which the values differ leads to a narrow range; within it the next bits are
    counted, and so on.
    """
    bits = values.view(np.uint32)
    low, high = _range(bits)
    below = 0
    while True:
        shift = 0
        while (high - low) >> shift >= 2048:
            shift += 1
        digits[:2048] = 0
        for at in range(len(bits)):
            value = np.int64(bits[at])
            if low <= value <= high:
                digits[np.uint64((value - low) >> shift)] += 1
        digit = 0
        while below + digits[digit] < count:
            below += digits[digit]
            digit += 1
        low, high = low + (digit << shift), min(high, low + ((digit + 1) << shift) - 1)
        if below + digits[digit] <= most or shift == 0:
            return _float(high)


@numba.njit(cache=True, nogil=True)
def sort_pairs(values: Floats, numbers: Numbers, spare: Numbers, keys: Keys, digits: Numbers) -> None:
    """Sort by value, then number. `spare` [count] and `keys` [2, count] are scratch."""
    if len(values) <= 48:
        _insert(values, numbers)
        return
    count = len(values)
    bits = values.view(np.uint32)
    low, high = _range(bits)
    here, there = keys[0], keys[1]
    for at in range(count):
        here[at] = np.uint64(bits[at] - low) << np.uint64(32) | np.uint64(at)
        spare[at] = numbers[at]
    width = 0
    while (high - low) >> width:
        width += 1
    passes = -(-width // 12)
    each = np.uint64(-(-width // max(passes, 1)))
    shift = np.uint64(32)
    for _ in range(passes):
        _distribute(here[:count], there, shift, digits[: 1 << each])
        here, there = there, here
        shift += each
    for at in range(count):
        bits[at] = np.uint32(here[at] >> np.uint64(32)) + low
        numbers[at] = spare[here[at] & np.uint64(0xFFFFFFFF)]
    _sort_equals(bits, numbers)


@numba.njit(cache=True, nogil=True)
def _insert(values: Floats, numbers: Numbers) -> None:
    for at in range(1, len(values)):
        value, number = values[at], numbers[at]
        to = at
        while to and (values[to - 1] > value or (values[to - 1] == value and numbers[to - 1] > number)):
            values[to], numbers[to] = values[to - 1], numbers[to - 1]
            to -= 1
        values[to], numbers[to] = value, number


@numba.njit(cache=True, nogil=True)
def _distribute(keys: Keys, out: Keys, shift: np.uint64, digits: Numbers) -> None:
    """Order keys by one digit; those with the same digit stay in their order."""
    last = np.uint64(len(digits) - 1)
    digits[:] = 0
    for key in keys:
        digits[key >> shift & last] += 1
    total = 0
    for digit in range(len(digits)):
        here = digits[digit]
        digits[digit] = total
        total += here
    for key in keys:
        digit = key >> shift & last
        to = digits[digit]
        out[np.uint64(to)] = key
        digits[digit] = to + 1


@numba.njit(cache=True, nogil=True)
def _sort_equals(bits: Words, numbers: Numbers) -> None:
    """Sort the numbers of each run of equal bits that is not sorted yet."""
    at = 1
    while at < len(bits):
        if bits[at] == bits[at - 1] and numbers[at] < numbers[at - 1]:
            first, last = at - 1, at + 1
            while first and bits[first - 1] == bits[at]:
                first -= 1
            while last < len(bits) and bits[last] == bits[at]:
                last += 1
            numbers[first:last].sort()
            at = last
        at += 1
