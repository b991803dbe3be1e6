"""Packed training sequences: permitted documents of each domain end to end, visited in an order fixed by a seed.

Every document begins with the beginning-of-text token. Which sequence comes at which place is a function of the seed
and the plan alone, so a run that resumes sees exactly what an uninterrupted one would have seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.corpus.corpus import Corpus
from silo.corpus.workers import Memory, Processes, Task, run_tasks, tick
from silo.errors import SiloError
from silo.lm.firewall import SEEN, Permit, checked_documents, permitted_shards
from silo.progress import Advance
from silo.records import Document
from silo.text.normalise import text_hash
from silo.text.sketch import Sketches, sketch
from silo.text.tokenizer import Ids, Tokenizer, load_tokenizer, token_dtype
from silo.text.words import Hashes

_BATCH_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class Stream:
    """The tokens of one domain, and where each of its documents begins.

    On disk: `<name>.tokens`, `<name>.starts.npy` (u64), `<name>.documents.npy` (rows of `SEEN`), `<name>.sketches.npz`.
    """

    domain: str
    tokens: NDArray[np.unsignedinteger[Any]]
    starts: NDArray[np.uint64]
    documents: NDArray[np.void]
    sketches: Sketches

    def sequences(self, length: int) -> int:
        """How many sequences of inputs and targets it holds."""
        return max(0, (len(self.tokens) - 1) // length)

    def sequence(self, number: int, length: int) -> Ids:
        """`length` + 1 tokens: the inputs, and one more so that targets are the inputs moved by one."""
        start = number * length
        return np.asarray(self.tokens[start : start + length + 1], dtype=np.uint32)

    def documents_in(self, numbers: Iterable[int], length: int) -> set[int]:
        """The documents of which any token is an input or target of these sequences."""
        documents: set[int] = set()
        for number in numbers:
            first, last = number * length, number * length + length
            low = int(np.searchsorted(self.starts, first, side="right")) - 1
            high = int(np.searchsorted(self.starts, last, side="right"))
            documents.update(range(max(low, 0), high))
        return documents


def prepare_streams(
    corpus: Corpus, permit: Permit, tokenizer_path: str, directory: Path, *, advance: Advance, workers: int = 1
) -> dict[str, Stream]:
    """Tokenise what a run may use, one stream per domain; what is already there is used again.

    Every document passes the firewall here, whether its tokens are made anew or taken from the corpus.
    """
    directory.mkdir(parents=True, exist_ok=True)
    permitted_stems = {shard.stem for shard in permitted_shards(corpus, permit)}
    sizes: dict[str, int] = {}
    for item in corpus.manifest["shards"]:
        if item["stem"] in permitted_stems:
            sizes[item["domain"]] = sizes.get(item["domain"], 0) + item["bytes"]
    stems = {domain: directory / f"{number:04d}" for number, domain in enumerate(sorted(sizes))}
    tasks = [
        Task(stem.with_suffix(".json"), (str(corpus.root), domain, permit, tokenizer_path, str(stem)), sizes[domain])
        for domain, stem in stems.items()
    ]
    run_tasks("tokenise", tokenise_domain, tasks, run=Processes(workers), advance=advance, memory=Memory())
    dtype = token_dtype(load_tokenizer(tokenizer_path).vocabulary)
    opened = {domain: _open_stream(stem, domain, dtype) for domain, stem in stems.items()}
    streams = {domain: stream for domain, stream in opened.items() if len(stream.documents)}
    if not streams:
        raise SiloError("input-empty", "no document of the corpus may be used for this model")
    return streams


def tokenise_domain(root: str, domain: str, permit: Permit, tokenizer_path: str, stem: str) -> dict[str, Any]:
    """One task: the stream of one domain."""
    corpus, tokenizer = Corpus.open(Path(root)), load_tokenizer(tokenizer_path)
    same = corpus.manifest["tokenizer"]["fingerprint"] == tokenizer.fingerprint
    opted_out = corpus.opted_out()
    out = _StreamWriter(Path(stem), tokenizer)
    with out:
        for shard in corpus.shards(tiers=permit.tiers, domains=[domain]):
            tokens = shard.tokens()
            for entry, document in zip(shard.index(), checked_documents(shard, permit, opted_out), strict=True):
                tick(int(entry["bytes"]))
                if document is not None:
                    first = int(entry["offset"])
                    known = tokens[first : first + int(entry["tokens"])] if same else None
                    out.add(document, known)
    return {"documents": len(out.seen), "tokens": out.offset}


class _StreamWriter:
    """Writes the stream of one domain; documents without known tokens are encoded in batches."""

    def __init__(self, stem: Path, tokenizer: Tokenizer) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self._sketched: list[tuple[bytes, Hashes]] = []
        self.offset = 0
        self._stem = stem
        self._tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer.vocabulary)
        self._starts: list[int] = []
        self._waiting: list[str] = []
        self._chars = 0

    def __enter__(self) -> _StreamWriter:
        self._stream = self._stem.with_suffix(".tokens").open("wb")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._stream.close()

    def add(self, document: Document, known: NDArray[Any] | None) -> None:
        """Append one document, by its known tokens (the beginning-of-text token among them) or by its text."""
        mark = text_hash(document.text)
        self.seen.append((document.id, mark))
        self._sketched.append((mark, sketch(document.text)))
        if known is not None:
            self._append(known)
            return
        self._waiting.append(document.text)
        self._chars += len(document.text)
        if self._chars >= _BATCH_CHARS:
            self._encode()

    def _append(self, ids: NDArray[Any]) -> None:
        self._starts.append(self.offset)
        self.offset += len(ids)
        self._stream.write(ids.astype(self._dtype).tobytes())

    def _encode(self) -> None:
        for ids in self._tokenizer.encode(self._waiting) if self._waiting else []:
            self._append(np.concatenate([np.array([self._tokenizer.begin], dtype=np.uint32), ids]))
        self._waiting, self._chars = [], 0

    def _finish(self) -> None:
        self._encode()
        np.save(self._stem.with_suffix(".starts.npy"), np.array(self._starts, dtype=np.uint64), allow_pickle=False)
        rows = np.zeros(len(self.seen), dtype=SEEN)
        for at, (name, mark) in enumerate(self.seen):
            rows[at] = (bytes.fromhex(name), mark, 0)
        np.save(self._stem.with_suffix(".documents.npy"), rows, allow_pickle=False)
        self._stem.with_suffix(".sketches.npz").write_bytes(Sketches.of(self._sketched).as_bytes())


def _open_stream(stem: Path, domain: str, dtype: np.dtype[Any]) -> Stream:
    path = stem.with_suffix(".tokens")
    tokens = np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype=dtype)
    starts, documents = (np.load(stem.with_suffix(f".{name}.npy")) for name in ("starts", "documents"))
    sketches = Sketches.from_bytes(stem.with_suffix(".sketches.npz").read_bytes())
    return Stream(domain, tokens, starts, documents, sketches)


@dataclass(frozen=True, slots=True)
class Plan:
    """Every sequence of a run in order: the domain and the number of the sequence within it."""

    domains: tuple[str, ...]
    domain_of: NDArray[np.uint16]
    number_of: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.domain_of)

    def batch(self, streams: Mapping[str, Stream], places: range, length: int) -> Ids:
        """Sequences as rows of `length` + 1 tokens."""
        rows = [
            streams[self.domains[self.domain_of[place]]].sequence(int(self.number_of[place]), length)
            for place in places
        ]
        return np.stack(rows)

    def tokens_by_domain(self, upto: int, length: int) -> dict[str, int]:
        """How many tokens of each domain the first `upto` sequences hold."""
        counts = np.bincount(self.domain_of[:upto], minlength=len(self.domains)) * length
        return {domain: int(count) for domain, count in zip(self.domains, counts, strict=True) if count}

    def visited_documents(self, streams: Mapping[str, Stream], upto: int, length: int) -> list[tuple[str, bytes]]:
        """(id, text hash) of every document that the first `upto` sequences touch."""
        documents: list[tuple[str, bytes]] = []
        for at, domain in enumerate(self.domains):
            numbers = self.number_of[:upto][self.domain_of[:upto] == at]
            stream = streams[domain]
            for row in stream.documents_in(np.unique(numbers).tolist(), length):
                entry = stream.documents[row]
                documents.append((entry["id"].tobytes().hex(), entry["text"].tobytes()))
        return documents


def make_plan(
    streams: Mapping[str, Stream],
    *,
    sequences: int,
    length: int,
    weights: Mapping[str, float],
    seed: int,
    balance: float = 1.0,
) -> Plan:
    """Share the sequences out by weight times size (to the power `balance`), shuffle, go through domains by epochs."""
    domains = tuple(sorted(domain for domain, stream in streams.items() if stream.sequences(length)))
    if not domains:
        raise SiloError("input-empty", f"no domain has a whole sequence of {length + 1} tokens")
    sizes = np.array([streams[domain].sequences(length) for domain in domains], dtype=np.float64)
    shares = sizes**balance * np.array([weights.get(domain, 1.0) for domain in domains])
    counts = _apportion(shares / shares.sum(), sequences)
    rng = np.random.default_rng([seed, length])
    domain_of = np.repeat(np.arange(len(domains), dtype=np.uint16), counts)
    rng.shuffle(domain_of)
    number_of = np.empty(len(domain_of), dtype=np.uint32)
    for at, count in enumerate(counts.tolist()):
        number_of[domain_of == at] = _draw_epochs(int(sizes[at]), count, np.random.default_rng([seed, length, at]))
    return Plan(domains, domain_of, number_of)


def _apportion(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Whole numbers that add up to `total`, each within one of its share."""
    exact = shares * total
    counts = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts


def _draw_epochs(size: int, count: int, rng: np.random.Generator) -> NDArray[np.uint32]:
    """`count` numbers below `size`: one shuffled pass after the other."""
    passes = [rng.permutation(size) for _ in range(-(-count // size))] if count else []
    return np.concatenate([np.empty(0, dtype=np.int64), *passes])[:count].astype(np.uint32)
