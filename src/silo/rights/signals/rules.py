"""Signal rules: which of a site's statements applies to a path, after RFC 9309 (the longest pattern wins)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from silo.records import Duty, Evidence, Right

EVERYTHING = "/"
ALL_AI = frozenset((Right.train, Right.store, Right.index))


class Unreadable(Exception):
    """A signal file that cannot be understood; the message says why."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One statement about the paths that match a pattern.

    Of the rules of one `topic` only the longest matching pattern counts; among equals every denial counts,
    unless one of them `permits` (an Allow line).
    """

    topic: str
    pattern: str
    method: str
    line: int
    asserted: str
    denies: frozenset[Right] = frozenset()
    duties: frozenset[Duty] = frozenset()
    permits: bool = False


def site_rule(method: str, line: int, asserted: str, denies: frozenset[Right] = frozenset()) -> Rule:
    """A statement about the whole site."""
    return Rule(f"{method}:{line}", EVERYTHING, method, line, asserted, denies)


def applicable_evidence(rules: Iterable[Rule], path: str, *, file: str) -> list[Evidence]:
    """The evidence of one file's rules for one path."""
    best: dict[str, list[Rule]] = {}
    target = undo_percent(path)
    for rule in rules:
        if matches(rule.pattern, target):
            best.setdefault(rule.topic, []).append(rule)
    evidence: list[Evidence] = []
    for group in best.values():
        longest = max(len(rule.pattern) for rule in group)
        chosen = [rule for rule in group if len(rule.pattern) == longest]
        if not any(rule.permits for rule in chosen):
            evidence.extend(_evidence(rule, file) for rule in chosen)
    return evidence


def _evidence(rule: Rule, file: str) -> Evidence:
    where = f"{file}:{rule.line}" if rule.line else file
    return Evidence(rule.asserted[:200], where, rule.method, 1.0, duties=rule.duties, denies=rule.denies)


def matches(pattern: str, path: str) -> bool:
    """Whether a path begins with a pattern, in which * stands for anything and a final $ for the end.

    Runs in linear time, so that a pattern of a thousand stars costs nothing.
    """
    anchored = pattern.endswith("$")
    first, *rest = undo_percent(pattern[:-1] if anchored else pattern).split("*")
    if not path.startswith(first):
        return False
    at = len(first)
    if not rest:
        return not anchored or at == len(path)
    *middle, last = rest
    for part in middle:
        start = path.find(part, at)
        if start < 0:
            return False
        at = start + len(part)
    if anchored:
        return len(path) - len(last) >= at and path.endswith(last)
    return path.find(last, at) >= 0


def undo_percent(path: str) -> str:
    """A path or pattern with percent-encoding undone, except for the encoded slash."""
    return unquote(path.replace("%2F", "%252F").replace("%2f", "%252F")) if "%" in path else path


def path_of(location: str) -> str:
    """The path (and query) of a URL or path; always begins with a slash."""
    text = location.strip()
    if "://" in text[:16] or text.startswith("//"):
        try:
            parts = urlsplit(text)
        except ValueError:
            return EVERYTHING
        text = parts.path + (f"?{parts.query}" if parts.query else "")
    return text if text.startswith("/") else f"/{text}"


def pattern_of(location: object) -> str:
    """A pattern from a signal file; one that is missing or odd covers everything."""
    if not isinstance(location, str) or not location.strip():
        return EVERYTHING
    text = location.strip()
    return text if text.startswith("*") else path_of(text)
