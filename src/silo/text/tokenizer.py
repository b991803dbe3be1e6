"""Text -> token ids: raw UTF-8 bytes, or a Hugging Face `tokenizer.json`. Marks in the text are only text.

Every document begins with the beginning-of-text token, which encoding never yields otherwise.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.files import file_sha256

Ids = NDArray[np.uint32]
Sizes = NDArray[np.uint32]

_BEGIN_MARKS = ("<|endoftext|>", "<|begin_of_text|>", "<s>", "<bos>", "[BOS]", "<|startoftext|>", "</s>", "<eos>")
_PIECE_CHARS = 200_000


@dataclass(frozen=True, slots=True)
class Mark:
    """A control token; some swallow the white space beside them."""

    id: int
    takes_space_before: bool = False
    takes_space_after: bool = False


class Tokenizer(Protocol):
    """What the corpus needs of a tokenizer. `begin` is the id before every document, `marks` are control tokens."""

    name: str
    fingerprint: str
    vocabulary: int
    begin: int
    marks: Mapping[str, Mark]

    def encode(self, texts: list[str]) -> list[Ids]: ...

    def measure(self, texts: list[str]) -> list[tuple[Ids, Sizes]]:
        """The ids of each text and how many of its bytes each stands for: together, all of them."""

    def decode(self, ids: Ids) -> str: ...


class ByteTokenizer:
    """Every UTF-8 byte is a token; 256 begins a document. Learned from nothing, so nothing can leak into it."""

    name = "bytes"
    fingerprint = hashlib.sha256(b"silo bytes tokenizer 1").hexdigest()
    vocabulary = 257
    begin = 256
    marks: Mapping[str, Mark] = {}

    def encode(self, texts: list[str]) -> list[Ids]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) for text in texts]

    def measure(self, texts: list[str]) -> list[tuple[Ids, Sizes]]:
        return [(ids, np.ones_like(ids)) for ids in self.encode(texts)]

    def decode(self, ids: Ids) -> str:
        return bytes(ids[ids < 256].astype(np.uint8)).decode(errors="replace")


class FileTokenizer:
    """A Hugging Face `tokenizer.json`."""

    def __init__(self, path: Path) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from tokenizers import Tokenizer as HuggingFaceTokenizer

        try:
            self._inner = HuggingFaceTokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise SiloError("tokenizer-invalid", f"{path}: {error}") from None
        self._inner.encode_special_tokens = True
        self._inner.no_truncation()
        self._inner.no_padding()
        self.name = path.parent.name if path.name == "tokenizer.json" else path.stem
        self.fingerprint = file_sha256(path)
        known = self._inner.get_vocab(with_added_tokens=True)
        highest = max(known.values(), default=-1) + 1
        self.begin = next((known[mark] for mark in _BEGIN_MARKS if mark in known), highest)
        self.vocabulary = max(highest, self.begin + 1)
        self.marks: Mapping[str, Mark] = {
            token.content: Mark(number, token.lstrip, token.rstrip)
            for number, token in self._inner.get_added_tokens_decoder().items()
            if len(token.content.strip()) > 1  # runs of spaces, and single letters, are how some spell plain text
        }

    def encode(self, texts: list[str]) -> list[Ids]:
        pieces = [_cut_text(text) for text in texts]
        flat = [piece for group in pieces for piece in group]
        encoded = iter(self._inner.encode_batch_fast(flat, add_special_tokens=False))
        return [_join_ids([next(encoded).ids for _ in group]) for group in pieces]

    def measure(self, texts: list[str]) -> list[tuple[Ids, Sizes]]:
        measured = []
        for text in texts:
            pieces = _cut_text(text)
            encoded = self._inner.encode_batch(pieces, add_special_tokens=False)
            sizes = [_token_sizes(piece, item.offsets) for piece, item in zip(pieces, encoded, strict=True)]
            measured.append((_join_ids([item.ids for item in encoded]), np.concatenate(sizes)))
        return measured

    def decode(self, ids: Ids) -> str:
        return str(self._inner.decode(ids[ids != self.begin].tolist(), skip_special_tokens=False))


def _join_ids(parts: list[list[int]]) -> Ids:
    return np.concatenate([np.asarray(part, dtype=np.uint32) for part in parts])


def _token_sizes(text: str, offsets: list[tuple[int, int]]) -> Sizes:
    """Bytes of the text that each token stands for: from where the one before ends to where it ends, in characters.

    White space that the offsets leave out is the next token's. Of a character that several tokens spell, each but the
    first has one byte.
    """
    if not offsets:
        return np.empty(0, dtype=np.uint32)
    ends = np.maximum.accumulate(np.array(offsets, dtype=np.int64)[:, 1])
    ends[-1] = len(text)
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    widths = np.add.reduce([points > most for most in (-1, 0x7F, 0x7FF, 0xFFFF)], axis=0, dtype=np.int64)
    bytes_before = np.concatenate([[0], np.cumsum(widths)])
    to_come = np.searchsorted(ends, ends, side="right") - 1 - np.arange(len(ends))
    stops = np.maximum.accumulate(bytes_before[ends] - to_come)
    return np.diff(stops, prepend=0).astype(np.uint32)


def _cut_text(text: str) -> list[str]:
    """Cut a very long text before line ends (or anywhere, if it has none), so that encoding takes bounded memory."""
    pieces, at = [], 0
    while len(text) - at > _PIECE_CHARS:
        cut = text.rfind("\n", at + _PIECE_CHARS // 2, at + _PIECE_CHARS)
        cut = cut if cut > at else at + _PIECE_CHARS
        pieces.append(text[at:cut])
        at = cut
    return [*pieces, text[at:]]


def load_tokenizer(path: str | None) -> Tokenizer:
    """The tokenizer of a `tokenizer.json` (or a folder that holds one); bytes if no path is given."""
    if not path or path == "bytes":
        return ByteTokenizer()
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise SiloError("input-missing", f"there is no tokenizer at {file}")
    return FileTokenizer(file)


def token_dtype(vocabulary: int) -> np.dtype[np.unsignedinteger]:
    """The smallest of u16 and u32 (little-endian) that holds every id."""
    return np.dtype("<u2") if vocabulary <= 1 << 16 else np.dtype("<u4")
