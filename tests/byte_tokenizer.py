"""The raw-bytes tokenizer of a corpus as a `tokenizer.json`, for models that are made in a moment."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from silo.lm.tokenizer import BEGIN, FILE, save_tokenizer


def write_byte_tokenizer(out: Path) -> Path:
    """Byte b is id b, 256 begins a document."""
    symbols = {symbol: value for value, symbol in _byte_symbols().items()}
    tokenizer = Tokenizer(models.BPE(vocab=symbols, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(BEGIN, normalized=False, special=True)])
    save_tokenizer(tokenizer, out, BEGIN)
    return out / FILE


def _byte_symbols() -> dict[int, str]:
    """The printable symbol byte-level BPE uses for each byte: itself where it is printable, else one from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in set(plain)]
    return {value: chr(value) for value in plain} | {value: chr(256 + at) for at, value in enumerate(others)}
