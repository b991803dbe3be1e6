"""Policies as text: `tier <= "sw" and not (owner == "A. Writer" or license in ["MIT", "ISC"])`. Nothing is evaluated.

    either     = both {"or" both}
    both       = single {"and" single}
    single     = "not" single | "(" either ")" | field comparison
    comparison = ("==" | "!=") string | ["not"] "in" list | ("<" | "<=" | ">" | ">=") string    the order is of tiers
    list       = "[" [string {"," string}] "]"

Strings are as in TOML: between double quotes with the escapes of JSON, between single quotes as they stand. Ids of the
licence table may be written in any case; all else compares exactly.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass

from silo.errors import SiloError, nearest_names
from silo.records import Tier
from silo.rights.licences.table import license_table
from silo.store.policy.conditions import FIELDS, All, Among, AnyOf, Condition, Not, QuoteBelow, join

MAX_CHARS = 4096
MAX_DEPTH = 32
MAX_LIST = 1000

_TOKEN = re.compile(
    r"""(?P<word>[^\W\d]\w*)|(?P<string>"(?:[^"\\]|\\.)*"|'[^']*')|(?P<mark>[=!<>]=|[<>()\[\],])|(?P<wrong>\S)""",
    re.DOTALL,
)
_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_EITHER, _BOTH, _SINGLE = range(3)


def parse_condition(text: str) -> Condition:
    """The condition that a text states; an empty text allows everything."""
    if len(text) > MAX_CHARS:
        raise _refusal(MAX_CHARS + 1, f"a policy has at most {MAX_CHARS} characters, this one {len(text)}")
    return _Parser(text).parse() if text.strip() else All()


def describe_condition(condition: Condition) -> str:
    """The text of a condition, which states the same when parsed.

    Quote rights and single documents have no place in the language: a text with those says what holds, but parsing it
    is refused.
    """
    return "" if condition == All() else _text(condition, _EITHER)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


class _Parser:
    """Reads tokens from left to right; `_depth` counts the parentheses and nots around the present one."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._now = next(self._tokens)
        self._depth = 0

    def parse(self) -> Condition:
        condition = self._either()
        if self._now.kind != "end":
            raise _unexpected(self._now, "'and', 'or' or the end")
        return condition

    def _step(self) -> _Token:
        token, self._now = self._now, next(self._tokens, self._now)
        return token

    def _accept(self, text: str) -> bool:
        matches = self._now.text == text
        if matches:
            self._step()
        return matches

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise _unexpected(self._now, f"'{text}'")

    def _either(self) -> Condition:
        parts = [self._both()]
        while self._accept("or"):
            parts.append(self._both())
        return join(AnyOf, parts)

    def _both(self) -> Condition:
        parts = [self._single()]
        while self._accept("and"):
            parts.append(self._single())
        return join(All, parts)

    def _single(self) -> Condition:
        if self._now.text not in ("not", "("):
            return self._comparison(self._field())
        if self._depth == MAX_DEPTH:
            raise _refusal(self._now.column, f"a policy nests at most {MAX_DEPTH} deep")
        self._depth += 1
        if self._accept("not"):
            condition: Condition = Not(self._single())
        else:
            self._expect("(")
            condition = self._either()
            self._expect(")")
        self._depth -= 1
        return condition

    def _field(self) -> str:
        token = self._step()
        if token.kind != "word":
            raise _unexpected(token, "a field, 'not' or '('")
        if token.text not in FIELDS:
            close = nearest_names(token.text[:40], FIELDS, most=1)
            advice = f"did you mean '{close[0]}'?" if close else f"fields are {', '.join(FIELDS)}"
            raise _refusal(token.column, f"there is no field {_shown(token)}; {advice}")
        return token.text

    def _comparison(self, field: str) -> Condition:
        sign = self._step()
        if sign.text in _ORDER and field == "tier":
            limit, compare = Tier(self._value(field)), _ORDER[sign.text]
            return Among(field, frozenset(str(tier) for tier in Tier if compare(tier, limit)))
        if sign.text in ("==", "!="):
            same = Among(field, frozenset([self._value(field)]))
            return same if sign.text == "==" else Not(same)
        if sign.text == "in":
            return Among(field, self._values(field))
        if sign.text == "not":
            self._expect("in")
            return Not(Among(field, self._values(field)))
        order = ", <, <=, >, >=" if field == "tier" else ""
        raise _unexpected(sign, f"==, !=, in, not in{order} after '{field}'")

    def _values(self, field: str) -> frozenset[str]:
        column = self._now.column
        self._expect("[")
        if self._accept("]"):
            return frozenset()
        values = [self._value(field)]
        while self._accept(","):
            values.append(self._value(field))
        self._expect("]")
        if len(values) > MAX_LIST:
            raise _refusal(column, f"a list has at most {MAX_LIST} values, this one {len(values)}")
        return frozenset(values)

    def _value(self, field: str) -> str:
        token = self._step()
        if token.kind != "string":
            raise _unexpected(token, "a string in quotes")
        value = _unquote(token)
        if field == "tier" and value not in set(Tier):
            raise _refusal(token.column, f"there is no tier {_shown(token)}; tiers are {', '.join(Tier)}")
        row = license_table().ids.get(value.lower()) if field == "license" else None
        return row.spdx if row else value


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        token = _Token(match.lastgroup or "", match[0], match.start() + 1)
        if token.kind == "wrong":
            what = "a string without an end" if token.text in "\"'" else f"a stray {_shown(token)}"
            raise _refusal(token.column, what)
        yield token
    yield _Token("end", "", len(text) + 1)


def _unquote(token: _Token) -> str:
    if token.text[0] == "'":
        return token.text[1:-1]
    try:
        return str(json.loads(token.text))
    except ValueError:
        raise _refusal(token.column, f"an escape or control character that no string has: {_shown(token)}") from None


def _unexpected(token: _Token, wanted: str) -> SiloError:
    return _refusal(token.column, f"{wanted} must stand here, not {_shown(token) if token.text else 'the end'}")


def _shown(token: _Token) -> str:
    return repr(token.text.strip("\"'")[:40])


def _refusal(column: int, message: str) -> SiloError:
    return SiloError("policy-invalid", f"policy, column {column}: {message}")


def _text(condition: Condition, place: int) -> str:
    """A condition as text, in parentheses if it binds less than its place asks."""
    match condition:
        case Among(field, values):
            return _comparison(field, values, "==", "in")
        case Not(Among(field, values)):
            return _comparison(field, values, "!=", "not in")
        case Not(part):
            return f"not {_text(part, _SINGLE)}"
        case QuoteBelow(tokens):
            return f"quote < {tokens}"
        case All(()):
            return "tier not in []"
        case AnyOf(()):
            return "tier in []"
        case All((part,)) | AnyOf((part,)):
            return _text(part, place)
        case All(parts):
            return _wrap(" and ".join(_text(part, _BOTH) for part in parts), place > _BOTH)
        case AnyOf(parts):
            return _wrap(" or ".join(_text(part, _EITHER) for part in parts), place > _EITHER)


def _wrap(text: str, wrap: bool) -> str:
    return f"({text})" if wrap else text


def _comparison(field: str, values: frozenset[str], one: str, many: str) -> str:
    texts = [json.dumps(value, ensure_ascii=not value.isprintable()) for value in sorted(values)]
    return f"{field} {one} {texts[0]}" if len(texts) == 1 else f"{field} {many} [{', '.join(texts)}]"
