"""Normalised text and its hash for exact deduplication.

Normalising changes form, never wording: Unicode NFC, one kind of line end, no control characters, no outer space.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

_LINE_END = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def normalise(text: str) -> str:
    """NFC, line ends as newlines, control characters and byte order marks gone, outer white space stripped."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if _UNWANTED.search(text):
        text = _UNWANTED.sub("", _LINE_END.sub("\n", text))
    return text.strip()


def text_hash(text: str) -> bytes:
    """16 bytes that two texts share if they differ in white space and case only."""
    folded = " ".join(text.split()).casefold()
    return hashlib.blake2b(folded.encode(), digest_size=16, person=b"silo-text").digest()
