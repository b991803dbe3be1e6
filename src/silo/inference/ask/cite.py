"""What is shown of the sentences that an answer rests on: where they stand, and as much as may be quoted."""

from __future__ import annotations

from collections.abc import Sequence

from silo.inference.ask.evidence import Source
from silo.inference.ask.reply import Citation
from silo.records import UNLIMITED, place_at
from silo.text.quoting import quotable
from silo.text.sentences import Sentence
from silo.text.tokenizer import Tokenizer


def cite(
    source: Source,
    sentences: Sequence[Sentence],
    tokenizer: Tokenizer,
    *,
    most: int | None = None,
    best: Sentence | None = None,
) -> Citation:
    """What may be quoted of some sentences, at most so many tokens; the place is that of the best of them."""
    document, start = source.document, sentences[0].start
    limit = min(document.rights.quote, UNLIMITED if most is None else most)
    whole = document.text[start : sentences[-1].end]
    quote = whole[: quotable(whole, limit, tokenizer)]
    return Citation(
        document=document.external_id or document.id,
        place=place_at(document, (best or sentences[0]).start),
        quote=quote,
        licence=document.license,
        start=start,
        end=start + len(quote),
        id=document.id,
        owner=document.owner,
    )
