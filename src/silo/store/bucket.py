"""A bucket: every stored form of the documents whose ids share a prefix, in one immutable file of fixed layout.

The bytes are a function of the documents and the configuration alone: nothing in them is dated, counted up or ordered
by arrival. A file is a magic, the length of a canonical JSON header, the header (names of owners and the like, and the
place, dtype and shape of each section), then the sections, each aligned to 64 bytes. Sections: `index` (one `ENTRY`
per document, by id), `external_ids`, `records` (one zstd frame of canonical JSON per document), `tokens`, and for each
search what it reads. docs/formats.md lists them all. Its checksum is in the store's manifest.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zstandard
from numpy.typing import NDArray

from silo.checksums import Remembered
from silo.errors import SiloError
from silo.files import canonical_json
from silo.records import Document
from silo.store.erasure.digest import Digest

T = TypeVar("T")

MAGIC = b"silobkt3"
_ALIGN = 64
_LEVEL = 3
_OWN = threading.local()
"""Holds what each thread unpacks records with: making it takes five times as long as a short record."""

ENTRY = np.dtype(
    [
        ("id", "V16"),
        ("mark", "V16"),
        ("external", "<u8"),
        ("first", "<u4"),
        ("tokens", "<u4"),
        ("record", "<u8"),
        ("record_bytes", "<u4"),
        ("text_bytes", "<u4"),
        ("tier", "u1"),
        ("rights", "u1"),
        ("license", "<u2"),
        ("owner", "<u4"),
        ("domain", "<u4"),
        ("source", "<u4"),
        ("quote", "<u4"),
    ]
)
"""One document: id, hashes of the text and of the record's own id, where its tokens and record lie, the numbers
of its names in the header's tables, and how many tokens may be quoted."""

NAMED = ("license", "owner", "domain", "source")
TIERS = ("pd", "sw", "by", "restricted")


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """One document on its way into a bucket: its record, its tokens, and per key the list and the code.

    `lists` and `codes` are empty where the store has no token search.
    """

    id: bytes
    text_hash: bytes
    record: bytes
    text_bytes: int
    tokens: NDArray[np.unsignedinteger[Any]]
    lists: NDArray[np.int32]
    codes: NDArray[np.uint8]

    @property
    def element(self) -> bytes:
        """What the digest of a store adds up: everything that is kept of a document."""
        hashes = (hashlib.sha256(unpack(self.record)).digest(), *(_sha256(item) for item in self._arrays()))
        return self.id + b"".join(hashes)

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return self.tokens.astype("<u4"), self.lists.astype("<i4"), self.codes


def _sha256(array: NDArray[Any]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def pack(document: Document) -> bytes:
    """The record of a document as it lies in a bucket."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(canonical_json(document.as_json()))


def unpack(record: bytes | memoryview) -> bytes:
    """The canonical JSON behind a packed record."""
    decompressor = getattr(_OWN, "decompressor", None)
    if decompressor is None:
        decompressor = _OWN.decompressor = zstandard.ZstdDecompressor()
    unpacked: bytes = decompressor.decompress(record)
    return unpacked


def assemble(documents: Sequence[EncodedDocument], sections: Mapping[str, NDArray[Any]]) -> list[bytes]:
    """The bytes of a bucket in pieces: documents in the order of their ids, and the sections that searches add."""
    records = [json.loads(unpack(document.record)) for document in documents]
    names = {name: sorted({record[name] for record in records}) for name in NAMED}
    external_ids = [record["external_id"].encode() for record in records]
    digest = Digest.of(document.element for document in documents)
    common = {
        "index": _index(documents, records, names),
        "external_ids": np.frombuffer(b"".join(external_ids), dtype=np.uint8),
        "external_ends": np.cumsum([len(name) for name in external_ids], dtype="<u4"),
        "records": np.frombuffer(b"".join(document.record for document in documents), dtype=np.uint8),
        "digest": np.frombuffer(digest.as_bytes(), dtype=np.uint8),
        "tokens": np.concatenate([document.tokens for document in documents]),
    }
    return _pieces(names, {**common, **sections})


def _index(
    documents: Sequence[EncodedDocument], records: Sequence[Mapping[str, Any]], names: Mapping[str, list[str]]
) -> NDArray[np.void]:
    """One `ENTRY` per document."""
    numbers = {name: {value: at for at, value in enumerate(values)} for name, values in names.items()}
    index = np.zeros(len(documents), dtype=ENTRY)
    first = record_at = 0
    for row, document, record in zip(index, documents, records, strict=True):
        row["id"], row["mark"] = np.void(document.id), np.void(document.text_hash)
        row["external"] = external_id_hash(record["external_id"])
        row["first"], row["tokens"] = first, len(document.tokens)
        row["record"], row["record_bytes"] = record_at, len(document.record)
        row["text_bytes"] = document.text_bytes
        row["tier"], row["rights"] = TIERS.index(record["tier"]), _rights_bits(record["rights"])
        row["quote"] = record["rights"]["quote"]
        for name in NAMED:
            row[name] = numbers[name][record[name]]
        first += len(document.tokens)
        record_at += len(document.record)
    return index


def external_id_hash(external_id: str) -> int:
    """Eight bytes by which a document is found under the id its record had."""
    digest = hashlib.blake2b(external_id.encode(), digest_size=8, person=b"silo-external").digest()
    return int.from_bytes(digest, "little")


def _rights_bits(rights: Mapping[str, Any]) -> int:
    return sum(1 << at for at, name in enumerate(("train", "store", "quote", "index")) if rights[name])


def _pieces(names: Mapping[str, list[str]], sections: Mapping[str, NDArray[Any]]) -> list[bytes]:
    table: dict[str, list[Any]] = {}
    body: list[bytes] = []
    at = 0
    for name, array in sections.items():
        data = np.ascontiguousarray(array).tobytes()
        dtype = "entry" if array.dtype == ENTRY else array.dtype.str
        table[name] = [at, dtype, list(array.shape)]
        body += [data, bytes(-len(data) % _ALIGN)]
        at += len(data) + len(body[-1])
    header = canonical_json({"names": names, "sections": table})
    head = MAGIC + len(header).to_bytes(8, "little") + header
    return [head + bytes(-len(head) % _ALIGN), *body]


class Bucket:
    """An opened bucket: read-only arrays over a memory map."""

    def __init__(self, prefix: str, data: memoryview | mmap.mmap) -> None:
        self.prefix = prefix
        self._derived: dict[Any, Any] = {}
        self._is_sound = False
        self._data = view = memoryview(data)
        size = int.from_bytes(view[8:16], "little")
        magic = bytes(view[:8])
        if magic != MAGIC and magic[:7] == MAGIC[:7]:
            message = f"bucket {prefix or 'root'} has the format {magic.decode(errors='replace')}, not {MAGIC.decode()}"
            raise SiloError("store-mismatch", message, "another version of silo made this store: make it again")
        if magic != MAGIC or size > len(view):
            raise SiloError("store-damaged", f"bucket {prefix or 'root'} is not a bucket")
        try:
            header = json.loads(bytes(view[16 : 16 + size]))
            body = view[16 + size + (-(16 + size) % _ALIGN) :]
            self.names: dict[str, list[str]] = header["names"]
            self.sections = {name: _array(body, *place) for name, place in header["sections"].items()}
            self.index: NDArray[np.void] = self.sections["index"]
            self.tokens: NDArray[np.unsignedinteger[Any]] = self.sections["tokens"]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, SyntaxError):
            raise SiloError("store-damaged", f"the head of bucket {prefix or 'root'} cannot be read") from None

    @classmethod
    def open(cls, prefix: str, path: Path, sha256: str, remembered: Remembered | None = None) -> Bucket:
        """Map a file whose bytes have the recorded checksum, which is computed unless it is remembered."""
        read = False
        try:
            with path.open("rb") as stream:
                data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

                def compute() -> str:
                    nonlocal read
                    read = True
                    return hashlib.sha256(data).hexdigest()

                actual = remembered.sha256(path.name, stream.fileno(), compute) if remembered else compute()
        except (OSError, ValueError):
            raise SiloError("store-damaged", f"{path} cannot be read") from None
        if actual != sha256:
            raise SiloError("store-damaged", f"{path} differs from the manifest")
        bucket = cls(prefix, data)
        bucket._is_sound = read
        return bucket

    def sha256(self) -> str:
        """Of the bytes that are mapped, read now."""
        return hashlib.sha256(self._data).hexdigest()

    def require_sound(self, sha256: str) -> None:
        """Refuse bytes that do not have the recorded checksum, which this process computes once for every bucket."""
        if not self._is_sound and self.sha256() != sha256:
            raise SiloError("store-damaged", f"bucket {self.prefix or 'root'} differs from the manifest")
        self._is_sound = True

    def derive(self, make: Callable[..., T], *arguments: Any) -> T:
        """What `make` gives, made once: the same bucket always gives the same object."""
        if make not in self._derived:
            self._derived[make] = make(*arguments)
        result: T = self._derived[make]
        return result

    def __len__(self) -> int:
        return len(self.index)

    @property
    def digest(self) -> Digest:
        """The sum over its documents, as it was written."""
        return Digest.from_bytes(self.sections["digest"].tobytes())

    def find(self, document: bytes) -> int:
        """The row of a document, -1 if it is not here."""
        ids = self.index["id"]
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if ids[middle].tobytes() < document:
                low = middle + 1
            else:
                high = middle
        return low if low < len(ids) and ids[low].tobytes() == document else -1

    def rows_up_to(self, document: str) -> int:
        """How many documents have an id up to this one, which may be any text."""
        low, high = 0, len(self.index)
        while low < high:
            middle = (low + high) // 2
            if self.index[middle]["id"].tobytes().hex() <= document:
                low = middle + 1
            else:
                high = middle
        return low

    def record(self, row: int) -> bytes:
        """The packed record of a document."""
        entry = self.index[row]
        start = int(entry["record"])
        return self.sections["records"][start : start + int(entry["record_bytes"])].tobytes()

    def fields(self, row: int) -> dict[str, Any]:
        """The record of a document, for whoever needs little of it."""
        fields: dict[str, Any] = json.loads(unpack(self.record(row)))
        return fields

    def document(self, row: int) -> Document:
        """One document."""
        return Document.from_json(self.fields(row))

    def external_id(self, row: int) -> str:
        """The id that a document's record had."""
        ends = self.sections["external_ends"]
        return self.sections["external_ids"][ends[row - 1] if row else 0 : ends[row]].tobytes().decode()

    def encoded_documents(self) -> Iterator[EncodedDocument]:
        """The documents in the form they can be put into another bucket, codes in the order of the tokens."""
        lists, codes = self._keys_by_place()
        for row, entry in enumerate(self.index):
            first, count = int(entry["first"]), int(entry["tokens"])
            keys = slice(first + 1, first + count) if len(lists) else slice(0, 0)
            yield EncodedDocument(
                id=entry["id"].tobytes(),
                text_hash=entry["mark"].tobytes(),
                record=self.record(row),
                text_bytes=int(entry["text_bytes"]),
                tokens=self.tokens[first : first + count],
                lists=lists[keys],
                codes=codes[keys],
            )

    def _keys_by_place(self) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        if "places" not in self.sections:
            return np.empty(0, dtype=np.int32), np.empty((0, 0), dtype=np.uint8)
        offsets, places, by_list = (self.sections[name] for name in ("lists", "places", "codes"))
        lists = np.zeros(len(self.tokens), dtype=np.int32)
        codes = np.zeros((len(self.tokens), by_list.shape[1]), dtype=np.uint8)
        lists[places] = np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), offsets[1:] - offsets[:-1])
        codes[places] = by_list
        return lists, codes


def _array(body: memoryview, start: int, dtype: str, shape: list[int]) -> NDArray[Any]:
    kind = ENTRY if dtype == "entry" else np.dtype(dtype)
    count = int(np.prod(shape))
    return np.frombuffer(body, dtype=kind, count=count, offset=start).reshape(shape)
