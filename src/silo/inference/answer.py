"""A finished text with everything that is owed for it: credits by document, owner and licence, and notice lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from silo.inference.credit import Credit, Totals, by_sentence, roll_up
from silo.inference.generate import Step
from silo.records import Document
from silo.rights.notices import notice_lines
from silo.store.policy import Policy
from silo.store.selector import Selector
from silo.store.store import Store

NOTICE_SHARE = 0.01
"""Documents below this share of an answer get no notice line."""


@dataclass(frozen=True)
class Answer:
    """A prompt, its continuation step by step, and the notices."""

    prompt: str
    steps: tuple[Step, ...]
    finish_reason: str
    policy: str
    notices: tuple[str, ...]

    @classmethod
    def of(cls, stores: Sequence[Store], policy: Policy, prompt: str, steps: Sequence[Step]) -> Answer:
        """Collect a finished generation from stores under a policy."""
        tokens = tuple(step for step in steps if step.token >= 0)
        finish = steps[-1].finish if steps else "length"
        named = [*Totals(step.credits for step in tokens).documents(NOTICE_SHARE * len(tokens)), *_context(tokens)]
        notices = tuple(notice_lines(_documents(stores, dict.fromkeys(item.document for item in named))))
        return cls(prompt, tuple(steps), finish, policy.describe(), notices)

    @cached_property
    def totals(self) -> Totals:
        """The shares of documents in all tokens added up."""
        return Totals(step.credits for step in self.tokens)

    @cached_property
    def documents(self) -> tuple[Credit, ...]:
        """The documents with their shares in all tokens added up, then those put before the text, with share 0."""
        return (*self.totals.documents(), *self.context)

    @cached_property
    def context(self) -> tuple[Credit, ...]:
        """The documents put before the text, with share 0."""
        return tuple(_context(self.tokens))

    @property
    def tokens(self) -> tuple[Step, ...]:
        """The steps that chose a token."""
        return tuple(step for step in self.steps if step.token >= 0)

    @property
    def text(self) -> str:
        """The continuation."""
        return "".join(step.text for step in self.steps)

    @property
    def lm_share(self) -> float:
        """The language model's share of the whole answer."""
        return sum(step.lm_share for step in self.tokens) / max(1, len(self.tokens))

    def shares(self, by: str = "document") -> list[tuple[str, float]]:
        """Mean shares by document, owner or license, largest first."""
        return _mean_shares(self.documents, len(self.tokens), by)

    def sentences(self, least: float = 0.0) -> list[dict[str, Any]]:
        """Every sentence with the shares of its documents, without those that have less than `least` of it."""
        sentences = []
        for span in by_sentence(step.text for step in self.steps):
            part = self.steps[span]
            tokens = [step.credits for step in part if step.token >= 0]
            shares = _mean_shares(Totals(tokens).documents(least * len(tokens)), len(tokens))
            lm_share = sum(item.lm_share for item in tokens) / len(tokens) if tokens else 1.0
            text = "".join(step.text for step in part)
            sentences.append({"text": text, "lm_share": lm_share, "documents": dict(shares)})
        return sentences

    def as_json(self) -> dict[str, Any]:
        """What `silo generate --json` prints."""
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "policy": self.policy,
            "lm_share": self.lm_share,
            "documents": dict(self.shares()),
            "owners": dict(self.shares("owner")),
            "licenses": dict(self.shares("license")),
            "notices": list(self.notices),
            "sentences": self.sentences(),
            "tokens": [step.as_json() for step in self.tokens],
        }


def _context(tokens: Iterable[Step]) -> Iterable[Credit]:
    return dict.fromkeys(item for step in tokens for item in step.credits.context)


def _mean_shares(documents: Iterable[Credit], tokens: int, by: str = "document") -> list[tuple[str, float]]:
    shares = roll_up((item for item in documents if not item.context), by)
    return [(name, share / tokens) for name, share in shares]


def _documents(stores: Sequence[Store], names: Iterable[str]) -> Iterable[Document]:
    """The documents of these ids that are still there."""
    for name in names:
        for store in stores:
            yield from store.documents(Selector(document=f"id:{name}"))
