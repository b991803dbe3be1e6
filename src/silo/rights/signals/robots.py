"""robots.txt as a preference signal: AI crawlers, Content-Usage (AIPREF), Content-Signal and License lines (RSL)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources

from silo.records import Right
from silo.rights.signals.rules import ALL_AI, EVERYTHING, Rule, Unreadable, pattern_of, site_rule

_LINE = re.compile(r"\s*([A-Za-z][A-Za-z \-]{0,40}?)\s*:\s*(.*?)\s*")
_RIGHTS: dict[str, dict[str, frozenset[Right]]] = {
    "content-usage": {
        "train-ai": frozenset((Right.train,)),
        "train-genai": frozenset((Right.train,)),
        "ai-use": frozenset((Right.store,)),
        "search": frozenset((Right.index,)),
        "tdm": frozenset((Right.train, Right.store)),
        "bots": ALL_AI,
        "all": ALL_AI,
    },
    "content-signal": {
        "ai-train": frozenset((Right.train,)),
        "ai-input": frozenset((Right.store,)),
        "search": frozenset((Right.index,)),
    },
}
_YES = {"content-usage": "y", "content-signal": "yes"}
_KNOWN = frozenset(("user-agent", "allow", "disallow", "license", "sitemap", "crawl-delay", "host", *_RIGHTS))


@lru_cache(maxsize=1)
def crawler_rights() -> dict[str, Right]:
    """The well-known AI crawlers in lower case, with the right that a Disallow denies."""
    content = resources.files("silo.rights.signals").joinpath("crawlers.toml").read_text(encoding="utf-8")
    lists = tomllib.loads(content)
    return {name.lower(): right for right in (Right.train, Right.store) for name in lists[right.value]}


def read_robots(text: str, *, terms_known: bool) -> tuple[Rule, ...]:
    """The rules of a robots.txt. `terms_known` tells that the licence it points to is at hand.

    A file in which no line makes sense, such as a saved error page, is unreadable rather than empty.
    """
    rules: list[Rule] = []
    lines = list(_lines(text))
    if text.strip() and lines and not any(key in _KNOWN for _, key, _ in lines):
        raise Unreadable("no line of it belongs into a robots.txt")
    agents: list[str] = []
    collecting = False
    for number, key, value in lines:
        if key == "user-agent":
            agents = [*agents, value.lower()] if collecting else [value.lower()]
            collecting = True
            continue
        if key == "license":
            rules.append(_license(number, value, terms_known))
            continue
        if key in ("sitemap", "host"):
            continue
        collecting = False
        rules.extend(_rules(key, value, number, agents))
    return tuple(rules)


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, lower-case key and value; a line that is no `key: value` has an empty key."""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.split("#", 1)[0].strip()
        if line:
            match = _LINE.fullmatch(line)
            yield (number, match[1].lower(), match[2]) if match else (number, "", line)


def _license(number: int, value: str, terms_known: bool) -> Rule:
    """Terms that exist but were not given to us count as a no."""
    denies = frozenset() if terms_known else frozenset((Right.train, Right.store))
    return site_rule("rsl-reference", number, f"License: {value}", denies)


def _rules(key: str, value: str, number: int, agents: list[str]) -> Iterator[Rule]:
    """What one line means for every agent of its group; lines before any group are meant for all."""
    known = crawler_rights()
    for agent in agents or ["*"]:
        if agent != "*" and agent not in known:
            continue
        if key in ("allow", "disallow"):
            if value:
                yield _path_rule(key, value, number, agent)
        elif key in _RIGHTS:
            yield from _preferences(key, value, number, agent)


def _path_rule(key: str, value: str, number: int, agent: str) -> Rule:
    """Disallow denies `index` for all robots, and `train` or `store` for a crawler that is there for it."""
    right = Right.index if agent == "*" else crawler_rights()[agent]
    method = "robots-disallow" if agent == "*" else "robots-crawler"
    denies = frozenset((right,)) if key == "disallow" else frozenset[Right]()
    pattern = value if value.startswith(("/", "*")) else f"/{value}"
    asserted = f"User-agent: {agent}; {key.capitalize()}: {value}"
    return Rule(f"agent:{agent}", pattern, method, number, asserted, denies, permits=key == "allow")


def _preferences(key: str, value: str, number: int, agent: str) -> Iterator[Rule]:
    """One rule per right, so that a longer path only replaces what it speaks about."""
    path, pairs = EVERYTHING, value
    if key == "content-usage" and value.startswith(("/", "*")):
        path, _, pairs = value.partition(" ")
    for name, answer in _pairs(pairs):
        for right in sorted(_RIGHTS[key].get(name, ())):
            denies = frozenset[Right]() if answer == _YES[key] else frozenset((right,))
            asserted = f"{key.title()}: {value}"
            yield Rule(f"{key}:{agent}:{right}", pattern_of(path), key, number, asserted, denies)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """name=value pairs; parameters behind a semicolon are dropped, a name without a value has none."""
    for item in re.split(r"[,;]", text):
        name, _, answer = item.partition("=")
        if name.strip():
            yield name.strip().lower(), answer.strip().strip('"').lower()
