"""What a file says about its own rights, in fields of its format: licences it names and uses it reserves.

A claim is what was read and the field it was read in. It becomes evidence where the file's name is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from silo.records import Evidence, Right
from silo.sources.reader.fields import Defaults, assess_statement

NO_AI = frozenset({Right.train, Right.store})


@dataclass(frozen=True, slots=True)
class Claims:
    """Pairs of a field and what it says. A reservation denies training and storing."""

    licences: tuple[tuple[str, str], ...] = ()
    reservations: tuple[tuple[str, str], ...] = ()

    def evidence(self, defaults: Defaults) -> tuple[Evidence, ...]:
        """Every claim as evidence on a record of the source."""
        stated = [
            assess_statement(statement[: defaults.max_chars], f"{defaults.label}: {field}")
            for field, statement in self.licences
            if statement.strip()
        ]
        reserved = [denial(what, f"{defaults.label}: {field}") for field, what in self.reservations]
        return (*stated, *reserved)


NO_CLAIMS = Claims()


def denial(asserted: str, where: str, denies: frozenset[Right] = NO_AI) -> Evidence:
    """A preference signal: it takes rights away and says nothing about a licence."""
    return Evidence(asserted, where, "signal", 1.0, denies=denies)


def robots_reservation(words: Iterable[str]) -> str:
    """The words of a robots tag that keep machines from learning, or an empty string."""
    return ", ".join(sorted({"noai", "noimageai"} & set(words)))
