"""RSL 1.0 licence documents: a use is free only if a licence without payment and without conditions permits it.

Document types and entities are refused before anything is expanded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

from silo.records import Duty, Right
from silo.rights.signals.rules import Rule, Unreadable, pattern_of

MAX_DEPTH = 64
_NAMESPACES = frozenset(
    ("", "https://rslstandard.org/rsl", "http://rslstandard.org/rsl", "https://rslstandard.org/rsl/")
)
_USES = {
    Right.train: frozenset(("ai-train", "ai-all", "all")),
    Right.store: frozenset(("ai-input", "ai-all", "all")),
    Right.index: frozenset(("search", "ai-index", "ai-all", "all")),
}
_FREE = frozenset(("free", "attribution"))


@dataclass(slots=True)
class _License:
    """One <license>: what it permits and prohibits, and whether using it depends on anything."""

    permits: set[str] | None = None
    prohibits: set[str] = field(default_factory=set)
    payments: set[str] = field(default_factory=set)
    conditional: bool = False

    def grants(self, right: Right) -> bool:
        free = self.payments <= _FREE and not self.conditional
        return free and (self.permits is None or bool(self.permits & _USES[right]))


@dataclass(slots=True)
class _Content:
    """One <content>: the paths it is about and its licences, any of which may be chosen."""

    url: str
    line: int
    licenses: list[_License] = field(default_factory=list)

    def rule(self) -> Rule:
        denies = frozenset(right for right in _USES if not self._is_free(right))
        payments = set[str]().union(*(item.payments for item in self.licenses))
        duties = {Duty.payment} if payments - _FREE else set()
        duties |= {Duty.attribution} if "attribution" in payments else set()
        asserted = (
            f"content {self.url or '/'}: {len(self.licenses)} licence(s), payment {sorted(payments) or 'not stated'}"
        )
        return Rule("rsl", pattern_of(self.url), "rsl", self.line, asserted, denies, frozenset(duties))

    def _is_free(self, right: Right) -> bool:
        prohibited = any(item.prohibits & _USES[right] for item in self.licenses)
        return not prohibited and any(item.grants(right) for item in self.licenses)


def read_rsl(text: str) -> tuple[Rule, ...]:
    """The rules of an RSL document."""
    reader = _Reader()
    reader.parse(text)
    if not reader.contents:
        raise Unreadable("no <content> in it")
    return tuple(content.rule() for content in reader.contents)


class _Reader:
    """Walks over the XML; keeps the line of each <content>."""

    def __init__(self) -> None:
        self.contents: list[_Content] = []
        self._path: list[str] = []
        self._text: list[str] = []
        self._type = ""
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartDoctypeDeclHandler = self._refuse
        self._parser.EntityDeclHandler = self._refuse
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text.append

    def parse(self, text: str) -> None:
        lowered = text.lower()
        if "<!doctype" in lowered or "<!entity" in lowered:
            self._refuse()
        try:
            self._parser.Parse(text.encode("utf-8"), True)
        except (expat.ExpatError, ValueError) as error:
            raise Unreadable(f"not well-formed XML: {error}") from None

    def _refuse(self, *_: object) -> None:
        raise Unreadable("document types and entities are not accepted")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        space, _, local = name.rpartition(" ")
        tag = local if space in _NAMESPACES else f"other:{local}"
        if not self._path and tag != "rsl":
            raise Unreadable("its root is not <rsl>")
        self._path.append(tag)
        if len(self._path) > MAX_DEPTH:
            raise Unreadable(f"elements nest deeper than {MAX_DEPTH}")
        self._text.clear()
        if tag == "content":
            self.contents.append(_Content(attributes.get("url", ""), self._parser.CurrentLineNumber))
        elif tag == "license" and self._inside("content"):
            self.contents[-1].licenses.append(_License())
        elif tag in ("permits", "prohibits", "payment"):
            self._type = attributes.get("type", "").strip().lower()

    def _end(self, _: str) -> None:
        tag = self._path[-1]
        if self._inside("license") and self._inside("content") and self.contents[-1].licenses:
            self._close(tag, self.contents[-1].licenses[-1])
        self._path.pop()
        if tag in ("permits", "prohibits"):
            self._text.clear()

    def _inside(self, tag: str) -> bool:
        return tag in self._path[:-1]

    def _close(self, tag: str, license: _License) -> None:
        words = set("".join(self._text).replace(",", " ").lower().split())
        if tag == "permits" and self._type == "usage":
            license.permits = (license.permits or set()) | words
        elif tag == "prohibits" and self._type == "usage":
            license.prohibits |= words
        elif tag in ("permits", "prohibits"):
            license.conditional = True
        elif tag == "payment":
            license.payments.add(self._type or "unstated")
