"""The answer to a question: its text, the sentences it rests on, and who contributed how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from silo.inference.answer import Answer

NOT_FOUND = "Not in the store."


@dataclass(frozen=True, slots=True)
class Citation:
    """A sentence or two of a document, as they stand there from character `start` to `end`.

    `place` says where that is in words (`p. 12`), and is empty where nobody knows. The quote is cut where the document
    may not be quoted at such length, and empty where it may not be quoted at all.
    """

    document: str
    place: str
    quote: str
    licence: str
    start: int
    end: int
    id: str
    owner: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Reply:
    """What `silo ask` answers.

    Where nothing in the stores answers the question, `found` is False, `text` says so and all else is empty. `quoted`:
    the text is the sentence of the first citation, since the model said nothing that rests on what it read.
    """

    question: str
    text: str
    found: bool
    quoted: bool = False
    citations: tuple[Citation, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    lm_share: float = 0.0
    notices: tuple[str, ...] = ()
    policy: str = ""
    answer: Answer | None = None
    """The tokens, each with its credits; None where the text is a quote or nothing was found."""

    def as_json(self) -> dict[str, Any]:
        """What `silo ask --json` prints."""
        return {
            "text": self.text,
            "found": self.found,
            "quoted": self.quoted,
            "citations": [item.as_json() for item in self.citations],
            "shares": dict(self.shares),
            "lm_share": self.lm_share,
            "notices": list(self.notices),
            "policy": self.policy,
            "question": self.question,
        }
