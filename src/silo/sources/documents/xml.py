"""XML as a flat stream of events, in bounded memory: no tree, no entities, no deep nests.

Names come without their namespace: the office formats use one vocabulary per part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from xml.parsers import expat

from silo.errors import SiloError

_CHUNK = 1 << 16
_MAX_DEPTH = 512


@dataclass(frozen=True, slots=True)
class Start:
    """An element begins. Of two attributes of one name the one of a namespace counts (`r:id` before `id`)."""

    name: str
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class End:
    """An element ends."""

    name: str


Event = Start | End | str
"""The beginning or the end of an element, or text."""


def read_xml(data: bytes) -> Iterator[Event]:
    """The events of a document in order, none if it is empty; what is not well-formed or declares entities raises."""
    if not data:
        return
    collected: list[Event] = []
    parser = _make_parser(collected)
    try:
        for at in range(0, len(data), _CHUNK):
            parser.Parse(data[at : at + _CHUNK], False)
            yield from collected
            collected.clear()
        parser.Parse(b"", True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        reason = expat.ErrorString(error.code) if isinstance(error, expat.ExpatError) else "unknown encoding"
        raise SiloError("document-invalid", f"the XML is not well-formed: {reason}") from None
    yield from collected


def _make_parser(collected: list[Event]) -> Any:
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _MAX_DEPTH:
            raise SiloError("document-invalid", f"the XML is nested more than {_MAX_DEPTH} deep")
        plain_first = sorted(attributes, key=lambda key: " " in key)
        collected.append(Start(_local(name), {_local(key): attributes[key] for key in plain_first}))

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        collected.append(End(_local(name)))

    def refuse_entity(*_: Any) -> None:
        raise SiloError("document-invalid", "the XML declares entities, which are not read")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = collected.append
    parser.EntityDeclHandler = refuse_entity
    return parser


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def drop_elements(events: Iterator[Event], is_dropped: Callable[[Start], bool]) -> Iterator[Event]:
    """The events without some elements and all that is inside them."""
    dropping = 0
    for event in events:
        if isinstance(event, Start) and (dropping or is_dropped(event)):
            dropping += 1
        elif not dropping:
            yield event
        elif isinstance(event, End):
            dropping -= 1


def element_texts(data: bytes, names: frozenset[str]) -> dict[str, list[str]]:
    """The text inside every element of the given names, by name, in order."""
    found: dict[str, list[str]] = {}
    opened: list[tuple[str, list[str]]] = []
    for event in read_xml(data):
        if isinstance(event, str):
            for _, pieces in opened:
                pieces.append(event)
        elif isinstance(event, Start):
            if event.name in names:
                opened.append((event.name, []))
        elif opened and opened[-1][0] == event.name:
            name, pieces = opened.pop()
            found.setdefault(name, []).append(" ".join("".join(pieces).split()))
    return found
