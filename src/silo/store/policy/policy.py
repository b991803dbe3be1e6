"""Which documents an answer may come from: a condition, and single documents that are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from silo.errors import SiloError, did_you_mean
from silo.store.bucket import NAMED, Bucket
from silo.store.policy.conditions import FIELDS, All, Among, Condition, Mask, Not, QuoteBelow, join, named_values
from silo.store.policy.language import describe_condition, parse_condition

_ALWAYS = All()
_LISTS = dict(zip(("tiers", "licenses", "owners", "domains", "sources"), FIELDS, strict=True))


@dataclass(frozen=True, slots=True)
class Policy:
    """The documents a request may use: those that meet the condition, less those in `without` (document ids).

    A policy may only be narrowed.
    """

    condition: Condition = _ALWAYS
    without: frozenset[str] = frozenset()

    @classmethod
    def of(cls, *, without: Iterable[str] = (), **lists: Any) -> Self:
        """A policy from plain lists, each a limit unless it is None; unknown names of lists are refused."""
        if unknown := set(lists) - set(_LISTS):
            raise SiloError("usage", f"a policy has no '{min(unknown)}': use {', '.join(_LISTS)}, without")
        limits = (Among(_LISTS[name], frozenset(lists[name])) for name in _LISTS if lists.get(name) is not None)
        return cls(join(All, limits), frozenset(without))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The policy that a text states (see `language`); an empty text allows everything."""
        return cls(parse_condition(text))

    @classmethod
    def of_quote_rights(cls, at_least: int, below: int) -> Self:
        """The documents of which at least so many tokens in a row may be quoted, and fewer than so many."""
        lower = [Not(QuoteBelow(at_least))] if at_least else []
        return cls(join(All, [*lower, QuoteBelow(below)]))

    def describe(self) -> str:
        """The policy as text; what the language has no words for is said, but not read again."""
        left_out = [Not(Among("document", self.without))] if self.without else []
        return describe_condition(join(All, [self.condition, *left_out]))

    def narrowed(self, other: Policy) -> Policy:
        """What both allow."""
        return Policy(join(All, (self.condition, other.condition)), self.without | other.without)

    def unknown_names(self, buckets: Sequence[Bucket]) -> list[str]:
        """Values that no document has, in words and with the names that may have been meant; most are misspelt.

        They are no error: an owner may have opted out since the policy was written.
        """
        found = []
        for column, value in sorted(set(named_values(self.condition))):
            known = {name for bucket in buckets for name in bucket.names[column]} if column in NAMED else {value}
            if value not in known:
                near = did_you_mean(value, known)
                found.append(f"no document has the {column} '{value}' of the policy" + (f": {near}" if near else ""))
        return found

    def allows(self, bucket: Bucket) -> Mask:
        """Per document of a bucket, whether it may be used."""
        left_out = np.array([bytes.fromhex(name) for name in self.without], dtype="V16")
        return self.condition.mask(bucket) & ~np.isin(bucket.index["id"], left_out)


EVERYTHING = Policy()
