"""How much of a text may be shown where only so many tokens of it may be quoted."""

from __future__ import annotations

from silo.text.tokenizer import Tokenizer


def quotable(text: str, limit: int, tokenizer: Tokenizer) -> int:
    """How many characters of a text are its first `limit` tokens."""
    ((_, sizes),) = tokenizer.measure([text])
    if len(sizes) <= limit:
        return len(text)
    return len(text.encode()[: int(sizes[:limit].sum())].decode(errors="ignore"))
