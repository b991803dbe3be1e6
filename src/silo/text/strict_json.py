"""The one strict JSON reader: what it accepts means one thing only, so a key given twice and NaN are refused.

Records are written out again as JSON in UTF-8, so `parse_object` also refuses what would not survive that: numbers out
of range, half characters, deep nests.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from silo.errors import SiloError

_MAX_DIGITS = 1000


def parse_json(data: str | bytes) -> Any:
    """The value of a whole JSON text; bytes may be in any encoding that JSON allows."""
    try:
        text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise SiloError("json-invalid", str(error)) from None


def parse_object(line: bytes, max_depth: int) -> dict[str, Any]:
    """The JSON object of one record, from UTF-8 bytes; anything doubtful raises with its code."""
    try:
        value = _RECORD_DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SiloError("utf8-invalid", f"byte {error.start} of the record is not UTF-8") from None
    except RecursionError:
        raise SiloError("json-depth", f"nested more than {max_depth} deep") from None
    except json.JSONDecodeError as error:
        if b"\0" in line:
            raise SiloError("nul-byte", "the record holds raw NUL bytes") from None
        raise SiloError("json-invalid", f"{error.msg} at character {error.pos}") from None
    if type(value) is not dict:
        raise SiloError("json-not-object", f"the record is a JSON {_NAMES[type(value)]}")
    if line.count(b"{") + line.count(b"[") > max_depth:
        _check_depth(value, max_depth)
    if b"\\u" in line and (b"\\ud" in line or b"\\uD" in line):
        _check_surrogates(value)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        seen: set[str] = set()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise SiloError("json-duplicate-key", f"the key {again[:80]!r} is given twice")
    return content


def _parse_integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise SiloError("json-number", f"a number has {len(digits):,} digits")
    return int(digits)


def _parse_real(digits: str) -> float:
    value = float(digits)
    if len(digits) > _MAX_DIGITS or value in (float("inf"), float("-inf")):
        raise SiloError("json-number", f"the number {digits[:40]} is out of range")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise SiloError("json-number", f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
_RECORD_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_int=_parse_integer,
    parse_float=_parse_real,
    parse_constant=_refuse_constant,
)

_NAMES: dict[type, str] = {
    list: "list",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def _check_depth(value: dict[str, Any], max_depth: int) -> None:
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > max_depth:
            raise SiloError("json-depth", f"nested more than {max_depth} deep")
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]


def _check_surrogates(value: dict[str, Any]) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise SiloError("surrogate-lone", "a string holds half of a surrogate pair") from None
