"""Noting an answer in the ledgers of its stores: each store learns the shares of its own documents, and no text."""

from __future__ import annotations

from datetime import UTC, datetime

from silo.inference.answer import Answer
from silo.inference.predict import Predictor
from silo.store.usage import Share, Usage, append_usage, held_by


def note(predictor: Predictor, answer: Answer) -> None:
    """Append one request to the ledger of every store."""
    now = datetime.now(UTC)
    for number, store in enumerate(predictor.stores):
        usage = Usage(now, len(answer.tokens), _shares(answer, number))
        append_usage(store.root, usage, holds=held_by(store))


def _shares(answer: Answer, store: int) -> dict[str, Share]:
    """The shares of one store's documents, added up over the tokens; multiples of 2**-40 stay multiples."""
    held = (item for item in answer.documents if item.store == store and not item.context)
    return {item.document: Share(item.owner, item.license, item.share) for item in held}
