"""JSON that could be read in two ways is refused, and says why."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.errors import SiloError
from silo.text.strict_json import parse_json, parse_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_sound_json_means_what_it_means_elsewhere(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value).encode("utf-16")) == value


@given(st.dictionaries(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.integers(), max_size=4))
def test_a_record_means_what_it_means_elsewhere(record: dict[str, int]) -> None:
    assert parse_object(json.dumps(record).encode(), 4) == record


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ('{"a": 1, "a": 1}', "json-duplicate-key", "the key 'a' is given twice"),
        ('[{"b": {"a": 1, "a": 2}}]', "json-duplicate-key", "the key 'a' is given twice"),
        ("[NaN]", "json-number", "NaN is not JSON"),
        ("-Infinity", "json-number", "-Infinity is not JSON"),
        ("", "json-invalid", "Expecting value: line 1 column 1 (char 0)"),
        ("[" * 100_000, "json-invalid", "maximum recursion depth exceeded"),
    ],
)
def test_doubtful_json_is_refused(text: str, code: str, message: str) -> None:
    for data in (text, text.encode()):
        with pytest.raises(SiloError) as caught:
            parse_json(data)
        assert caught.value.code == code
        assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (b"[1]", "json-not-object", "the record is a JSON list"),
        (b'{"a": }', "json-invalid", "Expecting value at character 6"),
        (b'{"a": "\0"}', "nul-byte", "the record holds raw NUL bytes"),
        (b'{"a": "\xff"}', "utf8-invalid", "byte 7 of the record is not UTF-8"),
        (b'{"a": 1e999}', "json-number", "the number 1e999 is out of range"),
        (b'{"a": ' + b"1" * 2000 + b"}", "json-number", "a number has 2,000 digits"),
        (b'{"a": [[[1]]]}', "json-depth", "nested more than 3 deep"),
        (b'{"a": "\\ud800"}', "surrogate-lone", "a string holds half of a surrogate pair"),
        (b'{"a": ' + b"[" * 100_000, "json-depth", "nested more than 3 deep"),
    ],
)
def test_a_record_that_cannot_be_kept_is_refused(line: bytes, code: str, message: str) -> None:
    with pytest.raises(SiloError) as caught:
        parse_object(line, 3)
    assert (caught.value.code, caught.value.message) == (code, message)
