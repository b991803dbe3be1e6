"""Masks of personal data: `[**kind**]`, the form clinical notes use, so that one rule finds given and added ones."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from silo.errors import SiloError

MASK = re.compile(r"\[\*\*.{0,200}?\*\*\]", re.DOTALL)
MOST_MASKED = 0.5
"""The share of masked words up to which a text says enough to be kept, as in the paper."""


def masked_share(text: str) -> float:
    """The share of white-space words that are masks or lie inside one."""
    if "[**" not in text:
        return 0.0
    masked = sum(len(mask.group().split()) for mask in MASK.finditer(text))
    words = len(text.split())
    return min(1.0, masked / words) if words else 0.0


def is_mostly_masked(text: str) -> bool:
    """True for a text of which more is masked than is left: stores and evaluations go without it."""
    return masked_share(text) > MOST_MASKED


def mask_personal_data(text: str, kinds: Iterable[str]) -> tuple[str, int]:
    """Replace personal data of the given kinds by masks; returns the text and how many were replaced.

    Masks that are already there are left as they are.
    """
    rules = [_RULES[kind] for kind in _RULES if kind in set(kinds)]
    if "[**" not in text:
        return _mask_piece(text, rules)
    pieces: list[str] = []
    count, at = 0, 0
    for mask in MASK.finditer(text):
        piece, replaced = _mask_piece(text[at : mask.start()], rules)
        pieces += [piece, mask.group()]
        count, at = count + replaced, mask.end()
    piece, replaced = _mask_piece(text[at:], rules)
    return "".join([*pieces, piece]), count + replaced


@dataclass(frozen=True, slots=True)
class _Rule:
    """One kind of personal data: a pattern that starts with a plain character set (fast), and a check of the match."""

    kind: str
    pattern: re.Pattern[str]
    accepts: Callable[[str], bool]
    needs: str = ""


def _mask_piece(text: str, rules: list[_Rule]) -> tuple[str, int]:
    count = 0
    for rule in rules:
        if rule.needs not in text:
            continue
        spans = [
            match.span() for match in rule.pattern.finditer(text) if _stands_alone(match) and rule.accepts(match[0])
        ]
        for start, end in reversed(spans):
            text = f"{text[:start]}[**{rule.kind}**]{text[end:]}"
        count += len(spans)
    return text, count


def _stands_alone(match: re.Match[str]) -> bool:
    """True if the match is not a part of a longer word, number or version."""
    text, start, end = match.string, match.start(), match.end()
    before, after = text[start - 1 : start], text[end : end + 2]
    inside = before.isalnum() or before in ("_", ".", "-", "+", ":") if before else False
    return not inside and not (after[:1].isalnum() or after[:1] == "_" or (after[:1] in ".-:" and after[1:].isdigit()))


def _digits(text: str) -> str:
    return "".join(filter(str.isdigit, text))


def _luhn_valid(number: str) -> bool:
    """The check digit of payment cards."""
    digits = [int(char) for char in reversed(_digits(number))]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[0::2]) + sum(doubled)) % 10 == 0


def _card_valid(number: str) -> bool:
    digits = _digits(number)
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and _luhn_valid(digits)


def _iban_valid(text: str) -> bool:
    """ISO 13616: the rearranged number leaves 1 when divided by 97."""
    compact = text.replace(" ", "").upper()
    if not 15 <= len(compact) <= 34:
        return False
    return int("".join(str(int(char, 36)) for char in compact[4:] + compact[:4])) % 97 == 1


def _address_valid(text: str) -> bool:
    """A public address: private, loopback and documentation ranges point at nobody."""
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


def _phone_valid(text: str) -> bool:
    return 8 <= len(_digits(text)) <= 15


_RULES = {
    rule.kind: rule
    for rule in (
        _Rule(
            "email",
            re.compile(r"[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}\.[A-Za-z]{2,24}"),
            lambda _: True,
            "@",
        ),
        _Rule("iban", re.compile(r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?"), _iban_valid),
        _Rule("card", re.compile(r"[2-6]\d{3}(?:[ -]?\d{2,7}){2,4}"), _card_valid),
        _Rule("ip", re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{1,4}:[0-9A-Fa-f:]{1,34}"), _address_valid),
        _Rule(
            "phone",
            re.compile(r"\+\d{1,3}(?:[ .-]?\(?\d{1,8}\)?){2,6}|\(?\d{3}\)?[ .-]?\d{3}[.-]\d{4}"),
            _phone_valid,
        ),
    )
}

PERSONAL = tuple(_RULES)
"""The kinds of personal data that can be masked."""


def check_kinds(kinds: Iterable[str]) -> None:
    """Refuse kinds of personal data that nobody knows how to mask."""
    for kind in kinds:
        if kind not in _RULES:
            raise SiloError("recipe-value", f"pii.mask: '{kind}' is not one of {', '.join(PERSONAL)}")
